"""Finds what each copy waits for, and what waits for the copy (Pensieve; FluidInfer).

KV of an evicted sequence is swapped out, and swapped in when the sequence is admitted again. KV that is on the device
for a single wave is uploaded before the wave; the KV that the wave wrote is offloaded after it. Moves of one moment are
made in the order of the plan. Moves and waves that touch the same slots never change their order:

| moment | when the move is made | when the plan waits for the move |
|---|---|---|
| first | in all layers at once, before anything is computed | before it computes |
| before | layer by layer, as soon as its slots allow | in layer i, wave `wave` waits for the copy of layer i |
| after | layer by layer, once wave `wave` has attended in layer i | at its end, or where a slot is needed earlier |
| behind | while other plans run, by a plan without work (`Memory.ahead`) | never |

>>> # Move("swap_out", 0, 8, 4, target_tier="host"): blocking, before the plan computes
>>> # Move("swap_in", 8, 0, 4, "host", moment="before"): layer i of the attention waits for layer i only
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import groupby
from typing import NamedTuple

from minifuse.contracts.lawful import by_layer
from minifuse.core.places import Pages
from minifuse.core.plan import Move, Place, Plan, Tier

Slot = tuple[Tier, int]  # (tier, number of a slot or of a block of slots)
Way = Tier | None  # where a copy goes to; None if it stays within the device
Actor = int  # the number of a copy; for wave w, ~w


def way_of(move: Move) -> Way:
    """Return where a move goes to; None if it stays within the device."""
    if not move.crosses:
        return None
    return "host" if move.target_tier == "host" else "device"


class Copy(NamedTuple):
    """Neighbouring moves of one moment and direction, made together in one layer.

    Waves and copies are numbered through all layers: wave w of layer i is i * (waves of a layer) + w.
    """

    moves: tuple[Move, ...]
    layer: int
    begins: int  # the copy begins when this wave has attended; -1: when the plan begins
    needed: int  # this wave waits for the copy; the number of all waves: only the plan's end waits
    follows: tuple[int, ...]  # copies that must be made before this one; they begin no later


def copies(plan: Plan, num_layers: int) -> list[Copy]:
    """List the copies that are made layer by layer, in program order.

    In each layer, program order is: the moves before wave 0, wave 0, the moves after wave 0, the moves before wave 1,
    and so on. A copy overlaps only with waves and copies that touch other slots, so the results are the same as if
    everything ran in program order.

    >>> # Sequence a reads and writes slots 0..4 in wave 0, b slots 8..12 in wave 1, c slots 0..4 in wave 2:
    >>> #   after 0:  swap_out 0..4           begins = 0, needed = 2: overlaps with wave 1
    >>> #   before 1: swap_in to 8..12        begins = -1, needed = 1: overlaps with wave 0
    >>> #   before 2: swap_in to 0..4         begins = 0, needed = 2, follows the swap_out: overlaps with wave 1
    >>> # If these are slots that the layers share, "before 1" of layer 1 has begins = 1: after wave 1 of layer 0.
    """
    in_order = sorted((move for move in plan.moves if by_layer(move)), key=_moment)  # stable: the plan's order is kept
    alike = groupby(in_order, lambda move: (_moment(move), move.source_tier, move.target_tier))
    groups = [tuple(group) for _, group in alike]
    num_waves, end = len(plan.waves), num_layers * len(plan.waves)
    in_turn = any("shared" in (move.source_tier, move.target_tier) for move in in_order)
    if in_turn or any(_moment(move) for move in in_order):
        waits = _beside_the_waves(plan, groups, end, 1 + in_turn)
    else:  # the usual case: no copy waits for a wave, and each follows the one before it
        waits = [_Waits((), range(max(0, number - 1), number), 0) for number in range(len(groups))]
    made: list[Copy] = []
    for layer in range(num_layers):
        for moves, (waves, earlier, needed) in zip(groups, waits, strict=True):
            numbers = [layer * len(groups) + number for number in earlier]
            follows = tuple([number for number in numbers if number >= 0])
            turns = [layer * num_waves + wave for wave in waves]
            begins = max([-1, *turns, *[made[number].begins for number in follows]])
            made.append(Copy(moves, layer, begins, min(layer * num_waves + needed, end), follows))
    return made


def timetable(found: list[Copy]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """List, for each wave, the copies that begin after the wave, and those it needs."""
    begun: defaultdict[int, list[int]] = defaultdict(list)
    needed: defaultdict[int, list[int]] = defaultdict(list)
    for number, copy in enumerate(found):
        begun[copy.begins].append(number)
        needed[copy.needed].append(number)
    return begun, needed


def _moment(move: Move) -> int:
    """Return when a move is made among the waves, as a number to sort by."""
    return 2 * move.wave + (move.moment == "after")


class _Waits(NamedTuple):
    """What a copy waits for, and the wave that waits for the copy.

    Waves and copies are numbered from the first one of the copy's own layer; negative numbers are in the layer before.
    """

    waves: Seq[int]
    copies: Seq[int]
    needed: int


def _beside_the_waves(plan: Plan, groups: list[tuple[Move, ...]], end: int, num_layers: int) -> list[_Waits]:
    """Find what each copy waits for: earlier users of its blocks, or of its slots.

    Args:
        end: the number of all waves.
        num_layers: how many layers to look at; two if the layers share slots. Two are enough: every layer touches the
            same shared slots, so a copy of the second layer already meets everything that it can have to wait for.
    """
    unit = min([place.size if isinstance(place, Pages) else 1 for place in plan.places])
    num_waves, last = len(plan.waves), num_layers - 1
    sources = [[slot for m in group for slot in _blocks(m.source_tier, m.source, m, unit)] for group in groups]
    targets = [[slot for m in group for slot in _blocks(m.target_tier, m.target, m, unit)] for group in groups]
    moved = {slot for slots in (*sources, *targets) for slot in slots}
    of_waves = [_of_wave(plan, wave, unit, moved) for wave in range(num_waves)]
    readers: defaultdict[Slot, set[Actor]] = defaultdict(set)
    writers: defaultdict[Slot, set[Actor]] = defaultdict(set)

    def act(actor: Actor, reads: Iterable[Slot], writes: Iterable[Slot]) -> set[Actor]:
        """Record what an actor reads and writes; return earlier actors that it must not overtake."""
        before: set[Actor] = set()
        for slot in reads:
            before |= writers[slot]
            readers[slot].add(actor)
        for slot in writes:
            before |= writers[slot] | readers[slot]
            writers[slot].add(actor)
        return before - {actor}

    in_order: list[tuple[float, Actor]] = [(_moment(group[0]), number) for number, group in enumerate(groups)]
    in_order += [(_BETWEEN + 2 * wave, ~wave) for wave in range(num_waves)]
    in_order.sort()
    needed: dict[Actor, int] = {}  # actor -> the first wave that waits for it
    for layer in range(num_layers):
        before: list[set[Actor]] = []  # what each copy of this layer waits for

        def mine(slots: Iterable[Slot], is_last: bool = layer == last) -> list[Slot]:
            """Leave out slots that the next layer does not use: all but shared ones."""
            return [slot for slot in slots if is_last or slot[0] == "shared"]

        for _, actor in in_order:
            if actor < 0:
                wave = layer * num_waves + ~actor
                for other in act(~wave, *map(mine, of_waves[~actor])):
                    needed.setdefault(other, wave)
                continue
            before.append(act(layer * len(groups) + actor, mine(sources[actor]), mine(targets[actor])))
    found = []
    for number, (group, actors) in enumerate(zip(groups, before, strict=True)):
        waves = [~actor - last * num_waves for actor in actors if actor < 0]
        earlier = sorted(actor - last * len(groups) for actor in actors if actor >= 0)
        if group[0].moment == "before":
            found.append(_Waits(waves, earlier, group[0].wave))
        else:
            found.append(_Waits([*waves, group[0].wave], earlier, needed.get(number, end)))
    return found


_BETWEEN = 0.5  # moves before a wave have moment 2 * wave, moves after it 2 * wave + 1; the wave lies between


def _of_wave(plan: Plan, wave: int, unit: int, moved: set[Slot]) -> tuple[set[Slot], set[Slot]]:
    """Find the moved blocks that a wave reads, and the moved blocks that it writes."""
    reads: set[Slot] = set()
    writes: set[Slot] = set()
    for index in range(*plan.waves[wave]):
        work, place = plan.work[index], plan.places[index]
        reads |= moved.intersection(_blocks_of(place, 0, work.start, unit))
        writes |= moved.intersection(_blocks_of(place, work.start, work.stop, unit))
    return reads, writes


def _blocks_of(place: Place, start: int, stop: int, unit: int) -> list[Slot]:
    """List the blocks of `unit` slots that tokens [start, stop) of a sequence lie in."""
    if start == stop:
        return []
    if isinstance(place, Pages) and place.size == unit:
        return [(place.tier, block) for block in place.blocks[start // unit : (stop - 1) // unit + 1]]
    return list(dict.fromkeys([(place.tier, slot // unit) for slot in place.slots(start, stop)]))


def _blocks(tier: Tier, start: int, move: Move, unit: int) -> list[Slot]:
    """List the blocks of `unit` slots that a move touches from slot `start` on.

    >>> _blocks("host", 6, Move("copy", 6, 0, num_tokens=4), 4)
    [('host', 1), ('host', 2)]
    """
    return [(tier, block) for block in range(start // unit, (start + move.num_tokens - 1) // unit + 1)]
