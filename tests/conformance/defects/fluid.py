"""What goes wrong when KV passes through the device in waves, and is attended in packed lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conformance.defects.harness import defect, instead_of

from minifuse.attention import layouts
from minifuse.attention.packed import Lane, PackedAttention
from minifuse.batching.growing import GrowingFill
from minifuse.core.plan import Extent, Move, Placement, Proposal
from minifuse.core.request import Sequence
from minifuse.execute import copies as timetables
from minifuse.execute import texts
from minifuse.execute.moving import AttendingInTiers
from minifuse.execute.transfers import MovesOfPlan
from minifuse.memory.contiguous import RunTrial
from minifuse.memory.waves.books import WaveBooks
from minifuse.memory.waves.pausing import Pausing, PausingTrial
from minifuse.memory.waves.rotation import Rotation
from minifuse.memory.waves.waves import Waves

FEW = {"kinds": ("few",), "memory__block_size": 1, "memory__host": None}
TURNS = {**FEW, "memory__turns": "sequences"}
PAUSE = {**FEW, "memory__turns": None}
ON_HOST = {**FEW, "memory__turns": "host", "memory__beyond": None, "memory__split": None}
LAYERS = {**FEW, "memory__turns": "layers", "memory__beyond": None, "memory__buffer": 0.5}
STAYING = {**TURNS, "memory__turns": "rest", "memory__buffer": 0.0}


def _with_moves(placement: Placement, change: Any) -> Placement:
    return replace(placement, moves=tuple(move for old in placement.moves if (move := change(old)) is not None))


@defect("fluid", "conservation", "ghost", **TURNS)
@instead_of(Waves, "place")
def all_in_one_wave(place: Any, self: Waves, *arguments: Any) -> Placement:
    placement = _with_moves(place(self, *arguments), lambda move: move._replace(wave=0))
    return replace(placement, waves=())


@defect("fluid", "conservation", **TURNS)
@instead_of(Waves, "place")
def all_uploaded_before_the_first_wave(place: Any, self: Waves, *arguments: Any) -> Placement:
    return _with_moves(place(self, *arguments), lambda move: move._replace(wave=0) if move.kind == "upload" else move)


@defect("fluid", "conservation", **TURNS)
@instead_of(Waves, "place")
def the_last_wave_is_not_offloaded(place: Any, self: Waves, *arguments: Any) -> Placement:
    placement: Placement = place(self, *arguments)
    last = len(placement.waves) - 1
    return _with_moves(placement, lambda move: None if last and (move.moment, move.wave) == ("after", last) else move)


@defect("fluid", "conservation", **TURNS)
@instead_of(Waves, "place")
def everything_is_offloaded_at_the_end(place: Any, self: Waves, *arguments: Any) -> Placement:
    """Instead of after its wave: a later one has written over it."""
    placement: Placement = place(self, *arguments)
    last = max(0, len(placement.waves) - 1)
    return _with_moves(placement, lambda move: move._replace(wave=last) if move.moment == "after" else move)


@defect("fluid", "conservation", **STAYING)
@instead_of(Rotation, "_clear")
def what_makes_room_is_not_offloaded(clear: Any, self: Rotation, *arguments: Any) -> list[Move]:
    return clear(self, *arguments) and []


@defect("fluid", "conservation", **STAYING)
@instead_of(WaveBooks, "offload")
def what_is_on_the_host_counts_as_up_to_date(offload: Any, self: WaveBooks, name: str, *rest: Any) -> list[Move]:
    """The second time that a sequence leaves, the tokens that it wrote meanwhile are not copied."""
    if self.backed.get(name):
        return []
    moves: list[Move] = offload(self, name, *rest)
    return moves


@defect("fluid", "conservation", **TURNS)
@instead_of(Waves, "usage")
def what_is_on_the_host_is_not_counted(usage: Any, self: Waves) -> Any:
    return usage(self)._replace(host=0)


@defect("fluid", "budget", "conservation", "progress", kinds=("few",), memory__turns="rest", memory__host=40)
@instead_of(RunTrial, "take")
def admitted_to_a_full_host(take: Any, self: RunTrial, sequence: Sequence, growing: bool) -> None:
    """One that does not fit gets the first slots, whoever has them."""
    if take(self, sequence, growing):
        self.extents[sequence.id] = Extent(0, -(-sequence.request.max_cached // self.unit) * self.unit)


@defect("fluid", "exact", **TURNS)
@instead_of(MovesOfPlan, "after")
def copies_begin_without_waiting_for_waves(begin: Any, self: MovesOfPlan, turn: int) -> None:
    """Uploads overwrite what a wave has not attended to yet."""
    if turn < 0:
        for each in range(-1, len(self._plan.waves) * self._transfers.num_layers):
            begin(self, each)


@defect("fluid", "exact", **LAYERS)
@instead_of(timetables, "_beside_the_waves")
def layers_that_share_slots_do_not_wait_for_each_other(
    beside: Any, plan: Any, groups: Any, end: int, num_layers: int
) -> Any:
    """All layers of a wave are uploaded at once, each over the one before."""
    return beside(plan, groups, end, 1)


@defect("fluid", "work conserving", "progress", **PAUSE)
@instead_of(GrowingFill, "settle")
def a_paused_request_is_forgotten(settle: Any, self: GrowingFill, **more: Any) -> Proposal:
    proposal: Proposal = settle(self, **more)
    for sequence in proposal.evict:
        self.policy.ready.discard(sequence.id)
    return proposal


@defect("fluid", "conservation", **PAUSE)
@instead_of(Pausing, "_leave")
def kv_of_a_paused_request_is_lost(leave: Any, self: Pausing, *arguments: Any) -> list[Move]:
    return leave(self, *arguments) and []


@defect("fluid", "conservation", **ON_HOST)
@instead_of(Waves, "place")
def the_host_attends_kv_that_is_still_on_the_device(place: Any, self: Waves, *arguments: Any) -> Placement:
    """Offloaded after the last wave, instead of before the first."""
    placement: Placement = place(self, *arguments)
    last = max(0, len(placement.waves) - 1)
    return _with_moves(
        placement, lambda move: move._replace(moment="after", wave=last) if move.kind == "offload" else move
    )


@defect("fluid", "exact", **ON_HOST)
@instead_of(AttendingInTiers, "attend")
def the_host_attends_the_kv_of_the_layer_before(
    attend: Any, self: AttendingInTiers, heads: Any, rotary: Any, cache: Any, layer: int, wave: Any
) -> Any:
    """Of the first layer there is none: it attends its own."""
    on_host = self._storages[self._turn % len(self._storages)] is cache.tiers["host"]
    return attend(self, heads, rotary, cache, max(0, layer - on_host), wave)


@defect("fluid", "conservation", **ON_HOST)
@instead_of(Pausing, "_leave")
def a_resident_is_evicted_while_it_is_attended(
    leave: Any, self: Pausing, proposal: Proposal, trial: PausingTrial
) -> list[Move]:
    """The next sequence that needs blocks gets them."""
    moves: list[Move] = leave(self, proposal, trial)
    pages = self.books.blocks.pages
    if moves and (first := next((item.sequence for item in proposal.work if item.sequence in pages), None)):
        self.books.free.extendleft(pages[first].blocks)
    return moves


@defect("fluid", "budget", **{**ON_HOST, "memory__beyond": 9})
@instead_of(PausingTrial, "_fits_beyond")
def the_host_attends_more_than_it_can(fits: Any, self: PausingTrial, tokens: int) -> bool:
    return True


@defect("fluid", "exact", **{**ON_HOST, "memory__split": 1})
@instead_of(texts, "in_turn")
def the_logits_of_two_passes_are_exchanged(in_turn: Any, passes: Any) -> Any:
    logits = in_turn(passes)
    return torch.cat([*logits.tensor_split(len(passes))][::-1])


@defect("fluid", "layout")
@instead_of(layouts, "pack")
def the_shortest_piece_is_in_no_lane(pack: Any, *arguments: Any) -> Any:
    lanes = pack(*arguments)
    return (*lanes[:-1], lanes[-1][:-1]) if len(lanes[-1]) > 1 else lanes


@defect("fluid", "exact", "ghost", kinds=("crowd",), attention__lanes=1)
def a_lane_writes_the_rows_of_another_piece(patch: pytest.MonkeyPatch) -> None:
    """The pieces of a lane lie in the order of the lane, and the rows that it fills in that of the work."""
    reads = PackedAttention.reads

    def in_order(self: PackedAttention, *arguments: Any) -> list[Lane]:
        lanes = reads(self, *arguments)
        return [lane._replace(rows=None if lane.rows is None else lane.rows.sort().values) for lane in lanes]

    patch.setattr(PackedAttention, "_in_one_call", lambda *_: False)
    patch.setattr(PackedAttention, "reads", in_order)
