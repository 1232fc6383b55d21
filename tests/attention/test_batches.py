"""Batches of every layout by hand, and the layouts without tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import asks, breach

from minifuse.attention.batch import Batch
from minifuse.attention.layouts import PaddedStage, PagedStage, SlotsStage
from minifuse.attention.padded import PaddedAttention
from minifuse.attention.paged import PagedAttention
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.slots import SlotsAttention
from minifuse.attention.stage import PerSequenceStage
from minifuse.attention.storage import KVStorage
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Layout, Placement, Plan, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.kernels.operators import TORCH
from minifuse.memory.rows.window import Entry, Window
from minifuse.model.text.config import ModelConfig, Rotary

CONFIG = ModelConfig("llama", 50, 8, 2, 2, 1, 4, 8, 64, rotary=Rotary(4))


def _sequence(name: str, tokens: tuple[int, ...]) -> Sequence:
    return Sequence(asks(name, tokens, 8))


def _storage(slots: int) -> KVStorage:
    return KVStorage(CONFIG, slots, torch.float64, torch.device("cpu"))


def _lists(batch: Batch) -> dict[str, Any]:
    return {name: getattr(batch, name).tolist() for name in ("token_ids", "positions", "last_tokens")}


def test_ragged_batch_by_hand() -> None:
    """Three tokens of a, the eighth of b, and the middle two of c, whose last token is not computed yet."""
    sequences = {
        "a": _sequence("a", (10, 11, 12)),
        "b": _sequence("b", (20, 21, 22, 23, 24, 25, 26, 27)),
        "c": _sequence("c", (30, 31, 32, 33)),
    }
    work = (Work("a", 0, 3), Work("c", 1, 3), Work("b", 7, 8))
    plan = Plan(0, 0, work, (Extent(5, 4), Extent(20, 6), Extent(9, 9)))
    batch = PerSequenceAttention(TORCH).batch(plan, sequences, _storage(30))
    assert _lists(batch) == {
        "token_ids": [10, 11, 12, 31, 32, 27],
        "positions": [0, 1, 2, 1, 2, 7],
        "last_tokens": [2, 5],
    }
    assert batch.sampled == ("a", "b")
    assert batch.real is None
    (wave,) = batch.waves
    assert wave.slots.tolist() == [5, 6, 7, 21, 22, 16]


def test_padded_batch_by_hand() -> None:
    """Rows of 7 slots from slot 2. Row 0: a, padded by two; row 1 has finished; row 2: c, whose chunk is its last.

    column   0 1 2 3 4 5 6        computed: columns 1 to 4
    row 0    . . a b c
    row 1    . . . . .
    row 2    p q r s              p was computed before
    """
    sequences = {"a": _sequence("a", (10, 11, 12)), "c": _sequence("c", (30, 31, 32, 33))}
    plan = Plan(
        0,
        0,
        (Work("a", 0, 3), Work("c", 1, 4)),
        (Extent(2 + 2, 5), Extent(2 + 14, 7)),
        layout=Layout(shape=Rectangle(2, 3, 7, 1, 5)),
    )
    batch = PaddedAttention().batch(plan, sequences, _storage(30))
    assert _lists(batch) == {
        "token_ids": [0, 10, 11, 12, 0, 0, 0, 0, 31, 32, 33, 0],
        "positions": [0, 0, 1, 2, 0, 0, 0, 0, 1, 2, 3, 0],
        "last_tokens": [3, 10],
    }
    assert batch.sampled == ("a", "c")
    assert batch.real is not None
    assert batch.real.tolist() == [1, 2, 3, 8, 9, 10]
    (wave,) = batch.waves
    assert wave.slots.tolist() == [-1, 4, 5, 6, -1, -1, -1, -1, 17, 18, 19, -1]
    assert wave.live is not None
    assert wave.live.tolist() == [1, 2, 3, 8, 9, 10]
    seen = (wave.reads.mask[:, 0] == 0).int().tolist()  # of columns 0 to 4, by each of the columns 1 to 4
    idle = [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]  # only themselves, never nothing
    assert seen[0] == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert seen[1] == idle
    assert seen[2][:3] == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]


def _seen(window: Window, computed: Span, tokens: dict[str, tuple[int, ...]], *work: Work) -> tuple[Any, Any, Any]:
    """Of an iteration of a window: its tokens by row, the columns that each computed one sees, and the KV's shape."""
    sequences = {name: _sequence(name, text) for name, text in tokens.items()}
    places = tuple(window.place(item.sequence) for item in work)
    plan = Plan(0, 0, work, places, admitted=("query3",), layout=Layout(shape=window.rectangle(computed)))
    batch = PaddedAttention().batch(plan, sequences, _storage(window.stride * 3))
    (wave,) = batch.waves
    seen = (wave.reads.mask[:, 0] == 0).int()
    if (shape := window.rectangle(computed)).wraps:  # whole rows are read: in the order of the columns instead
        seen = seen[..., [column % shape.stride for column in range(shape.begin, shape.stop)]]
    return batch.token_ids.view(3, -1).tolist(), seen.tolist(), tuple(wave.reads.keys[0].shape)


TEXTS = {"query0": (10, 11, 12, 13), "query1": (20, 21, 22, 23, 24), "query3": (30, 31)}


def _three_running(embed: bool) -> Window:
    """Baton, 4.1: three queries in columns 0 to 3, of which query2 has just ended."""
    window = Window(3, 10, embed=embed)
    window.enter([Entry("query0", 2, 2, 10), Entry("query1", 3, 3, 10), Entry("query2", 3, 3, 10)])
    window.enter(())
    window.leave("query2")
    return window


def test_vector_shaping_as_in_figure_4() -> None:
    """query3 of l_q = 2 tokens: inputs B x l_q, masks of l_am + l_q - 1 = 5 + 2 - 1 columns; then single tokens."""
    window = _three_running(embed=False)
    computed = window.enter([Entry("query3", 2, 2, 6)])
    work = (Work("query0", 3, 4), Work("query1", 4, 5), Work("query3", 0, 2))
    tokens, seen, shape = _seen(window, computed, TEXTS, *work)
    assert tokens == [[13, 0], [24, 0], [30, 31]]
    assert seen[0] == [[0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]]  # an idle token sees what comes before it, and itself
    assert seen[1] == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    assert seen[2] == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]  # what query2 had is masked
    assert shape == (3, 1, 6, 4)
    computed = window.enter(())
    longer = {name: (*text, 7) for name, text in TEXTS.items()}
    work = (Work("query0", 4, 5), Work("query1", 5, 6), Work("query3", 2, 3))
    tokens, seen, shape = _seen(window, computed, longer, *work)
    assert tokens == [[7], [7], [7]]
    assert seen == [[[0, 1, 1, 1, 1, 0, 1]], [[1, 1, 1, 1, 1, 0, 1]], [[0, 0, 0, 0, 1, 1, 1]]]  # the gap in column 5
    assert shape == (3, 1, 7, 4)


@pytest.mark.parametrize(
    ("length", "width", "query3"), [(2, 5, [0, 0, 0, 1, 1]), (7, 7, [1, 1, 1, 1, 1, 1, 1])], ids=["shorter", "longer"]
)
def test_vector_embedding_as_in_4_2(length: int, width: int, query3: list[int]) -> None:
    """l_q <= l_kv: it is padded in front; l_q > l_kv: the others are. Inputs are B x 1, KV B x (l_kv + 1), or a row."""
    window = _three_running(embed=True)
    computed = window.enter([Entry("query3", length, 1, length)])
    texts = {**TEXTS, "query3": tuple(range(30, 30 + length))}
    work = (Work("query0", 3, 4), Work("query1", 4, 5), Work("query3", length - 1, length))
    tokens, seen, shape = _seen(window, computed, texts, *work)
    assert tokens == [[13], [24], [29 + length]]
    front = [0] * (width - 5)
    assert seen == [[[*front, 0, 1, 1, 1, 1]], [[*front, 1, 1, 1, 1, 1]], [query3]]
    assert shape == (3, 1, width if length < 5 else window.stride, 4)  # the longer one wraps around


def test_slots_batch_by_hand() -> None:
    """Buffers of 8 slots. The region [1, 4) holds r2 at its 5th token, an idle buffer, and r1 at its 2nd."""
    sequences = {"r1": _sequence("r1", (10, 11)), "r2": _sequence("r2", (20, 21, 22, 23, 24))}
    work = (Work("r1", 1, 2), Work("r2", 4, 5))
    plan = Plan(0, 0, work, (Extent(24, 8), Extent(8, 8)), layout=Layout(shape=Region(1, 3, 8)))
    cache = _storage(40)
    batch = SlotsAttention().batch(plan, sequences, cache)
    assert _lists(batch) == {"token_ids": [24, 0, 11], "positions": [4, 0, 1], "last_tokens": [2, 0]}
    assert batch.sampled == ("r1", "r2")
    assert batch.real is not None
    assert batch.real.tolist() == [2, 0]
    (wave,) = batch.waves
    assert wave.slots.tolist() == [12, -1, 25]
    assert wave.live is not None
    assert sorted(wave.live.tolist()) == [0, 2]
    assert (wave.reads.mask[:, 0, 0] == 0).sum(1).tolist() == [5, 1, 2]
    for layer in range(2):  # views: nothing is gathered
        assert wave.reads.keys[layer].shape == (3, 1, 5, 4)
        assert wave.reads.keys[layer].data_ptr() == cache.keys[layer, 8].data_ptr()
        assert wave.reads.values[layer].data_ptr() == cache.values[layer, 8].data_ptr()


def test_buffers_in_the_order_of_the_work() -> None:
    sequences = {"a": _sequence("a", (10, 11)), "b": _sequence("b", (20,))}
    plan = Plan(
        0, 0, (Work("a", 1, 2), Work("b", 0, 1)), (Extent(5, 5), Extent(10, 5)), layout=Layout(shape=Region(1, 2, 5)),
    )  # fmt: skip
    batch = SlotsAttention().batch(plan, sequences, _storage(15))
    assert batch.real is None
    assert batch.waves[0].live is None


def test_full_rectangle_has_no_idle_rows() -> None:
    sequences = {"a": _sequence("a", (10, 11)), "b": _sequence("b", (20, 21))}
    layout = Layout(shape=Rectangle(0, 2, 3, 0, 2))
    plan = Plan(0, 0, (Work("a", 0, 2), Work("b", 0, 2)), (Extent(0, 3), Extent(3, 3)), layout=layout)
    batch = PaddedAttention().batch(plan, sequences, _storage(6))
    assert batch.real is None
    assert batch.token_ids.tolist() == [10, 11, 20, 21]
    assert batch.last_tokens.tolist() == [1, 3]


def test_a_plan_that_samples_no_token() -> None:
    sequences = {"a": _sequence("a", (10, 11, 12))}
    for backend, shape in ((PerSequenceAttention(TORCH), None), (PaddedAttention(), Rectangle(0, 1, 5, 0, 2))):
        plan = Plan(0, 0, (Work("a", 0, 2),), (Extent(0, 5),), layout=Layout(shape=shape))
        batch = backend.batch(plan, sequences, _storage(5))
        assert batch.sampled == ()
        assert batch.last_tokens.shape == (0,)
        assert batch.last_tokens.dtype == torch.long


def test_padded_needs_a_rectangle() -> None:
    plan = Plan(0, 0, (Work("a", 0, 2),), (Extent(0, 5),))
    with breach("layout", "without a rectangle"):
        PaddedAttention().batch(plan, {"a": _sequence("a", (1, 2))}, _storage(5))


def test_layouts_without_tensors() -> None:
    work = (Work("a", 0, 3), Work("b", 0, 2))
    all_work = (Span(0, 2),)
    rectangle = Rectangle(0, 2, 6, 0, 3)
    placement = Placement((Extent(0, 6), Extent(7, 5)), rectangle)
    assert PerSequenceStage().layout(work, placement) == Layout(all_work)
    assert PaddedStage().layout(work, placement) == Layout(all_work, rectangle)
    region = Region(2, 3, 6)
    assert SlotsStage().layout(work, Placement((Extent(12, 6), Extent(24, 6)), region)) == Layout(all_work)
    single = (Work("a", 2, 3), Work("b", 0, 1))
    assert SlotsStage().layout(single, Placement((Extent(12, 6), Extent(24, 6)), region)) == Layout(all_work, region)
    pages = Placement((Pages((4, 1), 3), Pages((2,), 3)))
    assert PagedStage().layout(work, pages) == Layout(all_work)
    assert isinstance(PagedStage().backend(), PagedAttention)
    assert isinstance(SlotsStage().backend(), SlotsAttention)
    assert isinstance(PerSequenceStage().backend(), PerSequenceAttention)
    assert isinstance(PaddedStage().backend(), PaddedAttention)
