"""A plan as tensors: its tokens become rows, which a backend attends."""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Plan, sampled_work
from minifuse.core.request import Sequence
from minifuse.model.operators import Operators, Rotation


@dataclass(frozen=True, slots=True)
class Wave:
    """The rows [start, stop) of a batch that are attended together."""

    start: int
    stop: int
    slots: Tensor  # [stop - start], where KV is written; -1 for an idle row, which writes none
    live: Tensor | None  # the rows that are not idle; None: all rows
    reads: Any  # what the rows attend to, in the backend's own form
    cleared: Seq[tuple[int, int]] = ()  # ranges of slots that are set to zero before they are read


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one forward pass. It computes T rows, idle rows included."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T], of each token in its own sequence
    waves: tuple[Wave, ...]  # together they are the T rows, in order
    sampled: tuple[str, ...]  # sequences whose next token is sampled
    last_tokens: Tensor  # [len(sampled)], the rows whose logits these tokens are sampled from
    real: Tensor | None = None  # rows that are not idle, in the order of the work; None: all T, in order


def joined(attended: list[Tensor]) -> Tensor:
    """Concatenate the outputs of waves: [T, num_heads * head_dim]."""
    return attended[0] if len(attended) == 1 else torch.cat(attended)


class AttentionBackend(Protocol):
    """The tensor half of an attention stage. Only backends make a `Batch`."""

    operators: Operators

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        """Lay the plan out on the cache's device."""

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        """Write a wave's KV, then attend: heads [T, ...] -> [rows, num_heads * head_dim]."""


def rows_of(wave: Wave, heads: Tensor, rotary: Rotation) -> tuple[Tensor, Rotation]:
    """Return the heads and the angles of a wave's rows."""
    if wave.stop - wave.start == len(heads):
        return heads, rotary
    return heads[wave.start : wave.stop], None if rotary is None else rotary.rows(wave.start, wave.stop)


def write(ops: Operators, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
    """Rotate queries and keys, write KV, return the queries [rows, num_heads, head_dim]."""
    heads, rotary = rows_of(wave, heads, rotary)
    return ops.rotate_and_write(heads, rotary, cache.keys[layer], cache.values[layer], wave.slots, wave.live)


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The T rows of an iteration, as lists."""

    token_ids: list[int]  # [T]
    positions: list[int]  # [T], 0 for idle rows
    slots: list[int]  # [T], where the row's KV goes; -1 for idle rows
    starts: list[int]  # the row of the first token of each piece of work; its other tokens follow


def ragged_rows(plan: Plan, sequences: Mapping[str, Sequence]) -> BatchRows:
    """Concatenate the tokens of work: for a[0:3] and b[7:8], row 3 is b[7]."""
    rows = BatchRows([], [], [], [])
    token_ids, positions, slots = rows.token_ids, rows.positions, rows.slots
    for (name, start, stop, _), place in zip(plan.work, plan.places, strict=True):
        rows.starts.append(len(positions))
        if stop - start == 1:  # the usual case, twice as fast without slices
            token_ids.append(sequences[name].tokens[start])
            positions.append(start)
        else:
            token_ids += sequences[name].tokens[start:stop]
            positions += range(start, stop)
        slots += place.slots(start, stop)
    return rows


def int64(numbers: list[int], device: torch.device) -> Tensor:
    """Do what `torch.tensor` does with at least one number, in a third of the time."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64).to(device)


def batch_of(plan: Plan, sequences: Mapping[str, Sequence], rows: BatchRows, waves: Seq[Wave]) -> Batch:
    """Return the tensors of these rows, on the device of the waves' slots."""
    device = waves[0].slots.device
    sampled = sampled_work(plan, sequences)
    last = [rows.starts[i] + plan.work[i].num_tokens - 1 for i in sampled]
    last_tokens = torch.tensor(last, device=device, dtype=torch.long)  # perhaps none
    names = tuple([plan.work[i].sequence for i in sampled])
    return Batch(int64(rows.token_ids, device), int64(rows.positions, device), tuple(waves), names, last_tokens)
