"""Fits a V100 to the times that BatchMaker's thesis tells (2.7)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import minifuse.papers.batchmaker.paper as paper
from minifuse.model.cells.config import CellConfig
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.papers.page import notes
from minifuse.simulate.cost import Hardware, hardware


@cache
def fitted() -> Hardware:
    """Fit the V100's overhead, arithmetic rate and bandwidth to the times of an LSTM step.

    The thesis gives two: seconds = overhead + flops / rate. Smaller batches than the first take about as long as that
    one (2.7.2), so it is bound by memory as well: seconds = overhead + bytes / bandwidth.

    >>> machine = fitted()
    >>> f"{machine.wide_flops / 1e12:.1f} TFLOPS, {machine.bandwidth / 1e9:.0f} GB/s, {machine.overhead_s * 1e6:.0f} us"
    '12.5 TFLOPS, 404 GB/s, 99 us'
    """
    weights = CellConfig("lstm", paper.HIDDEN).sizes["lstm"]
    (few, few_us), (many, many_us) = paper.STEP_US.items()
    row_s = (many_us - few_us) * 1e-6 / (many - few)
    element = DTYPE_BYTES["float32"]
    state_bytes = 2 * paper.HIDDEN * element  # h and c
    return replace(
        hardware(paper.MACHINE),
        bandwidth=(weights * element + 2 * few * state_bytes) / (few * row_s),
        wide_flops=2 * weights / row_s,
        overhead_s=few_us * 1e-6 - few * row_s,
    )


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
        gigabytes=machine.bandwidth / 1e9,
        bandwidth_of_sheet=machine.bandwidth / sheet.bandwidth,
        overhead_us=machine.overhead_s * 1e6,
        scheduling_us=scheduling_s() * 1e6,
    )
