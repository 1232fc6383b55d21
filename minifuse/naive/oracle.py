"""The oracle: the tokens every technique must produce, without cache or batching.

Each new token recomputes the whole text. The oracle uses the shape and the weights of a model, but has its own layers,
attention and sampling (`minifuse.naive.layers`, `minifuse.naive.sampling`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minifuse.core.request import Request
from minifuse.model.text.transformer import Transformer
from minifuse.naive.layers import block, normed
from minifuse.naive.sampling import draw


@torch.no_grad()
def logits(model: Transformer, tokens: list[int]) -> Tensor:
    """Compute the logits after every token of one text: [tokens, vocab_size]."""
    return _logits(model, tokens, slice(None))


def _logits(model: Transformer, tokens: list[int], rows: slice) -> Tensor:
    """Compute the logits after the tokens that `rows` selects."""
    config = model.config
    weights = {name.replace(".layer.", "."): tensor for name, tensor in model.state_dict().items()}  # row by row or not
    x = weights["embedding.weight"][torch.tensor(tokens, device=model.device)]
    if config.rotary is None:
        x = x + weights["position_embedding.weight"][config.position_offset :][: len(tokens)]
    for layer in range(config.num_layers):
        x = block(config, lambda name, prefix=f"layers.{layer}.": weights.get(prefix + name), x)  # type: ignore[misc]
    found: Tensor = normed(config, weights.get, "norm", x[rows]) @ weights["lm_head.weight"].T
    return found + weights["lm_head.bias"] if config.head_bias else found


@torch.no_grad()
def answer(model: Transformer, request: Request) -> list[int]:
    """Produce a request's new tokens, each from scratch, stop token included.

    The answer ends before a token if one of the token's logits is NaN, or the largest one is infinite.
    """
    tokens = list(request.prompt)
    while len(tokens) < request.max_length:
        last = _logits(model, tokens, slice(-1, None))[0].tolist()
        if any(math.isnan(logit) for logit in last) or math.isinf(max(last)):
            break  # there is no likeliest token
        tokens.append(draw(last, request.sampling, len(tokens)))
        if tokens[-1] in request.stop_ids and not request.ignore_eos:
            break
    return tokens[len(request.prompt) :]
