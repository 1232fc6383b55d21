"""Law "value": the KV of least value is reclaimed first (Pensieve, 3.4.3.1).

Also checks two thresholds: one below which KV is copied ahead of time, and one up to which newcomers are admitted
(3.4.3.2, 3.4.3.5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages
from minifuse.core.plan import Plan
from minifuse.core.report import StepReport
from minifuse.memory.tiered.profile import Profile
from minifuse.testing.applies import lacks
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case

ROUNDING = 1e-9


@dataclass
class _Chunk:
    """A chunk of KV that no admitted sequence uses."""

    owner: str
    index: int
    active_s: float
    device: int | None  # its block on the device
    host: int | None = None
    flying: bool = False  # a copy to the host is under way
    arriving: bool = False  # a running plan moves its only copy to the host: it cannot be dropped

    def __str__(self) -> str:
        return f"chunk {self.index} of {self.owner}, idle since {self.active_s:g} s"


@dataclass
class _Kept:
    """Derives from plans and reports where each idle chunk lies."""

    size: int
    num_blocks: int  # of the device
    num_host_blocks: int
    chunks: list[_Chunk] = field(default_factory=list)
    tables: dict[str, tuple[Pages, int]] = field(default_factory=dict)  # sequence -> block table, tokens computed
    flying: set[int] = field(default_factory=set)  # device blocks that a plan of the moment `behind` is copying
    fetched: set[int] = field(default_factory=set)  # blocks of the host that the plan in flight swaps in
    arrivals: list[tuple[float, str]] = field(default_factory=list)  # arrivals yet to come (time, owner), latest first

    def leave(self, name: str, owner: str, now: float) -> None:
        """Mark the chunks of a sequence that has ended, or is evicted, as idle."""
        if name not in self.tables:
            return
        pages, computed = self.tables.pop(name)
        count = -(-computed // self.size)
        for i, block in enumerate(pages.blocks[:count]):
            self.chunks.append(_Chunk(owner, i, now, block, flying=block in self.flying))

    def arrive(self, now: float) -> None:
        """For each arrival up to now, restart the idle time of the owner's chunks."""
        while self.arrivals and self.arrivals[-1][0] <= now:
            arrival_s, owner = self.arrivals.pop()
            for chunk in self.chunks:
                if chunk.owner == owner:
                    chunk.active_s = max(chunk.active_s, arrival_s)

    def places(self) -> list[list[_Chunk]]:
        """Return chunks in three lists: only on the device, on both tiers, on the host."""
        return [
            [
                chunk
                for chunk in self.chunks
                if (chunk.device is not None, chunk.host is not None) == on and not (chunk.flying or chunk.arriving)
            ]
            for on in ((True, False), (True, True), (False, True))
        ]

    def needed(self) -> set[int]:
        """Return the device blocks that admitted sequences use."""
        return {block for pages, _ in self.tables.values() for block in pages.blocks}

    def num_without_copy(self) -> int:
        """Count the device blocks that are in use, not backed up, and not being copied."""
        alone = {chunk.device for chunk in self.places()[0]}
        return len(self.needed() | alone | self.flying) - len(self.flying)

    def host_has_room(self) -> bool:
        held = {chunk.host for chunk in self.chunks if chunk.host is not None} | self.fetched
        return len(held) < self.num_host_blocks


def check_value(case: Case, seen: Observation) -> None:
    """Check that the chunks of least value are reclaimed first.

    Chunks are compared with others in the same place: only on the device, on both tiers, or only on the host. Chunks
    being copied are left out.

    The value is Cost(l) / T (3.4) or, under least recently used, minus the idle time. It is computed only from times
    and positions. A chunk that is only on the device is reclaimed only when no chunk is on both tiers; it may be copied
    ahead of time at any moment.

    Some policies admit sequences with only the memory that they need at once. Then chunks are copied ahead of time if,
    and only if, less than the fraction `ahead` of the device is free or backed up. Newcomers must leave the fraction
    `reserve` of the device to running sequences (law "budget").

    Only memories with the option `eviction` are checked, in runs without sharing or aborts, and with one worker, so
    that events have a single order.
    """
    options, policy = vars(case.options["memory"]), case.choices.policy
    if lacks("value", case.row) or case.scenario.aborts or options["share"]:
        return
    if (policy.workers, policy.depth) != (1, 1):
        return
    if policy.token_budget is not None:
        return  # a prompt that is evicted before its end has blocks without KV
    memory = case.stages().memory
    kept = _Kept(options["chunk"], memory.capacity // options["chunk"], memory.host_capacity // options["chunk"])
    owners = {request.id: request.conversation or request.id for request in case.requests}
    came = {name: time for name, time in seen.arrived_s.items() if name not in seen.refused}
    kept.arrivals = sorted(((time, owners[name]) for name, time in came.items()), reverse=True)
    grows = getattr(policy, "grows", False)
    asked_s: float | None = None  # when memory was asked for copies ahead of time, and gave none
    for now, event in seen.happened:
        if asked_s is not None and now > asked_s:
            _check_nothing_owed(kept, options)
            asked_s = None
        if isinstance(event, Plan):
            kept.arrive(now)
            if grows and not event.work:
                _check_needed(kept, event, options)
                asked_s = None
            used = {owners[name] for name in event.admitted}
            before = [[chunk for chunk in chunks if chunk.owner not in used] for chunks in kept.places()]
            _decide(kept, event, owners, now)
            _check(kept, before, event, options, now)
            if grows:
                _check_reserve(kept, event, options)
        else:
            _complete(kept, event, case, owners, options["keep"])
            asked_s = now if grows else None  # checked after the plans of this moment


def _decide(kept: _Kept, plan: Plan, owners: Mapping[str, str], now: float) -> None:
    """Apply a plan to idle chunks: drop used and lost ones, and record copies."""
    for name in plan.evicted:
        kept.leave(name, owners[name], now)
    used = {owners[name] for name in plan.admitted}
    kept.chunks = [chunk for chunk in kept.chunks if chunk.owner not in used]
    for move in plan.moves:
        if move.kind != "swap_out":
            kept.fetched.add(move.source // kept.size)
            continue
        source, target = move.source // kept.size, move.target // kept.size
        for chunk in kept.chunks:
            if chunk.host == target:
                chunk.host = None
            if chunk.device == source:
                behind = move.moment == "behind"
                chunk.host, chunk.flying, chunk.arriving = target, behind, not behind
        if move.moment == "behind":
            kept.flying.add(source)
    tables: dict[str, Pages] = {}
    for work, place in zip(plan.work, plan.places, strict=True):
        assert isinstance(place, Pages)
        tables[work.sequence] = place
        computed = kept.tables[work.sequence][1] if work.sequence in kept.tables else 0
        kept.tables[work.sequence] = place, max(computed, work.stop)
    taken = {block for place in tables.values() for block in place.blocks}
    for chunk in kept.chunks:
        if chunk.device in taken:
            chunk.device = None
    kept.chunks = [chunk for chunk in kept.chunks if chunk.device is not None or chunk.host is not None]


def _check(kept: _Kept, before: list[list[_Chunk]], plan: Plan, options: Mapping[str, Any], now: float) -> None:
    """Check that no chunk that left a place is worth more than one that stayed."""
    after = kept.places()
    for chunks, stayed in zip(before, after, strict=True):
        there = set(map(id, stayed))
        left = [chunk for chunk in chunks if id(chunk) not in there]
        for chunk in left:
            for other in stayed:
                if _value(chunk, options, now) > _value(other, options, now) + ROUNDING:
                    raise LawBroken("value", f"step {plan.step} takes {chunk}, and {other} is worth less")
        if left and chunks is before[0] and plan.work and after[1]:
            raise LawBroken("value", f"step {plan.step} takes {left[0]}, and {after[1][0]} is on both tiers")


def _blocks(kept: _Kept, part: float) -> int:
    return math.ceil(part * kept.num_blocks - ROUNDING)


def _check_needed(kept: _Kept, plan: Plan, options: Mapping[str, Any]) -> None:
    """Check that a plan copies no more ahead of time than the threshold requires."""
    backed = kept.num_blocks - kept.num_without_copy()
    if backed + len(plan.moves) > _blocks(kept, options["ahead"]):
        found = f"step {plan.step} copies {len(plan.moves)} chunks ahead of time, and {backed} of {kept.num_blocks}"
        raise LawBroken("value", f"{found} are free or backed up: {options['ahead']:.0%} was asked for")


def _check_nothing_owed(kept: _Kept, options: Mapping[str, Any]) -> None:
    """Check that a copy is in flight if too little is backed up."""
    backed, alone = kept.num_blocks - kept.num_without_copy(), kept.places()[0]
    if backed < _blocks(kept, options["ahead"]) and alone and not kept.flying and kept.host_has_room():
        found = f"{backed} of {kept.num_blocks} chunks of the device are free or backed up"
        raise LawBroken("value", f"{found}, less than {options['ahead']:.0%}, and {alone[0]} is not copied")


def _check_reserve(kept: _Kept, plan: Plan, options: Mapping[str, Any]) -> None:
    """Check that a plan that admits newcomers leaves the reserve free.

    A newcomer that is the only sequence on the device may use the reserve.
    """
    if not plan.admitted or kept.tables.keys() == {plan.admitted[0]}:
        return
    available, reserve = kept.num_blocks - len(kept.needed() | kept.flying), _blocks(kept, options["reserve"])
    if available < reserve:
        raise LawBroken("budget", f"step {plan.step} admits, and leaves {available} chunks of a reserve of {reserve}")


def _complete(kept: _Kept, report: StepReport, case: Case, owners: Mapping[str, str], keep: bool) -> None:
    if report.plan.work:
        kept.fetched.clear()
        for chunk in kept.chunks:
            chunk.arriving = False
    for move in report.plan.moves if not report.plan.work else ():
        source = move.source // kept.size
        kept.flying.discard(source)
        for chunk in kept.chunks:
            if chunk.device == source:
                chunk.flying = False
    conversations = {request.id: request.conversation for request in case.requests}
    for name in report.finished:
        if keep and conversations[name] is not None:
            kept.leave(name, owners[name], report.ended_s)
        else:
            kept.tables.pop(name, None)


def _value(chunk: _Chunk, options: Mapping[str, Any], now: float) -> float:
    idle_s = now - chunk.active_s
    if options["eviction"] == "lru":
        return -idle_s
    end, profile = (chunk.index + 1) * options["chunk"], options["profile"]
    cost = 1 + max(end, 32) / 4096 if profile is None else _interpolated(Profile.read(profile), end)
    return cost / idle_s if idle_s > 0 else float("inf")


def _interpolated(profile: Profile, end: int) -> float:
    """Interpolate between measured contexts; extrapolate after the last, not before the first."""
    points = list(zip(profile.contexts, profile.attention, strict=True))
    if end <= points[0][0]:
        return profile.other + points[0][1]
    neighbours = list(pairwise(points))
    (x0, y0), (x1, y1) = next((pair for pair in neighbours if end <= pair[1][0]), neighbours[-1])
    return float(profile.other + y0 + (y1 - y0) * (end - x0) / (x1 - x0))
