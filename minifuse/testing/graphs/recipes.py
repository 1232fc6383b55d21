"""Makes random graphs of the small model's cells from recipes that requests carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros

HIDDEN, NARROW, VOCAB = 3, 2, 11


class Recipe(NamedTuple):
    """Describes the random graph of a request: its kind, its rough size, and a seed."""

    kind: str
    size: int
    seed: int = 0

    @property
    def graph(self) -> CellGraph:
        return _graph(self)


def _graph_of_all(random: Random, size: int) -> CellGraph:
    """Make the example graph, which shows the model what each type of cell outputs."""
    h, z, s = Zeros((HIDDEN,)), Zeros((NARROW,)), 0.5
    leaf = Output(0, 0), Output(0, 1)
    nodes = [Node("leaf", (1,)), *(Node(f"internal{arity}", leaf * arity) for arity in (1, 2, 3))]
    nodes += [Node("lstm", (1, h, h)), Node("encoder", (1, h, h)), Node("decoder", (1, h, h))]
    nodes += [Node("wide", (1, h)), Node("join", (h, h, z)), Node("weigh", (z, h, s))]
    return CellGraph((*nodes, Node("squash", (h,)), Node("squash", (z,))))


def _number(random: Random) -> float:
    return random.uniform(-1.0, 1.0)


def _tensor(numbers: Sequence[float]) -> Any:
    import torch

    return torch.tensor(numbers, dtype=torch.float64)


def _states(random: Random) -> tuple[Any, Any]:
    """Draw the initial states of a recurrence, mostly zeros."""
    numbers = _tensor([_number(random) for _ in range(HIDDEN)])
    return random.choice([Zeros((HIDDEN,)), Zeros((HIDDEN,)), numbers]), Zeros((HIDDEN,))


def _chain(random: Random, size: int) -> CellGraph:
    nodes = [Node("lstm", (random.randrange(VOCAB), *_states(random)))]
    for i in range(size - 1):
        nodes.append(Node("lstm", (random.randrange(VOCAB), Output(i, 0), Output(i, 1))))
    return CellGraph(tuple(nodes))


def _seq2seq(random: Random, size: int) -> CellGraph:
    """Make a chain of encoders, then decoders; each decoder reads the previous word."""
    nodes = [Node("encoder", (random.randrange(VOCAB), *_states(random)))]
    for i in range(random.randint(0, size - 1)):
        nodes.append(Node("encoder", (random.randrange(VOCAB), Output(i, 0), Output(i, 1))))
    for i in range(random.randint(1, size)):
        last = len(nodes) - 1
        nodes.append(Node("decoder", (Output(last, 2) if i else 1, Output(last, 0), Output(last, 1))))
    return CellGraph(tuple(nodes))


def _tree(random: Random, size: int) -> CellGraph:
    """Make some leaves, and join subtrees at random until one is left."""
    nodes = [Node("leaf", (random.randrange(VOCAB),)) for _ in range(size)]
    roots = list(range(size))
    while len(roots) > 1 or random.random() < 0.3:
        chosen = [roots.pop(random.randrange(len(roots))) for _ in range(min(len(roots), random.randint(1, 3)))]
        roots.append(len(nodes))
        states = [Output(child, part) for child in chosen for part in (0, 1)]
        nodes.append(Node(f"internal{len(chosen)}", tuple(states)))
    return CellGraph(tuple(nodes))


_CELLS = {  # inputs and outputs
    "wide": ("word h", "h"),
    "wide again": ("word h", "h"),
    "join": ("h h z", "h z"),
    "weigh": ("z h s", "s z word"),
    "squash": ("h", "h"),
    "lstm": ("word h h", "h h"),
}


def _constant(random: Random, what: str) -> Any:
    if what == "word":
        return random.randrange(VOCAB)
    if what == "s":
        return _number(random)
    size = HIDDEN if what == "h" else NARROW
    numbers = tuple(_number(random) for _ in range(size))
    return random.choice([Zeros((size,)), numbers, list(numbers), _tensor(numbers)])


def _dag(random: Random, size: int) -> CellGraph:
    """Make nodes of up to three types of cell; nodes read earlier outputs or constants."""
    chosen = random.sample(sorted(_CELLS), random.randint(1, 3))
    made: dict[str, list[Output]] = {what: [] for what in ("word", "h", "z", "s")}
    nodes: list[Node] = []
    for number in range(size):
        cell = random.choice(chosen)
        reads, writes = _CELLS[cell]
        inputs = [
            random.choice(made[what][-5:]) if made[what] and random.random() < 0.7 else _constant(random, what)
            for what in reads.split()
        ]
        if cell == "squash" and made["z"] and random.random() < 0.5:
            inputs = [random.choice(made["z"])]  # of another shape, and so of another type
            writes = "z"
        nodes.append(Node(cell, tuple(inputs)))
        for part, what in enumerate(writes.split()):
            made[what].append(Output(number, part))
    return CellGraph(tuple(nodes))


def _shuffled(random: Random, graph: CellGraph) -> CellGraph:
    """Put the nodes of a graph in another order."""
    places = list(range(len(graph)))
    random.shuffle(places)
    moved = {
        places[number]: Node(
            node.cell,
            tuple(Output(places[value.node], value.part) if type(value) is Output else value for value in node.inputs),
        )
        for number, node in enumerate(graph.nodes)
    }
    return CellGraph(tuple(moved[number] for number in range(len(graph))))


EXAMPLE = Recipe("example", 1)
_BUILD: dict[str, Callable[[Random, int], CellGraph]] = {
    "example": _graph_of_all,
    "chain": _chain,
    "seq2seq": _seq2seq,
    "tree": _tree,
    "dag": _dag,
}
CHAINS = ("chain", "seq2seq")
GRAPHS = ("chain", "seq2seq", "tree", "dag")


@lru_cache(maxsize=4096)
def _graph(recipe: Recipe) -> CellGraph:
    random = Random(recipe.seed)
    graph = _BUILD[recipe.kind](random, recipe.size)
    return _shuffled(random, graph) if recipe.seed % 2 and recipe.kind != "example" else graph
