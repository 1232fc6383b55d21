"""Computes a plan of texts with torch: one forward pass, then sampling (Orca; Baton, 2.2)."""

import torch
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan
from minifuse.core.report import NOT_FINITE, Ran
from minifuse.core.request import Sequence
from minifuse.execute.sampling import logprobs, sample
from minifuse.model.text.transformer import Transformer


def forward(model: Transformer, batch: Batch, cache: KVStorage, attention: AttentionBackend) -> Tensor:
    """Compute logits [len(batch.sampled), vocab_size]: the forward pass of every technique.

    Before and after attention, a layer acts on all tokens of the iteration at once; in between, `attention` writes and
    reads each sequence's KV wave by wave.
    """
    ops = attention.operators
    x = model.embed(batch.token_ids, batch.positions)
    rotary = model.rotary(batch.positions)
    for index, layer in enumerate(model.layers):
        heads = layer.pre_attention(x, ops)
        attended = [attention.attend(heads, rotary, cache, index, wave) for wave in batch.waves]
        x = layer.post_attention(x, attended[0] if len(attended) == 1 else torch.cat(attended), ops)
    return model.head(x[batch.last_tokens], ops)


class TorchRunner:
    """Computes plans with a model, KV tensors, and the attention that reads them."""

    def __init__(self, model: Transformer, cache: KVStorage, attention: AttentionBackend) -> None:
        self.model = model
        self.cache = cache
        self.attention = attention

    def compute(self, plan: Plan, sequences: dict[str, Sequence], attention: AttentionBackend) -> Ran:
        """Sample a token of every sequence whose work reached its last token.

        `attention` is the runner's own, or wraps it to wait for the plan's moves.
        """
        names, logits = self.logits(plan, sequences, attention)
        sampled = [sequences[name] for name in names]
        positions = [len(sequence.tokens) for sequence in sampled]
        tokens = sample(logits, [sequence.request.sampling for sequence in sampled], positions, attention.operators)
        produced = {name: (token,) for name, token in zip(names, tokens, strict=True)}
        failed = tuple(name for name in names if produced[name][0] == NOT_FINITE) if NOT_FINITE in tokens else ()
        for name in failed:
            del produced[name]
        asked = {row: one.request.logprobs for row, one in enumerate(sampled) if one.request.logprobs is not None}
        told = logprobs(logits, tokens, asked) if asked else {}
        return Ran(produced, not_finite=failed, logprobs={names[row]: (one,) for row, one in told.items()})

    def logits(
        self, plan: Plan, sequences: dict[str, Sequence], attention: AttentionBackend
    ) -> tuple[tuple[str, ...], Tensor]:
        """Return the sequences whose next token is sampled, and the logits to sample it from."""
        batch = attention.batch(plan, sequences, self.cache)
        return batch.sampled, forward(self.model, batch, self.cache, attention)
