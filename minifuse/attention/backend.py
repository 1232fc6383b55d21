"""Makes a plan's batch and writes KV, for all attention backends (Orca; Baton, 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.batch import Batch, BatchRows, Wave, batch_of, int64, ragged_rows, write
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.rectangle import slots_to_clear
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import LawBroken
from minifuse.core.places import extents_of
from minifuse.core.plan import Plan, Shape, Span
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.kernels.operators import TORCH
from minifuse.model.operators import Operators, Rotation

PAD = 0  # any token id will do: the output of an idle row is not read


class Batches(ABC):
    """Makes the batch of a plan; a subclass defines what rows read, and attends."""

    masked: bool = False  # whether it reads masked slots in plans of any shape; in a rectangle, every backend does

    def batch(self, plan: Plan, sequences: Mapping[str, Sequence], cache: KVStorage) -> Batch:
        rows = lay_out(plan, sequences)
        slots = int64(rows.slots, cache.device)
        ends = [*rows.starts, len(rows.slots)]
        real = real_rows(plan, rows, cache.device)
        live = real if plan.shape and plan.num_idle else None
        masked = self.masked or isinstance(plan.shape, Rectangle)
        waves = []
        for span in plan.waves:
            start, stop = (0, ends[-1]) if plan.shape else (ends[span.start], ends[span.stop])
            cleared = slots_to_clear(plan, span) if masked else ()
            waves.append(Wave(start, stop, slots[start:stop], live, self.reads(plan, rows, span, cache), cleared))
        batch = batch_of(plan, sequences, rows, waves)
        return batch if real is None else replace(batch, real=real)

    @abstractmethod
    def reads(self, plan: Plan, rows: BatchRows, span: Span, cache: KVStorage) -> Any:
        """Return what attention needs to know of a wave, made once for all layers."""


class Backend(Batches):
    """Rotates, writes KV, and attends wave by wave; a subclass defines how rows attend."""

    operators: Operators = TORCH

    def attend(self, heads: Tensor, rotary: Rotation, cache: KVStorage, layer: int, wave: Wave) -> Tensor:
        q = write(self.operators, heads, rotary, cache, layer, wave)
        clear(cache, layer, wave)
        return self.attention(q, cache, layer, wave.reads)

    @abstractmethod
    def attention(self, q: Tensor, cache: KVStorage, layer: int, reads: Any) -> Tensor:
        """Attend queries [rows, num_heads, head_dim] to `reads`; return [rows, num_heads * head_dim]."""


class TorchPerSequence(PerSequenceAttention):
    """Attends request by request, with the operators in torch."""

    def __init__(self) -> None:
        super().__init__(TORCH)


def clear(cache: KVStorage, layer: int, wave: Wave) -> None:
    """Set to zero what a wave reads and nothing has written; a plan writes no slot that it clears."""
    for start, stop in wave.cleared:
        cache.keys[layer, start:stop] = 0
        cache.values[layer, start:stop] = 0


def real_rows(plan: Plan, rows: BatchRows, device: torch.device) -> Tensor | None:
    """Return the work's rows in its order, or None for every row."""
    if plan.shape is None:
        return None
    work = zip(rows.starts, plan.work, strict=True)
    real = [row for start, item in work for row in range(start, start + item.num_tokens)]
    return None if real == list(range(len(rows.token_ids))) else int64(real, device)


def lay_out(plan: Plan, sequences: Mapping[str, Sequence]) -> BatchRows:
    """Lay out the rows of a plan: only its work (ragged), or its whole shape.

    Ragged, for work [a: 0..3), [b: 7..8): rows 0 to 2 are the first tokens of a, row 3 is the eighth of b.

    A rectangle, columns 0 to 2 of two rows, for prompts of 1 and 3 tokens: rows 0 and 1 are idle, row 2 is the token of
    the first prompt, rows 3 to 5 are the tokens of the second. Positions are counted in the text, whatever the column.

    A region, buffers [1, 4) of 8 slots, with r2 at its 5th token in the first buffer and r1 at its 2nd in the last: row
    0 is the 5th token of r2, in slot 8 + 4; row 1 is idle; row 2 is the 2nd token of r1, in slot 24 + 1.
    """
    if plan.shape is None:
        return ragged_rows(plan, sequences)
    size = plan.shape.num_tokens
    rows = BatchRows([PAD] * size, [0] * size, [-1] * size, [])
    places = plan.places if isinstance(plan.shape, Rectangle) else extents_of(plan)
    for (name, start, stop, _), place in zip(plan.work, places, strict=True):
        slots = place.slots(start, stop)
        first = _first_row(plan.shape, slots)
        last = first + stop - start
        if last > size:
            raise LawBroken("counting", f"step {plan.step} computes {size} tokens, and row {last - 1} is among them")
        rows.starts.append(first)
        if stop - start == 1:
            rows.token_ids[first] = sequences[name].tokens[start]
            rows.positions[first], rows.slots[first] = start, slots[0]
        else:
            rows.token_ids[first:last] = sequences[name].tokens[start:stop]
            rows.positions[first:last] = range(start, stop)
            rows.slots[first:last] = slots
    return rows


def _first_row(shape: Shape, slots: Seq[int]) -> int:
    """Return the row whose KV is written to the first of `slots`.

    >>> _first_row(Region(offset=1, size=3, width=8), [25])  # in buffer 3, the third of the region
    2
    >>> _first_row(Rectangle(offset=0, rows=2, stride=8, start=7, stop=9, begin=4), [15, 8])  # row 1, columns 7 and 8
    2
    """
    if isinstance(shape, Region):
        return slots[0] // shape.width - shape.offset
    assert isinstance(shape, Rectangle)
    row, column = shape.locate(slots[0])
    last = column + len(slots) - 1
    if column < shape.start or last >= shape.stop or (last > column and slots[-1] != shape.slot(row, last)):
        raise LawBroken("layout", f"the slots {slots} are not consecutive columns that {shape} computes")
    return row * (shape.stop - shape.start) + column - shape.start
