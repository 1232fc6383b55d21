"""Lab 5: cellular scheduling.

Cells of many requests are batched by their type. A subgraph is a number that the judge gives it, and so are its nodes
and the workers. All functions and methods get and return plain data.
"""

from collections import Counter, deque


def choose_type(types: list[dict]) -> str | None:
    """The type of cell whose batch is next; None if no type has a ready node.

    A type is {"name": "leaf", "ready": ready nodes, "running": tasks of it that have not completed, "max": nodes of a
    batch, at most, "priority": a number}. Of several that are equally good the first in the list.

    >>> choose_type([{"name": "leaf", "ready": 4, "running": 1, "max": 4, "priority": 0},
    ...              {"name": "inner", "ready": 3, "running": 0, "max": 4, "priority": 1}])
    'leaf'
    """
    # BEGIN SOLUTION: the criteria (a), (b) and (c) in turn; within one, the highest priority
    ready = [one for one in types if one["ready"]]
    full = [one for one in ready if one["ready"] >= one["max"]]
    not_running = [one for one in ready if not one["running"]]
    chosen = full or not_running or ready
    return max(chosen, key=lambda one: one["priority"])["name"] if chosen else None
    # END SOLUTION


# BEGIN SOLUTION
class Subgraph:
    def __init__(self, kind, nodes, reads):
        self.kind = kind
        self.missing = dict.fromkeys(nodes, 0)
        self.readers = {node: [] for node in nodes}
        for node, reader in reads:
            self.missing[reader] += 1
            self.readers[node].append(reader)
        self.ready = deque(node for node in nodes if not self.missing[node])
        self.pinned = None
        self.tasks = 0

    def submitted(self, nodes):
        for node in nodes:
            self.ready.popleft()
            for reader in self.readers[node]:
                self.missing[reader] -= 1
                if not self.missing[reader]:
                    self.ready.append(reader)


# END SOLUTION
class Scheduler:
    """Algorithm 1, for any number of workers.

    Args:
        types: {"leaf": {"min": 1, "max": 4, "priority": 0}, ...}: Bsizes.Min(), Bsizes.Max(), and the priority.
        max_tasks: MaxTasksToSubmit.

    >>> scheduler = Scheduler({"lstm": {"min": 1, "max": 4, "priority": 0}}, 5)
    >>> scheduler.add(7, "lstm", [0, 1], [[0, 1]])
    >>> scheduler.schedule(0)
    [[(7, 0)], [(7, 1)]]
    """

    def __init__(self, types: dict[str, dict], max_tasks: int) -> None:
        # BEGIN SOLUTION: what has to be known of each type, of each subgraph, and of each worker?
        self.types = types
        self.max_tasks = max_tasks
        self.queues = {kind: {} for kind in types}
        self.ready = {kind: Counter() for kind in types}
        self.running = Counter()
        self.tasks = {}
        # END SOLUTION

    def add(self, subgraph: int, type: str, nodes: list[int], reads: list[tuple[int, int]]) -> None:
        """A subgraph joins the queue of its type: all that it reads outside of itself has been computed.

        Args:
            nodes: its nodes, each after those that it reads.
            reads: pairs (node, reader) of nodes of it: `reader` reads what `node` gives.
        """
        # BEGIN SOLUTION: which of its nodes are ready at once?
        new = Subgraph(type, nodes, reads)
        self.queues[type][subgraph] = new
        self.ready[type][None] += len(new.ready)
        # END SOLUTION

    def schedule(self, worker: int) -> list[list[tuple[int, int]]]:
        """This worker is idle: Schedule and Batch of Algorithm 1. The tasks that are submitted to it, in order; none if
        no node is ready for it. A task is a list of pairs (subgraph, node) of one type.
        """
        # BEGIN SOLUTION: choose a type, then form tasks of it as lines 12 to 24 have it
        told = [
            {
                "name": kind,
                "ready": self.ready[kind][None] + self.ready[kind][worker],
                "running": self.running[kind],
                "max": one["max"],
                "priority": one["priority"],
            }
            for kind, one in self.types.items()
        ]
        tasks: list = []
        kind = choose_type(told)
        while kind is not None and len(tasks) < self.max_tasks:
            batch = self.form(kind, worker)
            if not batch or (tasks and sum(map(len, batch.values())) < self.types[kind]["min"]):
                break
            self.submit(kind, batch, worker)
            tasks.append([(number, node) for number, nodes in batch.items() for node in nodes])
        return tasks
        # END SOLUTION

    # BEGIN SOLUTION
    def form(self, kind, worker):
        batch, room = {}, self.types[kind]["max"]
        for number, subgraph in self.queues[kind].items():
            if subgraph.pinned in (None, worker) and subgraph.ready:
                batch[number] = [*subgraph.ready][:room]
                room -= len(batch[number])
                if not room:
                    break
        return batch

    def submit(self, kind, batch, worker):
        members = []
        for number, nodes in batch.items():
            subgraph = self.queues[kind][number]
            self.ready[kind][subgraph.pinned] -= len(subgraph.ready)
            subgraph.submitted(nodes)
            subgraph.pinned = worker
            subgraph.tasks += 1
            self.ready[kind][worker] += len(subgraph.ready)
            members.append(subgraph)
            if not subgraph.ready:
                del self.queues[kind][number]
        self.running[kind] += 1
        self.tasks.setdefault(worker, deque()).append((kind, members))

    # END SOLUTION
    def completed(self, worker: int) -> None:
        """The first task of this worker that has not completed has. A worker runs its tasks in order."""
        # BEGIN SOLUTION: what is one less, and which subgraphs may go on elsewhere?
        kind, members = self.tasks[worker].popleft()
        self.running[kind] -= 1
        for subgraph in members:
            subgraph.tasks -= 1
            if not subgraph.tasks:
                self.ready[kind][subgraph.pinned] -= len(subgraph.ready)
                subgraph.pinned = None
                self.ready[kind][None] += len(subgraph.ready)
        # END SOLUTION


def next_type(types: list[dict]) -> str:
    """Open task: the type whose batch is next on the one worker there is. Each turn is one task.

    A type is {"name": "leaf", "ready": ready nodes (1 or more), "max": nodes of a batch, at most, "priority": a number,
    "oldest_s": the seconds that its first ready node has waited, "seconds": what a batch takes of 1, of 2, ... of `max`
    nodes}. This is the highest priority first. Do better.
    """
    return max(types, key=lambda one: one["priority"])["name"]
