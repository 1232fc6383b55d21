"""Pictures of the page as SVG, as they are printed, to be measured."""

from __future__ import annotations

from dataclasses import dataclass

from .conftest import Screen

GUTTER = 76.0  # pixels on the left of lanes and charts, for names
HEAD = 18.0  # pixels above lanes, for the axis
ROW = 20.0  # pixels of a row, where there are few

DRAWN = """
const [host] = arguments;
dispatchEvent(new Event("beforeprint"));
const svg = document.querySelector(`#${host} .printed svg`);
const number = (one, name) => Number(one.getAttribute(name) ?? 0);
const found = [...svg.querySelectorAll("rect, polyline, text")].filter((one) => !one.closest("defs")).map((one) => ({
  kind: one.tagName, x: number(one, "x"), y: number(one, "y"), w: number(one, "width"), h: number(one, "height"),
  fill: one.getAttribute("fill"), text: one.textContent,
  points: (one.getAttribute("points") ?? "").split(" ").filter(Boolean).map((at) => at.split(",").map(Number)) }));
dispatchEvent(new Event("afterprint"));
return found;
"""
COLOURS = """
const dark = document.documentElement.dataset.theme;
document.documentElement.dataset.theme = "light";
const style = getComputedStyle(document.documentElement);
const found = Object.fromEntries(arguments[0].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
document.documentElement.dataset.theme = dark;
return found;
"""


@dataclass(frozen=True)
class Shape:
    """A rectangle, a line through points, or a text; lengths in pixels."""

    kind: str
    x: float
    y: float
    w: float
    h: float
    fill: str
    text: str
    points: list[list[float]]

    @property
    def right(self) -> float:
        return self.x + self.w


def drawn(screen: Screen, host: str) -> list[Shape]:
    """What the picture in the element of this id draws when it is printed, in order."""
    return [Shape(**one) for one in screen.js(DRAWN, host)]


def colours(screen: Screen, *names: str) -> dict[str, str]:
    """The colours of the style sheet that are printed, by name."""
    found = screen.js(COLOURS, names)
    return {name: found[name] for name in names}


def in_row(shapes: list[Shape], row: int, fills: dict[str, str]) -> list[tuple[str, float, float]]:
    """What a row of lanes draws in one of these colours, from left to right: its name, and where it begins and ends."""
    names = {colour: name for name, colour in fills.items()}
    top = HEAD + ROW * row
    found = [
        (names[one.fill], one.x, one.right)
        for one in shapes
        if one.kind == "rect"
        and one.fill in names
        and one.x > GUTTER - 3
        and top <= one.y
        and one.y + one.h <= top + ROW
    ]
    return sorted(found, key=lambda one: one[1])
