"""The sentences below Flover's figures: what was scaled how, and what physics allows where a figure was missed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import minifuse.reproduce.flover_paper as paper
from minifuse.reproduce.experiment import Point, Value
from minifuse.reproduce.flover_setting import Setting
from minifuse.simulate.cost import hardware

__all__ = ["bound", "judged", "notes", "rows_cost"]

SHORT_OF = 0.9  # a gain below this part of the paper's is told of


def notes(setting: Setting) -> tuple[str, ...]:
    """What was scaled how, and what a batch yields on this machine."""
    rounds = setting.conditions.rounds
    size = (
        f"{setting.source.name} in {setting.settings.dtype}, {setting.tokens} tokens a request"
        f"{f', medians of {rounds} rounds' if rounds > 1 else ''}"
    )
    alone = f"One request alone takes {setting.alone_s:.3g} s"
    if setting.virtual:
        machine, sheet = hardware(setting.settings.hardware), hardware(paper.MACHINE)
        how = (
            f"{size}, virtual time of an A100-40G. One number is calibrated: its memory bandwidth, "
            f"{machine.bandwidth / 1e12:.3f} TB/s ({machine.bandwidth / sheet.bandwidth:.0%} of the data sheet's), at "
            f"which {paper.TOKENS} tokens of GPT-J 6B take {paper.ALONE_S} s alone, as in the paper. {alone}."
        )
        share = (
            "Concurrent instances share the simulated machine evenly: each of k runs at a k-th of its speed, so "
            "together they are as fast as one. What else they gained or lost on the paper's machine is not modelled."
        )
    else:
        how = (
            f"{size}, real time. {alone} (paper: {paper.ALONE_S} s for {paper.TOKENS} tokens of GPT-J 6B), and "
            f"intervals are the fractions of it that they are in the paper."
        )
        share = (
            "Fusion pre-processes prompts in the main stream, between two iterations: beside it, they would take the "
            "same cores."
        )
    speeds = setting.throughput
    return (
        how,
        f"tokens/s of the fused stream at batch {', '.join(map(str, speeds))}: "
        f"{', '.join(f'{speed:,.0f}' for speed in speeds.values())}. The last is {speeds[max(speeds)] / speeds[1]:.1f} "
        "times the first: fusion cannot gain more over instances that together are as fast as one.",
        share,
    )


def bound(setting: Setting, densest: Point, count: int) -> str:
    """What a batch and what instances yield where requests overlap most: their ratio bounds the speed-up."""
    seconds = densest.measured["instances_s"]
    assert isinstance(seconds, float)
    together = count * setting.alone_s / seconds
    fused = setting.throughput[count] / setting.throughput[1]
    return (
        f"At {densest.at['interval_ms']} ms, {count} instances together make {together:.2f} times the tokens/s of one "
        f"request alone, and a fused batch of {count} makes {fused:.1f} times: fusion cannot be more than "
        f"{fused / together:.1f} times as fast here."
    )


def rows_cost(setting: Setting, rows: int, widest: Point) -> str:
    """What idle rows cost, which is all that the shuffle can save."""
    speeds, idle = setting.throughput, widest.measured["unshuffled_idle_share"]
    assert isinstance(idle, float)
    return (
        f"The shuffle saves the cost of idle rows. Here an iteration of {rows} rows takes "
        f"{rows * speeds[1] / speeds[rows]:.2f} times as long as one of a single row, at equal contexts. Without it "
        f"the region still gives up its ends, so that {idle:.0%} of the rows are idle at "
        f"{widest.at['paper_lengths']}: even if an iteration cost as much as its rows, shuffling would gain "
        f"{1 / (1 - idle):.2f}x there."
    )


def judged(points: Sequence[Point], key: str, name: Callable[[Mapping[str, Value]], str]) -> str:
    """The points whose gain (`speedup` or `gain`) falls short of the paper's, and the one farthest above it."""
    what = key.replace("speedup", "speed-up")
    short: list[str] = []
    above: list[tuple[float, str]] = []
    for point in points:
        told, found, limit = point.paper.get(key), point.measured.get(key), point.measured.get("limit")
        if not isinstance(told, float) or not isinstance(found, float):
            continue
        best = "" if limit is None or found >= told else f", {limit:.2f}x if company slowed nobody down"
        text = f"{name(point.at)} ({found:.2f}x; paper {told:.1f}x{best})"
        if found < SHORT_OF * told:
            short.append(text)
        elif found * SHORT_OF > told:
            above.append((found / told, text))
    farthest = f" Farthest above the paper's: {max(above)[1]}." if above else ""
    if not short:
        return f"No {what} is below {SHORT_OF:.0%} of one that the paper tells.{farthest}"
    return f"Below {SHORT_OF:.0%} of the paper's {what}: {'; '.join(short)}.{farthest}"
