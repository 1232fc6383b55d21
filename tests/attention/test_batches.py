"""Batches of every layout by hand, and the layouts without tensors."""

from __future__ import annotations

from typing import Any

import torch
from helpers import asks, breach

from minifuse.attention.batch import Batch
from minifuse.attention.padded import PaddedAttention
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.slots import SlotsAttention
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Extent, Layout, Plan, Work
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.kernels.operators import TORCH
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
