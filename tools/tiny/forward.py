"""tiny's forward pass for training and evaluation: whole rows of equal length, with torch's own attention operator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minifuse.kernels.operators import TORCH
from minifuse.model.text.transformer import Transformer

__all__ = ["Cache", "hidden_states"]

Cache = list[tuple[Tensor, Tensor]]
"""Every layer's keys and values so far, each [rows, num_kv_heads, tokens, head_dim]."""


def hidden_states(model: Transformer, ids: Tensor, cache: Cache | None = None) -> Tensor:
    """The last layer's output, ready for `model.head`.

    Args:
        ids: [rows, tokens], which follow the tokens in the cache.
        cache: extended in place; an empty list starts one. None: no cache.

    Returns:
        [rows, tokens, hidden_size].
    """
    rows, tokens = ids.shape
    start = cache[0][0].shape[2] if cache else 0
    positions = torch.arange(start, start + tokens).repeat(rows)
    # A query at position p attends to keys 0..p. `is_causal` means that only if the cache is empty.
    mask = torch.ones(tokens, start + tokens, dtype=torch.bool).tril(start) if start and tokens > 1 else None
    x = model.embed(ids.flatten(), positions)
    rotary = model.rotary(positions)
    assert rotary is not None  # tiny is a LLaMA
    num_kv_heads = model.config.num_kv_heads
    for index, layer in enumerate(model.layers):
        heads = layer.pre_attention(x, TORCH)
        rotated = torch.cat((rotary.rotate(heads[:, :-num_kv_heads]), heads[:, -num_kv_heads:]), 1)
        sizes = (model.config.num_heads, num_kv_heads, num_kv_heads)
        q, k, v = rotated.unflatten(0, (rows, tokens)).transpose(1, 2).split(sizes, 1)
        if cache is not None:
            if start:
                past_k, past_v = cache[index]
                k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
                cache[index] = k, v
            else:
                cache.append((k, v))
        attended = scaled_dot_product_attention(q, k, v, mask, is_causal=not start, enable_gqa=True)
        x = layer.post_attention(x, attended.transpose(1, 2).flatten(0, 1).flatten(1), TORCH)
    return x.view(rows, tokens, -1)
