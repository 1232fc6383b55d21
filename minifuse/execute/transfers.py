"""Carries out a plan's moves, during its computing where possible (Pensieve: pipelined, ahead-of-time swaps)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from itertools import count, groupby
from queue import PriorityQueue
from typing import Any, NamedTuple

import torch

from minifuse.core.measured import Measured
from minifuse.core.plan import Move, Plan
from minifuse.core.report import Ran
from minifuse.execute.copies import Copy, Way, copies, timetable, way_of
from minifuse.execute.link import traffic
from minifuse.execute.streams import Streams
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.kernels.one_core import one_core_threads
from minifuse.kernels.operators import TORCH
from minifuse.model.operators import Operators

# The urgency of a copy: a plan waits for it; it is `behind`, to the device; it is `behind`, to the host.
WAITED, FETCH, STORE = range(3)
AT_ONCE = 2**18  # bytes of a copy that takes less time than a thread takes to begin it


class MovesOfPlan:
    """Makes the moves of one plan while its waves attend, layer by layer.

    Call `before` and `after` around each wave of each layer; waves are numbered through all layers.

    >>> # moves = MovesOfPlan(transfers, plan)               makes the `first` moves, begins others
    >>> # for each turn (a wave of a layer):
    >>> #     moves.before(turn)                             waits for the copies that the wave needs in this layer
    >>> #     ...attend...
    >>> #     moves.after(turn)                              begins the copies that waited for the wave
    >>> # measured = moves.end()
    """

    def __init__(self, transfers: PlanTransfers, plan: Plan) -> None:
        self._plan = plan
        self._transfers = transfers
        self._copies = copies(plan, transfers.num_layers)
        self._begun_by, self._needed_by = timetable(self._copies)
        self._marks: dict[int, Mark] = {}  # a mark for each copy that has begun
        self._waits: list[Callable[[], float]] = []  # for each copy waited for, returns how long computing waited
        self._seconds: defaultdict[Way, float] = defaultdict(float)
        for way, moves in groupby((move for move in plan.moves if move.moment == "first"), way_of):
            self._seconds[way] += transfers.at_once(list(moves))
        self._within_s = self._seconds[None]
        self._first_s = sum(self._seconds.values())
        self.after(-1)

    def before(self, turn: int) -> None:
        """Make the next computation wait for the copies that this wave of a layer needs."""
        for number in self._needed_by.get(turn, ()):
            self._waits.append(self._transfers.wait(self._marks[number]))

    def after(self, turn: int) -> None:
        """Begin the copies that waited for this wave of a layer."""
        for number in self._begun_by.get(turn, ()):
            copy = self._copies[number]
            mark = self._transfers.start(copy, [self._marks[before] for before in copy.follows])
            self._marks[number] = mark
            if isinstance(mark, Made):
                self._waits.append(mark.result)

    def end(self) -> Measured:
        """Wait for every copy; return what was carried, and how long computing waited."""
        self.before(len(self._plan.waves) * self._transfers.num_layers)  # the copies that no wave needs
        if self._transfers.on_gpu:
            torch.cuda.current_stream().synchronize()
        moving_s = self._first_s + sum([seconds() for seconds in self._waits])
        for number, mark in self._marks.items():
            self._seconds[way_of(self._copies[number].moves[0])] += mark.result()
        carried = traffic(self._plan.moves, self._transfers.bytes_per_token, self._seconds)
        return carried._replace(moving_s=moving_s, exposed_s=moving_s - self._within_s)


class CopyThread:
    """Makes copies in a thread, the most urgent first (Pensieve: retrieval before eviction)."""

    def __init__(self) -> None:
        self._numbers = count()
        self._queue: PriorityQueue[tuple[int, int, Callable[[], Any], Future[Any]]] = PriorityQueue()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return one_core_threads(1, "minifuse-copies")

    def submit(self, urgency: int, work: Callable[[], Any]) -> Future[Any]:
        """Queue a copy behind more urgent ones, and behind earlier ones of equal urgency.

        Raises:
            RuntimeError: the thread has been closed.
        """
        made: Future[Any] = Future()
        self._queue.put((urgency, next(self._numbers), work, made))
        self._pool.submit(self._most_urgent)
        return made

    def _most_urgent(self) -> None:
        *_, work, made = self._queue.get()
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    def close(self) -> None:
        pool = vars(self).setdefault("_pool", ThreadPoolExecutor(1))  # without a thread, if none was needed
        pool.shutdown(wait=True, cancel_futures=True)


class PlanTransfers:
    """Schedules the moves of all plans on one KV cache; `cache.move` does the copying.

    On a GPU, copies that overlap with computing go to one stream per direction, with events in each layer. On a CPU
    they go to a thread, because torch releases the interpreter lock while it copies. That thread also makes the moves
    `behind` everything (on a GPU through the streams), layer by layer, while no plan waits for a copy. It makes moves
    to the device first: nothing is swapped out ahead of time before all has been fetched ("retrieval before
    eviction").
    """

    def __init__(self, cache: TieredStorage, operators: Operators = TORCH) -> None:
        self.cache = cache
        self.num_layers = cache.keys.shape[0]
        self.bytes_per_token = cache.copy_bytes
        self.on_gpu = cache.device.type == "cuda"
        self.operators = operators
        self.streams = Streams(cache.device)
        self.thread = CopyThread()
        self._fetched: _Timed | None = None  # on a GPU, the last copy to the device

    def behind(self, plan: Plan) -> Future[Ran]:
        """Begin the moves of a plan without work; the future resolves when all are complete."""
        pieces: list[tuple[Way, Future[float]]] = []
        urgency = STORE
        for way, group in groupby(sorted(plan.moves, key=lambda move: move.target_tier), way_of):  # to the device first
            urgency, moves = FETCH if way == "device" else STORE, list(group)
            for layer in range(self.num_layers):
                copy = partial(self._copy_behind, moves, layer)
                pieces.append((way, self.thread.submit(urgency, copy)))

        def landed() -> Ran:
            seconds: defaultdict[Way, float] = defaultdict(float)
            for way, piece in pieces:
                seconds[way] += piece.result()
            return Ran({}, measured=traffic(plan.moves, self.bytes_per_token, seconds))

        return self.thread.submit(urgency, landed)

    def _copy_behind(self, moves: Seq[Move], layer: int) -> float:
        """Copy moves in one layer, in the copy thread. Returns how many seconds that took."""
        if not self.on_gpu:
            return self.copy(moves, layer)
        with torch.inference_mode():
            if moves[0].target_tier == "host" and self._fetched is not None:
                self._fetched.ends.synchronize()
            copied = self._on_stream(moves, layer)
        copied.ends.synchronize()
        return copied.result()

    def copy(self, moves: Seq[Move], layer: int) -> float:
        """Copy moves in one layer, on a CPU. Returns how many seconds that took.

        This uses plain torch, whatever `operators` is: the interpreter of Triton's kernels has only one thread.
        """
        begins = time.perf_counter()
        TORCH.move(self.cache, moves, layer)
        return time.perf_counter() - begins

    def start(self, copy: Copy, follows: list[Mark]) -> Mark:
        """Start a copy, made after all computing issued so far and the copies `follows`.

        The thread makes these copies in the order in which they were started. A small copy is made here and now, if
        none is left that it follows: handing it to the thread takes longer.
        """
        if not self.on_gpu:
            make = partial(self.copy, copy.moves, copy.layer)
            is_small = sum([move.num_tokens for move in copy.moves]) * self.bytes_per_token <= AT_ONCE * self.num_layers
            if is_small and all(not isinstance(mark, _Timed) and mark.done() for mark in follows):
                return Made(make())
            return self.thread.submit(WAITED, make)
        events = [mark.ends for mark in follows if isinstance(mark, _Timed)]
        return self._on_stream(copy.moves, copy.layer, torch.cuda.current_stream().record_event(), *events)

    def wait(self, mark: Mark) -> Callable[[], float]:
        """Make the next computation wait for a copy; return a function giving the seconds waited."""
        if isinstance(mark, _Timed):
            begins = _recorded()
            torch.cuda.current_stream().wait_event(mark.ends)
            return _Timed(begins, _recorded()).result
        begins_s = time.perf_counter()
        mark.result()
        waited_s = time.perf_counter() - begins_s
        return lambda: waited_s

    def _on_stream(self, moves: Seq[Move], layer: int, *events: torch.cuda.Event) -> _Timed:
        """Copy moves in one layer on the stream of their direction, after these events."""
        way = way_of(moves[0]) or "device"
        with self.streams.of(way):
            for event in events:
                torch.cuda.current_stream().wait_event(event)
            begins = _recorded()
            self.operators.move(self.cache, moves, layer)
            copied = _Timed(begins, _recorded())
        if way == "device":
            self._fetched = copied
        return copied

    def at_once(self, moves: list[Move]) -> float:
        """Copy moves in all layers while the caller waits. Returns how many seconds that took."""
        begins = time.perf_counter()
        self.operators.move(self.cache, moves)
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begins

    def close(self) -> None:
        """Stop the thread. Moves `behind` everything that have not begun are dropped."""
        self.thread.close()


def _recorded() -> torch.cuda.Event:
    """Record an event on a GPU's current stream, with its time."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class _Timed(NamedTuple):
    """Work on a GPU's stream between two events."""

    begins: torch.cuda.Event
    ends: torch.cuda.Event

    def result(self) -> float:
        """Return the seconds that the work took, once it has ended."""
        milliseconds: float = self.begins.elapsed_time(self.ends)
        return milliseconds / 1e3


class Made(NamedTuple):
    """A copy that was made while computing waited for it."""

    seconds: float

    def done(self) -> bool:
        return True

    def result(self) -> float:
        return self.seconds


Mark = Future[float] | _Timed | Made  # a started copy of one layer; once it has ended, `result()` gives its seconds
