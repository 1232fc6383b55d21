"""`minifuse --plugin FILE.py`: registers the user's stages and models by importing a file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from minifuse.contracts.fault import class_site, is_own, last_line
from minifuse.core.errors import MinifuseError, UsageError
from minifuse.io.lines import MOST_LINE, too_long
from minifuse.stages import KINDS, stages

PREFIX = "minifuse_plugin_"


def load_plugin(path: str) -> None:
    """Import a file that registers stages or models; it may import modules from its folder.

    Raises:
        UsageError: there is no such Python file, or its import fails.
        MachineError: the file is too long.
    """
    file = Path(path)
    name = f"{PREFIX}{file.stem}"  # a plugin called queue.py must not replace Python's own module
    spec = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        wrong = "is not a Python file" if file.exists() else "does not exist"
        raise UsageError(f"The plugin {path!r} {wrong}: give a Python file that registers stages, such as mine.py.")
    if file.stat().st_size > MOST_LINE:
        raise too_long(f"The plugin {path!r}", MOST_LINE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module by name
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (MinifuseError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # also SystemExit: a plugin that calls exit() would end the run without a message
        what = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
        itself = isinstance(error, SyntaxError)  # its text names the place
        place = None if itself else last_line(error.__traceback__, (file.parent.resolve(),))
        where = f" at {place}" if place else ""
        raise UsageError(f"The plugin {path!r} failed as it was imported ({what}){where}: correct it.") from None


def plugins() -> list[Path]:
    """Return the files of the loaded plugins."""
    return [Path(m.__file__) for name, m in sys.modules.items() if name.startswith(PREFIX) and m.__file__]


def plugin_files() -> list[Path]:
    """Return the files of loaded plugins and of the modules imported from their folders."""
    if not (folders := _folders()):
        return []
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [path for file in files if file and not folders.isdisjoint((path := Path(file)).resolve().parents)]


def _folders() -> set[Path]:
    """Return the folders of the loaded plugins."""
    return {path.parent.resolve() for path in plugins()}


def plugin_frame(error: BaseException) -> str | None:
    """Return an error's innermost line in a plugin or a module of its folder."""
    return last_line(error.__traceback__, _folders())


def plugin_stages() -> str:
    """List the registered stages that are not minifuse's own, each with its file and line."""
    found = [cls for kind in KINDS for cls in stages(kind).values() if not is_own(cls)]
    return ", ".join(f"{cls.__qualname__} ({class_site(cls)})" for cls in found)
