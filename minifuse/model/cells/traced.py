"""Traces a cell with torch.fx, and splits it into a program of operators (BatchMaker, 2.2.3)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from minifuse.core.errors import UsageError
from minifuse.model.cells.rnn import Argmax
from minifuse.model.cells.types import CellType, brief
from minifuse.model.linear import Linear

_VIEW_METHODS = {
    *("chunk", "split", "tensor_split", "unbind", "narrow", "select", "view", "reshape", "flatten", "unflatten"),
    *("squeeze", "unsqueeze", "transpose", "permute", "expand"),
    *("contiguous", "to", "type_as", "float", "double", "half", "bfloat16"),  # may return the same tensor
}
_HAND_ON = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
_VIEWS = {
    operator.getitem,
    nn.functional.dropout,
    *(getattr(torch, name) for name in _VIEW_METHODS if hasattr(torch, name)),
}


class Program(NamedTuple):
    """The operators of a cell, in order.

    A value is named (i, part) if it is output `part` of operator i, and (None, i) if it is input i of the cell.

    >>> # relu(x + y) * x becomes add((None, 0), (None, 1)), relu((0, 0)), mul((1, 0), (None, 0))
    """

    operators: tuple[tuple[str, tuple[tuple[int | None, int], ...]], ...]  # for each: its cell, the values it reads
    outputs: tuple[tuple[int, int], ...]  # the outputs of the cell, as values of operators


class Ref(NamedTuple):
    """The index of a value in the list of an operator's inputs, weights and results."""

    place: int


class Step(NamedTuple):
    """One call, as torch.fx writes it."""

    kind: str  # call_function, call_method or call_module
    target: Any
    args: Any  # with a `Ref` in place of each tensor
    kwargs: Any


class Operator(nn.Module):
    """One operator of a traced cell, and the views of its result.

    Args:
        steps: the operator, then views of its result; or only views of an input.
        module: the module that is called if the first step is a `call_module`.
        weights: tensors that the operator reads in addition to its inputs.
        outputs: the places (see `Ref`) of the values that it returns.
        token_output: the number of the output that is a token of the answer.
        copies: whether outputs are copied. Views of inputs must be copied, because inputs may be views of states.
    """

    def __init__(
        self,
        steps: list[Step],
        module: nn.Module | None,
        weights: list[Tensor],
        num_inputs: int,
        outputs: list[int],
        token_output: int | None,
        copies: bool,
    ) -> None:
        super().__init__()
        self.steps, self.num_inputs, self.outputs, self.token_output = steps, num_inputs, outputs, token_output
        self.copies = copies
        self.module = module
        self.weights = nn.ParameterList([nn.Parameter(weight, requires_grad=False) for weight in weights])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if len(inputs) != self.num_inputs:
            raise TypeError(f"{len(inputs)} inputs are given to an operator of {self.num_inputs}")
        values: list[Any] = [*inputs, *self.weights]
        for kind, target, args, kwargs in self.steps:
            args, kwargs = _filled(args, values), _filled(kwargs, values)
            if kind == "call_module":
                values.append(self.module(*args, **kwargs))  # type: ignore[misc]
            elif kind == "call_method":
                values.append(getattr(args[0], target)(*args[1:], **kwargs))
            else:
                values.append(target(*args, **kwargs))
        outputs = tuple([values[place] for place in self.outputs])
        return tuple([output.clone() for output in outputs]) if self.copies else outputs


def trace(kind: CellType, add: Callable[[str, nn.Module], str]) -> Program:
    """Split a cell into operators.

    Args:
        add: takes a name and an operator; adds the operator as a cell, and returns the name of that cell.

    Raises:
        UsageError: the cell cannot be split.
    """
    return _Trace(kind).program(add)


class _Tracer(fx.Tracer):
    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.num_inputs = num_inputs

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, Linear | Argmax) or bool(super().is_leaf_module(module, name))

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Make as many inputs as the type has, because `forward` may take any number."""
        inputs = [self.create_proxy("placeholder", f"input{i}", (), {}) for i in range(self.num_inputs)]
        return root_fn, [self.root, *inputs]


class _Trace:
    """The graph of a cell: inputs, constants, and operators with their views.

    Constants depend on no input."""

    def __init__(self, kind: CellType) -> None:
        self.kind = kind
        try:
            graph = _Tracer(len(kind.inputs)).trace(kind.cell)
        except Exception as error:  # such as control flow that depends on numbers
            raise self.error(f"torch.fx cannot trace it ({brief(error)})") from error
        graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        *body, last = graph.nodes  # inputs, calls, and the return at the end
        returned = last.args[0]
        self.outputs: list[fx.Node] = list(returned) if isinstance(returned, list | tuple) else [returned]
        self.places = {node: (None, i) for i, node in enumerate(n for n in body if n.op == "placeholder")}
        self.constants: dict[fx.Node, Any] = {}
        self.groups: list[list[fx.Node]] = []
        self.group_of: dict[fx.Node, int] = {}
        for node in body:
            if node.op != "placeholder":
                self._sort(node)
        for i, output in enumerate(self.outputs):
            if output not in self.group_of:
                raise self.error(f"its output {i} depends on none of its inputs")
        # The values of each group that are read outside of it.
        self.exported = [
            [node for node in group if node in self.outputs or any(user not in group for user in node.users)]
            for group in self.groups
        ]

    def error(self, why: str) -> UsageError:
        return UsageError(
            f"The cell {self.kind.name!r} cannot be split into operators, since {why}: "
            "rewrite it, or batch whole cells."
        )

    def _sort(self, node: fx.Node) -> None:
        """Put a call into the constants, its source's group (views), or a new group."""
        sources = node.all_input_nodes
        if all(source in self.constants for source in sources):
            self.constants[node] = self._constant(node)
            return
        name = _name(node)
        if node.op != "call_module" and name.endswith("_") and not name.endswith("__"):
            raise self.error(f"{name} changes a tensor in place")
        group = self.group_of.get(sources[0]) if _is_view(node) and len(sources) == 1 else None
        if group is None:
            group = len(self.groups)
            self.groups.append([])
        self.group_of[node] = group
        self.groups[group].append(node)

    def _constant(self, node: fx.Node) -> Any:
        """Compute the value of a node that depends on no input."""
        target: Any = node.target
        if node.op == "get_attr":
            return operator.attrgetter(target)(self.kind.cell)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda source: self.constants[source])
        called = self._module(node) or (getattr(torch.Tensor, target) if node.op == "call_method" else target)
        return called(*args, **kwargs)

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.kind.cell.get_submodule(str(node.target)) if node.op == "call_module" else None

    def program(self, add: Callable[[str, nn.Module], str]) -> Program:
        operators = []
        for number, (first, *_) in enumerate(self.groups):
            cell, read = self._operator(number)
            module = self._module(first)
            name = type(module).__name__.lower() if module is not None else _name(first)
            operators.append((add(name, cell), tuple(map(self._value, read))))
        return Program(tuple(operators), tuple(map(self._value, self.outputs)))  # type: ignore[arg-type]

    def _value(self, node: fx.Node) -> tuple[int | None, int]:
        if node in self.places:
            return self.places[node]
        group = self.group_of[node]
        return group, self.exported[group].index(node)

    def _operator(self, number: int) -> tuple[Operator, list[fx.Node]]:
        """Make the operator of a group; also return the nodes that the operator reads."""
        group, exported = self.groups[number], self.exported[number]
        sources = list(dict.fromkeys(source for node in group for source in node.all_input_nodes))
        # A constant that is not a tensor is written into the step itself.
        weights = [source for source in sources if isinstance(self.constants.get(source), Tensor)]
        inputs = [source for source in sources if source not in group and source not in self.constants]
        places = {node: Ref(place) for place, node in enumerate([*inputs, *weights, *group])}

        def referred(arguments: Any) -> Any:
            return fx.node.map_arg(arguments, lambda node: places[node] if node in places else self.constants[node])

        steps = [Step(node.op, node.target, referred(node.args), referred(node.kwargs)) for node in group]
        first = group[0]
        module = self._module(first)
        if module is not None:
            steps[0] = steps[0]._replace(target="module")  # its name in its cell does not matter
        token_output = None if self.kind.token_output is None else self.outputs[self.kind.token_output]
        return (
            Operator(
                steps,
                module,
                [self.constants[weight] for weight in weights],
                len(inputs),
                [places[node].place for node in exported],
                exported.index(token_output) if token_output in exported else None,
                copies=_is_view(first) or isinstance(module, _HAND_ON),
            ),
            inputs,
        )


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _is_view(node: fx.Node) -> bool:
    return node.target in _VIEWS or (node.op == "call_method" and node.target in _VIEW_METHODS)


def _filled(arguments: Any, values: list[Any]) -> Any:
    """Replace each `Ref` in the arguments by its value."""
    if isinstance(arguments, Ref):
        return values[arguments.place]
    if isinstance(arguments, list | tuple):
        return type(arguments)([_filled(part, values) for part in arguments])
    if isinstance(arguments, dict):
        return {name: _filled(part, values) for name, part in arguments.items()}
    return arguments
