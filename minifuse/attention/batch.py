"""A plan as tensors, and the protocol of those who make and attend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan
from minifuse.request import Sequence

__all__ = ["AttentionBackend", "Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one forward pass needs, complete at birth. T tokens are computed, idle ones included."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T], each token's place in its own sequence
    waves: tuple[Any, ...]  # one per wave of attention, in the form the backend that made it understands
    sampled: tuple[str, ...]  # sequences that get a token
    last_tokens: Tensor  # [len(sampled)], the rows whose logits that takes
    real: Tensor | None = None  # rows somebody asked for, in the order of the plan's work; None: all T, in order


class AttentionBackend(Protocol):
    """The tensor half of an attention stage: the only maker of `Batch`."""

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        """Lay the plan out on the cache's device."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: KVStorage, layer: int, wave: Any) -> Tensor:
        """Write the wave's keys and values, then attend.

        Args:
            q: [T, num_heads, head_dim]; k, v: [T, num_kv_heads, head_dim].
            wave: one of the batch's `waves`.

        Returns:
            The wave's rows, in order: [rows, num_heads * head_dim]. The waves' rows together are the T tokens.
        """
        ...
