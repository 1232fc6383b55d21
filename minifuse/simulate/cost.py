"""How long an iteration takes on a given machine: the roofline (Williams, Waterman and Patterson, 2009)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import repeat
from operator import itemgetter

from minifuse.core.plan import Plan, Work
from minifuse.core.shapes import Rectangle, Region
from minifuse.memory.profile import Profile
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.config import ModelConfig
from minifuse.parsing import unknown

ENOUGH = 0.9  # of the most tokens per second: more tokens in an iteration hardly help


@dataclass(frozen=True, slots=True)
class Hardware:
    """What bounds an iteration, from the makers' data sheets; the overhead is a round figure.

    `flops` is the rate in two-byte types, `wide_flops` that in float32 and wider, if it differs. `link` is the rate
    between device and host, one direction at a time; without one, what would cross it is copied within the memory.
    With `processors`, attention runs on so many at once, each of which computes one KV head of one lane, or of one
    piece of work, at its part of the rates; without, attention is divided evenly, whatever the lengths.
    """

    bandwidth: float  # bytes per second
    flops: float  # per second
    overhead_s: float  # of every iteration
    wide_flops: float | None = None
    memory: float = math.inf  # bytes
    link: float | None = None  # bytes per second
    processors: int | None = None

    @property
    def transfer_bandwidth(self) -> float:
        """Bytes per second between the tiers: without a link, each is read from the same memory and written to it."""
        return self.bandwidth / 2 if self.link is None else self.link

    def rate(self, element: int) -> float:
        """Operations per second on numbers of `element` bytes."""
        return self.wide_flops if self.wide_flops is not None and element >= 4 else self.flops


HARDWARE: dict[str, Hardware] = {
    "cpu": Hardware(bandwidth=30e9, flops=150e9, overhead_s=500e-6),
    "v100": Hardware(0.9e12, 125e12, 50e-6, wide_flops=15.7e12, memory=16e9, link=16e9),
    "a100-40g": Hardware(1.555e12, 312e12, 50e-6, wide_flops=19.5e12, memory=40e9, link=32e9),
    "a100-80g": Hardware(1.935e12, 312e12, 50e-6, wide_flops=19.5e12, memory=80e9, link=32e9),  # the PCIe card
    "rtx-a6000": Hardware(0.768e12, 155e12, 50e-6, wide_flops=38.7e12, memory=48e9, link=32e9),
    "rtx-4090": Hardware(1.008e12, 165e12, 50e-6, wide_flops=82.6e12, memory=24e9, link=32e9),
    "h200": Hardware(4.8e12, 989e12, 50e-6, wide_flops=67e12, memory=141e9, link=64e9),
}


def hardware(name: str | Hardware) -> Hardware:
    """The machine called `name`; a machine is returned as it is.

    Raises:
        UsageError: there is none of this name.
    """
    if isinstance(name, Hardware):
        return name
    if name not in HARDWARE:
        raise unknown("hardware", str(name), HARDWARE)
    return HARDWARE[name]


def saturating(seconds: Mapping[int, float]) -> int:
    """The fewest tokens in an iteration that bring nearly the most tokens per second (FluidInfer, 4.1).

    Args:
        seconds: of an iteration with so many tokens.

    >>> saturating({64: 1.0, 128: 1.0, 256: 1.1, 512: 2.0})  # 64, 128, 233 and 256 tokens a second
    256
    """
    most = max(count / one for count, one in seconds.items())
    return min(count for count, one in seconds.items() if count / one >= ENOUGH * most)


class Roofline:
    """Seconds of a plan: the longer of moving its bytes and doing its arithmetic, plus a fixed overhead.

    Bytes: every weight once, the KV of each sequence's context, and every move within the device read and written; of a
    move from tier to tier, the device's side. Flops: two per weight and computed token, four per head dimension and
    (query, key) pair. A padded rectangle's window is read and attended whole, while it wraps around the whole rows, and
    so is a region, up to its longest context. What transfers add is the link's to say (`minifuse.execute.link`).

    >>> from minifuse.model.text.presets import preset
    >>> from minifuse.core.plan import Extent
    >>> from minifuse.core.plan import Work
    >>> cost = Roofline(preset("llama-7b"), "float16", Hardware(bandwidth=1e12, flops=1e15, overhead_s=0.0))
    >>> f"{cost(Plan(0, 0, (Work('r0', 99, 100),), (Extent(0, 100),))) * 1e3:.1f} ms to read 13.2 GB"
    '13.3 ms to read 13.2 GB'
    """

    def __init__(self, config: ModelConfig, dtype: str, machine: Hardware) -> None:
        self.config = config
        self.layer_weights = config.num_matrix_weights - config.head_weights
        self.element = DTYPE_BYTES[dtype]
        self.machine = machine

    def __call__(self, plan: Plan) -> float:
        shape = plan.shape
        products = self._products(plan)
        crossing = 1 if self.machine.link else 0
        moved = sum(move.num_tokens * (crossing if move.crosses else 2) for move in plan.moves)
        if self.machine.processors is not None and shape is None:
            layers_s = self._bound(self.config.num_matrix_weights, moved, products, 0)
            return layers_s + sum(self._in_lanes(plan)) + self.machine.overhead_s
        if isinstance(shape, Region):
            context = shape.size * max(work.stop for work in plan.work)
            pairs: float = context
        elif isinstance(shape, Rectangle):
            width = shape.stride if shape.wraps else shape.stop - shape.begin
            context = shape.rows * width
            pairs = plan.num_computed * width
        else:
            context = sum(work.stop for work in plan.work)
            pairs = sum(map(_pairs, plan.work))
        return self._bound(self.config.num_matrix_weights, context + moved, products, pairs) + self.machine.overhead_s

    def attention_s(self, plan: Plan) -> list[float]:
        """The seconds that each wave attends, of those of a plan without a shape.

        Attention is what the waves, and not the moves, add to the time of the layers. Without lanes, each adds as much
        as it would alone, in proportion.
        """
        if self.machine.processors is not None:
            return self._in_lanes(plan)
        alone = [
            self._bound(0, sum(work.stop for work in works), 0, sum(map(_pairs, works)))
            for works in (plan.work[slice(*wave)] for wave in plan.waves)
        ]
        layers_s = self._bound(self.config.num_matrix_weights, 0, self._products(plan), 0)
        added_s = self(replace(plan, moves=())) - self.machine.overhead_s - layers_s
        return [added_s * one / sum(alone) for one in alone]

    def _products(self, plan: Plan) -> int:
        """Of a weight and a token's element: the head acts on one token per sequence, the layers on every one."""
        return self.layer_weights * plan.num_computed + self.config.head_weights * len(plan.work)

    @property
    def num_lanes(self) -> int | None:
        """Lanes of attention that run at once, each on a processor for every KV head; None: it is divided evenly."""
        processors = self.machine.processors
        return None if processors is None else max(1, processors // self.config.num_kv_heads)

    def _in_lanes(self, plan: Plan) -> list[float]:
        """The seconds of each wave of a plan whose attention runs in lanes: to the end of its last lane.

        A lane begins when a processor is free, in the order of the layout; without lanes, each piece of work is one.
        """
        config, machine, num_lanes = self.config, self.machine, self.num_lanes or 1
        lanes = plan.layout.lanes or [(index,) for index in range(len(plan.work))]
        seconds = config.num_layers * num_lanes  # for each second of one layer on the whole machine

        def of_piece(index: int) -> float:
            work = plan.work[index]
            moved = work.stop * config.kv_elements_per_token / config.num_layers * self.element
            arithmetic = 4 * config.q_size * _pairs(work)
            return seconds * max(moved / machine.bandwidth, arithmetic / machine.rate(self.element))

        found = []
        for start, stop in plan.waves:
            free = [0.0] * num_lanes  # when each processor is
            for lane in lanes[slice(*(bisect_left(lanes, end, key=itemgetter(0)) for end in (start, stop)))]:
                heapreplace(free, free[0] + sum(map(of_piece, lane)))
            found.append(max(free))
        return found

    def saturating_tokens(self) -> int:
        """The tokens of an iteration beyond which more of them bring next to no more tokens per second."""
        counts = [1 << n for n in range(14)]
        seconds = [self._bound(self.layer_weights, 0, self.layer_weights * count, 0) for count in counts]
        return saturating(dict(zip(counts, (one + self.machine.overhead_s for one in seconds), strict=True)))

    def recomputation(self, chunk: int, contexts: Sequence[int]) -> Profile:
        """What it costs to compute `chunk` tokens again, by the context that they end (Pensieve, 3.4.3.1).

        Attention is what a context adds to the time of the layers. A chunk that is computed again has no token to
        sample and no iteration to itself: there is neither a head in it nor an overhead.
        """
        products = self.layer_weights * chunk
        other = self._bound(self.layer_weights, 0, products, 0)
        pairs = [chunk * (context - (chunk - 1) / 2) for context in contexts]
        whole = [self._bound(self.layer_weights, *at) for at in zip(contexts, repeat(products), pairs)]
        return Profile(other, tuple(contexts), tuple(seconds - other for seconds in whole))

    def _bound(self, weights: int, context: int, products: int, pairs: float) -> float:
        """Seconds of reading weights and KV of `context` tokens, or of the arithmetic, whichever take longer.

        Args:
            products: of a weight and a token's element, two flops each.
            pairs: of a query and a key, in every head.
        """
        config = self.config
        moved = (weights + context * config.kv_elements_per_token) * self.element
        arithmetic = 2 * products + 4 * config.num_layers * config.q_size * pairs
        return max(moved / self.machine.bandwidth, arithmetic / self.machine.rate(self.element))


def _pairs(work: Work) -> float:
    """Of a query and a key that it sees: 3 queries at the end of 5 tokens see 3 + 4 + 5."""
    return (work.stop - work.start) * (work.start + work.stop + 1) / 2
