"""Fits a V100 to the times that BatchMaker's thesis tells (2.7)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import minifuse.papers.batchmaker.paper as paper
from minifuse.model.cells.config import CellConfig
from minifuse.papers.page import notes
from minifuse.simulate.cost import Hardware, hardware


@cache
def fitted() -> Hardware:
    """Fit the V100's overhead and arithmetic rate to two times of an LSTM step.

    Both batches are bound by arithmetic: seconds = overhead + flops / rate.

    >>> f"{fitted().wide_flops / 1e12:.1f} TFLOPS, {fitted().overhead_s * 1e6:.0f} us"
    '12.5 TFLOPS, 99 us'
    """
    row_flops = 2 * CellConfig("lstm", paper.HIDDEN).sizes["lstm"]
    (few, few_us), (many, many_us) = paper.STEP_US.items()
    row_s = (many_us - few_us) * 1e-6 / (many - few)
    return replace(hardware(paper.MACHINE), wide_flops=row_flops / row_s, overhead_s=few_us * 1e-6 - few * row_s)


def scheduling_s() -> float:
    """Return the seconds that scheduling and gathering add to a task (2.7.3)."""
    return (paper.TASK_US - paper.STEP_US[paper.SMALL_BATCH_7]) * 1e-6  # 250 us instead of 185


def slowed(machine: Hardware, factor: float) -> Hardware:
    """Return a machine on which everything on the device takes `factor` times as long."""
    assert machine.wide_flops is not None
    return replace(
        machine,
        bandwidth=machine.bandwidth / factor,
        wide_flops=machine.wide_flops / factor,
        overhead_s=machine.overhead_s * factor,
    )


def how_fitted() -> tuple[str, ...]:
    """Return a note that tells which numbers of the V100 were fitted to which times."""
    machine, sheet = fitted(), hardware(paper.MACHINE)
    assert machine.wide_flops is not None
    assert sheet.wide_flops is not None
    return notes(
        "batchmaker/fitted",
        paper=paper,
        times=" and ".join(f"{us:g} us at batch {batch}" for batch, us in paper.STEP_US.items()),
        teraflops=machine.wide_flops / 1e12,
        of_sheet=machine.wide_flops / sheet.wide_flops,
        overhead_us=machine.overhead_s * 1e6,
        scheduling_us=scheduling_s() * 1e6,
    )
