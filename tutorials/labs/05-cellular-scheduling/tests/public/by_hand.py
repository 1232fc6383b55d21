"""Cases that can be done by hand."""

from stage import Students, ask_schedule, chain, serve_graphs

from minifuse.batching.cellular import Cellular
from minifuse.labs.judge import Unmet


def kind(name, ready, running, most, priority):
    return {"name": name, "ready": ready, "running": running, "max": most, "priority": priority}


TYPES = [
    ([kind("leaf", 4, 1, 4, 0), kind("inner", 3, 0, 4, 1)], "leaf", "(a): leaf alone has a full batch"),
    ([kind("leaf", 4, 0, 4, 0), kind("inner", 9, 2, 4, 1)], "inner", "(a): both have one, inner has the priority"),
    ([kind("leaf", 3, 0, 4, 0), kind("inner", 3, 1, 4, 1)], "leaf", "(b): of leaf no task runs"),
    ([kind("leaf", 3, 0, 4, 0), kind("inner", 1, 0, 4, 1)], "inner", "(b): of none a task runs"),
    ([kind("leaf", 3, 2, 4, 0), kind("inner", 1, 1, 4, 1)], "inner", "(c): of both a task runs"),
    ([kind("leaf", 0, 0, 4, 0), kind("inner", 1, 1, 4, -1)], "inner", "(c): leaf has no ready node"),
    ([kind("leaf", 1, 0, 4, 2), kind("inner", 2, 0, 4, 2)], "leaf", "equal: the first in the list"),
    ([kind("leaf", 0, 1, 4, 0), kind("inner", 0, 0, 4, 1)], None, "no node is ready"),
    ([], None, "there is no type"),
]


def test_types_by_hand(work):
    """Nine choices of a type: the criteria (a), (b) and (c), and priorities within each."""
    for types, right, why in TYPES:
        found = work.call("choose_type", types, form=str | None)
        if found != right:
            raise Unmet(f"choose_type({types}) is {found!r}, and should be {right!r}. {why}.")


def line(length):
    """A chain of so many nodes: its nodes, and what they read."""
    return [*range(length)], [[i, i + 1] for i in range(length - 1)]


LSTM = {"lstm": {"min": 1, "max": 4, "priority": 0}}
PAIRS = {"lstm": {"min": 2, "max": 2, "priority": 0}}
BOTH = {"encoder": {"min": 1, "max": 2, "priority": 0}, "decoder": {"min": 1, "max": 2, "priority": 1}}
TASKS = [
    (LSTM, 5, [("lstm", 3), ("lstm", 2)], [[[0, 0], [1, 0]], [[0, 1], [1, 1]], [[0, 2]]]),
    (LSTM, 2, [("lstm", 3), ("lstm", 2)], [[[0, 0], [1, 0]], [[0, 1], [1, 1]]]),
    (PAIRS, 5, [("lstm", 2), ("lstm", 1)], [[[0, 0], [1, 0]]]),
    (PAIRS, 5, [("lstm", 3)], [[[0, 0]]]),
    (PAIRS, 2, [("lstm", 2)] * 3, [[[0, 0], [1, 0]], [[0, 1], [1, 1]]]),
    (BOTH, 5, [("encoder", 1), ("decoder", 1)], [[[1, 0]]]),
    (BOTH, 5, [("encoder", 1), ("decoder", 1), ("encoder", 1)], [[[0, 0], [2, 0]]]),
]


def test_tasks_by_hand(work):
    """Seven first turns of an idle worker: what is batched, in how many tasks, and where min and max stop them."""
    for types, max_tasks, lines, right in TASKS:
        scheduler = work.make("Scheduler", types, max_tasks)
        for number, (name, length) in enumerate(lines):
            scheduler("add", number, name, *line(length), form=None)
        kinds = {number: name for number, (name, _) in enumerate(lines)}
        found = ask_schedule(scheduler, 0, types, max_tasks, kinds)
        if [sorted(task) for task in found] != right:
            chains = ", ".join(f"{length} of {name}" for name, length in lines)
            raise Unmet(
                f"with chains (subgraphs 0, 1, ...) of {chains}, types {types} and max_tasks {max_tasks}, schedule(0) "
                f"is {found}, and should be {right}."
            )


SECONDS = {
    "encoder": {"min": 1, "max": 4, "priority": 0, "seconds": lambda size: 2.0},
    "decoder": {"min": 1, "max": 2, "priority": 1, "seconds": lambda size: 3.0},
}


def test_runs_in_the_engine(work):
    """Three translations in the engine: which nodes each batch has, and when the last one ends."""
    words = {"a": (0.0, 2, 1), "b": (0.0, 3, 2), "c": (16.0, 1, 1)}
    requests = [(name, at, chain(*["encoder"] * n, *["decoder"] * m)) for name, (at, n, m) in words.items()]
    Students.work = work
    policy = Students(Cellular.Options(max_tasks=2))
    policy.begin(SECONDS)
    engine, events = serve_graphs(policy, SECONDS, requests)
    steps = [event for event in events if event["event"] == "step" and event["work"]]
    found = [sorted((name, node) for name, node, *_ in step["work"]) for step in steps]
    right = [
        [("a", 0), ("b", 0)],  # 0 s: two tasks of the encoder
        [("a", 1), ("b", 1)],
        [("a", 2)],  # 4 s: of neither type a task runs, and the decoder has the priority
        [("b", 2)],  # 7 s
        [("b", 3)],  # 9 s: two tasks of the decoder
        [("b", 4)],
        [("c", 0)],  # nothing is ready at 15 s, and c comes at 16 s
        [("c", 1)],
    ]
    for i, (one, other) in enumerate(zip(found, right, strict=False)):
        if one != other:
            raise Unmet(f"batch {i} is {one}, and should be {other}.", events=events)
    if len(found) != len(right) or engine.now != 21.0:
        raise Unmet(f"there are {len(found)} batches until {engine.now:g} s: 8 until 21 s are right.", events=events)
