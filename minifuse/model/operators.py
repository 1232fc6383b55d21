"""The operators other than attention, each implemented in torch and as a Triton kernel (`minifuse/kernels/`)."""

from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from minifuse.core.plan import Move

Rotation = Any  # the angles of n positions (`minifuse/kernels/rotary.py`); None where positions are learned


class Operators(Protocol):
    """The operators of one implementation; inputs and results are [rows, size]."""

    lock: AbstractContextManager[object]  # held while a plan is computed, where only one can be computed at a time

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...  # x / sqrt(mean(x^2) + eps) * weight
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...
    def silu_mul(self, gate_up: Tensor) -> Tensor: ...  # silu(gate) * up, side by side in the rows
    def move(self, cache: Any, moves: Seq[Move], layer: int | None = None) -> None: ...  # KV, in one layer or in all
    def argmax(self, logits: Tensor) -> list[int]: ...  # the first of equals; NOT_FINITE for NaN or infinity
    def gumbel_argmax(self, scaled: Tensor, seeds: Seq[int], positions: Seq[int]) -> list[int]: ...  # of scaled + noise

    def rotate_and_write(
        self, heads: Tensor, rotary: Rotation, keys: Tensor, values: Tensor, slots: Tensor, live: Tensor | None
    ) -> Tensor:
        """Rotate queries and keys, write a layer's KV, return the queries [n, num_heads, head_dim].

        Args:
            heads: queries, keys and values, [n, num_heads + 2 * num_kv_heads, head_dim].
            keys, values: [slots, num_kv_heads, head_dim].
            slots: where each row's KV is written, [n]; -1 for idle rows.
            live: the rows that are written; None: all of them.
        """
        ...
