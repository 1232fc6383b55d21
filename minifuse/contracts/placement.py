"""Checks what a memory places, moves and reports (docs/stages.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from minifuse.contracts.fault import Wrong, shown
from minifuse.contracts.form import check_cover, check_form, check_passes
from minifuse.contracts.lawful import by_layer, check_move
from minifuse.contracts.proposal import Known
from minifuse.core.cell_graph import CellGraph
from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages, Runs, State, runs_in
from minifuse.core.plan import Extent, Move, Place, Placement, Proposal, Shape, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Sequence
from minifuse.core.requests import Requests
from minifuse.core.shapes import Rectangle, Region, StateRows
from minifuse.core.unfolded import unfolded

PLACES: dict[str, Any] = {  # types of place, by what a memory offers
    "extents": Extent,
    "slots": Extent,
    "rectangle": Extent | Runs,
    "pages": Pages,
    "states": State,
    "rows": State,
}
SHAPES: dict[str, type[Any]] = {"rectangle": Rectangle, "slots": Region}


def check_placement(
    placement: Any, proposal: Proposal, memory: Any, requests: Requests, known: Mapping[str, Known]
) -> None:
    """Raise `Wrong` if a placement breaks its contract. Adds nodes' slots to `known`."""
    check_form(placement, Placement)
    if len(placement.places) != len(proposal.work):
        count = f"{len(placement.places)} places for {len(proposal.work)} pieces of work"
        raise Wrong(f"a Placement of {count}", "give one for each, in the order of the work")
    check_cover("a Placement whose waves are ", placement.waves, len(proposal.work))
    check_passes("a Placement whose passes are ", placement.passes, placement.waves, len(proposal.work))
    check_moves(placement.moves, memory, max(1, len(placement.waves)))
    kinds = reduce(or_, [PLACES.get(offer, Extent | Runs | Pages | State) for offer in sorted(memory.offers)])
    stayed = not placement.moves and not proposal.evict
    placed = list(zip(proposal.work, placement.places, strict=True))
    for work, place in placed:
        last = known[work.sequence].place if stayed else None
        if last is None or place != last or place.capacity < work.stop:  # else unchanged, as most are
            _check_place(work, place, kinds, last, memory)
    _check_shape(memory, placement, proposal)
    for start, stop in placement.waves or proposal.waves or (Span(0, len(placed)),):
        wave = placed[start:stop]
        if len({place.tier for _, place in wave}) > 1:
            found = f"a Placement with a wave [{start}, {stop}) in several tiers"
            raise Wrong(found, "a wave is attended in one tier: give each tier a wave", "layout")
        writer = _check_written(wave)
        written = sorted(writer)
        for work, place in wave:
            if isinstance(place, State):
                slots = known[work.sequence].slots
                _check_state(work, place, unfolded(requests.sequences[work.sequence]), slots)
                slots[work.start] = place.slot
            else:
                _check_read(work, place, writer, written)


def _check_place(work: Work, place: Any, kinds: Any, last: Place | None, memory: Any) -> None:
    """Raise `Wrong` unless a place has room for its work, and keeps written KV.

    Args:
        kinds: the types of place that the memory offers.
        last: where the sequence lay in its last plan; None if something has been moved since that plan.
    """
    check_form(place, kinds)
    capacity = sizes_of(memory)[place.tier]
    kept = 0 if last is None else min(work.start, last.capacity)
    if not all(0 <= slot <= slot + length <= capacity for slot, length in _runs(place)):
        allowed, law = f"memory has the slots 0 to {capacity - 1}", "budget"
    elif isinstance(place, State):
        return
    elif place.capacity < work.stop:
        allowed, law = f"it has {place.capacity} slots: a place holds all tokens up to the last of the work", "layout"
    elif last is not None and list(last.slots(0, kept)) != list(place.slots(0, kept)):
        allowed = f"what it has written lies in {shown(last)}: leave it there, or move it with a Move"
        law = "conservation"
    else:
        return
    raise Wrong(f"a Placement with {shown(place)} for {work}", allowed, law)


def _runs(place: Any) -> Iterable[tuple[int, int]]:
    """Return the first slot and the length of each range of slots of a place."""
    if isinstance(place, Pages):
        return ((block * place.size, place.size) for block in place.blocks)
    if isinstance(place, State):
        return ((slot, 1) for slot in (*place.reads, place.slot))
    return runs_in(place)


def _check_shape(memory: Any, placement: Placement, proposal: Proposal) -> None:
    """Raise `Wrong` unless memory offers and contains the shape, and it covers the work."""
    shape: Any = placement.shape
    wanted = [SHAPES[offer] for offer in sorted(memory.offers) if offer in SHAPES]
    if shape is None:
        if wanted and proposal.phase is not Phase.PREPROCESSING:
            names = " or ".join(kind.__name__ for kind in wanted)
            raise Wrong("a Placement without a shape", f"it offers {shown(memory.offers)}: give a {names}", "layout")
        return
    found = f"a Placement whose shape is {shape}"
    if isinstance(shape, Rectangle):
        stop = shape.offset + shape.rows * shape.stride
        right = shape.rows > 0 and shape.begin <= shape.start < shape.stop <= shape.begin + shape.stride
    elif isinstance(shape, Region):
        stop, right = (shape.offset + shape.size) * shape.width, shape.size > 0 and shape.width > 0
    else:
        stop, right = shape.offset + shape.rows, shape.steps == len(placement.waves)
    if not right or shape.offset < 0 or stop > memory.capacity:
        allowed = "rows, widths and columns are at least 1, and a window is no wider than a row"
        raise Wrong(found, f"it lies in the {memory.capacity} slots of memory; {allowed}", "layout")
    for work, place in zip(proposal.work, placement.places, strict=True):
        if not _is_inside(shape, work, place):
            raise Wrong(found, f"{shown(work)} lies in {shown(place)}, which is not what it computes", "layout")


def _is_inside(shape: Shape, work: Work, place: Place) -> bool:
    """Return whether a shape computes this work at its place."""
    if isinstance(shape, StateRows):
        return isinstance(place, State) and shape.offset <= place.slot < shape.offset + shape.rows
    slots = place.slots(work.start, work.stop)
    if isinstance(shape, Region):
        return work.num_tokens > 1 or 0 <= slots[0] // shape.width - shape.offset < shape.size
    assert isinstance(shape, Rectangle)
    try:
        row, column = shape.locate(slots[0])
    except LawBroken:
        return False
    last = column + len(slots) - 1
    return column >= shape.start and last < shape.stop and slots[-1] == shape.slot(row, last)


def _check_written(placed: list[tuple[Work, Place]]) -> dict[int, Work]:
    """Return the work that writes each slot. Raise `Wrong` if two pieces write one."""
    writer: dict[int, Work] = {}
    for work, place in placed:
        for slot in place.slots(work.start, work.stop):
            other = writer.setdefault(slot, work)
            if other is not work:
                found = f"a Placement in which {other} and {work} write slot {slot}"
                raise Wrong(found, "each token, and each node, has a slot of its own", "conservation")
    return writer


def _check_read(work: Work, place: Place, writer: dict[int, Work], written: list[int]) -> None:
    """Raise `Wrong` if a text reads a slot that another sequence writes.

    Args:
        written: the slots in `writer`, ascending.
    """
    left = work.start
    for first, length in _runs(place):
        for slot in written[bisect_left(written, first) : bisect_left(written, first + min(left, length))]:
            if writer[slot].sequence != work.sequence:
                found = f"a Placement in which {writer[slot]} writes slot {slot}, which {work} reads"
                raise Wrong(found, "what is shared is not written: give the writer a copy", "conservation")
        if (left := left - length) <= 0:
            break


def _check_state(work: Work, place: State, graph: CellGraph, slots: dict[int, int]) -> None:
    """Raise `Wrong` unless a node reads the slots to which its sources were written."""
    needed = tuple([slots.get(node) for node in graph.topology.reads[work.start]])
    if place.reads != needed:
        allowed = f"the nodes that it reads were written to the slots {needed}"
        raise Wrong(f"a Placement with {place} for {work}", allowed, "ghost")


def check_moves(moves: Any, memory: Any, num_waves: int) -> None:
    """Raise `Wrong` if a plan of `num_waves` waves (0 without work) cannot make these."""
    check_form(moves, tuple[Move, ...])
    sizes = sizes_of(memory)
    for move in moves:
        check_move(move, num_waves)
        if (
            move.source + move.num_tokens > sizes[move.source_tier]
            or move.target + move.num_tokens > sizes[move.target_tier]
        ):
            allowed = f"the device has {sizes['device']} slots, and the host {sizes['host']}"
            allowed += f"; layers share {sizes['shared']}" if sizes["shared"] else ""
            raise Wrong(str(move), allowed, "layout")
        if "shared" in (move.source_tier, move.target_tier) and not by_layer(move):
            raise Wrong(str(move), 'where layers take turns, a moment is "before" or "after": one at a time', "layout")


def check_usage(usage: Any, memory: Any) -> None:
    """Raise `Wrong` unless the numbers of a usage are consistent, and fit the memory."""
    check_form(usage, KVUsage)
    device, host = usage.reserved + usage.kept, usage.host + usage.kept_on_host
    fits = usage.used <= usage.reserved and device <= usage.capacity and host <= memory.host_capacity
    if not fits or min(usage) < 0 or usage.capacity != memory.capacity:
        allowed = f"used <= reserved, and with what is kept <= capacity, which is {memory.capacity}"
        raise Wrong(str(usage), f"{allowed}; on the host {memory.host_capacity}, none below 0", "conservation")


def sizes_of(memory: Any) -> dict[str, int]:
    """Return how many slots each tier of a memory has."""
    return {"device": memory.capacity, "host": memory.host_capacity, "shared": memory.shared_capacity}


def check_missing(spans: Any, sequence: Sequence) -> None:
    """Raise `Wrong` unless these spans are in order, and end where the text ends."""
    check_form(spans, tuple[Span, ...])
    if sequence.graph is not None:
        return
    reached, length = -1, len(sequence)
    for start, stop in spans:
        if not reached < start < stop <= length:
            allowed = f"spans [start, stop) of the {length} tokens of {sequence.id!r}, in order, none empty"
            raise Wrong(shown(spans), f"give {allowed}")
        reached = stop
    if reached != length:
        last = f"the last of the {length} tokens of {sequence.id!r} is always missing: the next is sampled from it"
        raise Wrong(shown(spans), last, "progress")


def check_room(room: Any) -> None:
    """Raise `Wrong` unless a room has the methods of a `Room`."""
    if not all(callable(getattr(room, name, None)) for name in ("admit", "extend", "evict")):
        raise Wrong(shown(room), "give a Room: an object with admit, extend and evict (minifuse.core.plan)")
