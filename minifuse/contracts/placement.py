"""What a memory may place, move and report (docs/stages.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from minifuse.contracts.moves import MOMENTS, MOVE_KINDS, by_layer, check_move
from minifuse.contracts.values import check_cover, check_tuple, is_whole
from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages, Runs, State, runs_in
from minifuse.core.plan import Extent, Move, Place, Placement, Proposal, Shape, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Sequence
from minifuse.core.requests import Requests
from minifuse.core.shapes import Rectangle, Region, StateRows
from minifuse.core.unfolded import unfolded
from minifuse.fault import Wrong, shown

__all__ = ["check_missing", "check_moves", "check_placement", "check_room", "check_usage"]

PLACES: dict[str, tuple[type[Any], ...]] = {  # by what a memory offers
    "extents": (Extent,),
    "slots": (Extent,),
    "rectangle": (Extent, Runs),
    "pages": (Pages,),
    "states": (State,),
    "rows": (State,),
}
SHAPES: dict[str, type[Any]] = {"rectangle": Rectangle, "slots": Region}


def check_placement(
    placement: Any,
    proposal: Proposal,
    memory: Any,
    requests: Requests,
    last: Mapping[str, Place],
    slots: Mapping[tuple[str, int], int],
) -> None:
    """Raise `Wrong` unless each piece of work has a place, and they form the shape.

    Args:
        last: where each sequence lay until now, if nothing has been moved since.
        slots: where each node of a sequence was written, by sequence and node.
    """
    if not isinstance(placement, Placement):
        raise Wrong(shown(placement), "give a Placement (minifuse.core.plan): a place for each piece of work")
    kinds = tuple({kind for offer in memory.offers for kind in PLACES.get(offer, (Extent, Runs, Pages, State))})
    names = " or ".join(sorted(kind.__name__ for kind in kinds))
    check_tuple("a Placement whose places are ", placement.places, kinds, f"{names}, as it offers")
    if len(placement.places) != len(proposal.work):
        count = f"{len(placement.places)} places for {len(proposal.work)} pieces of work"
        raise Wrong(f"a Placement of {count}", "give one for each, in the order of the work")
    check_cover("a Placement whose waves are ", placement.waves, len(proposal.work))
    check_tuple("a Placement whose moves are ", placement.moves, Move, "Move")
    check_moves("a Placement with ", placement.moves, memory, max(1, len(placement.waves)))
    known = {} if placement.moves or proposal.evict else last
    for work, place in zip(proposal.work, placement.places, strict=True):
        _check_place(work, place, known.get(work.sequence), memory.layers_in_turn * memory.capacity)
    _check_shape(memory, placement, proposal)
    if all(isinstance(place, State) for place in placement.places):
        _check_states(proposal, placement, requests.sequences, slots)
        return
    for wave in placement.waves or (Span(0, len(placement.places)),):  # the next may overwrite what one has written
        _check_slots(proposal.work[slice(*wave)], placement.places[slice(*wave)])


def _check_place(work: Work, place: Place, last: Place | None, capacity: int) -> None:
    """Raise `Wrong` unless a place holds a piece of work, where its sequence lay before.

    Args:
        last: where the sequence lay until now, if nothing has been moved since.
    """
    if place == last and place.capacity >= work.stop:
        return  # as of most sequences
    runs: tuple[tuple[int, int], ...]
    if isinstance(place, Extent):
        right, runs = is_whole(place.offset) and is_whole(place.capacity), ((place.offset, place.capacity),)
    elif isinstance(place, Runs):
        runs = place.runs
        right = type(runs) is tuple and all(type(run) is tuple and len(run) == 2 for run in runs)
        right = right and all(is_whole(slot) and is_whole(length, 1) for slot, length in runs)
    elif isinstance(place, Pages):
        right = type(place.blocks) is tuple and all(map(is_whole, place.blocks)) and is_whole(place.size, 1)
        runs = tuple((block * place.size, place.size) for block in place.blocks) if right else ()
    else:
        assert isinstance(place, State)
        right = type(place.reads) is tuple and all(map(is_whole, (*place.reads, place.slot)))
        runs = tuple((slot, 1) for slot in (*place.reads, place.slot)) if right else ()
    if not right:
        raise Wrong(_with(place, work), "slots, blocks and sizes are whole numbers, and lists of them tuples")
    if any(slot + length > capacity for slot, length in runs):
        raise Wrong(_with(place, work), f"memory has the slots 0 to {capacity - 1}", "budget")
    if isinstance(place, State):
        return
    if place.capacity < work.stop:
        allowed = f"it has {place.capacity} slots: a place holds all tokens up to the last of the work"
        raise Wrong(_with(place, work), allowed, "layout")
    if last is None or last is place or not work.start:
        return
    kept = min(work.start, last.capacity)
    if isinstance(last, Extent) and isinstance(place, Extent):
        same = last.offset == place.offset
    else:
        same = [*last.slots(0, kept)] == [*place.slots(0, kept)]
    if not same:
        allowed = f"what it has written lies in {shown(last)}: leave it there, or move it with a Move"
        raise Wrong(_with(place, work), allowed, "conservation")


def _with(place: Place, work: Work) -> str:
    return f"a Placement with {shown(place)} for {shown(work)}"


def _check_shape(memory: Any, placement: Placement, proposal: Proposal) -> None:
    """Raise `Wrong` unless the shape is offered, lies in memory, and computes the work."""
    shape, wanted = placement.shape, [SHAPES[offer] for offer in sorted(memory.offers) if offer in SHAPES]
    if shape is None:
        if wanted and proposal.phase is not Phase.PREPROCESSING:
            names = " or ".join(kind.__name__ for kind in wanted)
            raise Wrong("a Placement without a shape", f"it offers {shown(memory.offers)}: give a {names}", "layout")
        return
    found = f"a Placement whose shape is {shown(shape)}"
    if not isinstance(shape, Rectangle | Region | StateRows) or not all(type(n) is int for n in shape):
        raise Wrong(found, "give None, a Rectangle, a Region or StateRows, of whole numbers")
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
    """Whether a shape computes this work where it lies."""
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


def _check_slots(works: tuple[Work, ...], places: tuple[Place, ...]) -> None:
    """Raise `Wrong` if a slot is written twice, or written where another sequence reads."""
    if len(works) == 1:
        return
    writer: dict[int, Work] = {}
    for work, place in zip(works, places, strict=True):
        for slot in place.slots(work.start, work.stop):
            other = writer.setdefault(slot, work)
            if other is not work:
                found = f"a Placement in which {other} and {work} write slot {slot}"
                raise Wrong(found, "each token has a slot of its own", "conservation")
    written = sorted(writer)
    for work, place in zip(works, places, strict=True):
        for first, last in _runs(place, work.start):
            for slot in written[bisect_left(written, first) : bisect_left(written, last)]:
                if writer[slot].sequence != work.sequence:
                    found = f"a Placement in which {writer[slot]} writes slot {slot}, which {work} reads"
                    raise Wrong(found, "what is shared is not written: give the writer a copy", "conservation")


def _runs(place: Place, stop: int) -> Iterator[tuple[int, int]]:
    """The slots of the tokens before `stop`, as ranges."""
    if isinstance(place, Pages):
        runs: Iterator[tuple[int, int]] = ((block * place.size, place.size) for block in place.blocks)
    else:
        runs = iter(runs_in(place) if isinstance(place, Extent | Runs) else ())
    for slot, length in runs:
        if stop <= 0:
            return
        yield slot, slot + min(stop, length)
        stop -= length


def _check_states(
    proposal: Proposal,
    placement: Placement,
    sequences: Mapping[str, Sequence],
    known: Mapping[tuple[str, int], int],
) -> None:
    """Raise `Wrong` if nodes share a slot, or read where nothing was written for them."""
    slots = dict(known)
    for start, stop in proposal.waves or (Span(0, len(proposal.work)),):
        written: dict[int, Work] = {}
        placed = list(zip(proposal.work[start:stop], placement.places[start:stop], strict=True))
        for work, place in placed:
            assert isinstance(place, State)
            other = written.setdefault(place.slot, work)
            if other is not work:
                found = f"a Placement in which {other} and {work} write slot {place.slot}"
                raise Wrong(found, "each node has a slot of its own", "conservation")
            name, reads = work.sequence, unfolded(sequences[work.sequence]).topology.reads[work.start]
            needed = tuple([slots.get((name, node)) for node in reads])
            if place.reads != needed:
                found = f"a Placement with {shown(place)} for {shown(work)}"
                raise Wrong(found, f"the nodes that it reads were written to the slots {needed}", "ghost")
        slots |= {(work.sequence, work.start): place.slots(0, 1)[0] for work, place in placed}


def check_moves(where: str, moves: tuple[Move, ...], memory: Any, num_waves: int) -> None:
    """Raise `Wrong` unless a plan of so many waves can make these moves; 0: behind everything."""
    check_tuple(where, moves, Move, "Move, an empty one if nothing is to be moved")
    for move in moves:
        _check_move(where, move, memory, num_waves)


def _check_move(where: str, move: Move, memory: Any, num_waves: int) -> None:
    found = f"{where}{shown(move)}"
    sizes = {"device": memory.layers_in_turn * memory.capacity, "host": memory.host_capacity}
    if (
        move.kind not in MOVE_KINDS
        or move.moment not in MOMENTS
        or not {move.source_tier, move.target_tier} <= sizes.keys()
    ):
        raise Wrong(
            found, f"a kind is one of {', '.join(MOVE_KINDS)}, a moment of {', '.join(MOMENTS)}, a tier device or host"
        )
    if not all(is_whole(n) for n in (move.source, move.target, move.num_tokens, move.wave)):
        raise Wrong(found, "slots, tokens and waves are whole numbers")
    if (
        move.source + move.num_tokens > sizes[move.source_tier]
        or move.target + move.num_tokens > sizes[move.target_tier]
    ):
        raise Wrong(found, f"the device has {sizes['device']} slots, and the host {sizes['host']}", "layout")
    if memory.layers_in_turn > 1 and not by_layer(move):
        raise Wrong(found, 'where layers take turns, a moment is "before" or "after": one layer at a time', "layout")
    try:
        check_move(move, num_waves)
    except LawBroken as broken:
        raise Wrong(found, str(broken).partition(": ")[2], "layout") from None


def check_usage(usage: Any, memory: Any) -> None:
    """Raise `Wrong` unless it counts what fits in memory."""
    if not isinstance(usage, KVUsage):
        raise Wrong(shown(usage), "give KVUsage(used, reserved, capacity)")
    right = all(map(is_whole, usage)) and usage.used <= usage.reserved and usage.capacity == memory.capacity
    device, host = usage.reserved + usage.kept, usage.host + usage.kept_on_host
    if not right or device > usage.capacity or host > memory.host_capacity:
        allowed = f"used <= reserved, and with what is kept <= capacity, which is {memory.capacity}"
        raise Wrong(
            shown(usage), f"{allowed}; on the host {memory.host_capacity}, all of them whole numbers", "conservation"
        )
    if memory.layers_in_turn > 1 and usage.used + usage.kept:
        raise Wrong(shown(usage), "where layers take turns, the device holds nothing between two plans", "conservation")


def check_missing(spans: Any, sequence: Sequence) -> None:
    """Raise `Wrong` unless these spans are in order, and end with the text."""
    check_tuple("", spans, Span, "Span(start, stop)")
    if sequence.graph is not None:
        return
    reached, length = -1, len(sequence)
    for start, stop in spans:
        if not is_whole(start) or not is_whole(stop) or not reached < start < stop <= length:
            allowed = f"spans [start, stop) of the {length} tokens of {sequence.id!r}, in order, none empty"
            raise Wrong(shown(spans), f"give {allowed}")
        reached = stop
    if reached != length:
        last = f"the last of the {length} tokens of {sequence.id!r} is always missing: the next is sampled from it"
        raise Wrong(shown(spans), last, "progress")


def check_room(room: Any) -> None:
    """Raise `Wrong` unless a room has the methods of one."""
    if not all(callable(getattr(room, name, None)) for name in ("admit", "extend", "evict")):
        raise Wrong(shown(room), "give a Room: an object with admit, extend and evict (minifuse.core.plan)")
