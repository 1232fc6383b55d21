"""Estimates how long an iteration takes: the roofline (Williams, Waterman and Patterson, 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import chain
from typing import NamedTuple, Protocol

from minifuse.attention.packing import lanes_of
from minifuse.attention.rectangle import slots_to_clear
from minifuse.core.plan import Plan, Work
from minifuse.core.shapes import Rectangle, Region
from minifuse.execute.layers import PlanTimes
from minifuse.execute.link import LinkRates
from minifuse.io.parsing import unknown
from minifuse.memory.tiered.profile import Profile
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.config import ModelConfig
from minifuse.simulate.ring import Ring
from minifuse.simulate.slower import PROFILED, Slower, factor

ENOUGH = 0.9  # of the highest token rate: beyond, more tokens per iteration hardly help


class Host(NamedTuple):
    """The rates of the host's memory and processor."""

    bandwidth: float  # bytes per second
    flops: float  # per second


@dataclass(frozen=True, slots=True)
class Hardware:
    """The rates of a machine, from its maker's data sheet, and a rounded overhead.

    `flops` is the rate in two-byte types, `wide_flops` the rate in float32 and wider, if it differs. `link` is the rate
    between device and host, each way; without a link, transfers are copies within the memory. A `host` attends the KV
    in its memory, beside the device; ranks share it. With `processors`, each processor attends one KV head of one lane
    (or piece of work), at its share of the rates. Without `processors`, attention is divided evenly, whatever the
    lengths. `kv_traffic` is how often the KV that an iteration attends to is moved: once where it is only read, three
    times where it is also copied, as by a concatenation. The ranks of a tensor parallel run are machines in a ring,
    joined by `peer_bandwidth`; by default, they are joined through the host. If operators are `slower`, the iteration
    takes the sum of their times; otherwise it has a single roofline. Without `slower`, the link carries one direction
    at a time.
    """

    bandwidth: float  # bytes per second
    flops: float  # per second
    overhead_s: float  # of every iteration
    wide_flops: float | None = None
    memory: float = math.inf  # bytes
    link: float | None = None  # bytes per second
    host: Host | None = None  # what attends the KV in the host's memory; None: the host is the device
    processors: int | None = None
    row_s: float = 0.0  # of every row of an iteration: a sequence, or an idle slot that is computed
    host_node_s: float = 0.0  # of the host, for every node of a plan of cells, before the plan can start
    together: float = 1.0  # speed of several workers on the device, as a multiple of one worker's
    peer_bandwidth: float | None = None  # bytes per second from a rank to the next; None: `transfer_bandwidth`
    peer_latency_s: float = 10e-6  # of every step of a collective; a rounded value
    masked: bool = False  # attention over a region: torch's, which masks, or the kernels', which read what is attended
    kv_traffic: float = 1.0
    slower: Slower | None = None

    @property
    def transfer_bandwidth(self) -> float:
        """Return bytes per second between the tiers; without a link, half the memory's."""
        return self.bandwidth / 2 if self.link is None else self.link

    @property
    def message_bandwidth(self) -> float:
        """Return bytes per second from a rank to the next."""
        return self.transfer_bandwidth if self.peer_bandwidth is None else self.peer_bandwidth

    def rate(self, element: int) -> float:
        """Return the operations per second on numbers of `element` bytes."""
        return self.wide_flops if self.wide_flops is not None and element >= 4 else self.flops


# Hosts: one socket of a server of the GPU's time, with all channels of memory, in float32 (makers' data sheets).
XEON_6100, EPYC_7003, EPYC_9004 = Host(128e9, 2.0e12), Host(204.8e9, 5.0e12), Host(460.8e9, 7.3e12)
HARDWARE: dict[str, Hardware] = {  # a100-80g is the PCIe card, h100 and h200 are SXM modules
    "cpu": Hardware(bandwidth=30e9, flops=150e9, overhead_s=500e-6, masked=True),
    "v100": Hardware(0.9e12, 125e12, 50e-6, wide_flops=15.7e12, memory=16e9, link=16e9, host=XEON_6100),
    "a100-40g": Hardware(1.555e12, 312e12, 50e-6, wide_flops=19.5e12, memory=40e9, link=32e9, host=EPYC_7003),
    "a100-80g": Hardware(1.935e12, 312e12, 50e-6, wide_flops=19.5e12, memory=80e9, link=32e9, host=EPYC_7003),
    "rtx-a6000": Hardware(0.768e12, 155e12, 50e-6, wide_flops=38.7e12, memory=48e9, link=32e9, host=EPYC_7003),
    "rtx-4090": Hardware(1.008e12, 165e12, 50e-6, wide_flops=82.6e12, memory=24e9, link=32e9, host=EPYC_7003),
    "h100": Hardware(3.35e12, 989e12, 50e-6, wide_flops=67e12, memory=80e9, link=64e9, host=EPYC_9004),
    "h200": Hardware(4.8e12, 989e12, 50e-6, wide_flops=67e12, memory=141e9, link=64e9, host=EPYC_9004),
}
HARDWARE |= {f"{name}-profiled": replace(HARDWARE[name], slower=PROFILED) for name in HARDWARE if name != "cpu"}
# Fitted to the times that papers tell: "-flover" to Flover's Fig. 8 (`minifuse/papers/flover/machine.py`), "-framework"
# to two times of Baton's Table 2 (`minifuse/papers/baton/machine.py`).
HARDWARE["a100-40g-flover"] = replace(HARDWARE["a100-40g"], bandwidth=1.0835e12, row_s=0.3579e-3, together=1.156)
for _machine in ("rtx-a6000", "rtx-4090"):
    HARDWARE[f"{_machine}-framework"] = replace(HARDWARE[_machine], overhead_s=37.67e-3, row_s=1.159e-3, kv_traffic=3.0)


class Profiled(Protocol):
    """A machine that was measured (`minifuse.simulate.machine_profile`)."""

    dtype: str

    @property
    def sheet(self) -> Hardware: ...


Machine = str | Hardware | Profiled


def hardware(name: Machine) -> Hardware:
    """Return the machine of this name, of this profile, or this machine itself.

    Raises:
        UsageError: there is no machine of this name.
    """
    if isinstance(name, Hardware):
        return name
    if not isinstance(name, str):
        return name.sheet
    if name not in HARDWARE:
        raise unknown("hardware", name, HARDWARE)
    return HARDWARE[name]


def saturating(seconds: Mapping[int, float]) -> int:
    """Find the fewest tokens per iteration that nearly reach the highest rate (FluidInfer, 4.1).

    Args:
        seconds: number of tokens -> seconds of an iteration.

    >>> saturating({64: 1.0, 128: 1.0, 256: 1.1, 512: 2.0})  # 64, 128, 233 and 256 tokens a second
    256
    """
    most = max(count / one for count, one in seconds.items())
    return min(count for count, one in seconds.items() if count / one >= ENOUGH * most)


class Roofline:
    """Estimates a plan's time: the longer of moving bytes and arithmetic, plus an overhead.

    Bytes: every weight once, the KV of each sequence's context (`kv_traffic` times), and moves. A move within the
    device counts twice, as it is read and written; a move between the tiers counts once, or not at all on a machine
    without a link. A slot of a rectangle that is cleared counts once, too. Flops: two per weight and computed token,
    four per head dimension and (query, key) pair.

    A padded rectangle reads and attends its whole window. In a region, Triton's kernel reads each row's own context,
    and one token for an idle row; torch reads every buffer up to the longest context (`Hardware.masked`).
    `minifuse.execute.link` adds the time of transfers, `minifuse.parallel.messages` the time of messages between ranks.
    With ranks, `config` is one rank's share.

    >>> from minifuse.model.text.presets import preset
    >>> from minifuse.core.plan import Extent
    >>> from minifuse.core.plan import Work
    >>> cost = Roofline(preset("llama-7b"), "float16", Hardware(bandwidth=1e12, flops=1e15, overhead_s=0.0))
    >>> f"{cost(Plan(0, 0, (Work('r0', 99, 100),), (Extent(0, 100),))) * 1e3:.1f} ms to read 13.2 GB"
    '13.3 ms to read 13.2 GB'
    """

    def __init__(self, config: ModelConfig, dtype: str, machine: Hardware) -> None:
        self.config = config
        self.head_weights = config.head_weights
        self.layer_weights = config.num_matrix_weights - self.head_weights
        self.element = DTYPE_BYTES[dtype]
        self.machine = machine
        self.kv_elements = config.kv_elements_per_token
        self.pair_flops = 4 * config.num_layers * config.q_size
        self.flops = machine.rate(self.element)

    def __call__(self, plan: Plan) -> float:
        if self.host_attends and "host" in plan.tiers:
            return self._beside_the_host(plan)
        if plan.layout.passes:
            times = self.times(plan)
            return sum(times.token_wise) + sum(times.waves)
        shape, moved = plan.shape, self._moved(plan)
        if shape is None and (self.machine.processors is not None or self.machine.slower is not None):
            layers_s = self._products(plan.num_computed, len(plan.work), moved)
            return layers_s + sum(self.attention_s(plan)) + self._fixed(len(plan.work))
        rows = len(plan.work)
        if isinstance(shape, Region):
            rows = shape.size
            stops = [work.stop for work in plan.work]
            context = rows * max(stops) if self.machine.masked else sum(stops) + plan.num_idle
            pairs: float = context
        elif isinstance(shape, Rectangle):
            rows = shape.rows
            width = shape.stop - shape.begin
            context = shape.rows * width
            moved += sum(stop - start for start, stop in slots_to_clear(plan, plan.waves[0]))
            pairs = plan.num_computed * width
        else:
            context = sum([work.stop for work in plan.work])
            single = plan.num_tokens == len(plan.work)  # then each query sees its whole context
            pairs = context if single else sum(map(_pairs, plan.work))
        if self.machine.slower is not None:
            layers_s = self._products(plan.num_computed, len(plan.work), moved)
            queries = max(work.stop - work.start for work in plan.work)
            return layers_s + self._attending(context, pairs, queries) + self._fixed(rows)
        return self._bound(plan.num_computed, len(plan.work), context, pairs, moved) + self._fixed(rows)

    @property
    def link_rates(self) -> LinkRates:
        """Return the rates of copies between the tiers."""
        slower, bandwidth = self.machine.slower, self.machine.transfer_bandwidth
        return (
            LinkRates.alike(bandwidth)
            if slower is None
            else LinkRates.alike(bandwidth, slower.copy_s, slower.both_ways)
        )

    def collectives(self, ranks: int) -> Ring:
        """Return how long messages take among so many of these machines."""
        return Ring(ranks, self.machine.message_bandwidth, self.machine.peer_latency_s)

    def _products(self, computed: int, sampled: int, moved: float = 0.0) -> float:
        """Return the seconds of products of tokens and weights, and of moves beside them."""
        slower = self.machine.slower
        times = 1.0 if slower is None else factor(slower.products, computed)
        return times * self._bound(computed, sampled, 0, 0, moved)

    def _attending(self, context: float, pairs: float, queries: int) -> float:
        """Return the seconds of attention by itself, of so many tokens of each sequence."""
        slower = self.machine.slower
        times = 1.0 if slower is None else slower.attention(queries)
        return times * self._bound(0, 0, context, pairs)

    def _attend(self, work: Work) -> float:
        return self._attending(work.stop, _pairs(work), work.stop - work.start)

    def _fixed(self, rows: int) -> float:
        """Return the seconds of an iteration that depend on its rows alone."""
        return self.machine.overhead_s + rows * self.machine.row_s

    @property
    def host_attends(self) -> bool:
        """Return whether the host attends the KV in its memory, beside the device."""
        return self.machine.host is not None

    def times(self, plan: Plan) -> PlanTimes:
        """Return how long a plan's passes and waves take; `plan.shape` must be None."""
        if self.host_attends and "host" in plan.tiers:
            return self._times_beside_the_host(plan)
        attention_s = [self.attention_s(part) for part in plan.parts]
        token_wise = [self(part) - sum(waves) for part, waves in zip(plan.parts, attention_s, strict=True)]
        if plan.layout.passes:  # the parts have no moves, and the overhead is that of the iteration
            token_wise[0] += self._moving_s(plan) - (len(plan.parts) - 1) * self.machine.overhead_s
        return PlanTimes(token_wise, [*chain.from_iterable(attention_s)])

    def _moved(self, plan: Plan) -> int:
        """Count the tokens of KV that moves read or write in the device's memory."""
        crossing = 1 if self.machine.link else 0
        return sum(move.num_tokens * (crossing if move.crosses else 2) for move in plan.moves)

    def _moving_s(self, plan: Plan) -> float:
        return self._moved(plan) * self.kv_elements * self.element / self.machine.bandwidth

    def _beside_the_host(self, plan: Plan) -> float:
        """Return the device's own seconds, while the host attends the KV in its memory."""
        times = self._times_beside_the_host(plan)
        on_device = [one for one, tier in zip(times.waves, plan.tiers, strict=True) if tier != "host"]
        return sum(times.token_wise) + sum(on_device)

    def _times_beside_the_host(self, plan: Plan) -> PlanTimes:
        token_wise = [self._products(part.num_tokens, len(part.work)) for part in plan.parts]
        token_wise[0] += self._fixed(len(plan.work)) + self._moving_s(plan)
        works = [plan.work[start:stop] for start, stop in plan.waves]
        on_host = [self.host_attention_s(work) for work in works]
        lanes = self.machine.processors is not None
        on_device = self._in_lanes(plan) if lanes else [sum(map(self._attend, work)) for work in works]
        here = zip(plan.tiers, on_host, on_device, strict=True)
        return PlanTimes(token_wise, [host_s if tier == "host" else device_s for tier, host_s, device_s in here])

    def host_attention_s(self, works: Sequence[Work]) -> float:
        """Return how long the host attends these pieces: the longer of reading and arithmetic."""
        host = self.machine.host or Host(self.machine.bandwidth, self.flops)
        num_bytes = sum([work.stop for work in works]) * self.kv_elements * self.element
        arithmetic = self.pair_flops * sum(map(_pairs, works))
        return max(num_bytes / host.bandwidth, arithmetic / host.flops)

    def attention_s(self, plan: Plan) -> list[float]:
        """Return the seconds of attention of each wave; `plan.shape` must be None.

        Attention is the time that the waves add to the time of the layers, without moves. If there are no lanes, this
        time is divided among the waves in proportion to the time that each would take alone.
        """
        if self.machine.processors is not None:
            return self._in_lanes(plan)
        if self.machine.slower is not None:
            return [sum(map(self._attend, plan.work[start:stop])) for start, stop in plan.waves]
        alone = [
            self._bound(0, 0, sum(work.stop for work in works), sum(map(_pairs, works)))
            for works in (plan.work[start:stop] for start, stop in plan.waves)
        ]
        layers_s = self._bound(plan.num_computed, len(plan.work), 0, 0)
        added_s = self(replace(plan, moves=())) - self._fixed(len(plan.work)) - layers_s
        return [added_s * one / sum(alone) for one in alone]

    @property
    def num_lanes(self) -> int | None:
        """Count the lanes that run at once, one processor per KV head; None if unknown."""
        processors = self.machine.processors
        return None if processors is None else max(1, processors // self.config.num_kv_heads)

    def _in_lanes(self, plan: Plan) -> list[float]:
        """Return the seconds of each wave until its last lane ends.

        Lanes begin in the order of the layout, each when a processor is free, and have equal shares of the rates.
        """
        num_lanes = self.num_lanes or 1
        found = []
        for wave in plan.waves:
            free = [0.0] * num_lanes  # when each processor is free
            for lane in lanes_of(plan, wave):
                pieces = [plan.work[index] for index in lane]
                alone_s = sum(map(self._attend, pieces))
                heapreplace(free, free[0] + num_lanes * alone_s)
            found.append(max(free))
        return found

    def reading_s(self, context: int) -> float:
        """Return the seconds of reading the KV of `context` tokens."""
        slots = self.machine.kv_traffic * context
        return slots * self.config.kv_elements_per_token * self.element / self.machine.bandwidth

    def saturating_tokens(self) -> int:
        """Return the fewest tokens per iteration that nearly reach the highest token rate."""
        counts = [1 << n for n in range(14)]
        return saturating({count: self._products(count, 0) + self._fixed(0) for count in counts})

    def recomputation(self, chunk: int, contexts: Sequence[int]) -> Profile:
        """Return the cost of recomputing the last `chunk` tokens of each context (Pensieve, 3.4.3.1).

        Attention is the time that a context adds to the time of the layers. A recomputed chunk samples no token and
        shares its iteration with other work, so neither the head nor an overhead is counted.
        """
        other = self._products(chunk, 0)
        if self.machine.slower is not None:
            attention = tuple([self._attend(Work("", context - chunk, context)) for context in contexts])
            return Profile(other, tuple(contexts), attention)
        pairs = [_pairs(Work("", context - chunk, context)) for context in contexts]
        whole = [self._bound(chunk, 0, context, seen) for context, seen in zip(contexts, pairs, strict=True)]
        return Profile(other, tuple(contexts), tuple(seconds - other for seconds in whole))

    def _bound(self, computed: int, sampled: int, context: float, pairs: float, moved: float = 0) -> float:
        """Return the longer of two times: reading weights and KV, and doing the arithmetic.

        Args:
            computed: tokens that pass through the layers; 0: no weights of the layers are read.
            sampled: tokens that pass through the head; 0: no weights of the head are read.
            context: tokens of KV that are attended to.
            pairs: pairs of a query and a key, in every head.
            moved: other tokens of KV that are read or written.
        """
        weights = (self.layer_weights if computed else 0) + (self.head_weights if sampled else 0)
        products = self.layer_weights * computed + self.head_weights * sampled  # of a weight and a token's element
        slots = self.machine.kv_traffic * context + moved
        num_bytes = (weights + slots * self.kv_elements) * self.element
        arithmetic = 2 * products + self.pair_flops * pairs
        return max(num_bytes / self.machine.bandwidth, arithmetic / self.flops)


def _pairs(work: Work) -> float:
    """Count visible (query, key) pairs: the last 3 of 5 tokens see 12."""
    return (work.stop - work.start) * (work.start + work.stop + 1) / 2
