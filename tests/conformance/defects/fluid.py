"""What goes wrong when KV passes through the device in waves, and is attended in packed lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.defects.harness import defect, instead_of

from minifuse.attention import layouts
from minifuse.attention.packed import PackedAttention
from minifuse.core.plan import Extent, Move, Placement
from minifuse.core.request import Sequence
from minifuse.execute import transfers
from minifuse.execute.transfers import MovesOfPlan
from minifuse.memory.contiguous import RunTrial
from minifuse.memory.waves.waves import Waves

TURNS = {"kinds": ("few",), "memory__turns": "sequences", "memory__block_size": 1, "memory__host": None}
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
@instead_of(Waves, "_clear")
def what_makes_room_is_not_offloaded(clear: Any, self: Waves, *arguments: Any) -> list[Move]:
    return clear(self, *arguments) and []


@defect("fluid", "conservation", **STAYING)
@instead_of(Waves, "_offload")
def what_is_on_the_host_counts_as_up_to_date(offload: Any, self: Waves, name: str, stop: int, *rest: Any) -> list[Move]:
    """The second time that a sequence leaves, the tokens that it wrote meanwhile are not copied."""
    if self.backed.get(name):
        return []
    moves: list[Move] = offload(self, name, stop, *rest)
    return moves


@defect("fluid", "conservation", **TURNS)
@instead_of(Waves, "usage")
def what_is_on_the_host_is_not_counted(usage: Any, self: Waves) -> Any:
    return usage(self)._replace(host=0)


@defect("fluid", "budget", "conservation", "progress", kinds=("few",), memory__host=40)
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


@defect("fluid", "exact", kinds=("few",), memory__turns="layers", memory__block_size=1, memory__host=None)
@instead_of(transfers, "copies")
def layers_that_share_the_device_do_not_wait_for_each_other(
    copies: Any, plan: Any, num_layers: int, *, in_turn: bool
) -> Any:
    """All layers of a wave are uploaded at once, each over the one before."""
    return copies(plan, num_layers)


@defect("fluid", "layout")
@instead_of(layouts, "pack")
def the_shortest_piece_is_in_no_lane(pack: Any, *arguments: Any) -> Any:
    lanes = pack(*arguments)
    return (*lanes[:-1], lanes[-1][:-1]) if len(lanes[-1]) > 1 else lanes


@defect("fluid", "exact", "ghost", kinds=("crowd",), attention__lanes=1)
@instead_of(PackedAttention, "reads")
def a_lane_writes_the_rows_of_another_piece(reads: Any, self: PackedAttention, *arguments: Any) -> Any:
    """The pieces of a lane lie in the order of the lane, and the rows that it fills in that of the work."""
    return [lane._replace(rows=lane.rows.sort().values) for lane in reads(self, *arguments)]
