"""Figures and tables of the papers, measured again: paper against measured, side by side."""

from __future__ import annotations

from minifuse.parsing import unknown
from minifuse.reproduce.batchmaker import EXPERIMENTS as BATCHMAKER
from minifuse.reproduce.experiment import SCALES, SHARE, Column, Conditions, Experiment, Finding, Panel, Point
from minifuse.reproduce.flover import EXPERIMENTS as FLOVER
from minifuse.reproduce.pensieve import EXPERIMENTS as PENSIEVE

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "SHARE",
    "Column",
    "Conditions",
    "Experiment",
    "Finding",
    "Panel",
    "Point",
    "experiments",
]

EXPERIMENTS: dict[str, Experiment] = {row.name: row for row in (*FLOVER, *BATCHMAKER, *PENSIEVE)}


def experiments(name: str) -> tuple[Experiment, ...]:
    """The experiment with this name, or all experiments of the paper with this name, in the paper's order.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    found = tuple(row for row in EXPERIMENTS.values() if name in (row.name, row.group))
    if not found:
        raise unknown("figure", name, dict.fromkeys([*EXPERIMENTS, *(row.group for row in EXPERIMENTS.values())]))
    return found
