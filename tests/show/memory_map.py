"""The memory map of a page, as tests find it: its words, its panels, and where each slot is drawn."""

from __future__ import annotations

from typing import Any

from minifuse.trace.log import Event, read_trace

from .conftest import Screen
from .crowd import Options, crowd_trace

__all__ = ["LEGEND", "MAP", "TIP", "WORDS", "centre", "centre_in", "columns", "moving", "panels", "point_at", "read"]

WORDS = "#memory-a .memory-words"
LEGEND = "#memory-a .memory-legend"
TIP = "#memory-a .memory-tip"
MAP = "#memory-a canvas"


def columns(name: str, options: Options = (), model: str = "tiny", kv: int = 0) -> list[Event]:
    """Steps and waits, as the page counts them."""
    return [event for event in read_trace(crowd_trace(name, options, model, kv)) if event["event"] in ("step", "wait")]


def moving(name: str, options: Options, kind: str, kv: int = 0) -> int:
    """The first column with such a move."""
    steps = columns(name, options, kv=kv)
    return next(i for i, step in enumerate(steps) if any(move[0] == kind for move in step.get("moves", ())))


def read(screen: Screen, css: str) -> str:
    return str(screen.js("return document.querySelector(arguments[0]).textContent", css))


def panels(screen: Screen) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = screen.js("return window.app.a.memory.layout.panels")
    return found


def point_at(screen: Screen, tier: str, slot: int, wave: int | None = None) -> str:
    """Move the pointer over a slot. Returns what is said of it."""
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = screen.find(MAP)
    screen.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = centre(screen, tier, slot, wave)
    box = screen.js("const {width, height} = arguments[0].getBoundingClientRect(); return [width, height]", canvas)
    ActionChains(screen.driver, duration=0).move_to_element_with_offset(
        canvas, round(x - box[0] / 2), round(y - box[1] / 2)
    ).perform()
    return read(screen, TIP)


def centre(screen: Screen, tier: str, slot: int, wave: int | None = None) -> tuple[float, float]:
    """The middle of a slot as it is drawn now."""
    return centre_in(panels(screen), tier, slot, wave)


def centre_in(found: list[dict[str, Any]], tier: str, slot: int, wave: int | None = None) -> tuple[float, float]:
    """The middle of a slot, from the panels alone: boxes of `unit` slots, `across` in a row, in rows of `columns`."""
    for panel in found:
        inside = slot - panel["first"]
        if panel["tier"] != tier or not 0 <= inside < panel["count"] or wave not in (None, panel["wave"]):
            continue
        box, at = divmod(inside, panel["unit"])
        across, columns = panel["across"], panel["columns"]
        gap = panel["gap"] if across > 1 else 0
        down = panel["boxHeight"] + (panel["gap"] if across > 1 else 1)
        if at >= panel["seen"]:
            continue
        lines = -(-panel["seen"] // columns)
        x = panel["x"] + box % across * panel["boxWidth"] + (at % columns + 0.5) * (panel["boxWidth"] - gap) / columns
        y = panel["y"] + box // across * down + (at // columns + 0.5) * panel["boxHeight"] / lines
        return x, y
    raise AssertionError(f"slot {slot} of the {tier} is not drawn")
