"""Colours for pictures: what a colour means on the replay page, it means in a notebook."""

from __future__ import annotations

import re

from minifuse.core.errors import UsageError
from minifuse.io.parsing import did_you_mean, one_of
from minifuse.show.notebook.played import Played
from minifuse.show.page import PAGE

# Okabe and Ito's colours, with brown instead of black, as on the replay page (theme.js).
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5d3a00", "#f0e442")
INK, SOFT = "#1a1d21", "#5b6470"  # of words and lines
FREE, IDLE = "#eef0f3", "#b23b00"
_DECLARED = re.compile(r"--([\w-]+): (#[0-9a-f]{6});")
_STYLE = (PAGE / "style.css").read_text(encoding="utf-8")
STATES = dict(reversed(_DECLARED.findall(_STYLE)))  # the page's light theme, which comes first: name -> #rrggbb
LIGHTER, DARKER = 0.38, 0.36
LIGHT = 0.3  # luminance above which black is easier to read than white


def owner_colour(played: Played, name: str) -> str:
    """Return a request's colour, as #rrggbb: the same in all runs of the same requests.

    Colour-blind readers can tell the first eight apart. The next eight are the same but lighter, the next darker.

    Raises:
        UsageError: the run has no such request.
    """
    numbers = colour_numbers(played)
    if name not in numbers:
        near = did_you_mean(name, [*numbers])
        raise UsageError(f"{played.name} has no request {name!r}{near}: give {one_of([*numbers])}.")
    number = numbers[name]
    hue = HUES[number % len(HUES)]
    turn = number // len(HUES) % 3
    return hue if not turn else tint(hue, LIGHTER) if turn == 1 else tint(hue, DARKER, towards=0)


def colour_numbers(played: Played) -> dict[str, int]:
    """Return the number of each request's colour: its place in the order of submission.

    A trace has requests in the order of arrival, which differs from run to run for turns of conversations.
    """
    numbers: dict[str, int] = {}
    for i, answer in enumerate(played.served.answers):
        numbers.setdefault(answer.request.id, i)
    return numbers


def tint(colour: str, share: float, towards: int = 255) -> str:
    """Mix a colour with a share of white, or of another grey.

    >>> tint("#0072b2", 0.5)
    '#80b8d8'
    """
    parts = [round(part * (1 - share) + towards * share) for part in _parts(colour)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def ink_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    shares = [part / 255 for part in _parts(colour)]
    red, green, blue = [one / 12.92 if one <= 0.04 else ((one + 0.055) / 1.055) ** 2.4 for one in shares]
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > LIGHT else "#ffffff"


def _parts(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
