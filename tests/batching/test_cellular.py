"""Cellular batching by hand: the thesis' worked examples, and each line of Algorithm 1."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import Arriving, GraphReader, Scene, chain, complete_tree, lstm
from helpers import unit

from minifuse.attention.cell_layouts import CellsStage
from minifuse.batching import Cellular
from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.stages import RunPlan
from minifuse.memory import States
from minifuse.options import parse_options


def cellular(
    graphs: Arriving,
    capacity: int = 1000,
    run: RunPlan = lambda plan, sequences: Ran({}),
    requests: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> Scene:
    """A scene in which every cell takes one second."""
    policy = Cellular(parse_options("test", Cellular.Options, options))
    return Scene(policy, States(capacity), CellsStage(), graphs, cost=unit, run=run, requests=requests)


# --- Fig. 2.5


def fig_2_5() -> dict[str, tuple[CellGraph, float]]:
    """Lengths 2, 3, 3, 5 at time 0; four more arrive before time 2, the longest of 7."""
    lengths = {"req1": 2, "req2": 3, "req3": 3, "req4": 5, "req5": 5, "req6": 7, "req7": 3, "req8": 4}
    return {name: (lstm(n), 0.0 if i < 4 else 0.5 + 0.25 * (i - 4)) for i, (name, n) in enumerate(lengths.items())}


def test_fig_2_5_cellular_batching_to_the_tick() -> None:
    scene = cellular(fig_2_5(), max_batch=4, min_batch=4).run()
    tasks = [(end, names) for end, _, _, names in scene.tasks]
    # At time 0 two full tasks are formed; a third would have no node of req1, and be smaller than Bsizes.Min().
    assert tasks[:4] == [
        (1.0, ["req1", "req2", "req3", "req4"]),
        (2.0, ["req1", "req2", "req3", "req4"]),
        (3.0, ["req2", "req3", "req4", "req5"]),
        (4.0, ["req4", "req5", "req6", "req7"]),
    ]
    assert {name: scene.left[name] for name in ("req1", "req2", "req3")} == {"req1": 2.0, "req2": 3.0, "req3": 3.0}
    graph_batching_ends = 12.0
    assert max(scene.left.values()) < graph_batching_ends
    assert sum(len(names) for _, names in tasks) == 2 + 3 + 3 + 5 + 5 + 7 + 3 + 4


def test_fig_2_5_requests_6_and_7_join_only_if_they_have_arrived() -> None:
    graphs = fig_2_5()
    for late in ("req6", "req7", "req8"):
        graphs[late] = (graphs[late][0], 2.5)  # after the third task was formed, at 2
    scene = cellular(graphs, max_batch=4, min_batch=4).run()
    assert scene.tasks[2][3] == ["req2", "req3", "req4", "req5"]
    assert scene.tasks[3][3] == ["req4", "req5", "req6", "req7"]  # at 3, when the worker is idle again
    assert scene.tasks[3][0] == 4.0


# --- 2.4.4: subgraphs


def test_a_complete_tree_of_16_leaves_has_17_subgraphs() -> None:
    """One of the 15 internal nodes and sixteen of one leaf each. The thesis has 31 in the first: that is all nodes."""
    graph = complete_tree(16)
    assert len(graph) == 31
    subgraphs = graph.topology.subgraphs
    assert sorted(map(len, subgraphs)) == [1] * 16 + [15]
    (internal,) = [nodes for nodes in subgraphs if len(nodes) > 1]
    assert {graph.nodes[node].cell for node in internal} == {"internal"}


def test_internal_nodes_wait_for_all_leaves_then_go_level_by_level_in_successive_tasks() -> None:
    scene = cellular({"x": (complete_tree(16), 0.0)}, max_batch=6).run()
    assert [(cell, len(names)) for _, _, cell, names in scene.tasks] == [
        ("leaf", 6),
        ("leaf", 6),
        ("leaf", 4),
        ("internal", 6),  # two of level 1 are left: they join the nodes that these six make ready
        ("internal", 5),
        ("internal", 2),
        ("internal", 1),
        ("internal", 1),
    ]
    assert scene.left == {"x": 8.0}


def test_levels_of_several_trees_share_tasks() -> None:
    scene = cellular({name: (complete_tree(4), 0.0) for name in "ab"}, max_batch=64).run()
    assert [(cell, len(names)) for _, _, cell, names in scene.tasks] == [("leaf", 8), ("internal", 4), ("internal", 2)]


def test_seq2seq_is_two_subgraphs() -> None:
    graph = chain("encoder", "encoder", "encoder", "decoder", "decoder")
    assert graph.topology.subgraphs == ((0, 1, 2), (3, 4))


def test_types_that_take_turns_do_not_deadlock() -> None:
    """a -> b -> a', and a' reads a as well: a and a' are connected, but a' waits for b, which waits for a."""
    graph = CellGraph((Node("a", (1,)), Node("b", (Output(0),)), Node("a", (Output(1), Output(0)))))
    assert graph.topology.subgraphs == ((0,), (1,), (2,))
    assert cellular({"x": (graph, 0.0)}).run().left == {"x": 3.0}


# --- Algorithm 1: which type


def phases(n_encoder: int, n_decoder: int) -> CellGraph:
    return chain(*["encoder"] * n_encoder, *["decoder"] * n_decoder)


def test_a_full_batch_goes_before_priority() -> None:
    """Criterion (a): three encoders make a full batch; the decoder, of higher priority, has one ready node."""
    graphs = {"d": (phases(1, 3), 0.0), **{f"e{i}": (phases(2, 1), 0.5) for i in range(3)}}
    scene = cellular(graphs, max_batch=3, max_tasks=1).run()
    assert [(cell, names) for _, _, cell, names in scene.tasks[:2]] == [
        ("encoder", ["d"]),
        ("encoder", ["e0", "e1", "e2"]),
    ]


def test_b_without_a_full_batch_a_type_of_which_no_task_runs_goes_before_priority() -> None:
    """Criterion (b): a decoder task runs on worker 0, so worker 1 takes an encoder, though decoders are preferred."""
    graphs = {"x": (phases(1, 4), 0.0), "y": (phases(1, 4), 0.0), "z": (phases(4, 1), 1.5)}
    scene = cellular(graphs, max_batch=1, max_tasks=1, workers=2).run()
    # One node a batch: every type with a ready node has a full batch, so (a) decides: decoders only, while there are.
    assert [cell for _, _, cell, _ in scene.tasks[2:6]] == ["decoder"] * 4
    scene = cellular(graphs, max_batch=5, max_tasks=1, workers=2).run()
    at_two = [(worker, cell) for end, worker, cell, _ in scene.tasks if end == 2.0]
    assert at_two == [(0, "decoder")]
    at_three = {worker: cell for end, worker, cell, _ in scene.tasks if end in (2.5, 3.0)}
    assert at_three == {0: "decoder", 1: "encoder"}


def test_c_otherwise_any_type_with_ready_nodes() -> None:
    """Criterion (c): tasks of both types run already, and a third worker still gets work, the preferred decoder."""
    graphs = {name: (phases(2, 4), 0.0) for name in ("p", "q", "r")}
    graphs |= {name: (phases(9, 1), 0.0) for name in ("s", "t", "u")}
    scene = cellular(graphs, max_batch=2, max_tasks=1, workers=4).run()
    running: dict[float, list[str]] = {}
    for end, _, cell, names in scene.tasks:
        running.setdefault(end, []).append(cell if len(names) == 2 else f"{cell} alone")
    # At 2: four decoders' and four encoders' nodes are ready. A second decoder task is not full, and one runs already.
    assert running[3.0] == ["decoder", "encoder", "decoder alone", "encoder alone"]


def test_priority_is_the_later_in_the_graph_or_as_set() -> None:
    graphs = {"x": (phases(1, 3), 0.0), "y": (phases(3, 1), 1.0)}  # y's first encoder beside x's first decoder
    scene = cellular(graphs, max_batch=4, max_tasks=1).run()
    assert scene.tasks[1][2] == "decoder"
    scene = cellular(graphs, max_batch=4, max_tasks=1, priorities="encoder,decoder").run()
    assert scene.tasks[1][2] == "encoder"


# --- Algorithm 1: tasks


def test_max_tasks_to_submit_bounds_how_long_a_newcomer_waits() -> None:
    graphs = {"long": (lstm(20), 0.0), "new": (lstm(1), 0.1)}
    assert cellular(graphs, max_tasks=5).run().left["new"] == 6.0
    assert cellular(graphs, max_tasks=2).run().left["new"] == 3.0


def test_the_first_task_may_be_smaller_than_the_smallest_batch_size() -> None:
    scene = cellular({"a": (lstm(3), 0.0)}, max_batch=4, min_batch=4).run()
    assert [end for end, *_ in scene.tasks] == [1.0, 2.0, 3.0]  # a turn of one task each time


def test_types_have_maximum_batch_sizes_of_their_own() -> None:
    graphs = {f"r{i}": (phases(1, 1), 0.0) for i in range(4)}
    scene = cellular(graphs, max_batch=4, max_batches="decoder=2").run()
    assert [(cell, len(names)) for _, _, cell, names in scene.tasks] == [("encoder", 4), ("decoder", 2), ("decoder", 2)]


def test_a_subgraph_is_pinned_to_its_worker_until_no_task_of_it_runs() -> None:
    graphs = {"a": (lstm(4), 0.0), "b": (lstm(4), 0.0)}
    scene = cellular(graphs, max_batch=1, max_tasks=2, workers=2)
    scene.engine.requests.receive()
    scene.engine.dispatch()
    pins = {name: [sub.pinned for sub in subs] for name, subs in scene.policy.subgraphs.items()}
    assert pins == {"a": [0], "b": [1]}
    scene.run()
    for name in "ab":
        assert len({worker for _, worker, _, names in scene.tasks if name in names}) == 1
    # Unpinned in between, a subgraph may continue elsewhere: worker 1 takes what worker 0 has no time for.
    graphs = {"a": (lstm(2), 0.0), "b": (lstm(3), 0.0), "c": (lstm(1), 0.0)}
    scene = cellular(graphs, max_batch=1, max_tasks=1, workers=2).run()
    assert scene.left == {"a": 2.0, "b": 3.0, "c": 3.0}
    with pytest.raises(LawBroken, match="a was to be evicted"):
        scene.memory.room().evict(Sequence(Request("a", (1,))))


def test_leaves_of_one_tree_may_run_on_several_workers() -> None:
    scene = cellular({"x": (complete_tree(4), 0.0)}, max_batch=2, max_tasks=1, workers=2).run()
    found = [(worker, cell) for _, worker, cell, _ in scene.tasks]
    assert found == [(0, "leaf"), (1, "leaf"), (0, "internal"), (0, "internal")]
    assert scene.left == {"x": 3.0}


# --- Algorithm 1: a set of supported batch sizes


def sizes_of(scene: Scene) -> list[int]:
    return [len(names) for _, _, _, names in scene.tasks]


def test_a_task_has_the_largest_supported_size_that_ready_nodes_fill() -> None:
    seven = {f"r{i}": (lstm(1), 0.0) for i in range(7)}
    assert sizes_of(cellular(seven, max_batch=64).run()) == [7]
    assert sizes_of(cellular(seven, max_batch=64, batch_sizes="4,1,2").run()) == [4, 2, 1]
    assert sizes_of(cellular(seven, max_batch=3, batch_sizes="1,2,4").run()) == [2, 2, 2, 1]  # 4 is above max_batch


def test_below_the_smallest_size_only_the_first_task_of_a_turn_is_submitted() -> None:
    """Five nodes: 4 of them fill a task, and the last is a turn of its own, as in line 16."""
    scene = cellular({f"r{i}": (lstm(1), 0.0) for i in range(5)}, max_batch=8, batch_sizes="2,4").run()
    assert sizes_of(scene) == [4, 1]
    assert [step.plan.step for step in scene.steps] == [0, 1]
    assert [step.started_s for step in scene.steps] == [0.0, 1.0]


def test_each_type_has_the_sizes_up_to_its_maximum() -> None:
    graphs = {f"r{i}": (phases(1, 1), 0.0) for i in range(4)}
    scene = cellular(graphs, max_batch=4, max_batches="decoder=2", batch_sizes="1,2,4").run()
    assert [(cell, len(names)) for _, _, cell, names in scene.tasks] == [("encoder", 4), ("decoder", 2), ("decoder", 2)]


def test_a_task_for_which_memory_is_short_has_a_supported_size() -> None:
    """Each request is promised two slots: three of four fit into six, and two of these fill a task."""
    graphs = {f"r{i}": (lstm(2), 0.0) for i in range(4)}
    scene = cellular(graphs, capacity=7, max_batch=4, batch_sizes="1,2,4").run()
    assert sizes_of(scene)[0] == 2
    assert set(sizes_of(scene)) <= {1, 2, 4}


# --- leaving, memory and refusals


def test_nodes_in_flight_beyond_a_stop_token_are_discarded_and_counted() -> None:
    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        return Ran({work.sequence: (100 + work.start,) for work in plan.work})

    stop = {"a": {"stop_ids": (101,)}}  # the token of its second node
    scene = cellular({"a": (lstm(9), 0.0)}, run=run, requests=stop).run()
    assert scene.engine.finished["a"].answer == [100, 101]
    assert scene.left == {"a": 2.0}
    assert [step.discarded for step in scene.steps] == [0, 0, 1, 1, 1]
    assert scene.memory.usage().used == scene.memory.usage().reserved == 0


def test_a_request_without_room_in_memory_is_not_overtaken() -> None:
    """The tree has a full batch of leaves and no room until a has left; b, of another type, arrived after it."""
    graphs = {"a": (lstm(6), 0.0), "tree": (complete_tree(4), 0.5), "b": (lstm(2), 0.75)}
    scene = cellular(graphs, capacity=8, max_batch=4, max_tasks=1).run()
    assert [name for step in scene.steps for name in step.plan.admitted] == ["a", "tree", "b"]
    assert scene.left["a"] == 6.0
    assert [cell for _, _, cell, _ in scene.tasks[:7]] == ["lstm"] * 6 + ["leaf"]


def test_a_request_that_cannot_be_unfolded_fails_alone() -> None:
    class Reader(GraphReader):
        def begin(self, request: Request) -> Sequence:
            if request.id == "bad":
                raise RequestRefused("Request 'bad' could not be unfolded: ValueError: no such word.")
            return super().begin(request)

    scene = cellular({"good": (lstm(2), 0.0), "bad": (lstm(1), 0.5)})
    scene.engine.requests.reader = Reader(scene.graphs)
    scene.run()
    assert scene.left == {"good": 2.0}
    assert scene.engine.refused == {"bad": "Request 'bad' could not be unfolded: ValueError: no such word."}
    assert scene.engine.finished["bad"].finish_reason is FinishReason.REFUSED
    assert not scene.engine.requests.unfinished


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batches": "decoder=0"}, "maximum batch size of 'decoder'"),
        ({"max_batches": "decoder"}, "give TYPE=SIZE"),
        ({"max_batches": "=4"}, "give TYPE=SIZE"),
        ({"max_batches": "decoder=x"}, "maximum batch size of 'decoder'"),
        ({"max_batch": "4", "min_batch": "5"}, "min_batch is 5 and the smallest maximum 4"),
        ({"batch_sizes": "1,x"}, "batch size"),
        ({"batch_sizes": "2,2"}, "batch_sizes has 2 twice"),
        ({"batch_sizes": "8,16", "max_batch": "4"}, "batch_sizes is '8,16': give a size from 1 to 4"),
        ({"batch_sizes": "1,2", "min_batch": "4"}, "batch_sizes is '1,2': give a size from 4 to 64"),
        ({"batch_sizes": "4,8", "max_batches": "leaf=2"}, "batch_sizes is '4,8': give a size from 1 to 2"),
        ({"priorities": "leaf,encoder,leaf"}, "priorities has 'leaf' twice"),
        ({"max_batch": "9", "min_batch": "5", "max_batches": "leaf=4"}, "min_batch is 5 and the smallest maximum 4"),
    ],
)
def test_batch_sizes_that_are_not_positive_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cellular(parse_options("batching stage 'cellular'", Cellular.Options, options))
