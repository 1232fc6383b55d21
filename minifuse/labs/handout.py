"""Hands out a lab: its text, skeleton and public tests, without solutions."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from minifuse.core.errors import UsageError
from minifuse.io.output import whole_folder
from minifuse.labs.lab import Lab, labs
from minifuse.labs.skeleton import leaked, skeleton, solution_lines
from minifuse.labs.submission import StudentFault, Submission

GIVEN = ("README.md", "stage.py")
WRONG = re.compile(r"^\[wrong\]$.*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


def handed_out(lab: Lab) -> dict[str, str]:
    """Return the texts of the files that students get, by path within the lab.

    Raises:
        UsageError: a file contains a line of any lab's solution, or the skeleton cannot be imported.
    """
    read = {name: lab.folder / name for name in GIVEN if (lab.folder / name).is_file()}
    read |= {f"tests/public/{path.name}": path for path in sorted((lab.folder / "tests" / "public").glob("*.py"))}
    files = {name: path.read_text(encoding="utf-8") for name, path in read.items()}
    files["lab.toml"] = WRONG.sub("", (lab.folder / "lab.toml").read_text(encoding="utf-8")).rstrip() + "\n"
    files["solution.py"] = skeleton((lab.folder / "solution.py").read_text(encoding="utf-8"))
    for other in [lab, *(one for one in labs() if one.number != lab.number)]:
        secret = solution_lines((other.folder / "solution.py").read_text(encoding="utf-8"))
        for name, text in files.items():
            if over := leaked(text, secret):
                raise UsageError(
                    f"{name} of lab {lab.number} has a line of the solution of lab {other.number} ({over[0]!r}): "
                    "write one of them in another way."
                )
    _import(files["solution.py"], lab)
    return files


def _import(text: str, lab: Lab) -> None:
    """Raise `UsageError` unless a submission's process can import the skeleton."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "solution.py")
        file.write_text(text, encoding="utf-8")
        try:
            with Submission(file, lab.limits):
                pass
        except StudentFault as fault:
            raise UsageError(
                f"{lab.folder / file.name} without its solutions cannot be imported: {str(fault).rstrip('.')}. Move a "
                "marker."
            ) from None


def write_files(files: dict[str, str], folder: Path) -> None:
    """Write these files into a new folder.

    Raises:
        UsageError: the folder is not empty (it may hold a student's work), or cannot be written.
        MachineError: the disk is full.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already, and is left as it is: give a folder that is new or empty.")
    with whole_folder(folder) as new:
        for name, text in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
