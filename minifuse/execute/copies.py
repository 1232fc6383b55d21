"""What each copy of a plan waits for, and what waits for it, where copies run beside waves (Pensieve; FluidInfer)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from minifuse.place import Pages, Place
from minifuse.plan import Move, Plan

__all__ = ["Copy", "copies"]

Slot = tuple[str, int]  # of a tier, or a block of slots
Actor = int  # the number of a copy, or ~wave


class Copy(NamedTuple):
    """Neighbouring moves of one moment and one direction, made together: in each layer i once that layer allows it."""

    moves: tuple[Move, ...]
    begins: int  # layer i is copied when this wave has attended in layer i; -1: from the plan's beginning
    needed: int  # this wave waits with layer i until it is copied; the number of waves: only the plan's end does
    follows: tuple[int, ...]  # earlier copies that must be made before it, in each layer


def copies(plan: Plan) -> list[Copy]:
    """The plan's moves that are made layer by layer, in the order in which they would be made one after the other.

    That order is: the moves before wave 0, wave 0, the moves after wave 0, the moves before wave 1, and so on. A copy
    runs beside whatever touches other slots than it does, so what is computed is what that order computes.

    >>> # a reads and writes slots 0..4 in wave 0, b 8..12 in wave 1, c 0..4 in wave 2:
    >>> #   after 0:  swap_out 0..4           begins = 0, needed = 2: runs beside wave 1
    >>> #   before 1: swap_in to 8..12        begins = -1, needed = 1: runs beside wave 0
    >>> #   before 2: swap_in to 0..4         begins = 0, needed = 2, follows the swap_out: runs beside wave 1
    """
    moves = sorted((move for move in plan.moves if move.by_layer), key=_moment)  # stable: the plan's order is kept
    alike = groupby(moves, lambda move: (_moment(move), move.source_tier, move.target_tier))
    groups = [(moment, tuple(group)) for (moment, _, _), group in alike]
    if not any(_moment(move) for move in moves):  # all before the first wave, as most are: no wave is in their way
        return [Copy(group, -1, 0, tuple(range(number))) for number, (_, group) in enumerate(groups)]
    return _beside_the_waves(plan, groups)


def _moment(move: Move) -> int:
    """Where a move is made among the waves, as a number to sort by."""
    return 2 * move.wave + (move.moment == "after")


def _beside_the_waves(plan: Plan, groups: list[tuple[int, tuple[Move, ...]]]) -> list[Copy]:
    """What may run beside what, by the blocks that each touches: slots by themselves where KV is not in blocks."""
    unit = min([place.size if isinstance(place, Pages) else 1 for place in plan.places])
    moved = {slot for _, group in groups for move in group for slot in (*_sources(move, unit), *_targets(move, unit))}
    readers: defaultdict[Slot, set[Actor]] = defaultdict(set)
    writers: defaultdict[Slot, set[Actor]] = defaultdict(set)

    def act(actor: Actor, reads: Iterable[Slot], writes: Iterable[Slot]) -> set[Actor]:
        """Note what an actor reads and writes. Returns those before it that it may not overtake."""
        before: set[Actor] = set()
        for slot in reads:
            before |= writers[slot]
            readers[slot].add(actor)
        for slot in writes:
            before |= writers[slot] | readers[slot]
            writers[slot].add(actor)
        return before - {actor}

    found: list[Copy] = []
    in_turn: list[tuple[float, Actor]] = [(moment, number) for number, (moment, _) in enumerate(groups)]
    in_turn += [(_BETWEEN + 2 * wave, ~wave) for wave in range(len(plan.waves))]
    for moment, actor in sorted(in_turn):
        if actor < 0:
            for copy in act(actor, *_of_wave(plan, ~actor, unit, moved)):
                if copy >= 0:
                    found[copy] = found[copy]._replace(needed=min(found[copy].needed, ~actor))
            continue
        group = groups[actor][1]
        reads = [slot for move in group for slot in _sources(move, unit)]
        earlier = act(actor, reads, [slot for move in group for slot in _targets(move, unit)])
        follows = tuple(sorted(copy for copy in earlier if copy >= 0))
        begins = max([-1, *(~wave for wave in earlier if wave < 0), *(found[copy].begins for copy in follows)])
        wave, is_after = divmod(int(moment), 2)
        found.append(
            Copy(group, max(begins, wave) if is_after else begins, len(plan.waves) if is_after else wave, follows)
        )
    return found


_BETWEEN = 0.5  # a wave is attended between the moves before it, 2 * wave, and those after it, 2 * wave + 1


def _of_wave(plan: Plan, wave: int, unit: int, moved: set[Slot]) -> tuple[set[Slot], set[Slot]]:
    """Of the blocks that moves touch, those that a wave reads, and those that it writes."""
    reads: set[Slot] = set()
    writes: set[Slot] = set()
    for index in range(*plan.waves[wave]):
        work, place = plan.work[index], plan.places[index]
        reads |= moved.intersection(_blocks_of(place, 0, work.start, unit))
        writes |= moved.intersection(_blocks_of(place, work.start, work.stop, unit))
    return reads, writes


def _blocks_of(place: Place, start: int, stop: int, unit: int) -> list[Slot]:
    """The blocks of `unit` slots that tokens [start, stop) of a sequence lie in."""
    if start == stop:
        return []
    if isinstance(place, Pages) and place.size == unit:
        return [("device", block) for block in place.blocks[start // unit : (stop - 1) // unit + 1]]
    return list(dict.fromkeys([("device", slot // unit) for slot in place.slots(start, stop)]))


def _sources(move: Move, unit: int) -> list[Slot]:
    return _blocks(move.source_tier, move.source, move.num_tokens, unit)


def _targets(move: Move, unit: int) -> list[Slot]:
    return _blocks(move.target_tier, move.target, move.num_tokens, unit)


def _blocks(tier: str, start: int, count: int, unit: int) -> list[Slot]:
    """The blocks of `unit` slots that these slots lie in.

    >>> _blocks("host", 6, 4, 4)
    [('host', 1), ('host', 2)]
    """
    return [(tier, block) for block in range(start // unit, (start + count - 1) // unit + 1)]
