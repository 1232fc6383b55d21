"""The machine of a scale: the precision that suits this one, and data sheets fitted to the times that a paper gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from minifuse.core.plan import Plan
from minifuse.simulate.cost import Hardware


def half_precision() -> str:
    """The type nearest to half precision in which this CPU is fast: bfloat16 if it has tiles for it, or float32."""
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return "bfloat16" if supported is not None and supported() else "float32"


def fit_bandwidth(machine: Hardware, cost: Callable[[Plan], float], plans: Sequence[Plan], total_s: float) -> Hardware:
    """`machine` with the memory bandwidth at which these plans, one after another, take `total_s` seconds.

    Every plan must be bound by memory: its seconds are bytes / bandwidth + overhead.

    Args:
        cost: seconds of a plan on `machine` as it is.
    """
    overhead_s = machine.overhead_s * len(plans)
    reading_s = sum(map(cost, plans)) - overhead_s
    return replace(machine, bandwidth=machine.bandwidth * reading_s / (total_s - overhead_s))


def fit_arithmetic(machine: Hardware, row_flops: float, step_us: Mapping[int, float]) -> Hardware:
    """`machine` with the overhead and the float32 rate at which batches of two sizes take so many microseconds.

    Both batches must be bound by arithmetic: seconds = overhead + flops / rate, so two times give the two numbers.

    Args:
        row_flops: of one row of a batch.
        step_us: microseconds by batch size, of two sizes.
    """
    (few, few_us), (many, many_us) = sorted(step_us.items())
    row_s = (many_us - few_us) * 1e-6 / (many - few)
    return replace(machine, wide_flops=row_flops / row_s, overhead_s=few_us * 1e-6 - few * row_s)
