"""Splits a model as Megatron-LM does (Shoeybi et al., 2019; Flover, V-D).

    qkv, gate_up, up    by output: a rank has some of the heads, some of the intermediate features
    out, down           by input: the ranks' results are summed, one all-reduce each
    lm_head             by output: a rank has some of the vocabulary, one all-gather
    embeddings, norms   whole, on every rank

The token-wise halves of a layer begin and end with whole hidden states, and attention computes whole heads. So neither
the layers' code nor attention depends on ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from minifuse.model.device import check_weights_fit
from minifuse.model.dtypes import torch_dtype
from minifuse.model.linear import Linear
from minifuse.model.text.checkpoint import read_weights
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.layers import RotaryTable
from minifuse.model.text.load import build, draw_weights
from minifuse.model.text.parts import WHOLE, Part
from minifuse.model.text.transformer import Transformer
from minifuse.parallel.communicator import Communicator
from minifuse.parallel.config import shard_config
from minifuse.parallel.order import Setup

ROW_PARALLEL = ("out", "down")


class RowParallel(nn.Module):
    """Computes `y = (sum over ranks r of x_r W_r^T) + b` from parts.

    Each rank has a part of the inputs; the bias is added once.
    """

    def __init__(self, part: nn.Linear, bias: Tensor | None) -> None:
        super().__init__()
        self.part = part
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.communicator: Communicator  # of a worker, see `with_communicator`

    def forward(self, x: Tensor) -> Tensor:
        y = self.communicator.all_reduce(self.part(x))
        return y if self.bias is None else y + self.bias


class GatheredHead(nn.Module):
    """Computes the logits of the whole vocabulary from each rank's part of the head.

    With 29 tokens and two ranks, rank 0 has 15 rows, and rank 1 has 14 rows and a row of zeros: all messages have the
    same size, and the zeros come last.
    """

    def __init__(self, part: nn.Linear, vocab_size: int) -> None:
        super().__init__()
        self.part = part
        self.vocab_size = vocab_size
        self.communicator: Communicator  # of a worker, see `with_communicator`

    def forward(self, x: Tensor) -> Tensor:
        return self.communicator.all_gather(self.part(x))[:, : self.vocab_size]


def make_shard(config: ModelConfig, size: int, dtype: str, device: str) -> Transformer:
    """Make the model that one of `size` ranks computes, without setting its weights.

    The model's config is the shard's, so that KV memory and attention have only the rank's heads.

    Raises:
        UsageError: the model cannot be split into `size` parts.
    """
    model = build(shard_config(config, size), dtype, "meta")
    for layer in model.layers:
        for name in ROW_PARALLEL:
            linear = getattr(layer, name)
            setattr(layer, name, RowParallel(_linear(linear.weight, None), linear.bias))
    rows = -(-config.vocab_size // size)
    head = model.lm_head
    bias = None if head.bias is None else head.bias[:rows]
    model.lm_head = GatheredHead(_linear(head.weight[:rows], bias), config.vocab_size)  # type: ignore[assignment]
    model.to_empty(device=device)
    if config.rotary is not None:
        with torch.device(device):
            model.rotary_table = RotaryTable(config.rotary, config.max_context).to(torch_dtype(dtype))
    return model


def part_of(name: str, config: ModelConfig, rank: int, size: int) -> Part:
    """Return which part of the whole model's parameter `name` a rank holds.

    >>> part_of("layers.0.gate_up.weight", config, 1, 2).rows  # of gate and up with 8 rows each
    (range(4, 8), range(12, 16))
    """
    module, kind = name.rsplit(".", 1)
    layer = module.split(".")[-1]
    blocks = {
        "qkv": (config.q_size, config.kv_size, config.kv_size),
        "gate_up": (config.intermediate_size, config.intermediate_size),
        "up": (config.intermediate_size,),
    }
    if layer in blocks:
        rows, first = [], 0
        for block in blocks[layer]:
            share = block // size
            rows.append(range(first + rank * share, first + (rank + 1) * share))
            first += block
        return Part(tuple(rows))
    if layer in ROW_PARALLEL and kind == "weight":
        share = (config.q_size if layer == "out" else config.intermediate_size) // size
        return Part(columns=range(rank * share, (rank + 1) * share))
    if module == "lm_head":
        share = -(-config.vocab_size // size)
        last = config.vocab_size
        return Part((range(min(rank * share, last), min((rank + 1) * share, last)),))
    return WHOLE


class Shard:
    """Holds a rank's part of a model; maps each whole parameter to its place.

    Attributes:
        whole: the whole model's outline, on the meta device.
        model: this rank's part, without a communicator.
    """

    def __init__(self, config: ModelConfig, rank: int, size: int, dtype: str, device: str) -> None:
        self.rank, self.size, self.config = rank, size, config
        self.whole = build(config, dtype, "meta")
        self.model = make_shard(config, size, dtype, device)
        self._parameters = dict(self.model.named_parameters())

    def target(self, name: str) -> tuple[Tensor, Part]:
        """Return this rank's tensor for a whole parameter, and which part it holds."""
        module, kind = name.rsplit(".", 1)
        is_divided = module == "lm_head" or (module.split(".")[-1] in ROW_PARALLEL and kind == "weight")
        own = self._parameters[f"{module}.part.{kind}" if is_divided else name]
        return own.detach(), part_of(name, self.config, self.rank, self.size)

    def fill(self, weights: Iterable[tuple[str, Tensor]]) -> Transformer:
        """Copy this rank's part of each parameter of the whole model."""
        for name, tensor in weights:
            own, part = self.target(name)
            cut = part.of(tensor)
            own[: len(cut)].copy_(cut)
        return self.finish()

    def finish(self) -> Transformer:
        """Set what no checkpoint fills: a tied head, and head rows beyond the vocabulary."""
        head, part = self.target("lm_head.weight")
        if self.whole.lm_head.weight is self.whole.embedding.weight:
            head[: part.num_rows(0)].copy_(part.of(self.model.embedding.weight))
        for kind in ("weight", "bias"):
            if f"lm_head.part.{kind}" in self._parameters:
                self.target(f"lm_head.{kind}")[0][part.num_rows(0) :].zero_()
        return self.model


@torch.no_grad()
def shard(model: Transformer, rank: int, size: int, communicator: Communicator) -> Transformer:
    """Cut a rank's part out of a whole model in memory; weights are not packed.

    Raises:
        UsageError: the model cannot be split into `size` parts.
    """
    config = cast(ModelConfig, model.config)
    own = Shard(config, rank, size, str(model.dtype).removeprefix("torch."), model.device.type)
    part = own.fill((name, parameter.detach()) for name, parameter in model.named_parameters())
    return with_communicator(part, communicator)


@torch.no_grad()
def load_shard(setup: Setup) -> Transformer:
    """Load the part of a model that a rank computes, without a communicator.

    No rank ever holds the whole model: only the rank's slices of a checkpoint are read. Random weights are drawn one
    parameter at a time, on the rank's device, because each kind of device draws different numbers.
    """
    source, device = setup.source, setup.device
    if device == "cuda":
        device = f"cuda:{setup.local_rank}"
    parameters = source.config.num_parameters // setup.size  # plus the fewer that are on every rank
    instead = "more ranks, a smaller model, or a shorter --dtype"
    check_weights_fit(source.name, setup.dtype, setup.device, parameters, parameters, 0, instead)
    own = Shard(source.config, setup.rank, setup.size, setup.dtype, device)
    if source.directory is None:
        return own.fill(draw_weights(own.whole, setup.seed, device))
    read_weights(own.whole, source.directory, own.target)
    return own.finish()


def with_communicator(model: Transformer, communicator: Communicator) -> Transformer:
    """Copy the shard for a worker with this communicator; the copy shares all tensors."""
    packed = [module.packed for module in model.modules() if isinstance(module, Linear)]
    kept: list[object] = [*model.parameters(), *model.buffers(), model.config]
    kept += [tensor for tensor in packed if tensor is not None]
    kept += [module.communicator for module in model.modules() if hasattr(module, "communicator")]
    same = copy.deepcopy(model, {id(one): one for one in kept if one is not None})
    for module in same.modules():
        if isinstance(module, RowParallel | GatheredHead):
            module.communicator = communicator
    return same


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Make a layer with these weights, on the meta device."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear
