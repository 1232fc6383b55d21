"""The machine of BatchMaker's figures: a V100 in virtual time, fitted to the two times that the thesis gives."""

from __future__ import annotations

from functools import cache

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.model.cells.config import CellConfig
from minifuse.reproduce.machine import fit_arithmetic
from minifuse.simulate.cost import Hardware, hardware

__all__ = ["fitted", "how_fitted", "scheduling_s"]


@cache
def fitted() -> Hardware:
    """The V100 on which one LSTM step takes 185 us at batch 64 and 784 us at 512, hidden 1024, as in the thesis.

    >>> f"{fitted().wide_flops / 1e12:.1f} TFLOPS, {fitted().overhead_s * 1e6:.0f} us"
    '12.5 TFLOPS, 99 us'
    """
    return fit_arithmetic(hardware(paper.MACHINE), 2 * CellConfig("lstm", paper.HIDDEN).sizes["lstm"], paper.STEP_US)


def scheduling_s() -> float:
    """Seconds that scheduling and gathering add to a task of BatchMaker: 250 us instead of 185 (2.7.3)."""
    return (paper.TASK_US - paper.STEP_US[paper.SMALL_BATCH_7]) * 1e-6


def how_fitted() -> str:
    """The note on what was fitted to what."""
    machine, sheet = fitted(), hardware(paper.MACHINE)
    assert machine.wide_flops is not None
    assert sheet.wide_flops is not None
    times = " and ".join(f"{us:g} us at batch {batch}" for batch, us in paper.STEP_US.items())
    return (
        f"Virtual time of a V100: two numbers are fitted to the two times that the thesis gives of an LSTM step, "
        f"{times} (hidden {paper.HIDDEN}, float32): {machine.wide_flops / 1e12:.1f} TFLOPS "
        f"({machine.wide_flops / sheet.wide_flops:.0%} of the data sheet's) and {machine.overhead_s * 1e6:.0f} us for "
        f"each batch. A task of cellular batching takes {scheduling_s() * 1e6:.0f} us more, as the thesis says "
        "scheduling and gathering do; what the baselines need beside computing is not modelled, which favours them."
    )
