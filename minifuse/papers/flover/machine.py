"""Calibrates an A100 to one number of Flover's, or fits it to Fig. 8."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean, linear_regression

import minifuse.papers.flover.paper as paper
from minifuse.core.plan import Extent, Plan, Work
from minifuse.model.text.presets import preset
from minifuse.simulate.cost import Hardware, Roofline, hardware

PROMPT = 8  # tokens of a prompt: the paper does not give them, and counts only the tokens of answers
ITERATIONS = paper.TOKENS + 1  # of a request alone, including the iteration of its prompt


@cache
def calibrated() -> Hardware:
    """Calibrate the A100's bandwidth to the paper's 5.8 s for 512 tokens alone.

    An iteration of one request is bound by memory: it takes bytes / bandwidth + overhead.
    """
    machine = hardware(paper.MACHINE)
    reading_s = _alone_s(machine) - machine.overhead_s * ITERATIONS
    return replace(machine, bandwidth=machine.bandwidth * reading_s / (paper.ALONE_S - machine.overhead_s * ITERATIONS))


@cache
def fitted() -> Hardware:
    """Fit the A100 to the paper's 5.8 s alone and to Fig. 8.

    1 / speed-up is linear in the iterations: (iterations x fixed_s + rows x row_s) / instances_s. A row is a request in
    an iteration; there are 32 x 512 rows. Concurrent instances take instances_s, an iteration of one request takes
    fixed_s + row_s. In the result, which is `paper.FITTED`, `row_s` is the cost of a row beyond reading its KV, and
    `together` is how many times as fast concurrent instances are as consecutive ones. Fig. 8 does not tell how a row's
    cost depends on its context, as all requests have 512 tokens: see `by_context`.

    >>> f"{fitted().together:.3f} times, {fitted().row_s * 1e3:.4f} ms"
    '1.156 times, 0.3579 ms'
    """
    intervals = paper.SPEEDUP_8.keys() & paper.ITERATIONS_8.keys()
    points = [(paper.ITERATIONS_8[one], 1 / paper.SPEEDUP_8[one]) for one in sorted(intervals)]
    line = linear_regression(*zip(*points, strict=True))
    rows = paper.REQUESTS_8 * paper.TOKENS
    iteration_s = paper.ALONE_S / paper.TOKENS
    fixed_s = iteration_s / (1 + line.intercept / line.slope / rows)
    machine = hardware(paper.MACHINE)
    cost = Roofline(preset(paper.MODEL), paper.DTYPE, machine)
    kv_s = sum(cost.reading_s(context) for context in range(PROMPT, PROMPT + paper.TOKENS))
    row_s = (iteration_s - fixed_s) * ITERATIONS  # in all iterations of a request alone
    weights_s = _alone_s(machine) - machine.overhead_s * ITERATIONS - kv_s
    slower = (paper.ALONE_S - machine.overhead_s * ITERATIONS - row_s) / weights_s
    return replace(
        machine,
        bandwidth=machine.bandwidth / slower,
        row_s=(row_s - slower * kv_s) / ITERATIONS,
        together=paper.REQUESTS_8 * paper.ALONE_S * line.slope / fixed_s,
    )


@cache
def by_context() -> Hardware:
    """Return the fitted machine whose rows cost in proportion to their context.

    Fig. 8 fits this machine as well.

    >>> f"KV is moved {by_context().kv_traffic:.2f} times"
    'KV is moved 4.21 times'
    """
    machine = hardware(paper.FITTED)
    cost = Roofline(preset(paper.MODEL), paper.DTYPE, machine)
    kv_s = fmean(cost.reading_s(context) for context in range(PROMPT, PROMPT + paper.TOKENS))
    return replace(machine, row_s=0.0, kv_traffic=1 + machine.row_s / kv_s)


def _alone_s(machine: Hardware) -> float:
    """Return the seconds that the paper's request takes alone on a machine."""
    cost = Roofline(preset(paper.MODEL), paper.DTYPE, machine)
    contexts = [range(PROMPT - 1), *(range(last, last + 1) for last in range(PROMPT - 1, PROMPT - 1 + paper.TOKENS))]
    plans = [Plan(0, 0, (Work("r0", span.start, span.stop),), (Extent(0, span.stop),)) for span in contexts]
    return sum(map(cost, plans))
