"""Carries out a plan's moves, beside its computing where they may be (Pensieve: pipelined and ahead-of-time swaps)."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from itertools import groupby
from typing import Literal, Protocol

import torch

from minifuse.core.measured import Measured
from minifuse.core.plan import Move, Plan
from minifuse.core.report import Ran
from minifuse.execute.copies import Copy, Key, copies, followed, timetable
from minifuse.execute.copy_thread import FETCH, STORE, WAITED, CopyThread
from minifuse.execute.link import traffic
from minifuse.execute.streams import Streams
from minifuse.kernels.operators import TORCH, KVTensors
from minifuse.model.operators import Operators

__all__ = ["MovesOfPlan", "PlanTransfers"]

Way = Literal["host", "device"]  # the tier that a copy goes to; copies within the device go with those to it


class MovesOfPlan:
    """The moves of one plan: `before` and `after` each wave of each layer, what may or must be done then.

    >>> # moves = transfers.begin(plan)                     the moves that come first are done, the others begin
    >>> # for each layer, each wave:
    >>> #     moves.before(layer, wave)                      wait for what the wave needs in this layer
    >>> #     ...attend...
    >>> #     moves.after(layer, wave)                       begin with what the wave was in the way of
    >>> # measured = moves.end()
    """

    def __init__(self, transfers: PlanTransfers, plan: Plan) -> None:
        self._plan = plan
        self._transfers = transfers
        self._queue = transfers.queue()
        self._copies = copies(plan, in_turn=transfers.cache.in_turn)
        self._num_waves = len(plan.waves)
        self._begun_by, self._needed_by = timetable(self._copies, self._num_waves, transfers.num_layers)
        self._marks: dict[Key, Mark] = {}
        self._waited: set[Key] = set()
        self._seconds: dict[Way, float] = {"host": 0.0, "device": 0.0}
        self._moving_s = self._within_s = 0.0
        for way, moves in groupby((move for move in plan.moves if move.moment == "first"), _way):
            self._first(way, list(moves))
        self._begin(-1)

    def _first(self, way: Way | None, moves: list[Move]) -> None:
        """Make moves in all layers, while nothing is computed."""
        seconds = self._transfers.at_once(moves)
        self._moving_s += seconds
        if way is None:
            self._within_s += seconds
        else:
            self._seconds[way] += seconds

    def before(self, layer: int, wave: int) -> None:
        """Let what comes next wait for the copies that a wave needs in a layer."""
        for key in self._needed_by.get(layer * self._num_waves + wave, ()):
            self._wait(key)

    def after(self, layer: int, wave: int) -> None:
        """A wave has attended in a layer: begin with the copies that it was in the way of."""
        self._begin(layer * self._num_waves + wave)

    def _begin(self, turn: int) -> None:
        for layer, number in self._begun_by.get(turn, ()):
            follows = [self._marks[key] for key in followed(self._copies, layer, number)]
            self._marks[layer, number] = self._queue.start(self._copies[number], layer, follows)

    def _wait(self, key: Key) -> None:
        if key not in self._waited:
            self._waited.add(key)
            self._queue.wait(self._marks[key])

    def end(self) -> Measured:
        """Wait for every copy. Returns what was carried, and for how long moves held the computing up."""
        for key in self._marks:
            self._wait(key)
        exposed_s = self._queue.exposed_s()
        for (_, number), mark in self._marks.items():
            if (way := _way(self._copies[number].moves[0])) is not None:
                self._seconds[way] += mark.seconds()
        moving_s = self._moving_s + exposed_s
        carried = traffic(
            self._plan.moves, self._transfers.bytes_per_token, (self._seconds["host"], self._seconds["device"])
        )
        return carried._replace(moving_s=moving_s, exposed_s=moving_s - self._within_s)


def _way(move: Move) -> Way | None:
    """The tier that a move goes to; None within the device."""
    return move.target_tier if move.crosses else None


class Mark(Protocol):
    """A copy that has been started, in one layer."""

    def seconds(self) -> float:
        """How long it took, once it has ended."""
        ...


class CopyQueue(Protocol):
    """Where a plan's copies run beside its computing."""

    def start(self, copy: Copy, layer: int, follows: list[Mark]) -> Mark:
        """Copy in one layer, after what has been computed so far and after the copies `follows`."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let what is computed next wait for a copy."""
        ...

    def exposed_s(self) -> float:
        """For how long computing has waited. On a GPU this waits for all that has been computed."""
        ...


class PlanTransfers:
    """Carries out the moves of all plans on one KV cache. It alone copies between slots.

    On a GPU, copies that run beside the computing go to a stream for each direction, with events in each layer; on a
    CPU to a thread, as torch's copies release the interpreter. Moves behind everything are copied layer by layer by
    that thread (on a GPU through those streams), when no plan waits for a copy: those to the device first, so that
    nothing is swapped out ahead of time while something is still to be fetched ("retrieval before eviction").
    """

    def __init__(self, cache: KVTensors, operators: Operators = TORCH) -> None:
        self.cache = cache
        self.num_layers = cache.keys.shape[0]
        self.bytes_per_token = 2 * self.num_layers * cache.keys[0, :1].numel() * cache.keys.element_size()
        self._on_gpu = cache.device.type == "cuda"
        self.operators = operators
        self.streams = Streams(cache.device)
        self.thread = CopyThread()
        self.fetched: torch.cuda.Event | None = None  # on a GPU, the end of the last copy to the device

    def begin(self, plan: Plan) -> MovesOfPlan:
        """Make the moves of a plan that come first, and begin with those that are made layer by layer."""
        return MovesOfPlan(self, plan)

    def behind(self, plan: Plan) -> Future[Ran]:
        """Begin with the moves of a plan without work. The future is done when all of them have landed."""
        by_way = groupby(sorted(plan.moves, key=lambda move: move.target_tier), _way)  # to the device first
        groups = [(way, list(moves)) for way, moves in by_way]
        pieces = deque((way, moves, layer) for way, moves in groups for layer in range(self.num_layers))
        landed: Future[Ran] = Future()
        seconds: dict[Way, float] = {"host": 0.0, "device": 0.0}

        def proceed() -> None:
            """Copy one piece, then stand in line again with the next: what is more urgent goes in between."""
            try:
                way, moves, layer = pieces.popleft()
                assert way is not None
                seconds[way] += self._copy_behind(way, moves, layer)
                if pieces:
                    stand_in_line()
                else:
                    carried = traffic(plan.moves, self.bytes_per_token, (seconds["host"], seconds["device"]))
                    landed.set_result(Ran({}, measured=carried))
            except BaseException as error:
                landed.set_exception(error)

        def stand_in_line() -> None:
            self.thread.submit(FETCH if pieces[0][0] == "device" else STORE, proceed, plan.step)

        stand_in_line()
        return landed

    def _copy_behind(self, way: Way, moves: list[Move], layer: int) -> float:
        """Copy one layer in the copy thread. Returns the seconds that it took."""
        if not self._on_gpu:
            return self.copy(moves, layer)
        with torch.inference_mode(), torch.cuda.stream(self.streams.copying(way)):
            if way == "host" and self.fetched is not None:
                self.fetched.synchronize()
            begins, ends = _timed_event(), _timed_event()
            begins.record()
            self.operators.move(self.cache, moves, layer)
            ends.record()
            if way == "device":
                self.fetched = ends
        ends.synchronize()
        return _between(begins, ends)

    def copy(self, moves: tuple[Move, ...] | list[Move], layer: int) -> float:
        """Copy moves in one layer, on a CPU. Returns the seconds that it took.

        Plain torch, whatever the operators: the interpreter of Triton's kernels has one thread.
        """
        begins = time.perf_counter()
        TORCH.move(self.cache, moves, layer)
        return time.perf_counter() - begins

    def at_once(self, moves: list[Move]) -> float:
        """Copy moves in all layers while the caller waits. Returns the seconds that it took."""
        begins = time.perf_counter()
        self.operators.move(self.cache, moves)
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begins

    def queue(self) -> CopyQueue:
        """Where the copies of one more plan run."""
        return _StreamQueue(self) if self._on_gpu else _ThreadQueue(self)

    def close(self) -> None:
        """Stop. What is behind everything and has not begun is not copied any more."""
        self.thread.close()


class _Copied:
    """A copy in the thread. `seconds` waits for it."""

    def __init__(self) -> None:
        self.done: Future[float] = Future()

    def seconds(self) -> float:
        return self.done.result()


class _ThreadQueue:
    """Copies in the copy thread, in the order in which they are started: each follows those before it."""

    def __init__(self, transfers: PlanTransfers) -> None:
        self._transfers = transfers
        self._exposed_s = 0.0

    def start(self, copy: Copy, layer: int, follows: list[Mark]) -> Mark:
        mark = _Copied()

        def work() -> None:
            try:
                mark.done.set_result(self._transfers.copy(copy.moves, layer))
            except BaseException as error:
                mark.done.set_exception(error)

        self._transfers.thread.submit(WAITED, work)
        return mark

    def wait(self, mark: Mark) -> None:
        begins = time.perf_counter()
        mark.seconds()
        self._exposed_s += time.perf_counter() - begins

    def exposed_s(self) -> float:
        return self._exposed_s


class _Recorded:
    """A copy on a stream, between two events."""

    def __init__(self) -> None:
        self.begins, self.ends = _timed_event(), _timed_event()

    def seconds(self) -> float:
        return _between(self.begins, self.ends)


class _StreamQueue:
    """Copies on the stream of their direction."""

    def __init__(self, transfers: PlanTransfers) -> None:
        self._transfers = transfers
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # around each wait of the computing stream

    def start(self, copy: Copy, layer: int, follows: list[Mark]) -> Mark:
        transfers, mark = self._transfers, _Recorded()
        way = copy.moves[0].target_tier
        computed = torch.cuda.Event()
        computed.record()
        stream = transfers.streams.copying(way)
        stream.wait_event(computed)
        for other in follows:
            assert isinstance(other, _Recorded)
            stream.wait_event(other.ends)
        with torch.cuda.stream(stream):
            mark.begins.record()
            transfers.operators.move(transfers.cache, copy.moves, layer)
            mark.ends.record()
        if way == "device":
            transfers.fetched = mark.ends
        return mark

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, _Recorded)
        begins, ends = _timed_event(), _timed_event()
        begins.record()
        torch.cuda.current_stream().wait_event(mark.ends)
        ends.record()
        self._waits.append((begins, ends))

    def exposed_s(self) -> float:
        if not self._waits:
            return 0.0
        torch.cuda.current_stream().synchronize()
        return sum(_between(begins, ends) for begins, ends in self._waits)


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _between(begins: torch.cuda.Event, ends: torch.cuda.Event) -> float:
    milliseconds: float = begins.elapsed_time(ends)
    return milliseconds / 1e3
