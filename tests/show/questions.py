"""What Predict asks and tells on a page in the browser, and the steps of a trace that it asks about."""

from __future__ import annotations

from .conftest import Screen
from .crowd import Options
from .memory_map import columns

__all__ = ["admitting", "asked", "choices", "choose", "columns", "numbers", "score", "told"]

QUESTION = ".predict-question"


def asked(screen: Screen) -> str:
    """The question that is open, or ""."""
    return str(screen.js("return document.querySelector('.predict-question legend')?.textContent ?? ''"))


def choices(screen: Screen) -> dict[str, str]:
    """What can be chosen: value -> text."""
    found: dict[str, str] = screen.js(
        "return Object.fromEntries([...document.querySelectorAll('.predict-choice')].map((label) =>"
        " [label.querySelector('input').value, label.textContent.trim()]))"
    )
    return found


def choose(screen: Screen, *values: str) -> None:
    for value in values:
        screen.click(f'{QUESTION} input[value="{value}"]')


def told(screen: Screen) -> str:
    return str(screen.js("return document.querySelector('.predict-result').textContent"))


def score(screen: Screen) -> str:
    return str(screen.js("return document.querySelector('.predict-score').textContent"))


def numbers(names: list[str]) -> list[str]:
    """The page's numbers of requests r0, r1, ..."""
    return [name.removeprefix("r") for name in names]


def admitting(name: str, options: Options = ()) -> list[int]:
    """Columns that admit some while others wait, with what is told of the others."""
    steps = columns(name, options)
    return [i for i, step in enumerate(steps) if i and step.get("admitted") and step["reasons"]]
