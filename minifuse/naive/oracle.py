"""The oracle: the tokens that every technique must produce, computed without a cache and without batching.

Each new token recomputes the whole text. The oracle uses the model's own layers, and computes attention in the plainest
way: softmax(q k^T / sqrt(d)) v, with a triangular mask.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minifuse.model.text.transformer import Transformer
from minifuse.request import Request

__all__ = ["answer", "attention", "logits"]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal self-attention of one text.

    Args:
        q: [tokens, num_heads, head_dim].
        k, v: [tokens, num_kv_heads, head_dim]; query head h reads KV head h // (num_heads / num_kv_heads).

    Returns:
        [tokens, num_heads * head_dim].
    """
    tokens, heads, head_dim = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


@torch.no_grad()
def logits(model: Transformer, tokens: list[int]) -> Tensor:
    """The logits after every token of one text: [tokens, vocab_size]."""
    positions = torch.arange(len(tokens), device=model.device)
    x = model.embed(torch.tensor(tokens, device=model.device), positions)
    rotary = model.rotary(positions)
    num_heads, num_kv_heads = model.config.num_heads, model.config.num_kv_heads
    for layer in model.layers:
        q, k, v = layer.pre_attention(x).split((num_heads, num_kv_heads, num_kv_heads), 1)
        if rotary is not None:
            q, k = rotary.rotate(q), rotary.rotate(k)
        x = layer.post_attention(x, attention(q, k, v))
    return model.head(x)


def answer(model: Transformer, request: Request) -> list[int]:
    """The new tokens of `request`, decoded greedily, each from scratch, the stop token included."""
    tokens = list(request.prompt)
    while len(tokens) < request.max_length:
        tokens.append(int(logits(model, tokens)[-1].argmax()))
        if tokens[-1] in request.stop_ids and not request.ignore_eos:
            break
    return tokens[len(request.prompt) :]
