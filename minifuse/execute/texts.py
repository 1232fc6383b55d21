"""Computes a plan of texts with torch: one forward pass, then sampling (Orca; Baton, 2.2)."""

from collections.abc import Generator

import torch
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch, joined
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan
from minifuse.core.report import NOT_FINITE, Ran
from minifuse.core.request import Sequence
from minifuse.execute.sampling import logprobs, sample
from minifuse.model.text.transformer import Transformer


def forward(
    model: Transformer, batch: Batch, cache: KVStorage, attention: AttentionBackend
) -> Generator[None, None, Tensor]:
    """Compute logits [len(batch.sampled), vocab_size]: the forward pass of every technique.

    Before and after attention, a layer acts on all tokens of the batch at once; in between, `attention` writes and
    reads each sequence's KV wave by wave. A batch that yields in a layer lets another batch compute that layer.
    """
    ops = attention.operators
    x = model.embed(batch.token_ids, batch.positions)
    rotary = model.rotary(batch.positions)
    for index, layer in enumerate(model.layers):
        heads = layer.pre_attention(x, ops)
        attended = [attention.attend(heads, rotary, cache, index, wave) for wave in batch.waves]
        yield
        x = layer.post_attention(x, joined(attended), ops)
    return model.head(x.index_select(0, batch.last_tokens), ops)


def in_turn(passes: list[Generator[None, None, Tensor]]) -> Tensor:
    """Run forward passes together, layer by layer; return their logits, one after the other."""
    logits: dict[int, Tensor] = {}
    while len(logits) < len(passes):
        for number, one in enumerate(passes):
            try:
                next(one)
            except StopIteration as ended:
                logits[number] = ended.value
    return logits[0] if len(passes) == 1 else torch.cat([logits[number] for number in range(len(passes))])


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
        produced = {name: (token,) for name, token in zip(names, tokens, strict=True) if token != NOT_FINITE}
        failed = tuple([name for name in names if name not in produced])
        asked = {row: one.request.logprobs for row, one in enumerate(sampled) if one.request.logprobs is not None}
        told = logprobs(logits, tokens, asked) if asked else {}
        return Ran(produced, not_finite=failed, logprobs={names[row]: (one,) for row, one in told.items()})

    def logits(
        self, plan: Plan, sequences: dict[str, Sequence], attention: AttentionBackend
    ) -> tuple[tuple[str, ...], Tensor]:
        """Return the sequences whose next token is sampled, and the logits to sample it from."""
        batches = [attention.batch(part, sequences, self.cache) for part in plan.parts]
        sampled = tuple([name for batch in batches for name in batch.sampled])
        return sampled, in_turn([forward(self.model, batch, self.cache, attention) for batch in batches])
