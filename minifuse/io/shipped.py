"""Finds the project's data files, in an installed package or in a checkout."""

from __future__ import annotations

from pathlib import Path

from minifuse.core.errors import MachineError

HOME = Path(__file__).resolve().parents[1]


def places(installed: str, checkout: str) -> tuple[Path, Path]:
    """Return where data may lie: inside `minifuse/` if installed, next to it in a checkout."""
    return HOME / installed, HOME.parent / checkout


def shipped(places: tuple[Path, Path], what: str) -> Path:
    """Return the first of these places that exists.

    Args:
        what: begins the error message, for example "The labs are".

    Raises:
        MachineError: none of the places exists.
    """
    for place in places:
        if place.exists():
            return place
    raise MachineError(f"{what} neither at {places[0]} nor at {places[1]}: install minifuse again.")
