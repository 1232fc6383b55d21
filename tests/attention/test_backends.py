"""Both tensor halves of attention against the oracle's plainest one, on random ragged work in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from helpers import asks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.attention.layouts import PaddedLayout, PagedLayout, PerSequenceLayout, SlotsLayout
from minifuse.attention.padded import PaddedAttention
from minifuse.attention.paged import PagedAttention
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.slots import SlotsAttention
from minifuse.errors import LawBroken
from minifuse.layout import Layout, Rectangle, Region
from minifuse.memory.storage import KVStorage
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.naive import oracle
from minifuse.place import Extent, Pages
from minifuse.plan import Placement, Plan
from minifuse.request import Sequence
from minifuse.work import Span, Work

POISON = 1e6  # what lies in slots that are nobody's business: large, and finite as in any real cache
LAYER = 1


def _config(heads: int, kv_heads: int) -> ModelConfig:
    return ModelConfig("llama", 50, heads * 4, 2, heads, kv_heads, 4, 8, 64, rotary=Rotary(4))


@dataclass
class Case:
    """Some sequences, what of each is cached already, and the plan of the next iteration."""

    config: ModelConfig
    sequences: dict[str, Sequence]
    plan: Plan
    num_slots: int
    q: dict[str, Tensor] = field(default_factory=dict)  # of every token of each sequence, computed or not
    k: dict[str, Tensor] = field(default_factory=dict)
    v: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(len(self.plan.work) + self.num_slots)
        for name, sequence in self.sequences.items():
            for kind, heads in (("q", self.config.num_heads), ("k", self.config.num_kv_heads), ("v", 0)):
                shape = (len(sequence), heads or self.config.num_kv_heads, self.config.head_dim)
                getattr(self, kind)[name] = torch.randn(shape, dtype=torch.float64, generator=generator)

    def cache(self, poison: float = POISON) -> KVStorage:
        """Poison everywhere but where a sequence's earlier tokens lie."""
        cache = KVStorage(self.config, self.num_slots, torch.float64, torch.device("cpu"))
        cache.keys.fill_(poison)
        cache.values.fill_(poison)
        for work, place in zip(self.plan.work, self.plan.places, strict=True):
            slots = torch.tensor(place.slots(0, work.start), dtype=torch.long)
            cache.keys[LAYER, slots] = self.k[work.sequence][: work.start]
            cache.values[LAYER, slots] = self.v[work.sequence][: work.start]
        return cache

    def attend(self, backend: AttentionBackend, cache: KVStorage) -> tuple[Batch, Tensor]:
        """The batch and attention's rows, the idle ones given random queries, keys and values too."""
        batch = backend.batch(self.plan, self.sequences, cache)
        rows = self.rows(batch)
        generator = torch.Generator().manual_seed(1)
        inputs = []
        for tensors in (self.q, self.k, self.v):
            shape = (self.plan.num_computed, *next(iter(tensors.values())).shape[1:])
            x = torch.randn(shape, dtype=torch.float64, generator=generator)
            x[rows] = torch.cat([tensors[work.sequence][work.start : work.stop] for work in self.plan.work])
            inputs.append(x)
        outputs = [backend.attend(torch.cat(inputs, 1), None, cache, LAYER, wave) for wave in batch.waves]
        return batch, torch.cat(outputs)

    def rows(self, batch: Batch) -> list[int]:
        """The batch rows somebody asked for, in the order of the work."""
        return list(range(self.plan.num_tokens)) if batch.real is None else batch.real.tolist()

    def wanted(self) -> Tensor:
        """Each piece of work by the oracle: the whole text attended, and of it the rows asked for."""
        whole = {name: oracle.attention(self.q[name], self.k[name], self.v[name]) for name in self.sequences}
        return torch.cat([whole[work.sequence][work.start : work.stop] for work in self.plan.work])


def _pieces(rng: random.Random, count: int) -> list[tuple[Sequence, int, int]]:
    """Sequences with the tokens [start, stop) to compute: prefills, decode steps and chunks from the middle."""
    pieces = []
    for i in range(count):
        sequence = Sequence(asks(f"s{i}", rng.randint(1, 9), 8))
        length = len(sequence)
        kind = rng.choice(["prefill", "decode", "chunk"])
        start = {"prefill": 0, "decode": length - 1}.get(kind, rng.randrange(length))
        stop = rng.randint(start + 1, length) if kind == "chunk" else length
        pieces.append((sequence, start, stop))
    return pieces


def ragged(config: ModelConfig, rng: random.Random, waves: int = 1) -> Case:
    """Extents anywhere, with gaps between them."""
    pieces = _pieces(rng, rng.randint(waves, 6))
    offset, extents = rng.randint(0, 3), []
    for sequence, _, _ in pieces:
        capacity = len(sequence) + rng.randint(0, 4)
        extents.append(Extent(offset, capacity))
        offset += capacity + rng.randint(0, 3)
    order = rng.sample(range(len(pieces)), len(pieces))
    work = tuple(Work(pieces[i][0].id, pieces[i][1], pieces[i][2]) for i in order)
    cuts = sorted(rng.sample(range(1, len(work)), waves - 1)) if waves > 1 else []
    spans = tuple(Span(a, b) for a, b in zip([0, *cuts], [*cuts, len(work)], strict=True))
    plan = Plan(3, 0, work, tuple(extents[i] for i in order), layout=Layout(spans))
    return Case(config, {s.id: s for s, _, _ in pieces}, plan, offset + 1)


def blocks(config: ModelConfig, rng: random.Random, waves: int = 1) -> Case:
    """The same, in blocks that lie in no order."""
    case = ragged(config, rng, waves)
    size = rng.randint(1, 4)
    needed = [-(-len(case.sequences[work.sequence]) // size) for work in case.plan.work]
    numbers = rng.sample(range(sum(needed) + 3), sum(needed))
    places = tuple(Pages(tuple(numbers.pop() for _ in range(count)), size) for count in needed)
    return Case(config, case.sequences, replace(case.plan, places=places), (sum(needed) + 3) * size)


def padded(config: ModelConfig, rng: random.Random, waves: int = 1) -> Case:
    """Rows of one rectangle, some of them finished; the rectangle need not begin at slot 0."""
    pieces = _pieces(rng, rng.randint(1, 5))
    longest = max(len(sequence) for sequence, _, _ in pieces)
    width, rows = longest + rng.randint(0, 3), len(pieces) + rng.randint(0, 2)
    base = rng.randint(0, 5)
    places = rng.sample(range(rows), len(pieces))
    extents, work, columns = [], [], []
    for row, (sequence, start, stop) in zip(places, pieces, strict=True):
        padding = rng.randint(0, width - len(sequence))
        extents.append(Extent(base + row * width + padding, len(sequence)))
        work.append(Work(sequence.id, start, stop))
        columns += [padding + start, padding + stop]
    rectangle = Rectangle(base, rows, width, min(columns), max(columns))
    plan = Plan(3, 0, tuple(work), tuple(extents), layout=Layout(shape=rectangle))
    return Case(config, {s.id: s for s, _, _ in pieces}, plan, base + rows * width + 1)


def buffers(config: ModelConfig, rng: random.Random, waves: int = 1) -> Case:
    """Adjacent buffers of one width in any order, some of them nobody's, the region anywhere in memory."""
    sequences = [Sequence(asks(f"s{i}", rng.randint(1, 9), 8)) for i in range(rng.randint(1, 6))]
    width = max(map(len, sequences)) + rng.randint(0, 3)
    offset, size = rng.randint(0, 3), len(sequences) + rng.randint(0, 3)
    places = rng.sample(range(offset, offset + size), len(sequences))
    work = tuple(Work(s.id, len(s) - 1, len(s)) for s in sequences)
    plan = Plan(
        3,
        0,
        work,
        tuple(Extent(place * width, width) for place in places),
        layout=Layout(shape=Region(offset, size, width)),
    )
    return Case(config, {s.id: s for s in sequences}, plan, (offset + size + rng.randint(0, 1)) * width)


BACKENDS: dict[str, tuple[AttentionBackend, Callable[..., Case]]] = {
    "per_sequence": (PerSequenceAttention(), ragged),
    "padded": (PaddedAttention(), padded),
    "slots": (SlotsAttention(), buffers),
    "slots, with prompts": (SlotsAttention(), ragged),
    "paged": (PagedAttention(), blocks),
    "paged, in runs": (PagedAttention(), ragged),
}
every_backend = pytest.mark.parametrize("name", BACKENDS)
every_heads = pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])


@every_backend
@every_heads
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_the_oracles_attention(name: str, heads: int, kv_heads: int, rng: random.Random) -> None:
    backend, make = BACKENDS[name]
    case = make(_config(heads, kv_heads), rng)
    cache = case.cache()
    batch, out = case.attend(backend, cache)
    rows = case.rows(batch)
    assert out.shape == (case.plan.num_computed, heads * 4)
    assert len(rows) == case.plan.num_tokens
    assert torch.allclose(out[rows], case.wanted(), rtol=0, atol=1e-12)
    assert out.isfinite().all(), "an idle row is NaN"


@every_backend
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_nobody_elses_slots_matter(name: str, rng: random.Random) -> None:
    """The same bits, whatever lies in the slots that no token of the sequence occupies."""
    backend, make = BACKENDS[name]
    case = make(_config(4, 2), rng)
    results = []
    for poison in (0.0, POISON, -1e3):
        batch, out = case.attend(backend, case.cache(poison))
        results.append(out[case.rows(batch)])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@every_backend
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_keys_and_values_are_written_in_their_slots_and_nowhere_else(name: str, rng: random.Random) -> None:
    backend, make = BACKENDS[name]
    case = make(_config(4, 2), rng)
    cache = case.cache()
    wanted = case.cache()
    case.attend(backend, cache)
    for work, place in zip(case.plan.work, case.plan.places, strict=True):
        slots = torch.tensor(place.slots(work.start, work.stop))
        wanted.keys[LAYER, slots] = case.k[work.sequence][work.start : work.stop]
        wanted.values[LAYER, slots] = case.v[work.sequence][work.start : work.stop]
    assert torch.equal(cache.keys, wanted.keys)
    assert torch.equal(cache.values, wanted.values)


@pytest.mark.parametrize("name", ["per_sequence", "paged", "paged, in runs"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_two_waves_are_as_good_as_one(name: str, rng: random.Random) -> None:
    backend, make = BACKENDS[name]
    case = make(_config(4, 2), rng, waves=2)
    whole = Plan(3, 0, case.plan.work, case.plan.places)
    once = Case(case.config, case.sequences, whole, case.num_slots)
    in_two, out_in_two = case.attend(backend, case.cache())
    in_one, out_in_one = once.attend(backend, once.cache())
    assert len(in_two.waves) == 2
    assert len(in_one.waves) == 1
    assert torch.allclose(out_in_two, out_in_one, rtol=0, atol=1e-13)
    assert torch.allclose(out_in_two, case.wanted(), rtol=0, atol=1e-12)


# --- batches by hand


def _sequence(name: str, tokens: tuple[int, ...]) -> Sequence:
    return Sequence(asks(name, tokens, 8))


def _storage(slots: int) -> KVStorage:
    return KVStorage(_config(2, 1), slots, torch.float64, torch.device("cpu"))


def _lists(batch: Batch) -> dict[str, Any]:
    return {name: getattr(batch, name).tolist() for name in ("token_ids", "positions", "last_tokens")}


def test_ragged_batch_by_hand() -> None:
    """Three tokens of a, the eighth of b, and the middle two of c, whose last token is still to come."""
    sequences = {
        "a": _sequence("a", (10, 11, 12)),
        "b": _sequence("b", (20, 21, 22, 23, 24, 25, 26, 27)),
        "c": _sequence("c", (30, 31, 32, 33)),
    }
    work = (Work("a", 0, 3), Work("c", 1, 3), Work("b", 7, 8))
    plan = Plan(0, 0, work, (Extent(5, 4), Extent(20, 6), Extent(9, 9)))
    batch = PerSequenceAttention().batch(plan, sequences, _storage(30))
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
    seen = (wave.attended.mask[:, 0] == 0).int().tolist()  # of columns 0 to 4, by each of the columns 1 to 4
    idle = [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]  # only themselves, never nothing
    assert seen[0] == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert seen[1] == idle
    assert seen[2][:3] == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]


def test_slots_batch_by_hand() -> None:
    """Buffers of 8 slots. The region [1, 4) holds r2 at its 5th token, nobody, and r1 at its 2nd."""
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
    assert wave.live.tolist() == [0, 2]
    assert (wave.attended.mask[:, 0, 0] == 0).sum(1).tolist() == [5, 1, 2]
    for layer in range(2):  # views: nothing is gathered
        assert wave.attended.keys[layer].shape == (3, 1, 5, 4)
        assert wave.attended.keys[layer].data_ptr() == cache.keys[layer, 8].data_ptr()
        assert wave.attended.values[layer].data_ptr() == cache.values[layer, 8].data_ptr()


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


def test_nothing_sampled() -> None:
    sequences = {"a": _sequence("a", (10, 11, 12))}
    for backend, shape in ((PerSequenceAttention(), None), (PaddedAttention(), Rectangle(0, 1, 5, 0, 2))):
        plan = Plan(0, 0, (Work("a", 0, 2),), (Extent(0, 5),), layout=Layout(shape=shape))
        batch = backend.batch(plan, sequences, _storage(5))
        assert batch.sampled == ()
        assert batch.last_tokens.shape == (0,)
        assert batch.last_tokens.dtype == torch.long


def test_padded_needs_a_rectangle() -> None:
    plan = Plan(0, 0, (Work("a", 0, 2),), (Extent(0, 5),))
    with pytest.raises(LawBroken, match="without a rectangle") as error:
        PaddedAttention().batch(plan, {"a": _sequence("a", (1, 2))}, _storage(5))
    assert error.value.law == "layout"


def test_layouts_without_tensors() -> None:
    work = (Work("a", 0, 3), Work("b", 0, 2))
    all_work = (Span(0, 2),)
    rectangle = Rectangle(0, 2, 6, 0, 3)
    placement = Placement((Extent(0, 6), Extent(7, 5)), rectangle)
    assert PerSequenceLayout().layout(work, placement) == Layout(all_work)
    assert PaddedLayout().layout(work, placement) == Layout(all_work, rectangle)
    region = Region(2, 3, 6)
    assert SlotsLayout().layout(work, Placement((Extent(12, 6), Extent(24, 6)), region)) == Layout(all_work)
    single = (Work("a", 2, 3), Work("b", 0, 1))
    assert SlotsLayout().layout(single, Placement((Extent(12, 6), Extent(24, 6)), region)) == Layout(all_work, region)
    pages = Placement((Pages((4, 1), 3), Pages((2,), 3)))
    assert PagedLayout().layout(work, pages) == Layout(all_work)
    assert isinstance(PagedLayout().backend(), PagedAttention)
    assert isinstance(SlotsLayout().backend(), SlotsAttention)
    assert isinstance(PerSequenceLayout().backend(), PerSequenceAttention)
    assert isinstance(PaddedLayout().backend(), PaddedAttention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_heads
def test_single_queries_in_the_types_that_serve(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    """Decode steps take another path in 16 bits than in 32: both agree with the oracle to their rounding."""
    config, lengths = _config(heads, kv_heads), (1, 4, 9)
    generator = torch.Generator().manual_seed(heads)
    cache = KVStorage(config, 40, dtype, torch.device("cpu"))
    cache.keys.normal_(generator=generator)
    cache.values.normal_(generator=generator)
    sequences = {f"s{n}": _sequence(f"s{n}", tuple(range(n))) for n in lengths}
    plan = Plan(
        0,
        0,
        tuple(Work(f"s{n}", n - 1, n) for n in lengths),
        tuple(Extent(12 * i, 12) for i in range(len(lengths))),
    )
    q = torch.randn(3, heads, 4, generator=generator).to(dtype)
    k, v = (torch.randn(3, kv_heads, 4, generator=generator).to(dtype) for _ in "kv")
    backend = PerSequenceAttention()
    (wave,) = backend.batch(plan, sequences, cache).waves
    out = backend.attend(torch.cat((q, k, v), 1), None, cache, LAYER, wave)
    assert out.dtype == dtype
    for i, n in enumerate(lengths):
        run = slice(12 * i, 12 * i + n)
        queries = q[i].expand(n, heads, 4)  # the oracle attends whole texts: of its rows the last counts
        whole = (x.double() for x in (queries, cache.keys[LAYER, run], cache.values[LAYER, run]))
        wanted = oracle.attention(*whole)[-1]
        assert torch.allclose(out[i].double(), wanted, rtol=0, atol=8 * torch.finfo(dtype).eps)
