"""Figures and tables of the papers, measured again: paper against measured, side by side."""

from __future__ import annotations

from minifuse.core.parsing import unknown
from minifuse.reproduce.batchmaker import fig2_3, fig2_5, fig2_7, fig2_8, fig2_9, fig2_11, fig2_13, fig2_14, fig2_15
from minifuse.reproduce.baton import fig6, table1, table2
from minifuse.reproduce.baton import fig7 as baton_fig7
from minifuse.reproduce.baton import fig8 as baton_fig8
from minifuse.reproduce.experiment import Experiment
from minifuse.reproduce.flover import fig7, fig8, fig9
from minifuse.reproduce.fluidinfer import fig11, fig12
from minifuse.reproduce.pensieve import (
    fig3_3,
    fig3_4,
    fig3_12,
    fig3_13,
    fig3_14,
    fig3_15,
    fig3_16,
    fig3_17,
    fig3_18,
)

__all__ = ["EXPERIMENTS", "experiments"]

FLOVER = (fig7, fig8, fig9)
BATCHMAKER = (fig2_3, fig2_5, fig2_7, fig2_8, fig2_9, fig2_11, fig2_13, fig2_14, fig2_15)
PENSIEVE = (fig3_3, fig3_4, fig3_12, fig3_13, fig3_14, fig3_15, fig3_16, fig3_17, fig3_18)
BATON = (table1, table2, fig6, baton_fig7, baton_fig8)
FLUIDINFER = (fig11, fig12)
EXPERIMENTS: dict[str, Experiment] = {
    figure.EXPERIMENT.name: figure.EXPERIMENT for figure in (*FLOVER, *BATCHMAKER, *PENSIEVE, *BATON, *FLUIDINFER)
}


def experiments(name: str) -> tuple[Experiment, ...]:
    """The experiment with this name, or all experiments of the paper with this name, in the paper's order.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    found = tuple(row for row in EXPERIMENTS.values() if name in (row.name, row.group))
    if not found:
        raise unknown("figure", name, dict.fromkeys([*EXPERIMENTS, *(row.group for row in EXPERIMENTS.values())]))
    return found
