"""Types are recognised by definition, weights and inputs; errors in a user's code are refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import sentence
from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.request import Request
from minifuse.model.cells.definition import definition
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import Spec
from minifuse.naive.cells import evaluate

H = Spec((4,), torch.float64)
WORD = Spec((), torch.int64)


class Add(nn.Module):
    """(x, y) -> (x + w y, x): of any shape that w can be multiplied with."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.factor = factor

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.factor * self.weight * y, x.clone()


def nodes(*rows: tuple[Any, ...]) -> CellGraph:
    return CellGraph(tuple(Node(cell, tuple(inputs)) for cell, *inputs in rows))


def model(cells: dict[str, nn.Module], graph: CellGraph, *more: CellGraph) -> CellModel:
    """A model whose requests unfold into the graph that they give."""
    examples = [Request("example", (), structure=one) for one in (graph, *more)]
    return CellModel("mine", cells, lambda request: request.structure, examples, dtype="float64")


def unfold(model: CellModel, graph: Any) -> CellGraph:
    return model.unfold(Request("r0", (), structure=graph))


ZEROS = Zeros((4,))
ONE = nodes(("add", ZEROS, ZEROS))


def types(cells: dict[str, nn.Module], *graphs: CellGraph) -> list[list[str]]:
    made = model(cells, *graphs)
    return [[node.cell for node in unfold(made, graph).nodes] for graph in graphs]


def test_one_cell_is_one_type_whatever_its_constants() -> None:
    graph = nodes(
        ("add", ZEROS, ZEROS),
        ("add", Output(0, 0), (1.0, 2.0, 3.0, 4.0)),
        ("add", Output(1, 1), torch.ones(4)),  # a float32 constant is of the model's type
        ("add", Output(1, 1), [1, 2, 3, 4.5]),
    )
    made = model({"add": Add()}, graph)
    assert unfold(made, graph) is graph
    assert made.types["add"].inputs == (H, H)
    assert made.types["add"].outputs == (H, H)


def test_two_names_for_one_module_are_one_type() -> None:
    add = Add()
    assert types({"a": add, "b": add}, nodes(("b", ZEROS, ZEROS), ("a", Output(0), ZEROS))) == [["a", "a"]]


def test_the_same_definition_with_the_same_weights_is_one_type() -> None:
    one, other = Add(), Add()
    other.weight = one.weight
    assert types({"a": one, "b": other}, nodes(("b", ZEROS, ZEROS), ("a", Output(0), ZEROS))) == [["a", "a"]]


def test_equal_numbers_are_not_the_same_weights() -> None:
    assert types({"a": Add(), "b": Add()}, nodes(("b", ZEROS, ZEROS), ("a", ZEROS, ZEROS))) == [["b", "a"]]


def test_a_type_is_learned_once() -> None:
    add = Add()
    made = model({"a": add, "b": add}, nodes(("a", ZEROS, ZEROS)))
    known = made.types["a"]
    assert unfold(made, nodes(("b", ZEROS, ZEROS), ("a", Output(0), ZEROS))).nodes[0].cell == "a"
    assert made.types["a"] is known


def test_different_attributes_are_different_definitions() -> None:
    one, other = Add(), Add(3.0)
    other.weight = one.weight
    assert types({"a": one, "b": other}, nodes(("b", ZEROS, ZEROS), ("a", ZEROS, ZEROS))) == [["b", "a"]]


def test_different_shapes_are_different_types_with_names_of_their_own() -> None:
    wide, int32 = Zeros((2, 3)), torch.ones(4, dtype=torch.int32)
    graph = nodes(
        ("add", ZEROS, ZEROS), ("add", wide, wide), ("add", ZEROS, int32), ("add", wide, 3), ("add", wide, Output(1))
    )
    assert types({"add": Add()}, graph) == [
        ["add", "add[2x3,2x3]", "add[4,int32[4]]", "add[2x3,int64]", "add[2x3,2x3]"]
    ]


def test_a_type_keeps_its_name_for_all_requests() -> None:
    wide = Zeros((2, 3))
    graphs = nodes(("add", ZEROS, ZEROS)), nodes(("add", wide, wide), ("add", ZEROS, ZEROS))
    assert types({"add": Add()}, *graphs) == [["add"], ["add[2x3,2x3]", "add"]]


class Held(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1, {"a": (2.5, None)}], [1, {"a": (2.5, None)}], True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        ({1, 2}, {2, 1}, True),
        ([1, 2], (1, 2), False),
        (torch.relu, torch.relu, True),
        (torch.relu, torch.tanh, False),
        (torch.ones(2), torch.ones(2), False),
        (bytearray(b"a"), bytearray(b"a"), False),  # cannot be compared for good
        (nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), False),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU()), True),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh()), False),
        (nn.Sigmoid(), nn.Tanh(), False),
        (nn.Dropout(0.5), nn.Dropout(0.25), False),
        (nn.Dropout().eval(), nn.Dropout(), False),
    ],
)
def test_definitions(one: Any, other: Any, same: bool) -> None:
    assert (definition(Held(one)) == definition(Held(other))) is same
    assert definition(Held(one)) == definition(Held(one))


def test_buffers_are_weights() -> None:
    class Shift(nn.Module):
        def __init__(self, by: Tensor) -> None:
            super().__init__()
            self.register_buffer("by", by)

    one, copy = torch.ones(4), torch.ones(4)
    assert definition(Shift(one)) == definition(Shift(one))
    assert definition(Shift(one)) != definition(Shift(copy))
    assert definition(Shift(one[:2])) != definition(Shift(one[2:]))
    assert definition(Shift(one[:2])) != definition(Shift(one[:3]))
    hooked = Shift(one)
    hooked.register_forward_hook(lambda *_: None)
    assert definition(hooked) != definition(Shift(one))


def test_a_cell_that_holds_itself() -> None:
    held = Held([])
    held.held.append(held.held)
    assert definition(held) == definition(held)


class Split(nn.Module):
    """x -> two of the shape of x, one number, one token."""

    token_output = 3

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x + 2, x.sum(-1), x.argmax(-1)


def test_outputs_are_kept_in_as_few_fields_as_hold_them() -> None:
    made = model({"split": Split(), "add": Add()}, nodes(("add", ZEROS, ZEROS), ("split", Output(0))))
    assert made.fields == (H, H, Spec((), torch.float64), WORD)
    assert made.field_of == {"add": (0, 1), "split": (0, 1, 2, 3)}
    assert made.slot_bytes == 8 * (4 + 4 + 1 + 1)
    assert (made.types["split"].token_output, made.types["add"].token_output) == (3, None)


def test_running_a_batch() -> None:
    made = model({"add": Add()}, ONE)
    total, x = made.run("add", torch.ones(5, 4).double(), torch.ones(5, 4).double())
    assert total.tolist() == [[3.0] * 4] * 5
    assert x.shape == (5, 4)


def test_nodes_may_be_in_any_order() -> None:
    made = model({"add": Add()}, ONE)
    graph = nodes(("add", Output(1), ZEROS), ("add", ZEROS, (1.0, 1.0, 1.0, 1.0)))
    assert unfold(made, graph) is graph
    assert evaluate(made, graph)[0][0].tolist() == [2.0] * 4


REFUSED: list[tuple[Any, str]] = [
    (nodes(), "empty graph"),
    ([1], r"could not be unfolded into \[1\]: give a CellGraph"),
    (CellGraph((1,)), "could not be unfolded: "),  # type: ignore[arg-type]
    (nodes(("ad", ZEROS, ZEROS)), r"node 0 \(cell 'ad'\), and the model mine has the cells add: name one"),
    (nodes(("add", ZEROS)), r"node 0 \(cell 'add'\) with float64\[4\], which the cell cannot take .*'y'"),
    (nodes(("add", ZEROS, ZEROS), ("add", ZEROS, ZEROS, ZEROS)), r"node 1 \(cell 'add'\) .* 4 were given"),
    (nodes(("add", ZEROS, Zeros((3,)))), r"float64\[4\], float64\[3\], .*give float64\[4\], float64\[4\], as an"),
    (nodes(("add", ZEROS, Output(1))), "reads node 1, and the graph has nodes 0 to 0"),
    (nodes(("add", ZEROS, Output(-1))), "reads node -1"),
    (nodes(("add", ZEROS, Output(0))), r"cycle \(0 -> 0\)"),
    (nodes(("add", ZEROS, Output(1)), ("add", Output(0), ZEROS)), r"cycle \(0 -> 1 -> 0\)"),
    (nodes(("add", ZEROS, ZEROS), ("add", ZEROS, Output(0, 2))), "reads part 2 of node 0, and a 'add' has 2 outputs"),
    (nodes(("add", ZEROS, ZEROS), ("add", ZEROS, Output(0, -1))), "reads part -1 of node 0"),
    (nodes(("add", ZEROS, "word")), "with the input 'word': give an Output, Zeros, a number"),
    (nodes(("add", ZEROS, True)), "with the input True"),
    (nodes(("add", ZEROS, [[1.0]])), "with the input"),
    (nodes(("add", ZEROS, Zeros((-1,)))), "give a shape of whole numbers"),
    (nodes(("add", Zeros((5,)), Zeros((5,)))), r"no place for a float64\[5\]: give the model mine an example request"),
]


@pytest.mark.parametrize(("graph", "message"), REFUSED)
def test_graphs_that_cannot_be_computed(graph: Any, message: str) -> None:
    made = model({"add": Add()}, ONE)
    known = dict(made.types)
    with pytest.raises(RequestRefused, match=message) as refused:
        unfold(made, graph)
    sentence(refused.value, "equest 'r0'")
    assert made.types == known  # what is refused leaves nothing behind
    with pytest.raises(RequestRefused, match=message):
        unfold(made, graph)  # and is refused again
    assert unfold(made, ONE) is ONE


def test_an_unfold_function_that_raises_fails_only_its_request() -> None:
    def raises(request: Request) -> CellGraph:
        if request.prompt:
            raise ValueError("no such\nthing.")
        return ONE

    made = CellModel("mine", {"add": Add()}, raises, Request("example", ()))
    with pytest.raises(RequestRefused) as refused:
        made.unfold(Request("r1", (1,)))
    assert str(refused.value) == "Request 'r1' could not be unfolded: ValueError: no such."
    assert made.unfold(Request("r2", ())) is ONE


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any], token_output: Any = None) -> None:
        super().__init__()
        self.function, self.token_output = function, token_output

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "token_output", "message"),
    [
        (lambda x: x.sum(), None, r"outputs are \(\) for a batch of 1: let their first dimension be the batch"),
        (lambda x: torch.cat((x, x)), None, r"outputs are \(2, 4\) for a batch of 1"),
        (lambda x: x.new_zeros(1, 4), None, r"outputs are \(1, 4\) for a batch of 3"),
        (lambda x: x @ x.new_ones(4, 2 * len(x)), None, "in a batch of 3: let rows not depend on the batch"),
        (lambda x: (), None, "no tensors"),
        (lambda x: {"h": x}, None, "no tensors"),
        (lambda x: x, None, "gives an input back, .*: clone it"),
        (lambda x: x[:, :2], None, "gives an input back"),
        (lambda x: x + 1, 0, "token_output is 0: let that output be int64"),
        (lambda x: x.argmax(-1), 1, "token_output is 1"),
        (lambda x: x @ x.new_ones(3, 3), None, "which the cell cannot take .RuntimeError.*see its forward"),
    ],
)
def test_modules_that_are_not_cells(function: Callable[[Tensor], Any], token_output: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        model({"calls": Calls(function, token_output)}, nodes(("calls", ZEROS)))
    sentence(refused.value, "example of the model mine")


@pytest.mark.parametrize("name", ["add[4]", "transformer"])
def test_names_that_cells_cannot_have(name: str) -> None:
    with pytest.raises(UsageError, match="choose"):
        model({name: Add()}, nodes((name, ZEROS, ZEROS)))


def test_what_the_user_checks() -> None:
    def check(request: Request) -> None:
        raise RequestRefused(f"Request {request.id!r} is too long: shorten it.")

    made = CellModel("mine", {"add": Add()}, lambda request: ONE, Request("example", ()), check)
    with pytest.raises(RequestRefused, match="too long"):
        made.check(Request("r0", ()))


@pytest.mark.parametrize(
    "value", [2**70, (1.0, 10**400), torch.zeros(2, device="meta"), torch.zeros(2).to_sparse(), True, "x", None]
)
def test_a_constant_that_is_not_a_number_refuses_only_its_request(value: Any) -> None:
    """It must not reach a batch, where it would fail other requests too."""

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    example = Request("example", (), structure=CellGraph((Node("plain", (1,)),)))
    model = CellModel("plain", {"plain": Plain()}, lambda request: request.structure, example)
    with pytest.raises(RequestRefused, match=r"Request 'bad'.*node 0"):
        model.unfold(Request("bad", (), structure=CellGraph((Node("plain", (value,)),))))
