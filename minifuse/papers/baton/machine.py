"""Fits a framework's fixed costs to two times of Table 2: the machines `-framework`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import minifuse.papers.baton.paper as paper
from minifuse.papers.baton.setting import TO_CAP, Setting
from minifuse.papers.experiment import Conditions
from minifuse.simulate.cost import hardware


@cache
def fixed_costs() -> tuple[float, float]:
    """Fit a framework's costs to the times of static batches of 2 and of 10.

    The queries are of the first draw. Static batches run to the cap. Each iteration concatenates KV: it is read,
    written, and read.

    Returns:
        The seconds of an iteration, and of a row of an iteration, beyond moving weights and KV and arithmetic.

    >>> f"{fixed_costs()[0] * 1e3:.2f} and {fixed_costs()[1] * 1e3:.3f} ms"
    '37.67 and 1.159 ms'
    """
    setting = Setting("second", Conditions(scale="paper", rounds=1))
    bare = replace(hardware(f"{setting.machine}-framework"), overhead_s=0.0, row_s=0.0)
    setting.settings = replace(setting.settings, hardware=bare)
    sums = []  # of each time: its iterations, their rows, and the seconds that are left for both
    for batch in paper.FITTED_TO:
        course = setting.serve_queries(TO_CAP, batch, setting.queries(batch))
        sums.append((len(course.ended_s), course.rows, paper.TABLE_2[batch]["static"] - course.seconds))
    (iterations, rows, left_s), (fewer, others, less_s) = sums
    iteration_s = (left_s * others - less_s * rows) / (iterations * others - fewer * rows)
    return iteration_s, (left_s - iterations * iteration_s) / rows
