"""How long an iteration takes on a given machine: the roofline (Williams, Waterman and Patterson, 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.model.config import DTYPE_BYTES, ModelConfig
from minifuse.parsing import unknown
from minifuse.plan import Plan

__all__ = ["HARDWARE", "Hardware", "Roofline", "hardware"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What bounds an iteration: bytes per second, floating-point operations per second, and seconds before anything."""

    bandwidth: float
    flops: float
    overhead_s: float


HARDWARE: dict[str, Hardware] = {
    "cpu": Hardware(bandwidth=30e9, flops=150e9, overhead_s=500e-6),
    "a100-40g": Hardware(bandwidth=1.555e12, flops=312e12, overhead_s=50e-6),
    "rtx-4090": Hardware(bandwidth=1.008e12, flops=165e12, overhead_s=50e-6),
    "h200": Hardware(bandwidth=4.8e12, flops=989e12, overhead_s=50e-6),
}


def hardware(name: str) -> Hardware:
    """The machine called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in HARDWARE:
        raise unknown("hardware", name, HARDWARE)
    return HARDWARE[name]


class Roofline:
    """Seconds of a plan: the longer of moving its bytes and doing its arithmetic, plus a fixed overhead.

    Bytes: every weight once, and the KV of each sequence's context. Flops: two per weight and computed token (idle ones
    included), four per head dimension and (query, key) pair of attention.

    >>> from minifuse.model.presets import preset
    >>> from minifuse.plan import Extent, Work
    >>> cost = Roofline(preset("llama-7b"), "float16", Hardware(bandwidth=1e12, flops=1e15, overhead_s=0.0))
    >>> f"{cost(Plan(0, 0, (Work('r0', 99, 100),), (Extent(0, 100),))) * 1e3:.1f} ms to read 13.2 GB"
    '13.3 ms to read 13.2 GB'
    """

    def __init__(self, config: ModelConfig, dtype: str, machine: Hardware) -> None:
        self.config = config
        self.element = DTYPE_BYTES[dtype]
        self.machine = machine

    def __call__(self, plan: Plan) -> float:
        config = self.config
        context = sum(work.stop for work in plan.work)
        pairs = sum((work.stop - work.start) * (work.start + work.stop + 1) / 2 for work in plan.work)
        moved = (config.num_matrix_weights + context * config.kv_elements_per_token) * self.element
        # The head acts on one token per sequence, the layers on every token computed.
        layer_weights = config.num_matrix_weights - config.head_weights
        arithmetic: float = 2 * (layer_weights * plan.num_computed + config.head_weights * len(plan.work))
        arithmetic += 4 * config.num_layers * config.q_size * pairs
        return max(moved / self.machine.bandwidth, arithmetic / self.machine.flops) + self.machine.overhead_s
