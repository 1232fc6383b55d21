"""Finds the files that a class has handed in, and their lab."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from minifuse.core.errors import UsageError
from minifuse.labs.lab import Lab, labs, read_lab

SUBMITTED = "solution.py"
SAYS = re.compile(rb'^(?:\xef\xbb\xbf)?\s*"""Lab (\d+):')  # as every skeleton begins


def files_in(folder: Path) -> list[Path]:
    """Find the files in a folder that could be the hand-in."""
    return [path for path in sorted(folder.rglob(SUBMITTED)) if path.is_file() and not path.is_symlink()]


def hand_ins(places: Iterable[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Find the file handed in at each place: a file, or a folder's only solution.py.

    Returns:
        The file of each place, and the reason for each place without a file. So one student's empty folder does not
        stop the grading of a class.

    Raises:
        UsageError: a place is not there, or no place has a file.
    """
    found: dict[str, Path] = {}
    without: dict[str, str] = {}
    for place in places:
        path = Path(place)
        if not path.exists():
            raise UsageError(f"{place} is not there: give folders with a {SUBMITTED}, or files.")
        files = files_in(path) if path.is_dir() else [path]
        if len(files) == 1:
            found[str(path)] = files[0]
        else:
            without[str(path)] = f"it has {len(files) or 'no'} file{'s' * bool(files)} {SUBMITTED}."
    if without and not found:
        name, why = next(iter(without.items()))
        raise UsageError(f"{name} has no hand-in: {why} Give folders with one, or files.")
    return found, without


def lab_with_number(text: str) -> Lab:
    """Find the installed lab of this number.

    Raises:
        UsageError: there is no lab of this number.
    """
    known = {lab.number: lab for lab in labs()}
    if not text.isdecimal() or int(text) not in known:
        raise UsageError(f"There is no lab {text!r}: give one of {', '.join(f'{one:02}' for one in known)}.")
    return known[int(text)]


def lab_of(files: Mapping[str, Path], number: str | None = None) -> Lab:
    """Find the lab by number, or by the files' lab.toml or first lines.

    Raises:
        UsageError: the files name no lab, or several.
    """
    if number is not None:
        return lab_with_number(number)
    told = set()
    for name, path in files.items():
        if (path.parent / "lab.toml").is_file():
            told.add(read_lab(path.parent).number)
            continue
        try:
            with path.open("rb") as file:
                told |= {int(one) for one in SAYS.findall(file.read(100))}
        except OSError as error:
            raise UsageError(f"{name} cannot be read ({error.strerror}): give files that you may read.") from None
    if len(told) != 1:
        what = f"These are of the labs {sorted(told)}" if told else "These do not say which lab they are of"
        raise UsageError(f"{what}: give --lab NN.")
    return lab_with_number(str(told.pop()))
