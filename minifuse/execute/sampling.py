"""Samples the next token. Randomness is a function of (seed, position) alone, whatever the batch or the technique.

Tokens are sampled by the Gumbel-max trick (Gumbel, 1954): argmax(logits / temperature + noise) follows the softmax
exactly. The noise of each (seed, position, token) is computed by a counter-based hash, so a request gets the same token
alone, in a batch, or after having been suspended.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from minifuse.core.request import Sampling
from minifuse.kernels.noise import signed
from minifuse.kernels.operators import TORCH, Operators

__all__ = ["keep_top", "sample"]


def sample(logits: Tensor, params: Seq[Sampling], positions: Seq[int], ops: Operators = TORCH) -> list[int]:
    """Sample one token for each row.

    Args:
        logits: [rows, vocab_size].
        params: how each row is sampled.
        positions: of each row's new token in its sequence.

    Returns:
        Token ids; the lowest id where several are equally likely. NOT_FINITE where there is no token to be drawn: the
        row has a NaN, or its largest logit is infinite.
    """
    greedy = ops.argmax(logits)
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if not drawn:
        return greedy
    device = logits.device
    chosen = [params[row] for row in drawn]
    temperature = torch.tensor([p.temperature for p in chosen], dtype=torch.float64, device=device)
    likeliest = logits[drawn].double()
    scaled = (likeliest - likeliest.amax(-1, keepdim=True)) / temperature[:, None]  # at most 0: cannot overflow
    if any(p.top_k or p.top_p < 1.0 for p in chosen):
        scaled = keep_top(scaled, [p.top_k for p in chosen], [p.top_p for p in chosen])
    seeds = torch.tensor([signed(p.seed) for p in chosen], device=device)
    places = torch.tensor([positions[row] for row in drawn], device=device)
    tokens = ops.gumbel_argmax(scaled, seeds, places)
    for row, token in zip(drawn, tokens, strict=True):
        greedy[row] = token
    return greedy


def keep_top(scaled: Tensor, top_k: Seq[int], top_p: Seq[float]) -> Tensor:
    """Set to -inf all but each row's `top_k` likeliest tokens, then all but the fewest that reach `top_p` together.

    `top_k` 0 and `top_p` 1 keep all tokens. Of several equally likely ones, those with the lowest ids are kept.

    >>> keep_top(torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), [3], [0.6]).exp()  # 4/9 and 3/9 of the top 3 reach 0.6
    tensor([[0.0000, 0.0000, 0.3000, 0.4000]])
    """
    vocab = scaled.shape[-1]
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    k = torch.tensor([k or vocab for k in top_k], device=scaled.device)[:, None]
    p = torch.tensor(top_p, dtype=scaled.dtype, device=scaled.device)[:, None]
    ordered = ordered.masked_fill(torch.arange(vocab, device=scaled.device) >= k, float("-inf"))
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # a token is kept if the likelier ones do not reach p
    dropped = (before >= p) & (p < 1.0)
    dropped[:, 0] = False
    ordered = ordered.masked_fill(dropped, float("-inf"))
    return torch.empty_like(scaled).scatter_(-1, order, ordered)
