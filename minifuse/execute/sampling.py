"""Samples tokens from logits, options, seed and position, independently of the batch.

The Gumbel-max trick (Gumbel, 1954): argmax(logits / temperature + noise) follows the softmax exactly. A counter-based
hash makes the noise of each (seed, position, token).
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from minifuse.core.report import NOT_FINITE, TokenLogprobs
from minifuse.core.request import Sampling
from minifuse.model.operators import Operators


def sample(logits: Tensor, params: Seq[Sampling], positions: Seq[int], ops: Operators) -> list[int]:
    """Sample a token id per row of [rows, vocab_size]; NOT_FINITE if a row has none."""
    greedy = ops.argmax(logits)
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if not drawn:
        return greedy
    chosen = [params[row] for row in drawn]
    temperature = torch.tensor([[p.temperature] for p in chosen], dtype=torch.float64, device=logits.device)
    likeliest = logits[drawn].double()
    scaled = (likeliest - likeliest.amax(-1, keepdim=True)) / temperature  # values of at most 0 cannot overflow
    if any(p.top_k or p.top_p < 1.0 for p in chosen):
        scaled = keep_top(scaled, [p.top_k for p in chosen], [p.top_p for p in chosen])
    tokens = ops.gumbel_argmax(scaled, [p.seed for p in chosen], [positions[row] for row in drawn])
    for row, token in zip(drawn, tokens, strict=True):
        greedy[row] = token
    return greedy


def keep_top(scaled: Tensor, top_k: Seq[int], top_p: Seq[float]) -> Tensor:
    """Keep the `top_k` likeliest tokens, then the fewest that reach `top_p`; set others to -inf."""
    vocab = scaled.shape[-1]
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)  # among equal logits, the lowest ids are kept
    k = torch.tensor([[k or vocab] for k in top_k], device=scaled.device)
    p = torch.tensor(top_p, dtype=scaled.dtype, device=scaled.device)[:, None]
    ordered = ordered.masked_fill(torch.arange(vocab, device=scaled.device) >= k, float("-inf"))
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # a token is kept if the likelier tokens together do not reach p
    dropped = (before >= p) & (p < 1.0)
    dropped[:, 0] = False
    return torch.empty_like(scaled).scatter_(-1, order, ordered.masked_fill(dropped, float("-inf")))


def logprobs(logits: Tensor, tokens: Seq[int], asked: Mapping[int, int]) -> dict[int, TokenLogprobs]:
    """Return the log-probabilities of each sampled token and of the likeliest tokens.

    Args:
        logits: [rows, vocab_size].
        tokens: the sampled token of each row.
        asked: row -> how many of the likeliest tokens to return.
    """
    rows = list(asked)
    told = logits[rows].float().log_softmax(-1)
    top = told.topk(min(max(asked.values()), told.shape[-1]), dim=-1)
    found = {}
    for i, row in enumerate(rows):
        if tokens[row] == NOT_FINITE:
            continue
        likeliest = zip(top.indices[i].tolist(), top.values[i].tolist(), strict=True)
        found[row] = TokenLogprobs(float(told[i, tokens[row]]), tuple(likeliest)[: asked[row]])
    return found
