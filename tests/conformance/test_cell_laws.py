"""The laws for models of cells, over every technique and every valid mix of stages that serve them."""

from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minifuse.cell_graph import CellGraph
from minifuse.request import Request
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing.cell_laws import CELL_LAWS, check_cell_laws, in_real_time
from minifuse.testing.cell_models import GRAPHS, Recipe, cell_model
from minifuse.testing.cell_observe import observe_cells
from minifuse.testing.cell_scenario import CellScenario, cell_mixes, cell_scenarios

MIXES = {row.name: row for row in cell_mixes()}


def _try(law: str, row: Technique, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(cell_scenarios(row))
    def attempt(scenario: CellScenario) -> None:
        CELL_LAWS[law](row, scenario)

    attempt()


@pytest.mark.parametrize("law", CELL_LAWS)
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_law_holds(law: str, row: Technique) -> None:
    _try(law, row, examples=15 if row.name in TECHNIQUES else 5)  # a mix meets the same code again


@pytest.mark.long
@pytest.mark.parametrize("law", CELL_LAWS)
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_law_holds_on_many(law: str, row: Technique) -> None:
    _try(law, row, examples=500)


def _try_in_real_time(row: Technique, workers: int, examples: int) -> None:
    """Threads, at speeds that nobody chose: the same results, and an end."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cell_scenarios(row))
    def attempt(scenario: CellScenario) -> None:
        in_real_time(row, scenario.with_workers(workers))

    attempt()


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_in_real_time(row: Technique, workers: int) -> None:
    _try_in_real_time(row, workers, examples=2)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_in_real_time_on_many(row: Technique, workers: int) -> None:
    _try_in_real_time(row, workers, examples=60)


def test_every_technique_is_covered() -> None:
    assert {name for name, row in TECHNIQUES.items() if "cells" in row.serves} <= set(MIXES)
    assert {"cellular", "graph-padded", "graph-merged", "graph-merged by operator"} <= set(MIXES)


def test_a_stage_of_ones_own_is_put_through_them() -> None:
    assert "cellular" in check_cell_laws(examples=2, batching="cellular", memory="states")
    with pytest.raises(ValueError, match="No valid mix"):
        check_cell_laws(batching="serial")


class _AllMet(BaseException):
    """Ends hypothesis's search at once."""


def test_scenarios_reach_the_corners() -> None:
    """Generators drift: what the laws are tried on must go on to have what makes them hard."""
    missing = {"chain", "seq2seq", "tree", "dag", "refused", "memory-full", "worker 0", "worker 1", "worker 2"}
    missing |= {"discarded", "gathered", "batch of many", "stop", "length"}

    @settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(cell_scenarios(MIXES["cellular"]))
    def attempt(scenario: CellScenario) -> None:
        seen = observe_cells(MIXES["cellular"], scenario)
        missing.difference_update(request.structure.kind for request in scenario.requests)
        missing.difference_update(["refused"] * bool(seen.refused))
        for step in seen.steps:
            plan = step.plan
            met = {f"worker {plan.worker}", *(reason.code for reason in plan.reasons)}
            met.update(["discarded"] * (step.discarded > 0), ["gathered"] * (step.gathers.copies > 0))
            met.update(["batch of many"] * (len(plan.sequences) > 2))
            met.update(reason.value for reason in step.finished.values())
            missing.difference_update(met)
        if not missing:
            raise _AllMet

    with pytest.raises(_AllMet):
        attempt()


def test_recipes_are_what_they_say() -> None:
    """Graphs are the same whenever they are made; some have several results, fan-out, and nodes in another order."""
    graphs = [Recipe("dag", 6, seed).graph for seed in range(40)]
    assert any(len(graph.results) > 1 for graph in graphs)
    assert any(len(readers) > 1 for graph in graphs for readers in graph.readers)
    assert any(graph.order != tuple(range(len(graph))) for graph in graphs)
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
            reached |= {n for n in nodes if reached & {*graph.sources[n], *graph.readers[n]}}
        assert reached == set(nodes)
    while left:
        free = [nodes for nodes in left if {s for n in nodes for s in graph.sources[n]} <= done.union(nodes)]
        assert free, "they wait for each other"
        done.update(*free)
        left = [nodes for nodes in left if nodes not in free]


@settings(max_examples=50, deadline=None, database=None)
@given(recipes, st.randoms(use_true_random=False))
def test_no_more_states_are_held_than_promised(recipe: Recipe, random: Random) -> None:
    """In any order; it is a bound, and need not be reached."""
    graph = cell_model("cell").unfold(Request("r", (), structure=recipe))

    def any_ready(done: set[int]) -> list[int]:
        ready = [n for n in range(len(graph)) if n not in done and done.issuperset(graph.sources[n])]
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
        held = {node for node in held if not graph.readers[node] or not done.issuperset(graph.readers[node])}
    return most
