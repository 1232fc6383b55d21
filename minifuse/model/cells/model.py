"""A model of cells: unfolds requests, types their nodes, computes batches (BatchMaker, 2.3.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.plan import TRANSFORMER
from minifuse.core.request import Request, Sequence
from minifuse.core.unfolded import Unfolded
from minifuse.model.cells.definition import definition
from minifuse.model.cells.types import TOKEN, CellType, Spec, brief, matrix_weights, outputs_of
from minifuse.model.dtypes import torch_dtype

INT64 = 2**63  # whole numbers in [-INT64, INT64) fit a tensor


class CellModel:
    """A model made of cells, with a function that unfolds requests into graphs of cells.

    `types` are the cell types recognised so far.

    A cell is a torch module whose inputs and outputs have the batch in their first dimension, and which treats rows
    independently. It must not change its inputs, which may be views of states. If it produces a token, that output is
    int64 [batch], and the module's attribute `token_output` is the number of that output.

        def unfold(request):
            zeros = Zeros((64,))
            states = [zeros, *(Output(i) for i in range(len(request.prompt) - 1))]
            return CellGraph(tuple(Node("gru", inputs) for inputs in zip(request.prompt, states)))

        CellModel("gru", {"gru": GRU()}, unfold, example=Request("example", prompt=(1, 2)))

    Args:
        cells: modules by name; they are moved to `device` and `dtype`, and set to evaluation mode.
        example: one or several requests whose nodes have outputs of every shape that will occur. The state pool is made
            for these shapes.
        check: raises `RequestRefused` for a request that the model cannot serve, such as one with a token id outside
            the embedding. An error that a cell raises while it computes a batch ends the run.

    Raises:
        UsageError: a cell has a forbidden name, or the example cannot be unfolded and computed.
    """

    def __init__(
        self,
        name: str,
        cells: Mapping[str, nn.Module],
        unfold: Callable[[Request], CellGraph],
        example: Request | Seq[Request],
        check: Callable[[Request], None] | None = None,
        dtype: str = "float32",
        device: str | torch.device = "cpu",
    ) -> None:
        self.name = name
        self.dtype = torch_dtype(dtype)
        self.device = torch.device(device)
        self.cells = {
            cell: module.to(self.device, self.dtype).eval().requires_grad_(False) for cell, module in cells.items()
        }
        self.unfold_untyped = unfold
        self.examples = (example,) if isinstance(example, Request) else tuple(example)
        self.limits = check
        self.types: dict[str, CellType] = {}
        self.field_of: dict[str, tuple[int, ...]] = {}  # cell type -> the field of each output
        self.fields: tuple[Spec, ...] = ()  # of the state pool
        for cell in self.cells:
            if "[" in cell or cell == TRANSFORMER:
                raise UsageError(f"A cell of the model {name} is called {cell!r}: choose a name without brackets.")
        definitions = {cell: definition(module) for cell, module in self.cells.items()}
        self._same = {  # cell -> the first cell of the same definition
            cell: next(first for first in definitions if definitions[first] == definitions[cell])
            for cell in definitions
        }
        self._recognised: dict[tuple[str, tuple[Spec, ...]], CellType] = {}  # by first cell and inputs
        # Specs are numbered, so that a node's type is found quickly by its cell and the numbers of its inputs.
        self._numbers: dict[Spec, int] = {}
        self._zeros: dict[Zeros, int] = {}
        # (cell, number of each input) -> (cell type, number of each output)
        self._memo: dict[tuple[Any, ...], tuple[str, dict[int, int]]] = {}
        self._token = self._number(TOKEN)
        self._complete = False  # whether all fields are known
        try:
            for request in self.examples:
                self.unfold(request)
        except RequestRefused as refusal:
            raise UsageError(f"The example of the model {name} cannot be used: {refusal}") from None
        self._complete = True

    @property
    def slot_bytes(self) -> int:
        """Count the bytes of a slot of states, which is one row of every field."""
        return sum(spec.dtype.itemsize * torch.Size(spec.shape).numel() for spec in self.fields)

    @property
    def sizes(self) -> dict[str, int]:
        """Count the weights of each cell's matrices."""
        return {cell: matrix_weights(module) for cell, module in self.cells.items()}

    @property
    def num_parameters(self) -> int:
        """Count the parameters of all cells; shared parameters count once."""
        shared = {id(parameter): parameter for module in self.cells.values() for parameter in module.parameters()}
        return sum(parameter.numel() for parameter in shared.values())

    def check(self, request: Request, num_history: int = 0) -> None:
        """Raise `RequestRefused` if the model cannot serve this request with any amount of memory."""
        if request.problem is not None:
            raise RequestRefused(f"Request {request.id!r} {request.problem}")
        if request.conversation is not None or request.after is not None:
            raise RequestRefused(
                f"Request {request.id!r} is a turn of a conversation, and models of cells read no text of earlier "
                "requests: leave out conversation."
            )
        if self.limits is not None:
            self.limits(request)

    def fit(self, request: Request) -> Request:
        """Return the request as it is: there is no context to fit into."""
        return request

    def begin(self, request: Request) -> Sequence:
        """Make the sequence of a new request, with its graph. Raises the errors of `unfold`."""
        return Unfolded(request, graph=self.unfold(request))

    def unfold(self, request: Request) -> CellGraph:
        """Unfold a request into a graph whose nodes name cell types.

        Raises:
            RequestRefused: the user's function fails, or gives a graph that cannot be computed.
        """
        name = f"Request {request.id!r}"
        try:
            graph = self.unfold_untyped(request)
            if not isinstance(graph, CellGraph):
                raise RequestRefused(f"{name} could not be unfolded into {graph!r:.60}: give a CellGraph.")
            return self._typed(graph, name)
        except RequestRefused:
            raise
        except Exception as error:  # in the user's code, or in the graph it made: only this request fails
            raise RequestRefused(f"{name} could not be unfolded: {brief(error)}.") from error

    def _typed(self, graph: CellGraph, name: str) -> CellGraph:
        """Return the graph with each node's cell replaced by its cell type."""
        if not graph.nodes:
            graph.check(name)
        try:
            names = self._types_of(graph.nodes, range(len(graph.nodes)), name)
        except _Forward:  # a node reads a later one: a graph in another order, or one that cannot be computed
            graph.check(name)
            names = self._types_of(graph.nodes, graph.topology.order, name)
        if names == [node.cell for node in graph.nodes]:
            return graph
        retyped = [Node(cell, node.inputs) for cell, node in zip(names, graph.nodes, strict=True)]
        return replace(graph, nodes=tuple(retyped))

    def run(self, type_name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute n nodes of one type. Inputs and outputs are [n, *shape]."""
        with torch.inference_mode():
            outputs = self.types[type_name].cell(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def _types_of(self, nodes: tuple[Node, ...], order: Seq[int], name: str) -> list[str]:
        """Find the type of each node.

        Args:
            order: the numbers of all nodes; each node comes after the nodes that it reads.

        Raises:
            _Forward: a node comes before a node that it reads.
        """
        token, zeros, memo = self._token, self._zeros, self._memo
        names = [""] * len(nodes)
        produced: dict[int, dict[int, int]] = {}  # node -> part -> number of its spec
        for number in order:
            cell, inputs = nodes[number]
            key: list[Any] = [cell]
            for value in inputs:
                kind = type(value)
                if kind is Output:
                    parts = produced.get(value.node)
                    if parts is None:
                        raise _Forward
                    spec = parts.get(value.part)
                    if spec is None:
                        source = self.types[names[value.node]]
                        raise RequestRefused(
                            f"{name} has node {number} (cell {cell!r}), which reads part {value.part} of node "
                            f"{value.node}, and a {source.name!r} has {len(source.outputs)} outputs: "
                            f"let it read one of 0 to {len(source.outputs) - 1}."
                        )
                    key.append(spec)
                elif kind is int and -INT64 <= value < INT64:
                    key.append(token)
                else:
                    spec = zeros.get(value) if kind is Zeros else None
                    if spec is None:
                        spec = self._constant(value, f"{name} has node {number} (cell {cell!r})")
                    key.append(spec)
            found = memo.get(tuple(key))
            if found is None:
                where = f"{name} has node {number} (cell {cell!r})"
                found = memo[tuple(key)] = self._recognise(cell, key[1:], where)
            names[number], produced[number] = found
        return names

    def _number(self, spec: Spec) -> int:
        """Return a spec's number; specs are numbered in the order of their first use."""
        return self._numbers.setdefault(spec, len(self._numbers))

    def _constant(self, value: Any, where: str) -> int:
        """Return the number of a constant's spec."""
        if isinstance(value, Zeros):
            if not all(type(size) is int and size >= 0 for size in value.shape):
                raise RequestRefused(f"{where} with {value}: give a shape of whole numbers.")
            found = self._zeros[value] = self._number(Spec(tuple(value.shape), self.dtype))
            return found
        if isinstance(value, Tensor) and value.layout is torch.strided and value.device.type != "meta":
            return self._number(Spec(tuple(value.shape), self.dtype if value.is_floating_point() else value.dtype))
        if _is_number(value):
            return self._number(TOKEN if isinstance(value, Integral) else Spec((), self.dtype))
        if isinstance(value, list | tuple) and all(_is_number(part) for part in value):
            return self._number(Spec((len(value),), self.dtype))
        raise RequestRefused(
            f"{where} with the input {value!r:.60}: give an Output, Zeros, a number of 64 bits, a list of numbers or a "
            "dense tensor."
        )

    def _recognise(self, cell: str, numbers: list[int], where: str) -> tuple[str, dict[int, int]]:
        """Find or learn a cell's type for these inputs; return it and its outputs' numbers."""
        if cell not in self._same:
            raise RequestRefused(f"{where}, and the model {self.name} has the cells {', '.join(self.cells)}: name one.")
        specs = list(self._numbers)
        inputs = tuple([specs[number] for number in numbers])
        key = (self._same[cell], inputs)
        if key not in self._recognised:
            found = self._learn(cell, inputs, where)
            self.field_of[found.name] = self._fields_of(found, where)
            self._recognised[key] = self.types[found.name] = found
        found = self._recognised[key]
        return found.name, {part: self._number(spec) for part, spec in enumerate(found.outputs)}

    def _learn(self, cell: str, inputs: tuple[Spec, ...], where: str) -> CellType:
        """Learn the type of a cell for inputs that are new to it.

        The first type of a definition has the cell's name; the names of further types also include the inputs."""
        first = self._same[cell]
        known = next((kind for (name, _), kind in self._recognised.items() if name == first), None)
        allowed = f"give {', '.join(map(str, known.inputs))}, as an earlier node did" if known else "see its forward()"
        module = self.cells[first]
        outputs = outputs_of(module, inputs, self.device, where, allowed)
        suffix = ",".join(
            [
                "x".join(map(str, shape)) if shape and dtype == self.dtype else str(Spec(shape, dtype))
                for shape, dtype in inputs
            ]
        )
        name = first if known is None else f"{first}[{suffix}]"
        return CellType(name, module, inputs, outputs, getattr(module, "token_output", None))

    def _fields_of(self, kind: CellType, where: str) -> tuple[int, ...]:
        """Assign the k-th output of each spec to the k-th field of that spec.

        A missing field is added while examples are unfolded; later, a request that needs a missing field is refused.

        >>> # outputs h and c, both float32[64], get fields 0 and 1; a word, int64, gets field 2
        """
        used: Counter[Spec] = Counter()
        places = []
        for spec in kind.outputs:
            same = [number for number, field in enumerate(self.fields) if field == spec]
            if used[spec] == len(same):
                if self._complete:
                    raise RequestRefused(
                        f"{where} with outputs {', '.join(map(str, kind.outputs))}, and there is no place for a "
                        f"{spec}: give the model {self.name} an example request that has it."
                    )
                same.append(len(self.fields))
                self.fields += (spec,)
            places.append(same[used[spec]])
            used[spec] += 1
        return tuple(places)


def _is_number(value: Any) -> bool:
    """Tell whether a value can be an element of a tensor."""
    if type(value) is bool or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or -INT64 <= int(value) < INT64


class _Forward(Exception):
    """A node reads a node that comes later in the order or does not exist."""
