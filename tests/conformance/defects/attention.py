"""What goes wrong in attention, its layouts and sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from conformance.defects.harness import Patch, defect, instead_of

from minifuse.attention import padded, per_sequence, ragged
from minifuse.attention import paged as paged_attention
from minifuse.attention import slots as slot_attention
from minifuse.attention.layouts import PagedStage
from minifuse.core.plan import Layout, Span
from minifuse.core.shapes import Rectangle, Region
from minifuse.execute import sampling, texts
from minifuse.kernels.operators import TorchOperators
from minifuse.model.text.layers import RotaryTable
from minifuse.model.text.transformer import Transformer


@defect("orca", "exact")
@instead_of(per_sequence.PerSequenceAttention, "batch")
def off_by_one_position(batch: Any, self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
    made = batch(self, plan, sequences, cache)
    made.positions.add_((made.positions > 0).long())  # as if the prompt's last token were counted twice
    return made


@defect("orca", "ghost")
@instead_of(per_sequence, "_causal")
def mask_too_wide(right: Any, start: int, stop: int, device: torch.device) -> torch.Tensor | None:
    if stop - start == 1:
        return None
    return torch.ones(stop - start, stop, dtype=torch.bool, device=device).tril(start + 1)


@defect("static", "ghost")
def padding_is_seen(patch: Patch) -> None:
    view_of = padded.view_of

    def seeing_more(*arguments: Any) -> Any:
        view = view_of(*arguments)
        return view._replace(held=[[(max(0, start - 1), stop) for start, stop in held] for held in view.held])

    patch.setattr(padded, "view_of", seeing_more)


@defect("static", "exact", kinds=("growing",))
@instead_of(padded.PaddedAttention, "batch")
def padding_counts_as_position(batch: Any, self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
    """A token's position is taken from its column, so left padding shifts it."""
    made = batch(self, plan, sequences, cache)
    made.positions.copy_(torch.arange(plan.shape.start, plan.shape.stop).repeat(plan.shape.rows))
    return made


@defect("static", "counting")
def idle_rows_not_counted(patch: Patch) -> None:
    patch.setattr(
        Rectangle, "num_tokens", property(lambda self: (self.rows - (self.rows > 1)) * (self.stop - self.start))
    )


@defect("orca", "ghost")
@instead_of(TorchOperators, "rotate_and_write")
def written_one_slot_too_far(
    write: Any, self: Any, heads: Any, rotary: Any, keys: Any, values: Any, slots: Any, live: Any
) -> Any:
    return write(self, heads, rotary, keys, values, (slots + 1).clamp_max(len(keys) - 1), live)


@defect("fusion", "ghost")
@instead_of(slot_attention.SlotsAttention, "batch")
def a_buffer_sees_its_neighbour(batch: Any, self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
    """Every row of the region is attended as far as the longest."""
    made = batch(self, plan, sequences, cache)
    for wave in made.waves:
        if hasattr(wave.reads, "mask"):
            wave.reads.mask.zero_()
    return made


@defect("fusion", "counting")
def idle_buffers_not_counted(patch: Patch) -> None:
    patch.setattr(Region, "num_tokens", property(lambda self: max(1, self.size - 1)))


@defect("vllm", "ghost")
@instead_of(ragged, "tables_of")
def table_with_two_entries_exchanged(tables_of: Any, places: Any) -> Any:
    """Only where it is read: the books have the right table."""
    tables, page = tables_of(places)
    return [[*table[1:2], *table[:1], *table[2:]] for table in tables], page


@defect("orca", "exact")
@defect("orca", "batch of one", "exact", check="batch_of_one")
def noise_from_the_row(patch: Patch) -> None:
    sample = texts.sample
    patch.setattr(
        texts, "sample", lambda logits, params, positions, ops: sample(logits, params, range(len(params)), ops)
    )


@defect("orca", "exact", kinds=("long",))
@defect("vllm", "exact", kinds=("long",))
@instead_of(Transformer, "rotary")
def rotary_theta_doubled(rotary: Any, self: Transformer, positions: torch.Tensor) -> Any:
    """In the engine and in all that uses its layers."""
    if self.config.rotary is None:
        return None
    wrong = replace(self.config.rotary, theta=2 * self.config.rotary.theta)
    return RotaryTable(wrong, self.config.max_context).to(self.dtype)(positions)


@defect("orca", "exact", kinds=("crowd",))
@instead_of(sampling, "keep_top")
def top_p_one_token_too_wide(keep_top: Any, scaled: torch.Tensor, top_k: Any, top_p: Any) -> torch.Tensor:
    kept = keep_top(scaled, top_k, top_p)
    for row, own in enumerate(kept):
        dropped = scaled[row].masked_fill(own.isfinite(), -torch.inf)
        if top_p[row] < 1:
            own[dropped.argmax()] = dropped.max()
    return kept


@defect("orca", "exact")
@instead_of(per_sequence.PerSequenceAttention, "attention")
def heads_exchanged_that_share_the_one_kv_head(
    attention: Any, self: Any, q: torch.Tensor, cache: Any, *rest: Any
) -> torch.Tensor:
    """Only where there is a single KV head."""
    return attention(self, q.flip(1) if cache.num_kv_heads == 1 and q.shape[1] > 1 else q, cache, *rest)


@defect("orca", "ghost", kinds=("long",))
@instead_of(per_sequence, "_causal")
def only_the_last_128_tokens_are_seen(causal: Any, start: int, stop: int, device: torch.device) -> Any:
    mask = causal(start, stop, device)
    if mask is not None and stop > 128:
        mask[:, : stop - 128] = False
    return mask


def _laid_out(patch: Patch, wrong: Callable[[Layout, int], Layout]) -> None:
    layout = PagedStage.layout
    patch.setattr(PagedStage, "layout", lambda self, work, placement: wrong(layout(self, work, placement), len(work)))


@defect("vllm", "layout")
def work_in_no_wave(patch: Patch) -> None:
    _laid_out(patch, lambda layout, count: replace(layout, waves=(Span(0, max(1, count - 1)),)))


@defect("vllm", "layout")
def work_in_two_waves(patch: Patch) -> None:
    _laid_out(patch, lambda layout, count: replace(layout, waves=(Span(0, count), Span(count - 1, count))))


@defect("vllm", "layout")
def work_in_two_lanes(patch: Patch) -> None:
    _laid_out(patch, lambda layout, count: replace(layout, lanes=(tuple(range(count)), (0,))))


@defect("vllm", "layout")
def work_in_no_lane(patch: Patch) -> None:
    _laid_out(patch, lambda layout, count: replace(layout, lanes=(tuple(range(1, count)), (count,))))


@defect("vllm", "exact", "ghost")
@instead_of(paged_attention.PagedAttention, "attention")
def three_heads_a_kv_head_in_another_order(attention: Any, self: Any, q: Any, cache: Any, *rest: Any) -> Any:
    """As if query head h read KV head h modulo their number; right for one, two and four heads each."""
    if q.shape[1] == 3 * cache.num_kv_heads:
        q = q.unflatten(1, (3, -1)).transpose(1, 2).flatten(1, 2)
    return attention(self, q, cache, *rest)


@defect("vllm", "ghost", kinds=("long",))
@instead_of(paged_attention.PagedAttention, "reads")
def single_tokens_read_180_tokens_at_most(reads: Any, self: Any, plan: Any, *rest: Any) -> Any:
    work = tuple(one._replace(stop=min(one.stop, 180)) if one.num_tokens == 1 else one for one in plan.work)
    work = tuple(one._replace(start=one.stop - 1) if one.start >= one.stop else one for one in work)
    return reads(self, replace(plan, work=work), *rest)


@defect("vllm", "ghost")
def what_lies_behind_a_text_is_multiplied_with_0(patch: Patch) -> None:
    """Whole blocks are read, under a mask: NaN times 0 is NaN, and behind a text anything may lie."""

    def reads(self: Any, plan: Any, rows: Any, span: Span, cache: Any) -> Any:
        first = rows.starts[span.start]
        pieces = [(rows.starts[i] - first, plan.work[i], plan.places[i]) for i in range(*span)]
        return [(row, one, [*place.slots(0, -(-one.stop // place.size) * place.size)]) for row, one, place in pieces]

    def attention(self: Any, q: Any, cache: Any, layer: int, reads: Any) -> torch.Tensor:
        attended, group = torch.empty_like(q), q.shape[1] // cache.num_kv_heads
        for row, (_, start, stop, _), slots in reads:
            own = slice(row, row + stop - start)
            keys, values = (kv[layer, slots].repeat_interleave(group, 1) for kv in (cache.keys, cache.values))
            scores = torch.einsum("qhd,khd->hqk", q[own], keys) * q.shape[2] ** -0.5
            positions = torch.arange(len(slots))
            scores.masked_fill_(positions > positions[start:stop, None], -torch.inf)
            attended[own] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        return attended.flatten(1)

    patch.setattr(paged_attention.PagedAttention, "reads", reads)
    patch.setattr(paged_attention.PagedAttention, "attention", attention)
