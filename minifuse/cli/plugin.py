"""`minifuse --plugin FILE.py`: the user's stages and models, registered by running the file that defines them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from minifuse.errors import MinifuseError, UsageError

__all__ = ["load_plugin", "plugin_files", "plugin_frame", "plugins"]

PREFIX = "minifuse_plugin_"


def load_plugin(path: str) -> None:
    """Import the file, after which its stages can be named like any other. It may import modules beside it.

    Raises:
        UsageError: there is no such Python file, or it fails as it runs.
    """
    file = Path(path)
    name = f"{PREFIX}{file.stem}"  # a plugin called queue.py must not take the place of Python's own
    spec = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise UsageError(f"The plugin {path!r} is not a Python file: give one that registers stages, such as mine.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by its name
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except MinifuseError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(f"The plugin {path!r} failed as it was imported ({what}): correct it.") from None


def plugins() -> list[Path]:
    """The files of the plugins that were loaded."""
    return [Path(m.__file__) for name, m in sys.modules.items() if name.startswith(PREFIX) and m.__file__]


def plugin_files() -> list[Path]:
    """The files of the plugins that were loaded, and of the modules beside them that these import."""
    folders = {path.parent.resolve() for path in plugins()}
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [path for file in files if file and (path := Path(file)).parent.resolve() in folders]


def plugin_frame(error: BaseException) -> str | None:
    """The last file and line of a plugin's code that an error passed through; None: it passed through none."""
    place, traceback = None, error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__", "").startswith(PREFIX):
            place = f"{Path(frame.f_code.co_filename).name}, line {traceback.tb_lineno}, in {frame.f_code.co_name}"
        traceback = traceback.tb_next
    return place
