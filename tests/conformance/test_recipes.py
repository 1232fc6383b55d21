"""The graphs that the laws are tried on, and what a graph's shape promises about them."""

from collections.abc import Callable, Iterable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.cell_graph import CellGraph
from minifuse.core.request import Request
from minifuse.testing.graphs.models import cell_model
from minifuse.testing.graphs.recipes import GRAPHS, Recipe


def test_recipes_are_what_they_say() -> None:
    """Graphs are the same whenever they are made; some have several results, fan-out, and nodes in another order."""
    graphs = [Recipe("dag", 6, seed).graph for seed in range(40)]
    assert any(len(graph.topology.results) > 1 for graph in graphs)
    assert any(len(readers) > 1 for graph in graphs for readers in graph.topology.readers)
    assert any(graph.topology.order != tuple(range(len(graph))) for graph in graphs)
    assert any(len(set(graph.topology.cells)) > 2 for graph in graphs)


recipes = st.builds(Recipe, st.sampled_from(GRAPHS), st.integers(1, 12), st.integers(0, 999))


@settings(max_examples=50, deadline=None, database=None)
@given(recipes, st.sampled_from(["cell", "operator"]))
def test_subgraphs_are_connected_and_do_not_wait_for_each_other(recipe: Recipe, by: str) -> None:
    """Every node is in one of them; and one can always be computed whole after others."""
    graph = cell_model(by).unfold(Request("r", (), structure=recipe))
    subgraphs = graph.topology.subgraphs
    assert sorted(node for nodes in subgraphs for node in nodes) == list(range(len(graph)))
    done: set[int] = set()
    left = list(subgraphs)
    for nodes in subgraphs:
        assert len({graph.nodes[node].cell for node in nodes}) == 1
        reached = {nodes[0]}
        for _ in nodes:
            reached |= {n for n in nodes if reached & {*graph.topology.sources[n], *graph.topology.readers[n]}}
        assert reached == set(nodes)
    while left:
        free = [nodes for nodes in left if {s for n in nodes for s in graph.topology.sources[n]} <= done.union(nodes)]
        assert free, "they wait for each other"
        done.update(*free)
        left = [nodes for nodes in left if nodes not in free]


@settings(max_examples=50, deadline=None, database=None)
@given(recipes, st.randoms(use_true_random=False))
def test_no_more_states_are_held_than_promised(recipe: Recipe, random: Random) -> None:
    """In any order; it is a bound, and need not be reached."""
    graph = cell_model("cell").unfold(Request("r", (), structure=recipe))

    def any_ready(done: set[int]) -> list[int]:
        ready = [n for n in range(len(graph)) if n not in done and done.issuperset(graph.topology.sources[n])]
        return random.sample(ready, random.randint(1, len(ready)))

    assert _most_held(graph, any_ready) <= graph.most_held


@settings(max_examples=50, deadline=None, database=None)
@given(recipes, st.sampled_from(["cell", "operator"]))
def test_level_by_level_exactly_as_many_states_are_held_as_foretold(recipe: Recipe, by: str) -> None:
    graph = cell_model(by).unfold(Request("r", (), structure=recipe))
    levels = iter(graph.topology.levels.values())
    assert _most_held(graph, lambda done: next(levels)) == graph.topology.most_held_by_levels <= graph.most_held


def _most_held(graph: CellGraph, next_wave: Callable[[set[int]], Iterable[int]]) -> int:
    done: set[int] = set()
    held: set[int] = set()
    most = 0
    while len(done) < len(graph):
        wave = set(next_wave(done))
        held |= wave
        most = max(most, len(held))
        done |= wave
        held = {
            node
            for node in held
            if not graph.topology.readers[node] or not done.issuperset(graph.topology.readers[node])
        }
    return most
