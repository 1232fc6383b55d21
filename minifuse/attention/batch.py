"""A plan as tensors, and the protocol of those who make and attend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from minifuse.kernels.operators import Operators
from minifuse.kernels.rotary import RotaryRows
from minifuse.memory.storage import KVStorage
from minifuse.plan import Plan
from minifuse.request import Sequence

__all__ = ["AttentionBackend", "Batch", "Wave"]


@dataclass(frozen=True, slots=True)
class Wave:
    """The rows [start, stop) of a batch that are attended together, and where their keys and values go."""

    start: int
    stop: int
    slots: Tensor  # [stop - start], -1 for an idle row, whose KV is written nowhere
    live: Tensor | None  # the rows that are not idle, None: all of them
    attended: Any  # what they read, in the form the backend that made it understands


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one forward pass needs, complete at birth. T tokens are computed, idle ones included."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T], each token's place in its own sequence
    waves: tuple[Wave, ...]  # their rows together are the T tokens, in order
    sampled: tuple[str, ...]  # sequences that get a token
    last_tokens: Tensor  # [len(sampled)], the rows whose logits that takes
    real: Tensor | None = None  # rows somebody asked for, in the order of the plan's work; None: all T, in order


class AttentionBackend(Protocol):
    """The tensor half of an attention stage: the only maker of `Batch`."""

    operators: Operators

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        """Lay the plan out on the cache's device."""
        ...

    def attend(self, heads: Tensor, rotary: RotaryRows | None, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        """Rotate the wave's queries and keys, write its keys and values, then attend.

        Args:
            heads: query, key and value heads, [T, num_heads + 2 * num_kv_heads, head_dim], not yet rotated.
            rotary: of all T positions; None where positions are learned.

        Returns:
            The wave's rows, in order: [rows, num_heads * head_dim].
        """
        ...
