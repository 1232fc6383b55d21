"""Measures the figures and tables of the papers again, and compares them with the papers."""

from __future__ import annotations

from minifuse.io.parsing import unknown
from minifuse.papers.batchmaker import fig2_3, fig2_5, fig2_7, fig2_8, fig2_9, fig2_11, fig2_13, fig2_14, fig2_15
from minifuse.papers.baton import fig6_7_8, table1_2
from minifuse.papers.experiment import Experiment
from minifuse.papers.flover import fig7, fig8, fig9, fig10
from minifuse.papers.fluidinfer import fig11_12, short
from minifuse.papers.pensieve import fig3_3, fig3_4, fig3_12_13_15, fig3_14, fig3_16, fig3_17, fig3_18
from minifuse.papers.simulator import error, landscape

__all__ = ["EXPERIMENTS", "experiments"]

FLOVER = (fig7.figure, fig8.figure, fig9.figure, fig10.figure)
BATCHMAKER = tuple(
    figure.figure for figure in (fig2_3, fig2_5, fig2_7, fig2_8, fig2_9, fig2_11, fig2_13, fig2_14, fig2_15)
)
PENSIEVE = (
    fig3_3.figure,
    fig3_4.figure,
    fig3_12_13_15.FIG_12,
    fig3_12_13_15.FIG_13,
    fig3_14.figure,
    fig3_12_13_15.FIG_15,
    fig3_16.figure,
    fig3_17.figure,
    fig3_18.figure,
)
BATON = (table1_2.TABLE_1, table1_2.TABLE_2, fig6_7_8.FIG_6, fig6_7_8.FIG_7, fig6_7_8.FIG_8)
FLUIDINFER = (fig11_12.FIG_11, fig11_12.FIG_12, short.figure)
SIMULATOR = (error.figure, landscape.figure)
EXPERIMENTS: dict[str, Experiment] = {
    row.name: row for row in (*FLOVER, *BATCHMAKER, *PENSIEVE, *BATON, *FLUIDINFER, *SIMULATOR)
}


def experiments(name: str) -> tuple[Experiment, ...]:
    """Return the experiment `name`, or all experiments of the paper `name` in order.

    Raises:
        UsageError: no experiment or paper has this name; the message suggests the nearest.
    """
    found = tuple(row for row in EXPERIMENTS.values() if name in (row.name, row.group))
    if not found:
        raise unknown("figure", name, dict.fromkeys([*EXPERIMENTS, *(row.group for row in EXPERIMENTS.values())]))
    return found
