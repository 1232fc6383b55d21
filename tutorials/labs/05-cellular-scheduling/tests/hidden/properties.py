"""What holds of any subgraphs."""

from hypothesis import strategies as st
from stage import ask_schedule

from minifuse.labs.judge import Unmet

TYPES = {
    "leaf": {"min": 1, "max": 3, "priority": 0},
    "inner": {"min": 1, "max": 2, "priority": 1},
    "top": {"min": 1, "max": 4, "priority": 1},
}
KIND = st.sampled_from([*TYPES])


@st.composite
def connected(draw):
    """A subgraph: its nodes in order, and who reads what. Every node but the last is read by a later one."""
    size = draw(st.integers(1, 6))
    reads = {(i, draw(st.integers(i + 1, size - 1))) for i in range(size - 1)}
    more = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3))
    reads |= {(a, b) for a, b in more if a < b < size}
    return [*range(size)], sorted(map(list, reads))


def added(work, subgraphs, max_tasks):
    """A scheduler with these (type, (nodes, reads)), numbered from 0, and their types."""
    scheduler = work.make("Scheduler", TYPES, max_tasks)
    for number, (name, (nodes, reads)) in enumerate(subgraphs):
        scheduler("add", number, name, nodes, reads, form=None)
    return scheduler, {number: name for number, (name, _) in enumerate(subgraphs)}


def test_a_node_waits_for_what_it_reads(work):
    """One worker: every node is in one task, what it reads is in earlier ones, and no turn is empty before the end."""

    def demand(case):
        subgraphs, max_tasks = case
        scheduler, kinds = added(work, subgraphs, max_tasks)
        given = ", ".join(
            f"{number} ({name}, nodes {nodes}, reads {reads})"
            for number, (name, (nodes, reads)) in enumerate(subgraphs)
        )
        reads = {number: one for number, (_, (_, one)) in enumerate(subgraphs)}
        missing = {(number, node) for number, (_, (nodes, _)) in enumerate(subgraphs) for node in nodes}
        while missing:
            tasks = ask_schedule(scheduler, 0, TYPES, max_tasks, kinds)
            if not tasks:
                raise Unmet(f"of the subgraphs {given} the nodes {sorted(missing)} are left, and schedule(0) is [].")
            for task in tasks:
                for number, node in task:
                    if (number, node) not in missing:
                        raise Unmet(f"of the subgraphs {given} node {node} of {number} is scheduled a second time.")
                    early = [a for a, b in reads[number] if b == node and (number, a) in missing]
                    if early:
                        raise Unmet(
                            f"of the subgraphs {given} node {node} of {number} is scheduled before, or in one task "
                            f"with, node {early[0]}, which it reads."
                        )
                missing -= {(number, node) for number, node in task}
            for _ in tasks:
                scheduler("completed", 0, form=None)

    cases = st.tuples(st.lists(st.tuples(KIND, connected()), min_size=1, max_size=5), st.integers(1, 4))
    work.smallest(cases, demand, examples=40)


def line(length):
    return [*range(length)], [[i, i + 1] for i in range(length - 1)]


def test_a_subgraph_stays_with_its_worker(work):
    """Three workers: as long as a task with nodes of a subgraph runs, no other worker gets a node of it."""

    def demand(case):
        lengths, max_tasks, turns = case
        subgraphs = [("leaf", line(length)) for length in lengths]
        scheduler, kinds = added(work, subgraphs, max_tasks)
        running: dict[int, list] = {0: [], 1: [], 2: []}
        left = dict(enumerate(lengths))
        so_far = []
        for worker in turns:
            if running[worker]:
                running[worker].pop(0)
                scheduler("completed", worker, form=None)
                so_far.append(f"completed({worker})")
                continue
            elsewhere = {n: w for w, tasks in running.items() for task in tasks for n, _ in task}
            if all(number in elsewhere or not left[number] for number in kinds):
                continue
            running[worker] = ask_schedule(scheduler, worker, TYPES, max_tasks, kinds)
            for number, node in (pair for task in running[worker] for pair in task):
                left[number] -= 1
                if number in elsewhere:
                    raise Unmet(
                        f"chains (subgraphs 0, 1, ...) of {lengths} leaves, batches of 3 at most, max_tasks "
                        f"{max_tasks}, after {', '.join(so_far)}: schedule({worker}) has node {node} of subgraph "
                        f"{number}, of which tasks of worker {elsewhere[number]} have not completed."
                    )
            so_far.append(f"schedule({worker})")

    cases = st.tuples(
        st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 2), st.lists(st.integers(0, 2), max_size=20)
    )
    work.smallest(cases, demand, examples=60)


def test_it_may_go_elsewhere_then(work):
    """When the last task of a subgraph has completed, and no earlier, another worker may go on with it."""
    for length in work.random.sample(range(3, 9), 3):
        scheduler, kinds = added(work, [("leaf", line(length)), ("leaf", line(2))], 2)
        first = ask_schedule(scheduler, 0, TYPES, 2, kinds)
        if [sorted(task) for task in first] != [[[0, 0], [1, 0]], [[0, 1], [1, 1]]]:
            raise Unmet(
                f"of chains of {length} and 2 leaves, with max_tasks 2, schedule(0) is {first}: two tasks, each with a "
                "node of both chains, are right."
            )
        scheduler("completed", 0, form=None)
        scheduler("completed", 0, form=None)
        found = ask_schedule(scheduler, 1, TYPES, 2, kinds)
        right = [[[0, node]] for node in range(2, min(4, length))]
        if found != right:
            raise Unmet(
                f"worker 0 has completed the first two nodes of a chain of {length}: schedule(1) is {found}, and "
                f"should be {right}."
            )


# the types of chains, in the order in which they are added; turns before, as (chains so far, worker); why
PINNED = [
    (["inner"] * 2 + ["leaf"], [(2, 0)], "(a): both ready inner nodes are pinned to worker 0"),
    (["inner"] * 2 + ["leaf"], [(1, 0)], "(a): one of two ready inner nodes is pinned to worker 0"),
    (["inner"] + ["leaf"] * 2, [(1, 0), (2, 2)], "(c): the ready inner node is pinned to worker 0"),
]


def test_pinned_nodes_do_not_count(work):
    """Ready nodes of subgraphs that are pinned to other workers are not counted when a type is chosen."""
    random = work.random
    for chains, turns, why in random.sample(PINNED, len(PINNED)):
        scheduler, kinds, told = work.make("Scheduler", TYPES, 1), {}, []
        first = random.randint(0, 50)
        for number, name in enumerate(chains, start=first):
            for worker in [worker for count, worker in turns if first + count == number]:
                ask_schedule(scheduler, worker, TYPES, 1, kinds)
                told.append(f"schedule({worker})")
            length = random.randint(2, 5) if name == "inner" else 1
            scheduler("add", number, name, *line(length), form=None)
            kinds[number] = name
            told.append(f"add {number} {name} ({length} nodes)" if length > 1 else f"add {number} {name}")
        found, right = ask_schedule(scheduler, 1, TYPES, 1, kinds), [[[first + 2, 0]]]
        if found != right:
            raise Unmet(
                f"after {', '.join(told)} with {TYPES} and max_tasks 1, schedule(1) is {found}, and should be {right}. "
                f"{why}."
            )


def algorithm(queue, running, max_tasks):
    """Algorithm 1 for subgraphs of one node: the tasks of a turn. `queue` and `running` are by type."""
    names = [name for name in TYPES if queue[name]]
    full = [name for name in names if len(queue[name]) >= TYPES[name]["max"]]
    idle = [name for name in names if not running[name]]
    name = max(full or idle or names, key=lambda name: TYPES[name]["priority"])
    most, tasks = TYPES[name]["max"], []
    while queue[name] and len(tasks) < max_tasks:
        tasks.append([[number, 0] for number in queue[name][:most]])
        del queue[name][:most]
    return name, tasks


def test_agrees_with_algorithm_1(work):
    """Two workers, subgraphs of a single node, in turns of any order: the tasks are those of Algorithm 1."""

    def demand(case):
        events, max_tasks = case
        scheduler = work.make("Scheduler", TYPES, max_tasks)
        queue, running, kinds = {name: [] for name in TYPES}, dict.fromkeys(TYPES, 0), {}
        tasks_of: dict[int, list[str]] = {0: [], 1: []}
        so_far = []
        for event in events:
            if isinstance(event, str):
                number = len(kinds)
                kinds[number] = event
                queue[event].append(number)
                scheduler("add", number, event, [0], [], form=None)
                so_far.append(f"add {number} {event}")
            elif tasks_of[event]:
                running[tasks_of[event].pop(0)] -= 1
                scheduler("completed", event, form=None)
                so_far.append(f"completed({event})")
            elif any(queue.values()):
                before = {name: list(numbers) for name, numbers in queue.items()}
                name, right = algorithm(queue, running, max_tasks)
                found = ask_schedule(scheduler, event, TYPES, max_tasks, kinds)
                if [sorted(task) for task in found] != right:
                    raise Unmet(
                        f"after {', '.join(so_far)} with {TYPES} and max_tasks {max_tasks}, {before} are ready and so "
                        f"many tasks run: {running}. schedule({event}) is {found}, and should be {right}."
                    )
                tasks_of[event] = [name] * len(right)
                running[name] += len(right)
                so_far.append(f"schedule({event})")

    event = st.one_of(KIND, KIND, st.integers(0, 1))
    events = st.one_of(st.lists(event, max_size=24), st.lists(event, min_size=12, max_size=24))
    work.smallest(st.tuples(events, st.integers(1, 3)), demand, examples=200)


def test_turns_take_few_steps(work):
    """Twice as many subgraphs take about twice as many steps in all: a turn does not look at what is done, nor count a
    queue from its beginning."""
    steps, few = [], work.random.randint(90, 110)
    for size in (few, 2 * few, 4 * few):
        scheduler, kinds = added(work, [("leaf", line(1))] * size, 2)
        queue = {name: [*range(size)] if name == "leaf" else [] for name in TYPES}
        total, left = 0, size
        while left:
            tasks = ask_schedule(scheduler, 0, TYPES, 2, kinds)
            total += work.steps
            _, right = algorithm(queue, {"leaf": 0}, 2)
            if [sorted(task) for task in tasks] != right:
                raise Unmet(f"with {left} of {size} subgraphs of one node left, schedule(0) is {tasks}, not {right}.")
            for _ in tasks:
                scheduler("completed", 0, form=None)
                total += work.steps
            left -= sum(map(len, tasks))
        steps.append(total)
    if steps[2] > 2.5 * steps[1] + 200:
        raise Unmet(
            f"all turns take {steps} steps for {few}, {2 * few} and {4 * few} subgraphs: keep counts of what is ready."
        )
