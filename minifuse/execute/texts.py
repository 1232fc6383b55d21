"""A plan of texts computed with torch: moves, one forward pass, sampling (Orca; Baton, 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.contracts.attention import checked_backend
from minifuse.core.plan import Plan
from minifuse.core.report import NOT_FINITE, Ran
from minifuse.core.request import Sequence
from minifuse.execute.sampling import sample
from minifuse.execute.streams import Streams
from minifuse.execute.transfers import MovesOfPlan, PlanTransfers
from minifuse.memory.storage import KVStorage
from minifuse.model.text.transformer import Transformer
from minifuse.stages import Attention, Memory

__all__ = ["TorchRunner", "forward", "torch_runner"]


def forward(
    model: Transformer,
    batch: Batch,
    cache: KVStorage,
    attention: AttentionBackend,
    moves: MovesOfPlan | None = None,
) -> Tensor:
    """The forward pass of every technique: logits [len(batch.sampled), vocab_size].

    Before and after attention, a layer acts on all tokens of the iteration at once; in between, `attention` writes and
    reads each sequence's KV wave by wave. `moves` are made meanwhile: layer i waits for its own alone.
    """
    ops = attention.operators
    x = model.embed(batch.token_ids, batch.positions)
    rotary = model.rotary(batch.positions)
    for index, layer in enumerate(model.layers):
        heads = layer.pre_attention(x, ops)
        attended = []
        for number, wave in enumerate(batch.waves):
            if moves:
                moves.before(index, number)
            attended.append(attention.attend(heads, rotary, cache, index, wave))
            if moves:
                moves.after(index, number)
        x = layer.post_attention(x, attended[0] if len(attended) == 1 else torch.cat(attended), ops)
    return model.head(x[batch.last_tokens], ops)


class TorchRunner:
    """Owns the model, the KV tensors and the attention that reads them. Calling it computes a plan.

    `transfers` carry out the plans' moves; all runners on the same KV tensors must have the same.
    """

    def __init__(
        self, model: Transformer, cache: KVStorage, attention: AttentionBackend, transfers: PlanTransfers | None = None
    ) -> None:
        self.model = model
        self.cache = cache
        self.attention = attention
        self.transfers = transfers or PlanTransfers(cache, attention.operators)
        self._streams = Streams(cache.device)

    @torch.inference_mode()
    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        """The sampled token of every sequence whose work reached its last token, if its logits are finite.

        A plan without work is done when its moves have landed; `transfers.behind` does not wait for that.
        """
        if not plan.work:
            return self.transfers.behind(plan).result()
        with self.attention.operators.lock, self._streams.of(plan.worker):
            moves = self.transfers.begin(plan) if plan.moves else None
            ran = self._compute(plan, sequences, moves)
            if moves:
                ran = ran._replace(measured=moves.end())
            if (moves or not ran.tokens) and self.cache.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # KV may not be written yet, or not be copied
        return ran

    def _compute(self, plan: Plan, sequences: dict[str, Sequence], moves: MovesOfPlan | None) -> Ran:
        names, logits = self._logits(plan, sequences, moves)
        sampled = [sequences[name] for name in names]
        ops = self.attention.operators
        tokens = sample(logits, [s.request.sampling for s in sampled], [len(s.tokens) for s in sampled], ops)
        produced = {name: (token,) for name, token in zip(names, tokens, strict=True)}
        if NOT_FINITE not in tokens:
            return Ran(produced)
        failed = tuple(name for name, (token,) in produced.items() if token == NOT_FINITE)
        return Ran({name: new for name, new in produced.items() if name not in failed}, not_finite=failed)

    def _logits(
        self, plan: Plan, sequences: dict[str, Sequence], moves: MovesOfPlan | None
    ) -> tuple[tuple[str, ...], Tensor]:
        """The sequences whose next token is sampled, and the logits to sample it from."""
        batch = self.attention.batch(plan, sequences, self.cache)
        return batch.sampled, forward(self.model, batch, self.cache, self.attention, moves)


def torch_runner(model: Transformer, memory: Memory, attention: Attention, numerics: str = "fast") -> TorchRunner:
    """The runner of these stages, on the model's device, with KV tensors of the memory's size."""
    cache = KVStorage(
        *(model.config, memory.capacity, model.dtype, model.device, memory.host_capacity),
        layers_in_turn=memory.layers_in_turn,
    )
    dtype = str(model.dtype).removeprefix("torch.")
    return TorchRunner(model, cache, checked_backend(attention, model.device.type, dtype, numerics))
