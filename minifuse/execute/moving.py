"""Computes plans while making their moves, with a stream per worker (Pensieve; Flover, V)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Wave
from minifuse.attention.storage import KVStorage
from minifuse.contracts.attention import checked_backend
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute.texts import TorchRunner
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.execute.transfers import MovesOfPlan, PlanTransfers
from minifuse.model.operators import Rotation
from minifuse.model.text.native import in_native
from minifuse.model.text.transformer import Transformer
from minifuse.stages import Attention, Memory


class AttendingInTiers:
    """Attends each wave in its tier; each waits, layer by layer, for its moves."""

    def __init__(self, attention: AttentionBackend, moves: MovesOfPlan, plan: Plan, cache: TieredStorage) -> None:
        self.operators = attention.operators
        self.batch = attention.batch
        self._attention = attention
        self._moves = moves
        tiers = cache.tiers
        self._storages = [tiers[tier] for tier in plan.tiers]  # of each wave
        self._turn = 0  # waves attended so far, counted through all layers

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        self._moves.before(self._turn)
        storage = self._storages[self._turn % len(self._storages)]
        attended = self._attention.attend(heads, rotary, storage, layer, wave)
        self._moves.after(self._turn)
        self._turn += 1
        return attended


@dataclass(eq=False)
class MovingRunner:
    """Runs plans with `run`, and makes their moves while the plans compute."""

    run: TorchRunner
    transfers: PlanTransfers  # the same for all runners on the same KV tensors

    @torch.inference_mode()
    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        """Compute a plan, and wait for its moves.

        For a plan without work, this waits until its moves are complete; `transfers.behind` itself does not wait.
        """
        if not plan.work:
            return self.transfers.behind(plan).result()
        attention = self.run.attention
        with attention.operators.lock, self.transfers.streams.of(plan.worker):
            if not plan.moves and {*plan.tiers} == {"device"}:
                ran = self.run.compute(plan, sequences, attention)
            else:
                moves = MovesOfPlan(self.transfers, plan)
                in_tiers = AttendingInTiers(attention, moves, plan, self.transfers.cache)
                ran = self.run.compute(plan, sequences, in_tiers)
                ran = ran._replace(measured=moves.end())
            if self.transfers.on_gpu and not ran.tokens:
                torch.cuda.current_stream().synchronize()  # without sampling, nothing has waited for the KV yet
        return ran


def torch_runner(model: Transformer, memory: Memory, attention: Attention, numerics: str = "fast") -> MovingRunner:
    """Make a runner for these stages, with KV tensors of the memory's size."""
    sizes = memory.capacity, model.dtype, model.device, memory.host_capacity, memory.shared_capacity
    cache = TieredStorage(model.config, *sizes, memory.host_dtype)
    dtype = str(model.dtype).removeprefix("torch.")
    backend = checked_backend(attention, model.device.type, dtype, numerics)
    return MovingRunner(
        TorchRunner(in_native(model, backend.operators), cache, backend), PlanTransfers(cache, backend.operators)
    )
