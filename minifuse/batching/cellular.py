"""Batches cells of one type, from any requests (BatchMaker, 2.4.3, Algorithm 1)."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from minifuse.batching.subgraphs import RequestProcessor, Subgraph
from minifuse.core.errors import UsageError
from minifuse.core.plan import Plan, Proposal, Reason, Room
from minifuse.core.request import Sequence
from minifuse.core.stages import Memory, option
from minifuse.io.parsing import parse_int, unknown
from minifuse.stages import Batching

MANY = 2**20


class CellType:
    """Queues the subgraphs of one type that have ready nodes, in order of arrival.

    Subgraphs of requests that have not started wait in a second queue, which is served after the first. Once memory has
    no room for one of them, the rest of the second queue is skipped.
    """

    def __init__(self, max_batch: int, min_batch: int, sizes: tuple[int, ...] = ()) -> None:
        self.sizes = sizes  # Bsizes, ascending; (): all from the smallest to the largest
        self.max_batch = sizes[-1] if sizes else max_batch  # Bsizes.Max()
        self.min_batch = sizes[0] if sizes else min_batch  # Bsizes.Min()
        self.priority = 0.0
        self.num_running_tasks = 0
        # Ordered: a plain dictionary finds its first key slowly once many earlier keys have been removed.
        self.started: OrderedDict[Subgraph, None] = OrderedDict()
        self.newcomers: OrderedDict[Subgraph, None] = OrderedDict()
        self._num_ready: Counter[int | None] = Counter()  # worker that subgraphs are pinned to -> ready nodes

    def fitting(self, count: int) -> int:
        """Return the largest supported size of at most `count` nodes, otherwise `count`.

        >>> cell = CellType(64, 1, sizes=(2, 4, 8))
        >>> [cell.fitting(count) for count in (1, 2, 7, 100)]
        [1, 2, 4, 8]
        """
        count = min(count, self.max_batch)
        return max([size for size in self.sizes if size <= count], default=count)

    def num_ready_nodes(self, worker: int) -> int:
        """Count the ready nodes of subgraphs that are pinned to this worker or to none."""
        return self._num_ready[None] + self._num_ready[worker]

    def add(self, subgraph: Subgraph, started: bool) -> None:
        (self.started if started else self.newcomers)[subgraph] = None
        self._num_ready[subgraph.pinned] += len(subgraph.ready)

    def start(self, subgraph: Subgraph) -> None:
        """Move a subgraph to the first queue: its request has started."""
        if subgraph in self.newcomers:
            del self.newcomers[subgraph]
            self.started[subgraph] = None

    def remove(self, subgraph: Subgraph) -> None:
        """Remove a subgraph whose request has ended."""
        self._num_ready[subgraph.pinned] -= len(subgraph.ready)
        subgraph.ready.clear()
        self.started.pop(subgraph, None)
        self.newcomers.pop(subgraph, None)

    def submit(self, subgraph: Subgraph, nodes: list[int], worker: int) -> None:
        """Pin a subgraph to its task's worker; dequeue it if no ready node is left."""
        self._num_ready[subgraph.pinned] -= len(subgraph.ready)
        subgraph.pinned = worker
        subgraph.num_running += 1
        for node in nodes:
            subgraph.submit(node)
        self._num_ready[worker] += len(subgraph.ready)
        if not subgraph.ready:
            del self.started[subgraph]

    def completed(self, subgraph: Subgraph) -> None:
        """Count a subgraph's completed task; unpin the subgraph if no task is in flight."""
        subgraph.num_running -= 1
        if not subgraph.num_running:
            self._num_ready[subgraph.pinned] -= len(subgraph.ready)
            self._num_ready[None] += len(subgraph.ready)
            subgraph.pinned = None


@dataclass(slots=True)
class Task:
    """A batch of ready nodes of one type."""

    cell: CellType
    room: Room  # the trial in which memory has room for the task
    nodes: dict[Subgraph, list[int]]
    admit: list[Sequence]  # requests that start with this task
    reasons: list[Reason]  # why sequences with ready nodes are left out
    size: int = 0  # number of nodes


class Cellular(Batching):
    """Chooses a type of cell for each idle worker, and submits up to MaxTasksToSubmit batches.

    A request joins with its first ready node and leaves with its last. The type is (a) one with a full batch of ready
    nodes, else (b) one without a running task, else (c) any with ready nodes. Of several, the one of highest priority
    goes first. A transformer has one type, an iteration, and up to MaxTasksToSubmit iterations are in flight.
    """

    name = "cellular"
    serves = frozenset({"cells", "transformer"})
    remembers = True  # the types met so far, and their priorities

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(64, "nodes of one task, at most (Bsizes.Max)", minimum=1, batch_size=True)
        min_batch: int = option(1, "nodes of every task but the first of a turn, at least (Bsizes.Min)", minimum=1)
        batch_sizes: str | None = option(
            None, "supported sizes of tasks (Bsizes), as 1,2,4,8; otherwise all from min_batch to max_batch"
        )
        max_batches: str | None = option(None, "max_batch of single types, as encoder=512,decoder=256")
        priorities: str | None = option(
            None, "types from the highest priority to the lowest, as decoder,encoder; otherwise the later in a graph"
        )
        max_tasks: int = option(5, "tasks submitted to a worker at once, at most (MaxTasksToSubmit)", minimum=1)
        workers: int = option(1, "workers, each of which runs its tasks in order", minimum=1, maximum=64)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.workers = self.options.workers
        self.depth = self.options.max_tasks
        self.max_batches = _max_batches(self.options)
        limits = (self.options.max_batch, *self.max_batches.values())
        self.batch_sizes = _batch_sizes(self.options)
        for most in limits:
            self.supported(most)
        # A runner prepares a graph for each size that a type can use.
        self.batch_sizes = tuple([size for size in self.batch_sizes if size <= max(limits)])
        self.priorities = _priorities(self.options)
        self.types: dict[str, CellType] = {}
        self.processor = RequestProcessor(self.enqueue)
        self.waiting: dict[str, int] = {}  # the arrival number of each request that has not started
        self.first_without_room: Sequence | None = None  # the first waiting request that memory has refused
        self.num_received = 0
        self.subgraphs: dict[str, list[Subgraph]] = {}  # request -> its subgraphs enqueued so far
        self.turns: dict[int, Iterator[Task]] = {}  # worker -> the tasks that its turn has yet to yield
        self.submitted: list[deque[Task]] = [deque() for _ in range(self.workers)]  # worker -> its tasks in flight

    def supported(self, most: int) -> tuple[int, ...]:
        """Return a type's supported sizes, up to `most`; raise `UsageError` without one."""
        least = self.options.min_batch
        found = tuple([size for size in self.batch_sizes if least <= size <= most])
        if self.batch_sizes and not found:
            given = self.options.batch_sizes
            raise UsageError(f"batching.batch_sizes is {given!r}: give a size from {least} to {most}.")
        return found

    def check(self, model: str, cell_types: Collection[str]) -> None:
        """Raise `UsageError` if an option names a type of cell that the model lacks."""
        for name in (*self.max_batches, *self.priorities):
            if name not in cell_types:
                raise unknown(f"type of cell of {model}", name, cell_types)

    def receive(self, sequence: Sequence) -> None:
        self.num_received += 1
        self.waiting[sequence.id] = self.num_received
        self.subgraphs[sequence.id] = []
        self.processor.receive(sequence)

    def enqueue(self, subgraph: Subgraph) -> None:
        """Queue a subgraph by its type, once all outside nodes that it reads are computed."""
        name = subgraph.cell
        if name not in self.types:
            most = self.max_batches.get(name, self.options.max_batch)
            self.types[name] = CellType(most, self.options.min_batch, self.supported(most))
        cell = self.types[name]
        cell.priority = max(cell.priority, subgraph.priority)
        if name in self.priorities:
            cell.priority = MANY - self.priorities.index(name)
        cell.add(subgraph, started=subgraph.sequence.id not in self.waiting)
        self.subgraphs[subgraph.sequence.id].append(subgraph)

    def release(self, sequence: Sequence) -> None:
        self.admitted(sequence)
        self.processor.release(sequence)
        for subgraph in self.subgraphs.pop(sequence.id, ()):
            self.types[subgraph.cell].remove(subgraph)

    def admitted(self, sequence: Sequence) -> None:
        """Record that a request no longer waits."""
        self.waiting.pop(sequence.id, None)
        for subgraph in self.subgraphs.get(sequence.id, ()):
            self.types[subgraph.cell].start(subgraph)
        if self.first_without_room is sequence:
            self.first_without_room = None

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        reasons: list[Reason] = []
        if not self.submitted[worker]:
            self.turns[worker] = self.schedule(worker, memory, reasons)
        task = next(self.turns[worker], None)
        if task is None:
            return Proposal(reasons=tuple(reasons))
        work = tuple([piece for subgraph, nodes in task.nodes.items() for piece in subgraph.work(nodes, memory)])
        return Proposal(work, tuple(task.admit), tuple(task.reasons), room=task.room)

    def schedule(self, worker: int, memory: Memory, reasons: list[Reason]) -> Iterator[Task]:
        """Algorithm 1, Schedule: yield the tasks of the type chosen for an idle worker.

        Criteria: (a) a full batch is ready, (b) no task of the type runs, (c) any node is ready. Of types that meet the
        same criterion, the one of highest priority goes first. If memory has no room for a single node of a type, the
        next type is tried; the thesis knows no such limit.
        """

        def order(ct: CellType) -> tuple[str, float]:
            if ct.num_ready_nodes(worker) >= ct.max_batch:
                criterion = "a"
            elif ct.num_running_tasks == 0:
                criterion = "b"
            else:
                criterion = "c"
            return criterion, -ct.priority

        ready = [ct for ct in self.types.values() if ct.num_ready_nodes(worker) > 0]
        for ct in sorted(ready, key=order):
            yield from self.batch(ct, worker, memory, reasons)
            if self.submitted[worker]:
                return

    def batch(self, ct: CellType, worker: int, memory: Memory, reasons: list[Reason]) -> Iterator[Task]:
        """Algorithm 1, Batch: submit and yield tasks of one type."""
        for number in range(self.options.max_tasks):
            batch = self.form_batched_task(ct, worker, memory.room())
            if (size := ct.fitting(batch.size)) < batch.size:  # memory has no room for the size that was tried
                batch = self.form_batched_task(ct, worker, memory.room(), size)
            if batch.size == 0 or (number > 0 and batch.size < ct.min_batch):
                reasons += batch.reasons
                return
            self.submit(batch, worker)
            yield batch

    def form_batched_task(self, ct: CellType, worker: int, room: Room, size: int | None = None) -> Task:
        """Algorithm 1, FormBatchedTask: take ready nodes that are not pinned to other workers.

        It takes up to `size` nodes, by default the largest supported size that ready nodes fill.

        A request joins with its first node if memory has room for the request. No later request overtakes it.
        """
        batch = Task(ct, room, {}, [], [])
        size = size or ct.fitting(ct.num_ready_nodes(worker))
        for subgraph in chain(ct.started, ct.newcomers):
            if subgraph.pinned is None or subgraph.pinned == worker:
                sequence = subgraph.sequence
                if sequence.id in self.waiting and sequence not in batch.admit:
                    if reason := self.refusal(sequence, room):
                        batch.reasons.append(reason)
                        break
                    batch.admit.append(sequence)
                for node in subgraph.ready:
                    if sequence.graph is not None and (lacking := room.extend(sequence)):
                        batch.reasons.append(lacking)
                        break
                    batch.nodes.setdefault(subgraph, []).append(node)
                    batch.size += 1
                    if batch.size == size:
                        return batch
        return batch

    def refusal(self, sequence: Sequence, room: Room) -> Reason | None:
        """Return why a waiting request cannot join, or None if it can.

        It joins if memory has room for it, and no request that arrived before it still waits for room.
        """
        first = self.first_without_room
        if first is not None and self.waiting[first.id] < self.waiting[sequence.id]:
            text = f"not admitted: {first.id!r} arrived before it and finds no room in memory"
            return Reason("behind", sequence.id, text)
        if reason := room.admit(sequence):
            self.first_without_room = sequence
        return reason

    def submit(self, batch: Task, worker: int) -> None:
        """Algorithm 1, SubmitBatchedTask: pin subgraphs to the worker while their tasks run."""
        self.submitted[worker].append(batch)
        batch.cell.num_running_tasks += 1
        for sequence in batch.admit:
            self.admitted(sequence)
        for subgraph, nodes in batch.nodes.items():
            batch.cell.submit(subgraph, nodes, worker)

    def commit(self, plan: Plan, now: float) -> None:
        """Record the completion of a worker's oldest task: its tasks complete in order."""
        task = self.submitted[plan.worker].popleft()
        task.cell.num_running_tasks -= 1
        for subgraph, nodes in task.nodes.items():
            task.cell.completed(subgraph)
            self.processor.computed(subgraph.sequence, nodes)


def _parts(text: str | None) -> list[str]:
    """Split a text at its commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _priorities(options: Cellular.Options) -> list[str]:
    """Parse the types in order of priority; raise `UsageError` if one is named twice."""
    found = _parts(options.priorities)
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"batching.priorities has {twice!r} twice: give every type once.")
    return found


def _batch_sizes(options: Cellular.Options) -> tuple[int, ...]:
    """Parse the supported batch sizes, ascending; raise `UsageError` if they are wrong."""
    found: list[int] = []
    for part in _parts(options.batch_sizes):
        size = parse_int(part, "A supported batch size", 1, MANY)
        if size in found:
            raise UsageError(f"batching.batch_sizes has {size} twice: give every size once.")
        found.append(size)
    return tuple(sorted(found))


def _max_batches(options: Cellular.Options) -> dict[str, int]:
    """Parse the maximum batch sizes of individual types.

    Raises:
        UsageError: a part is not TYPE=SIZE, or a size is not positive, or below min_batch.
    """
    found = {}
    for pair in _parts(options.max_batches):
        name, equals, size = [part.strip() for part in pair.partition("=")]
        if not equals or not name:
            raise UsageError(f"batching.max_batches has {pair!r}: give TYPE=SIZE, as encoder=512,decoder=256.")
        if name in found:
            raise UsageError(f"batching.max_batches has {name!r} twice: give every type one size.")
        found[name] = parse_int(size, f"The maximum batch size of {name!r}", 1, MANY)
    smallest = min([options.max_batch, *found.values()])
    if options.min_batch > smallest:
        raise UsageError(
            f"batching.min_batch is {options.min_batch} and the smallest maximum {smallest}: give at most that."
        )
    return found
