"""The oracle's own layers: each formula written out for one text.

Nothing here is shared with the layers that serve, so a mistake in those shows as a different token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from minifuse.model.text.config import Rotary
from minifuse.model.text.shape import TextShape

Weights = Callable[[str], Tensor | None]  # returns one layer's tensor by name, or None


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal self-attention of one text: softmax(q k^T / sqrt(d)) v, with a triangular mask.

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


def block(config: TextShape, of: Weights, x: Tensor) -> Tensor:
    """Compute one layer for one text: [tokens, hidden_size] -> the same shape."""
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    n = normed(config, of, "attention_norm", x)
    q, k, v = _linear(of, "qkv", n).split([heads * size, kv_heads * size, kv_heads * size], dim=1)
    q, k, v = q.unflatten(1, (heads, size)), k.unflatten(1, (kv_heads, size)), v.unflatten(1, (kv_heads, size))
    if config.rotary is not None:
        q, k = rotated(config.rotary, q), rotated(config.rotary, k)
    attended = _linear(of, "out", attention(q, k, v))
    if config.parallel_residual:
        return x + attended + _feed_forward(config, of, n)
    x = x + attended
    return x + _feed_forward(config, of, normed(config, of, "mlp_norm", x))


def normed(config: TextShape, of: Weights, name: str, x: Tensor) -> Tensor:
    """Normalize rows by RMSNorm for LLaMA, and by LayerNorm for the other families.

    LLaMA: x / sqrt(mean(x^2) + eps) * weight. The others: (x - mean) / sqrt(variance + eps) * weight + bias."""
    weight, bias = of(f"{name}.weight"), of(f"{name}.bias")
    assert weight is not None
    if config.family != "llama":
        x = x - x.mean(1, keepdim=True)
    x = x / ((x * x).mean(1, keepdim=True) + config.norm_eps).sqrt() * weight
    return x if bias is None else x + bias


def _linear(of: Weights, name: str, x: Tensor) -> Tensor:
    weight, bias = of(f"{name}.weight"), of(f"{name}.bias")
    assert weight is not None
    y = x @ weight.T
    return y if bias is None else y + bias


def _feed_forward(config: TextShape, of: Weights, x: Tensor) -> Tensor:
    if config.family == "llama":
        gate, up = _linear(of, "gate_up", x).split(config.intermediate_size, dim=1)
        return _linear(of, "down", gate / (1 + (-gate).exp()) * up)
    return _linear(of, "down", ACTIVATIONS[config.activation](_linear(of, "up", x)))


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def rotated(rotary: Rotary, x: Tensor) -> Tensor:
    """Rotate heads [tokens, heads, head_dim] by the angles of their positions.

    Pair i of the first `dim` dimensions is (x_i, x_{i + dim/2}) or, if pairs are interleaved, (x_2i, x_{2i + 1}). As a
    complex number, the pair is multiplied by e^(j angle), where angle = position * theta^(-2i / dim). Angles, cosines
    and sines are computed in float32 for every dtype, as in the training of published checkpoints.
    """
    dim = rotary.dim
    angles = torch.arange(len(x), device=x.device).float()[:, None] * _frequencies(rotary).to(x.device)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)  # [tokens, 1, dim / 2]
    re, im = (x[..., 0:dim:2], x[..., 1:dim:2]) if rotary.interleaved else (x[..., : dim // 2], x[..., dim // 2 : dim])
    turned = x.clone()
    parts = (re * cos - im * sin, re * sin + im * cos)
    if rotary.interleaved:
        turned[..., 0:dim:2], turned[..., 1:dim:2] = parts
    else:
        turned[..., : dim // 2], turned[..., dim // 2 : dim] = parts
    return turned


def _frequencies(rotary: Rotary) -> Tensor:
    """Compute the radians that each pair turns per position, scaled as in LLaMA 3.1."""
    frequencies = 1.0 / rotary.theta ** (torch.arange(0, rotary.dim, 2).float() / rotary.dim)
    scaling = rotary.scaling
    for i, frequency in enumerate(frequencies if scaling is not None else ()):
        assert scaling is not None
        turns = scaling.original_context / (2 * math.pi / frequency)  # of the pair within the training's context
        if turns < scaling.low_freq_factor:
            frequencies[i] = frequency / scaling.factor
        elif turns <= scaling.high_freq_factor:
            share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            frequencies[i] = (1 - share) * frequency / scaling.factor + share * frequency
    return frequencies
