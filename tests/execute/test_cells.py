"""Batches of cells on tensors: gathers, padding, and every row's own inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.core.errors import LawBroken
from minifuse.core.measured import measured_of
from minifuse.core.places import State
from minifuse.core.plan import Layout, Plan, Span, Work
from minifuse.core.request import Request
from minifuse.core.shapes import StateRows
from minifuse.core.unfolded import Unfolded
from minifuse.execute.cells import CellRunner
from minifuse.execute.state_storage import StateStorage
from minifuse.model.cells.model import CellModel


class Step(nn.Module):
    """x' = 10 x + word, so that a state spells out its words; and its double, of the same shape."""

    def forward(self, word: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x = 10 * x + word[:, None]
        return x, 2 * x


class Speaker(nn.Module):
    token_output = 0

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0].long()


def spell(*words: int) -> CellGraph:
    return CellGraph(tuple(Node("step", (word, Output(i - 1) if i else Zeros((2,)))) for i, word in enumerate(words)))


MODEL = CellModel(
    "spelling",
    {"step": Step(), "speaker": Speaker()},
    lambda request: request.structure,
    Request("example", (), structure=CellGraph((*spell(1, 2).nodes, Node("speaker", (Output(1),))))),
    dtype="float64",
)


class Scene:
    def __init__(self, capacity: int = 16, **graphs: CellGraph) -> None:
        self.storage = StateStorage(MODEL.fields, capacity)
        self.runner = CellRunner(MODEL, self.storage)
        requests = {name: Request(name, (), structure=graph) for name, graph in graphs.items()}
        self.sequences = {name: Unfolded(r, graph=MODEL.unfold(r)) for name, r in requests.items()}

    def run(self, *items: tuple[str, int, State], **fields: Any) -> Any:
        work = []
        for name, node, _ in items:
            graph = self.sequences[name].graph
            assert graph is not None
            work.append(Work(name, node, node + 1, graph.nodes[node].cell))
        plan = Plan(0, 0, tuple(work), tuple(place for *_, place in items), **fields)
        return self.runner(plan, self.sequences)

    def state(self, slot: int, part: int = 0) -> float:
        field = MODEL.field_of["step"][part]
        return float(self.storage.fields[field][slot, 0])


def test_the_same_requests_in_the_same_order_are_not_gathered() -> None:
    scene = Scene(a=spell(1, 2, 3), b=spell(4, 5, 6))
    first = scene.run(("a", 0, State((), 0)), ("b", 0, State((), 1)))
    second = scene.run(("a", 1, State((0,), 2)), ("b", 1, State((1,), 3)))
    assert measured_of(first).num_gathers == measured_of(second).num_gathers == 0
    assert [scene.state(slot) for slot in range(4)] == [1, 4, 12, 45]
    third = scene.run(("b", 2, State((3,), 4)), ("a", 2, State((2,), 5)))
    assert (measured_of(third).num_gathers, measured_of(third).gathered_rows) == (1, 2)  # the other way round
    assert measured_of(third).gathering_s > 0
    assert [scene.state(slot) for slot in (4, 5)] == [456, 123]
    assert third.results.keys() == {"a", "b"}
    assert [float(part[0]) for part in third.results["a"][2]] == [123, 246]


def test_cells_are_materialised_for_each_supported_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type of cell is computed once at each size; no state is written."""
    scene, calls = Scene(a=spell(1, 2)), []
    before = [field.clone() for field in scene.storage.fields]

    def run(name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        calls.append((name, {len(tensor) for tensor in inputs}))
        return inner(name, *inputs)

    inner = MODEL.run
    monkeypatch.setattr(MODEL, "run", run)
    scene.runner.materialise((1, 4))
    assert calls == [(name, {size}) for name in ("step", "speaker") for size in (1, 4)]
    assert all(map(torch.equal, before, scene.storage.fields))


def test_newcomers_with_zeros_join_running_requests() -> None:
    scene = Scene(a=spell(1, 2), b=spell(4, 5))
    scene.run(("a", 0, State((), 7)))
    joined = scene.run(("b", 0, State((), 3)), ("a", 1, State((7,), 9)))
    assert [scene.state(slot) for slot in (3, 9)] == [4, 12]
    assert measured_of(joined).num_gathers == 1
    assert joined.results.keys() == {"a"}


@pytest.mark.parametrize("slot", [14, 15])
def test_constants_beside_states_do_not_spoil_the_slot_of_zeros(slot: int) -> None:
    """Slot 15 is followed by the one that is always zero: reading both is a view, which must not be written to."""
    constant = CellGraph((Node("step", (3, (7.0, 7.0))),))
    scene = Scene(a=spell(1, 2), b=constant, c=spell(9))
    scene.run(("a", 0, State((), slot)))
    scene.run(("a", 1, State((slot,), 0)), ("b", 0, State((), 1)))
    assert [scene.state(slot) for slot in (0, 1)] == [12, 73]
    scene.run(("c", 0, State((), 2)), ("a", 1, State((slot,), 3)))
    assert [scene.state(slot) for slot in (2, 3)] == [9, 12]


def test_an_input_may_come_from_different_outputs_in_one_batch() -> None:
    double = CellGraph((Node("step", (1, Zeros((2,)))), Node("step", (2, Output(0, 1)))))
    scene = Scene(a=spell(1, 2), b=double)
    scene.run(("a", 0, State((), 0)), ("b", 0, State((), 1)))
    ran = scene.run(("a", 1, State((0,), 2)), ("b", 1, State((1,), 3)))
    assert [scene.state(slot) for slot in (2, 3)] == [12, 22]
    assert measured_of(ran).num_gathers == 1


def test_tensors_floats_and_lists_are_constants() -> None:
    constants = [torch.tensor([5.0, 5.0]), [6.0, 6.0], Zeros((2,))]
    scene = Scene(**{name: CellGraph((Node("step", (1, x)),)) for name, x in zip("abc", constants, strict=True)})
    scene.run(*[(name, 0, State((), i)) for i, name in enumerate("abc")])
    assert [scene.state(slot) for slot in range(3)] == [51, 61, 1]


def test_waves_run_one_after_the_other_and_a_plan_may_produce_several_tokens() -> None:
    nodes = (*spell(1, 2).nodes, Node("speaker", (Output(0),)), Node("speaker", (Output(1),)))
    scene = Scene(a=CellGraph(nodes), b=CellGraph((*spell(7).nodes, Node("speaker", (Output(0),)))))
    ran = scene.run(
        ("a", 0, State((), 0)),
        ("b", 0, State((), 1)),
        ("a", 1, State((0,), 2)),
        ("b", 1, State((1,), 3)),
        ("a", 2, State((0,), 4)),
        ("a", 3, State((2,), 5)),
        layout=Layout((Span(0, 2), Span(2, 3), Span(3, 5), Span(5, 6))),
    )
    assert ran.tokens == {"a": (1, 12), "b": (7,)}


def test_a_padded_plan_computes_whole_rows_and_leaves_idle_states_as_they_are() -> None:
    scene = Scene(a=spell(1, 2, 3), b=spell(4), c=spell(5, 6))
    rows = {"a": 2, "b": 3, "c": 4}
    calls: list[int] = []
    cell = MODEL.types["step"].cell
    hook = cell.register_forward_hook(lambda module, inputs, outputs: calls.append(len(inputs[0])))
    steps = ("abc", "ac", "a", "")
    items, waves = [], []
    for step, names in enumerate(steps):
        waves.append(Span(len(items), len(items) + len(names)))
        items += [(name, step, State((rows[name],) * (step > 0), rows[name])) for name in names]
    ran = scene.run(*items, layout=Layout(tuple(waves), StateRows(2, 3, 4)))
    hook.remove()
    assert calls == [3, 3, 3, 3]
    spelt = {name: float(outputs[0][0]) for name in "abc" for outputs in ran.results[name].values()}
    assert spelt == {"a": 123, "b": 4, "c": 56}
    assert measured_of(ran).num_gathers == 0


def test_rows_of_a_batch_may_read_from_different_places() -> None:
    """A step in which one row continues from its state and another begins."""
    scene = Scene(a=spell(1, 2), b=spell(7))
    items = [("a", 0, State((), 2)), ("a", 1, State((2,), 2)), ("b", 0, State((), 3))]
    ran = scene.run(*items, layout=Layout((Span(0, 1), Span(1, 3)), StateRows(2, 2, 2)))
    assert {name: float(ran.results[name][node][0][0]) for name, node in (("a", 1), ("b", 0))} == {"a": 12, "b": 7}


def test_a_plan_cannot_begin_with_an_empty_wave() -> None:
    with pytest.raises(LawBroken, match="begins with a wave of nothing"):
        Scene(a=spell(1)).run(layout=Layout((Span(0, 0),), StateRows(0, 1, 1)))
