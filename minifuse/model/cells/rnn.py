"""LSTM, Seq2Seq and TreeLSTM as models of cells, with random weights (BatchMaker, 2.7.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import torch
from torch import Tensor, nn

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.model.cells.config import BUILT_IN, EOS, GO, PAD, CellConfig, registered
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.unfold import CellLimits, Unfolding
from minifuse.model.choices import check_loading
from minifuse.model.device import check_weights_fit
from minifuse.model.dtypes import torch_dtype
from minifuse.model.linear import Linear

EOS_CHANCE = 0.02  # of every word that a random seq2seq model produces


class LSTM(nn.Module):
    """One step of an LSTM (Hochreiter and Schmidhuber, 1997): word, h, c -> h, c.

    i, f, g, o = [x | h] W^T + b, as torch.nn.LSTM orders them: W is its weight_ih and weight_hh side by side, b the sum
    of its biases.  c' = sigmoid(f) c + sigmoid(i) tanh(g),  h' = sigmoid(o) tanh(c')

    One product of [x | h] with weights packed once is the fastest on a CPU for any batch: at hidden 1024, 3 times as
    fast as two products for 1 to 16 rows, 1.3 times for 512.
    """

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.gates = Linear(2 * hidden_size, 4 * hidden_size, bias=True)
        self.fused = False  # on a GPU, all that follows the product is one kernel

    def forward(self, word: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gates(torch.cat((self.embedding(word), h), 1))
        if self.fused and isinstance(gates, Tensor):  # torch.fx sees the operators one by one
            from minifuse.kernels.lstm import lstm_cell

            return lstm_cell(gates, c)
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class Argmax(nn.Module):
    """Finds the index of each row's largest number; of equal numbers, the lowest index.

    On a CPU, numpy's argmax is tens of times as fast as torch's.
    """

    def forward(self, scores: Tensor) -> Tensor:
        if scores.device.type != "cpu":
            return scores.argmax(-1)
        wide = scores.float() if scores.dtype == torch.bfloat16 else scores  # numpy has no bfloat16
        return torch.from_numpy(wide.numpy().argmax(-1))


class Decoder(nn.Module):
    """An LSTM step and the likeliest word: word, h, c -> h, c, word."""

    token_output = 2

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.lstm = LSTM(hidden_size, vocab_size)
        self.projection = Linear(hidden_size, vocab_size)
        self.argmax = Argmax()

    def forward(self, word: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c = self.lstm(word, h, c)
        return h, c, self.argmax(self.projection(h))


class Leaf(nn.Module):
    """A leaf of an N-ary Tree-LSTM (Tai et al., 2015): word -> h, c.

    Equations 9 to 14 without children:

    i, o, u = x W^T + b;  c = sigmoid(i) tanh(u),  h = sigmoid(o) tanh(c)
    """

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.gates = Linear(hidden_size, 3 * hidden_size, bias=True)

    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.gates(self.embedding(word)).chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Internal(nn.Module):
    """A node of an N-ary Tree-LSTM with k children (Tai et al., 2015).

    Equations 9 to 14, without an input word.

    Inputs h1, c1, ..., hk, ck; outputs h, c. Each child has a forget gate, which reads all children:
    i, o, u, f1 ... fk = [h1 | ... | hk] U^T + b;  c = sigmoid(i) tanh(u) + sum sigmoid(fl) cl,  h = sigmoid(o) tanh(c)
    """

    def __init__(self, hidden_size: int, arity: int) -> None:
        super().__init__()
        self.arity = arity
        self.gates = Linear(arity * hidden_size, (3 + arity) * hidden_size, bias=True)

    def forward(self, *states: Tensor) -> tuple[Tensor, Tensor]:
        if len(states) != 2 * self.arity:
            raise UsageError(f"A node of {self.arity} children reads {2 * self.arity} states, not {len(states)}.")
        parts = self.gates(torch.cat(states[::2], 1)).chunk(3 + self.arity, 1)
        i, o, u = parts[0], parts[1], parts[2]
        c = i.sigmoid() * u.tanh()
        for child in range(self.arity):
            c = c + parts[3 + child].sigmoid() * states[2 * child + 1]
        return o.sigmoid() * c.tanh(), c


def lstm(config: CellConfig, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> CellModel:
    """Make a chain of LSTM cells; its result is the last h and c."""
    with torch.device("meta"):
        cells: dict[str, nn.Module] = {"lstm": LSTM(config.hidden_size, config.vocab_size)}
    return _model(config, _random(cells, device, seed), Request("example", (0, 0)), dtype, device)


def seq2seq(config: CellConfig, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> CellModel:
    """Make an encoder and a feed-previous decoder.

    The decoder produces random words: <eos> with a chance of `EOS_CHANCE`, <go> never."""
    with torch.device("meta"):
        decoder = Decoder(config.hidden_size, config.vocab_size)
        cells: dict[str, nn.Module] = {"encoder": LSTM(config.hidden_size, config.vocab_size), "decoder": decoder}
    _random(cells, device, seed)
    # Scores are normal, with equal deviations: the largest of n is near the quantile 1 - 1/n. The chance that a score
    # of k times that deviation exceeds this quantile is the chance that a usual score exceeds a k-th of it.
    highest = NormalDist().inv_cdf(1 - 1 / config.vocab_size)
    with torch.no_grad():
        weight = decoder.projection.weight
        weight[EOS] *= highest / NormalDist().inv_cdf(1 - EOS_CHANCE)
        weight[[PAD, GO]] = 0.0
    return _model(config, cells, Request("example", (0, 0), max_new_tokens=2), dtype, device)


def treelstm(config: CellConfig, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> CellModel:
    """Make an N-ary Tree-LSTM, with a cell for each number of children.

    Its result is the root's h and c. Tai et al. have one set of matrices, in which a missing child counts as zero. So
    the matrix of a cell with fewer children is the first rows and columns of the largest cell's matrix.
    """
    hidden, arities = config.hidden_size, range(1, config.max_children + 1)
    with torch.device("meta"):
        cells: dict[str, nn.Module] = {"leaf": Leaf(hidden, config.vocab_size)}
        cells |= {f"internal{arity}": Internal(hidden, arity) for arity in arities}
    _random(cells, device, seed)
    gates = {cell: module.gates for cell, module in cells.items() if isinstance(module, Leaf | Internal)}
    largest = gates[f"internal{config.max_children}"]
    if device != "meta":
        with torch.no_grad():
            for cell, linear in gates.items():
                rows, columns = linear.weight.shape
                if cell != "leaf":
                    linear.weight.copy_(largest.weight[:rows, :columns].clone())
    examples = [Request("example", (), structure=(0,) * arity) for arity in arities]
    return _model(config, cells, examples, dtype, device)


def _random(cells: Mapping[str, nn.Module], device: str, seed: int) -> dict[str, nn.Module]:
    """Draw weights in float32 on the CPU: a seed gives the same model everywhere.

    Every matrix keeps the variance of its input. On the device `meta` there are no weights to draw.
    """
    if device == "meta":
        return dict(cells)
    generator = torch.Generator().manual_seed(seed)
    for cell in cells.values():
        cell.to_empty(device="cpu")
        for module in cell.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, generator=generator)
            elif isinstance(module, Linear):
                nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]), generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
    return dict(cells)


def _model(
    config: CellConfig, cells: Mapping[str, nn.Module], examples: Request | list[Request], dtype: str, device: str
) -> CellModel:
    """Make the model, with packed weights on a CPU, and fused cells on a GPU."""
    for cell in cells.values():
        cell.to(device, torch_dtype(dtype))
        for module in cell.modules():
            if isinstance(module, Linear):
                module.pack()
            elif isinstance(module, LSTM):
                module.fused = torch.device(device).type == "cuda" and dtype != "float64"
    return CellModel(config.kind, cells, Unfolding(config), examples, CellLimits(config).check, dtype, device)


_BUILDERS = {"lstm": lstm, "seq2seq": seq2seq, "treelstm": treelstm}


def load_cells(config: CellConfig, name: str, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> CellModel:
    """Make the model of this shape with random weights, laid out for serving.

    On the device `meta` the model has no weights: it unfolds requests, but cannot compute.

    Args:
        name: the model's name as the user gave it, for messages.

    Raises:
        MachineError: this machine has no such device, or not enough free memory for the weights.
        UsageError: there is no such number type or device, or the model of a plugin cannot be built.
    """
    check_loading(dtype, device, seed)
    build = registered(config.kind)
    if config.kind in BUILT_IN and device != "meta":
        instead = "a smaller hidden size or vocabulary, or a shorter --dtype"
        check_weights_fit(name, dtype, device, config.num_parameters, sum(config.sizes.values()), 0, instead)
    elif build is not None:
        return build(config, dtype, device, seed)
    return _BUILDERS[config.kind](config, dtype, device, seed)
