"""A plan of texts computed with torch: moves, one forward pass, sampling (Orca; Baton, 2.2)."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.execute.sampling import sample
from minifuse.execute.streams import Streams
from minifuse.memory.storage import KVStorage
from minifuse.model.text.transformer import Transformer
from minifuse.plan import Move, Plan
from minifuse.report import Ran
from minifuse.request import Sequence
from minifuse.stages import Attention, Memory

__all__ = ["TorchRunner", "forward", "torch_runner"]


def forward(
    model: Transformer, batch: Batch, cache: KVStorage, attention: AttentionBackend, moves: tuple[Move, ...] = ()
) -> Tensor:
    """The forward pass of every technique: logits [len(batch.sampled), vocab_size].

    Before and after attention, a layer acts on all tokens of the iteration at once; in between, `attention` writes and
    reads each sequence's KV wave by wave. `moves` are those that belong to a wave.
    """
    ops = attention.operators
    x = model.embed(batch.token_ids, batch.positions)
    rotary = model.rotary(batch.positions)
    for index, layer in enumerate(model.layers):
        heads = layer.pre_attention(x, ops)
        attended = []
        for number, wave in enumerate(batch.waves):
            if moves:
                ops.move(cache, [move for move in moves if move.wave == number], index)
            attended.append(attention.attend(heads, rotary, cache, index, wave))
        x = layer.post_attention(x, attended[0] if len(attended) == 1 else torch.cat(attended), ops)
    return model.head(x[batch.last_tokens], ops)


class TorchRunner:
    """Owns the model, the KV tensors and the attention that reads them. Calling it computes a plan."""

    def __init__(self, model: Transformer, cache: KVStorage, attention: AttentionBackend) -> None:
        self.model = model
        self.cache = cache
        self.attention = attention
        self._streams = Streams(cache.device)

    @torch.inference_mode()
    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        """The sampled token of every sequence whose work reached its last token."""
        with self.attention.operators.lock, self._streams.of(plan.worker):
            moving_s = self._move(plan)
            tokens = self._compute(plan, sequences)
            if not tokens and self.cache.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # no token was read back, so KV may not be written yet
        return Ran(tokens, moving_s=moving_s)

    def _move(self, plan: Plan) -> float:
        """Copy the moves that come before the forward pass. Returns the seconds that it took."""
        moves = [move for move in plan.moves if move.wave is None]
        if not moves:
            return 0.0
        start = time.perf_counter()
        self.attention.operators.move(self.cache, moves)
        if self.cache.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - start

    def _compute(self, plan: Plan, sequences: dict[str, Sequence]) -> dict[str, tuple[int, ...]]:
        names, logits = self._logits(plan, sequences)
        sampled = [sequences[name] for name in names]
        ops = self.attention.operators
        tokens = sample(logits, [s.request.sampling for s in sampled], [len(s.tokens) for s in sampled], ops)
        return {name: (token,) for name, token in zip(names, tokens, strict=True)}

    def _logits(self, plan: Plan, sequences: dict[str, Sequence]) -> tuple[tuple[str, ...], Tensor]:
        """The sequences whose next token is sampled, and the logits to sample it from."""
        batch = self.attention.batch(plan, sequences, self.cache)
        of_waves = tuple(move for move in plan.moves if move.wave is not None)
        return batch.sampled, forward(self.model, batch, self.cache, self.attention, of_waves)


def torch_runner(model: Transformer, memory: Memory, attention: Attention, numerics: str = "fast") -> TorchRunner:
    """The runner of these stages, on the model's device, with KV tensors of the memory's size."""
    cache = KVStorage(model.config, memory.capacity, model.dtype, model.device, memory.host_capacity)
    dtype = str(model.dtype).removeprefix("torch.")
    return TorchRunner(model, cache, attention.backend(model.device.type, dtype, numerics))
