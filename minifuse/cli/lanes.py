"""`minifuse run --live`: the last iterations of a run as lanes, and who has which part of the memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Sequences
from itertools import cycle, islice

from minifuse.cli.text import one_line, shortened
from minifuse.engine import Engine
from minifuse.place import State
from minifuse.report import StepReport
from minifuse.request import Phase, Sequence
from minifuse.work import TRANSFORMER, Work

__all__ = ["Lanes", "lane_of", "map_of_memory"]

WAITS, SUSPENDED, HELD, PREPROCESSES, PROMPT, RUNS, ENDS = ".~-op#|"
LEGEND = ". waits  o pre-processed  p prompt  # token or node  - held  ~ suspended  | ends"
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # of requests, in the memory
FREE = "."
LABEL_WIDTH = 12
REMEMBERED = 200  # iterations: as many columns as a wide terminal has
STATES = {Phase.RECEIVED: WAITS, Phase.SUSPENDED: SUSPENDED}  # of a sequence, where it is not held
Column = tuple[StepReport, dict[str, list[Work]]]  # an iteration, and its work by sequence


class Lanes:
    """The picture of the last iterations. A step costs next to nothing: all is worked out when it is drawn.

    Args:
        engine: that runs; its sequences are those that have not ended.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: deque[StepReport] = deque(maxlen=REMEMBERED)
        self._first: dict[str, int] = {}  # the step that admitted each
        self._top = 1  # slots of the device that have been used, from the first on

    def step(self, report: StepReport) -> None:
        """An iteration has completed."""
        if report.plan.work:
            self._last.append(report)
            for name in report.plan.admitted:
                self._first.setdefault(name, report.plan.step)

    def lines(self, width: int, rows: int) -> Iterator[str]:
        """The picture in lines of this width, with so many rows of requests at most."""
        reports = list(self._last)[-max(1, width - LABEL_WIDTH - 3) :]
        columns = [(report, _by_name(report)) for report in reports]
        alive = self._engine.sequences
        ended = [name for report in reports for name in report.finished]
        inside = [name for name in alive if name in self._first]
        waiting = [name for name in alive if name not in self._first]
        room = max(0, rows - len(inside))
        shown = [*ended[len(ended) - min(room, len(ended)) :], *inside, *waiting][:rows]
        last = reports[-1].plan.sequences if reports else ()
        names = dict(zip(dict.fromkeys([*inside, *last]), cycle(NAMES), strict=False))
        for name in shown:
            label = f"{names.get(name, ' ')} {shortened(one_line(name), LABEL_WIDTH):<{LABEL_WIDTH}}"
            yield f"{label} {lane_of(name, alive.get(name), columns, self._first.get(name))}".rstrip()
        left_out = len(alive) - sum(name in alive for name in shown)
        if left_out:
            yield f"{left_out} more run or wait"
        if reports:
            yield from self._memory(reports, names, width)
        yield LEGEND[:width]

    def _memory(self, reports: list[StepReport], names: dict[str, str], width: int) -> Iterator[str]:
        """Whose the slots of the device are, as far as the last iterations tell."""
        places: dict[str, list[range]] = {}
        for report in reversed(reports):
            plan = report.plan
            told = {work.sequence for work in plan.work} - places.keys()
            for work, place in zip(plan.work, plan.places, strict=True):
                if work.sequence in told and work.sequence in names:
                    slots = (
                        place.slots(work.start, work.stop) if isinstance(place, State) else place.slots(0, work.stop)
                    )
                    places.setdefault(work.sequence, []).extend(
                        [slots] if isinstance(slots, range) else [range(slot, slot + 1) for slot in slots]
                    )
        self._top = max([self._top, *(slots.stop for spans in places.values() for slots in spans)])
        owned = [(names[name], slots) for name, spans in places.items() for slots in spans]
        columns = max(1, width - LABEL_WIDTH - 3)
        label = f"slots 0-{self._top - 1}"
        yield f"{label:<{LABEL_WIDTH + 2}} {map_of_memory(owned, self._top, columns)}"
        usage = reports[-1].usage
        aside = f"{usage.used:,} used and {usage.reserved:,} reserved of {usage.capacity:,}"
        more = [(usage.host, "on the host"), (usage.kept, "kept"), (usage.kept_on_host, "kept on the host")]
        others = "".join(f", {number:,} {what}" for number, what in more if number)
        yield f"{'memory':<{LABEL_WIDTH + 2}} {aside}{others}"[:width]


def _by_name(report: StepReport) -> dict[str, list[Work]]:
    found: dict[str, list[Work]] = {}
    for work in report.plan.work:
        found.setdefault(work.sequence, []).append(work)
    return found


def lane_of(name: str, sequence: Sequence | None, columns: Sequences[Column], first: int | None) -> str:
    """The signs of a request in these columns; told backwards, from what it is now.

    Args:
        sequence: of the request; None: it has ended.
        first: the step that admitted it for the first time; None: none has.
    """
    if first is None and sequence is not None:
        arrival_s = sequence.request.arrival_s
        return "".join([WAITS if arrival_s < report.ended_s else " " for report, _ in columns])
    state = " " if sequence is None else STATES.get(sequence.phase, HELD)
    signs: list[str] = []
    last = " "  # what it does in its next iteration, and since when
    began_s = math.inf
    for report, works in reversed(columns):
        plan = report.plan
        if name in report.finished:
            signs.append(ENDS)
            last, state, began_s = RUNS, HELD, report.started_s
        elif name in works:
            last = _sign(plan.phase, sequence, works[name])
            signs.append(last)
            state, began_s = HELD, report.started_s
        elif name in plan.evicted:
            signs.append(SUSPENDED)
        elif state == HELD and began_s < report.ended_s:  # on another worker, beside this one
            signs.append(last)
        else:
            came = sequence is None or state != WAITS or sequence.request.arrival_s < report.ended_s
            signs.append(state if came else " ")
        if name in plan.admitted:
            state = WAITS if plan.step == first else SUSPENDED
        elif name in plan.evicted:
            state = HELD
    return "".join(reversed(signs))


def _sign(phase: Phase, sequence: Sequence | None, own: list[Work]) -> str:
    """What an iteration does for a request that it computes."""
    if phase is Phase.PREPROCESSING:
        return PREPROCESSES
    prompt = 0 if sequence is None else len(sequence.request.prompt)
    prefills = any(work.cell == TRANSFORMER and (work.num_tokens > 1 or work.start < prompt) for work in own)
    return PROMPT if prefills else RUNS


def map_of_memory(owned: Iterable[tuple[str, range]], num_slots: int, columns: int) -> str:
    """Memory as a line of characters: of each part of the slots whose most of it is, or that it is free.

    >>> map_of_memory([("A", range(0, 4)), ("B", range(6, 8))], 10, 5)
    'AA.B.'
    """
    columns = min(columns, num_slots)
    counts: list[dict[str, int]] = [{} for _ in range(columns)]
    for name, slots in owned:
        first, last = slots.start * columns // num_slots, (slots.stop - 1) * columns // num_slots
        for part in islice(range(columns), first, last + 1):
            start, stop = -(-part * num_slots // columns), -(-(part + 1) * num_slots // columns)
            inside = min(stop, slots.stop) - max(start, slots.start)
            counts[part][name] = counts[part].get(name, 0) + inside
    return "".join(max(part.items(), key=lambda item: item[1])[0] if part else FREE for part in counts)
