"""What a memory may place: where work lies, in which shape, and what is moved for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from minifuse.cell_graph import CellGraph
from minifuse.contracts.contract import is_whole
from minifuse.errors import LawBroken
from minifuse.fault import Wrong, shown
from minifuse.layout import Rectangle, Region, Shape, StateRows
from minifuse.place import Extent, Pages, Place, Runs, State
from minifuse.plan import MOMENTS, MOVE_KINDS, Move, Placement, Proposal
from minifuse.request import Phase
from minifuse.work import Span, Work

Slots = dict[str, dict[int, int]]  # sequence -> node -> slot

__all__ = ["PLACES", "check_move", "check_place", "check_shape", "check_slots", "check_states"]

PLACES: dict[str, tuple[type[Any], ...]] = {  # by what a memory offers
    "extents": (Extent,),
    "slots": (Extent,),
    "rectangle": (Extent, Runs),
    "pages": (Pages,),
    "states": (State,),
    "rows": (State,),
}
SHAPES: dict[str, type[Any]] = {"rectangle": Rectangle, "slots": Region}


def check_place(work: Work, place: Place, last: Place | None, capacity: int) -> None:
    """Raise `Wrong` unless a place holds the tokens, or the state, of a piece of work, and what lay there before.

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


def check_shape(memory: Any, placement: Placement, proposal: Proposal) -> None:
    """Raise `Wrong` unless the shape is what the memory offers, lies in memory, and computes all of the work."""
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
    try:
        row, column = shape.locate(slots[0])
    except LawBroken:
        return False
    last = column + len(slots) - 1
    return column >= shape.start and last < shape.stop and slots[-1] == shape.slot(row, last)


def check_slots(works: tuple[Work, ...], places: tuple[Place, ...]) -> None:
    """Raise `Wrong` if two pieces of work write one slot, or one writes what another sequence reads."""
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
        runs = iter(() if isinstance(place, State) else place.runs)
    for slot, length in runs:
        if stop <= 0:
            return
        yield slot, slot + min(stop, length)
        stop -= length


def check_states(proposal: Proposal, placement: Placement, graphs: Mapping[str, CellGraph], slots: Slots) -> None:
    """Raise `Wrong` if two nodes of one wave write one slot, or a node reads elsewhere than what it needs was written.

    Args:
        slots: where the nodes of each sequence were written; those of this placement are added.
    """
    for start, stop in proposal.waves or (Span(0, len(proposal.work)),):
        written: dict[int, Work] = {}
        for work, place in zip(proposal.work[start:stop], placement.places[start:stop], strict=True):
            assert isinstance(place, State)
            other = written.setdefault(place.slot, work)
            if other is not work:
                found = f"a Placement in which {other} and {work} write slot {place.slot}"
                raise Wrong(found, "each node has a slot of its own", "conservation")
            of_one, graph = slots.setdefault(work.sequence, {}), graphs.get(work.sequence)
            needed = () if graph is None else tuple(of_one.get(node) for node in graph.topology.reads[work.start])
            if graph is not None and place.reads != needed:
                found = f"a Placement with {shown(place)} for {shown(work)}"
                raise Wrong(found, f"the nodes that it reads were written to the slots {needed}", "ghost")
        for work, place in zip(proposal.work[start:stop], placement.places[start:stop], strict=True):
            slots[work.sequence][work.start] = place.slots(0, 1)[0]


def check_move(where: str, move: Move, memory: Any, num_waves: int) -> None:
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
    if memory.layers_in_turn > 1 and not move.by_layer:
        raise Wrong(found, 'where layers take turns, a moment is "before" or "after": one layer at a time', "layout")
    try:
        move.check(num_waves)
    except LawBroken as broken:
        raise Wrong(found, str(broken).partition(": ")[2], "layout") from None
