"""A plan as tensors, and the protocol of the backends that make and attend it (Orca; Baton, 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from minifuse.core.plan import Plan
from minifuse.core.request import Sequence
from minifuse.kernels.operators import Operators
from minifuse.kernels.rotary import RotaryRows
from minifuse.memory.storage import KVStorage

__all__ = ["AttentionBackend", "Batch", "Wave"]


@dataclass(frozen=True, slots=True)
class Wave:
    """The rows [start, stop) of a batch that are attended together, and where their keys and values go."""

    start: int
    stop: int
    slots: Tensor  # [stop - start], where KV is written; -1 for an idle row, whose KV is not
    live: Tensor | None  # the rows that are not idle; None: all rows
    attended: Any  # what the rows read, in a form of the backend that made it
    cleared: Seq[tuple[int, int]] = ()  # ranges of slots that are set to zero before they are read


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one forward pass needs, complete at birth. T tokens are computed, idle ones included."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T], of each token in its own sequence
    waves: tuple[Wave, ...]  # together they are the T rows, in order
    sampled: tuple[str, ...]  # sequences whose next token is sampled
    last_tokens: Tensor  # [len(sampled)], the rows whose logits it is sampled from
    real: Tensor | None = None  # rows of the plan's work, in its order, none idle; None: all T, in order


class AttentionBackend(Protocol):
    """The tensor half of an attention stage, which alone makes `Batch`."""

    operators: Operators

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        """Lay the plan out on the cache's device."""
        ...

    def attend(self, heads: Tensor, rotary: RotaryRows | None, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        """Rotate the wave's queries and keys, write its keys and values, then attend.

        Args:
            heads: query, key and value heads, [T, num_heads + 2 * num_kv_heads, head_dim], not yet rotated.
            rotary: cosines and sines of all T positions; None where positions are learned.

        Returns:
            The wave's rows, in order: [rows, num_heads * head_dim].
        """
        ...
