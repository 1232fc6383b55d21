"""Graph batching by hand: which requests share a batch, what is padded or merged, and when the batch returns."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import Arriving, Scene, chain, lstm, sequence_of, tree
from hypothesis import given
from hypothesis import strategies as st

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.batching import GraphMerged, GraphPadded
from minifuse.batching.graph_padded import segments
from minifuse.core.cell_graph import CellGraph, Node
from minifuse.core.errors import RequestRefused
from minifuse.core.shapes import StateRows
from minifuse.memory import ChainRows, States
from minifuse.options import parse_options


def graph_batching(policy: type[Any], graphs: Arriving, capacity: int = 500, **options: Any) -> Scene:
    """A scene under a policy of graph batching, run to its end; every wave takes one second."""
    padded = policy is GraphPadded
    return Scene(
        policy(parse_options("test", policy.Options, options)),
        ChainRows(capacity) if padded else States(capacity),
        PaddedCellsStage() if padded else CellsStage(),
        graphs,
        cost=lambda plan: float(len(plan.waves)),
    ).run()


def test_fig_2_5_graph_batching_ends_its_batches_at_5_and_12() -> None:
    lengths = {"req1": 2, "req2": 3, "req3": 3, "req4": 5, "req5": 5, "req6": 7, "req7": 3, "req8": 4}
    graphs = {name: (lstm(n), 0.0 if i < 4 else 0.5 + 0.25 * (i - 4)) for i, (name, n) in enumerate(lengths.items())}
    scene = graph_batching(GraphPadded, graphs, max_batch=4, pad="longest")
    assert scene.batches == [
        (0.0, 5.0, ["req1", "req2", "req3", "req4"]),
        (5.0, 12.0, ["req5", "req6", "req7", "req8"]),
    ]
    assert [step.plan.num_idle for step in scene.steps] == [4 * 5 - 13, 4 * 7 - 19]


def test_a_batch_of_three_by_hand() -> None:
    scene = graph_batching(GraphPadded, {"a": (lstm(2), 0.0), "b": (lstm(1), 0.0), "c": (lstm(3), 0.0)}, pad="longest")
    assert scene.waves(0) == [[("a", 0), ("b", 0), ("c", 0)], [("a", 1), ("c", 1)], [("c", 2)]]
    plan = scene.steps[0].plan
    assert plan.shape == StateRows(0, 3, 3)
    assert (plan.num_computed, plan.num_tokens, plan.num_idle) == (9, 6, 3)


def test_inputs_are_padded_to_the_end_of_their_bucket() -> None:
    """A request of length 21 is padded to 30 (2.7.3)."""
    scene = graph_batching(GraphPadded, {"a": (lstm(21), 0.0)})
    plan = scene.steps[0].plan
    assert plan.num_computed == 30
    assert len(plan.waves) == 30
    assert [start == stop for start, stop in plan.waves] == [False] * 21 + [True] * 9
    assert graph_batching(GraphPadded, {"a": (lstm(21), 0.0)}, pad="longest").steps[0].plan.num_computed == 21


def test_buckets_hold_lengths_above_i_widths_up_to_the_next() -> None:
    graphs = {f"r{n}": (lstm(n), 0.0) for n in (1, 9, 10, 11, 20, 21)}
    scene = graph_batching(GraphPadded, graphs, bucket_width=10)
    assert [names for *_, names in scene.batches] == [["r1", "r10", "r9"], ["r11", "r20"], ["r21"]]


def test_round_robin_over_buckets() -> None:
    """After bucket 0 it is the turn of bucket 1, though bucket 0 has more requests, which arrived earlier."""
    graphs = {f"a{i}": (lstm(1), 0.0) for i in range(3)} | {"b": (lstm(2), 0.0), "c": (lstm(3), 0.0)}
    scene = graph_batching(GraphPadded, graphs, max_batch=1, bucket_width=1)
    assert [names for *_, names in scene.batches] == [["a0"], ["b"], ["c"], ["a1"], ["a2"]]


def test_the_fullest_bucket_first() -> None:
    """The bucket of length 3 has most requests, then both have one, and the shorter goes first."""
    graphs = {f"a{i}": (lstm(1), 0.0) for i in range(2)} | {f"c{i}": (lstm(3), 0.0) for i in range(3)}
    scene = graph_batching(GraphPadded, graphs, max_batch=2, bucket_width=1, turn="fullest")
    assert [names for *_, names in scene.batches] == [["c0", "c1"], ["a0", "a1"], ["c2"]]


def test_each_segment_of_a_type_is_padded_and_the_second_to_the_longest_in_the_batch() -> None:
    graphs = {"a": (chain("e", "e", "d"), 0.0), "b": (chain("e", "d", "d"), 0.0)}
    scene = graph_batching(GraphPadded, graphs, bucket_width=2)
    assert scene.waves(0) == [[("a", 0), ("b", 0)], [("a", 1)], [("a", 2), ("b", 1)], [("b", 2)]]
    assert segments(graphs["a"][0].topology) == ((0, 1), (2,))


def test_only_chains_can_be_padded() -> None:
    scene = graph_batching(GraphPadded, {"t": (tree((1, 2)), 0.0), "a": (lstm(2), 0.0)})
    assert list(scene.engine.refused) == ["t"]
    assert "no chain" in scene.engine.refused["t"]
    assert "use graph-merged or cellular" in scene.engine.refused["t"]
    assert [names for *_, names in scene.batches] == [["a"]]
    policy = GraphPadded()
    with pytest.raises(RequestRefused):
        policy.receive(sequence_of("x", CellGraph((Node("a", (1,)), Node("a", (2,))))))


def test_merging_two_trees_level_by_level() -> None:
    graphs = {"x": (tree(((1, 2), 3)), 0.0), "y": (tree((4, 5)), 0.0)}
    scene = graph_batching(GraphMerged, graphs, overlap="off")
    assert scene.waves(0) == [
        [("x", 0), ("x", 1), ("x", 3), ("y", 0), ("y", 1)],
        [("x", 2), ("y", 2)],
        [("x", 4)],
    ]
    assert scene.batches == [(0.0, 3.0, ["x", "y"])]


def test_a_lone_complete_tree_is_batched_within_itself() -> None:
    """2.7.5: leaves at batch 16, the level above at 8, and so on, the root at 1."""
    sixteen: Any = 0
    for _ in range(4):
        sixteen = (sixteen, sixteen)
    scene = graph_batching(GraphMerged, {"x": (tree(sixteen), 0.0)})
    assert [len(wave) for wave in scene.waves(0)] == [16, 8, 4, 2, 1]


def test_the_size_of_a_set_bounds_graphs_and_not_batches() -> None:
    scene = graph_batching(GraphMerged, {name: (tree((1, 2)), 0.0) for name in "abc"}, max_batch=2, overlap="off")
    assert [names for *_, names in scene.batches] == [["a", "b"], ["c"]]
    assert len(scene.waves(0)[0]) == 4


def test_a_full_next_set_is_merged_while_this_one_runs_and_a_smaller_one_waits() -> None:
    graphs = {"a": (lstm(4), 0.0), "b": (lstm(1), 1.0), "c": (lstm(1), 2.0), "d": (lstm(1), 3.0)}
    for overlap in ("on", "off"):
        scene = graph_batching(GraphMerged, graphs, overlap=overlap)
        assert scene.batches == [(0.0, 4.0, ["a"]), (4.0, 5.0, ["b", "c", "d"])]
    two = graph_batching(GraphMerged, graphs, overlap="on", max_batch=2)
    assert two.batches[1:] == [(4.0, 5.0, ["b", "c"]), (5.0, 6.0, ["d"])]


def test_sets_are_merged_before_they_can_run() -> None:
    """Of two full sets at time 0 the second is in flight behind the first; without overlap it waits for its end."""
    policy, memory = GraphMerged(parse_options("test", GraphMerged.Options, {"max_batch": "1"})), States(9)
    for name in "abc":
        policy.receive(sequence_of(name, lstm(1)))
    assert policy.depth == 2
    assert [len(policy.propose(0, 0.0, memory).work) for _ in range(2)] == [1, 1]
    assert GraphMerged(parse_options("test", GraphMerged.Options, {"overlap": "off"})).depth == 1


GRAPHS = st.one_of(
    st.integers(1, 23).map(lstm),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda n: chain(*["e"] * n[0], *["d"] * n[1])),
)


@given(st.lists(st.tuples(GRAPHS, st.sampled_from([0.0, 3.0])), min_size=1, max_size=12), st.data())
def test_padded_batches_of_any_chains(arrivals: list[tuple[CellGraph, float]], data: st.DataObject) -> None:
    graphs = {f"r{i}": item for i, item in enumerate(arrivals)}
    width, pad = data.draw(st.integers(1, 8)), data.draw(st.sampled_from(["bucket", "longest"]))
    max_batch, turn = data.draw(st.integers(1, 5)), data.draw(st.sampled_from(["round-robin", "fullest"]))
    scene = graph_batching(GraphPadded, graphs, max_batch=max_batch, bucket_width=width, pad=pad, turn=turn)
    for step in scene.steps:
        batch = [segments(graphs[name][0].topology) or () for name in step.plan.sequences]
        first = max(len(parts[0]) for parts in batch)
        padded = -(-first // width) * width if pad == "bucket" else first
        rest = sum(max(len(parts[k]) for parts in batch) for k in range(1, len(batch[0])))
        assert step.plan.num_computed == len(batch) * (padded + rest)
        assert len({-(-len(parts[0]) // width) for parts in batch}) == 1
    assert sum(step.plan.num_tokens for step in scene.steps) == sum(len(graph) for graph, _ in arrivals)
