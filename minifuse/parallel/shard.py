"""Splits a model as Megatron-LM does (Shoeybi et al., 2019; Flover, V-D).

    qkv, gate_up, up    by output: a rank has some of the heads, some of the intermediate features
    out, down           by input: the ranks' results are summed, one all-reduce each
    lm_head             by output: a rank has some of the vocabulary, one all-gather
    embeddings, norms   whole, on every rank

The token-wise halves of a layer begin and end with whole hidden states and attention computes whole heads, so neither
the layers' code nor attention depends on ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from minifuse.model.linear import Linear
from minifuse.model.text.transformer import Transformer
from minifuse.parallel.communicator import Communicator
from minifuse.parallel.config import shard_config


class RowParallel(nn.Module):
    """Computes `y = (sum over ranks r of x_r W_r^T) + b` from parts.

    Each rank has a part of the inputs; the bias is added once.
    """

    def __init__(self, part: nn.Linear, bias: Tensor | None, communicator: Communicator) -> None:
        super().__init__()
        self.part = part
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.communicator = communicator

    def forward(self, x: Tensor) -> Tensor:
        y = self.communicator.all_reduce(self.part(x))
        return y if self.bias is None else y + self.bias


class GatheredHead(nn.Module):
    """Logits of the whole vocabulary from each rank's part of it.

    Of 29 tokens, the first of two ranks has 15, and the second 14 and a row of zeros: all messages have the same size,
    and the zeros come last.
    """

    def __init__(self, part: nn.Linear, vocab_size: int, communicator: Communicator) -> None:
        super().__init__()
        self.part = part
        self.vocab_size = vocab_size
        self.communicator = communicator

    def forward(self, x: Tensor) -> Tensor:
        return self.communicator.all_gather(self.part(x))[:, : self.vocab_size]


def shard(model: Transformer, rank: int, size: int, communicator: Communicator) -> Transformer:
    """Cut out the part of `model` that one of `size` ranks computes.

    Its config is the shard's, so that KV memory and attention have the rank's heads only. Embeddings and norms are the
    whole model's own tensors; all other weights are copies, so that the whole model can be freed. They are not packed.

    Raises:
        UsageError: the model cannot be split into `size` parts.
    """
    whole, config = model.config, shard_config(model.config, size)
    replacements: list[tuple[object, object]] = [(whole, config)]
    blocks = {
        "qkv": (whole.q_size, whole.kv_size, whole.kv_size),
        "gate_up": (whole.intermediate_size, whole.intermediate_size),
        "up": (whole.intermediate_size,),
    }
    for layer in model.layers:
        for name, linear in layer.named_children():
            if not isinstance(linear, nn.Linear):
                continue  # a norm
            if name in blocks:
                kept = [block.chunk(size)[rank] for block in torch.arange(len(linear.weight)).split(blocks[name])]
                rows = torch.cat(kept).to(linear.weight.device)
                bias = None if linear.bias is None else linear.bias[rows]
                replacements.append((linear, _linear(linear.weight[rows], bias)))
            else:
                part = _linear(linear.weight.chunk(size, 1)[rank], None)
                replacements.append((linear, RowParallel(part, linear.bias, communicator)))
    replacements.append((model.lm_head, _head(model.lm_head, rank, size, communicator)))
    return _replaced(model, replacements)


def with_communicator(model: Transformer, communicator: Communicator) -> Transformer:
    """Copy the shard, on the same tensors, for another worker."""
    return _replaced(
        model,
        [
            (module.communicator, communicator)
            for module in model.modules()
            if isinstance(module, RowParallel | GatheredHead)
        ],
    )


def _replaced(model: Transformer, replacements: Iterable[tuple[object, object]]) -> Transformer:
    """Copy the modules, on the same tensors, with each (old, new) pair of objects exchanged."""
    packed = [module.packed for module in model.modules() if isinstance(module, Linear)]
    kept = [*model.parameters(), *model.buffers(), *(tensor for tensor in packed if tensor is not None)]
    memo: dict[int, object] = {id(tensor): tensor for tensor in kept}
    memo.update((id(old), new) for old, new in replacements)
    return copy.deepcopy(model, memo)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Make a layer with copies of weights: views would keep the whole model."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear


def _head(whole: nn.Linear, rank: int, size: int, communicator: Communicator) -> GatheredHead:
    vocab_size = len(whole.weight)
    share = -(-vocab_size // size)
    rows = slice(rank * share, (rank + 1) * share)
    weight = whole.weight[rows]
    missing = share - len(weight)
    bias = None if whole.bias is None else pad(whole.bias[rows], (0, missing))
    return GatheredHead(_linear(pad(weight, (0, 0, 0, missing)), bias), vocab_size, communicator)
