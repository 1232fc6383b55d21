"""The machine of a scale: half precision, and data sheets fitted to a paper's times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from minifuse.core.plan import Plan
from minifuse.simulate.cost import Hardware


def half_precision() -> str:
    """The fast type nearest to half precision: bfloat16 if this CPU has tiles, else float32."""
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return "bfloat16" if supported is not None and supported() else "float32"


def several(one: Hardware, count: int) -> Hardware:
    """So many GPUs as one machine of their rates; messages between them are not modelled."""
    return replace(
        one,
        bandwidth=count * one.bandwidth,
        flops=count * one.flops,
        memory=count * one.memory,
        link=None if one.link is None else count * one.link,
        processors=None if one.processors is None else count * one.processors,
    )


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
    """`machine` with the overhead and float32 rate that give the times of two batches.

    Both batches must be bound by arithmetic: seconds = overhead + flops / rate, so two times give the two numbers.

    Args:
        row_flops: of one row of a batch.
        step_us: microseconds by batch size, of two sizes.
    """
    (few, few_us), (many, many_us) = sorted(step_us.items())
    row_s = (many_us - few_us) * 1e-6 / (many - few)
    return replace(machine, wide_flops=row_flops / row_s, overhead_s=few_us * 1e-6 - few * row_s)
