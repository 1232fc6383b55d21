"""The attention backends on torch against the oracle's plain attention, on random ragged work in float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from helpers import asks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.attention.padded import PaddedAttention
from minifuse.attention.paged import PagedAttention
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.slots import SlotsAttention
from minifuse.attention.storage import KVStorage
from minifuse.core.places import Pages, extents_of
from minifuse.core.plan import Extent, Layout, Move, Plan, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.kernels.operators import TORCH
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.naive import layers

POISON = 1e6  # what lies in unused slots: large, and finite as in any real cache
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
        """The batch rows of the work, in its order."""
        return list(range(self.plan.num_tokens)) if batch.real is None else batch.real.tolist()

    def wanted(self) -> Tensor:
        """Each piece of work by the oracle: the whole text attended, and the rows of the work taken from it."""
        whole = {name: layers.attention(self.q[name], self.k[name], self.v[name]) for name in self.sequences}
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


def living(config: ModelConfig, rng: random.Random, waves: int = 1) -> Case:
    """Rows of a rectangle whose window has moved on, perhaps over the rows' end; with gaps, and some rows finished."""
    pieces = _pieces(rng, rng.randint(1, 5))
    computed = max(stop - start for _, start, stop in pieces) + rng.randint(0, 2)
    stop = rng.randint(-20, 60)
    spans: dict[str, list[Span]] = {}
    for sequence, start, last in pieces:
        left = rng.randint(stop - computed, stop - (last - start))  # of the work, which has no gap
        spans[sequence.id] = [Span(left, left + last - start)]
        while start > 0:
            left -= rng.choice([0, 0, 1, 3])
            length = rng.randint(1, start)
            spans[sequence.id].insert(0, Span(left - length, left))
            start, left = start - length, left - length
    begin = min(stop - computed, *(columns[0].start for columns in spans.values())) - rng.randint(0, 2)
    rectangle = Rectangle(
        rng.randint(0, 5),
        rows := len(pieces) + rng.randint(0, 2),
        stop - begin + rng.choice([0, 1, 7]),
        stop - computed,
        stop,
        begin,
    )
    plan = Plan(
        3,
        0,
        tuple(Work(sequence.id, start, last) for sequence, start, last in pieces),
        tuple(
            rectangle.place(row, *columns)
            for row, columns in zip(rng.sample(range(rows), len(pieces)), spans.values(), strict=True)
        ),
        layout=Layout(shape=rectangle),
    )
    return Case(config, {s.id: s for s, _, _ in pieces}, plan, rectangle.slot(rows - 1, -1) + rng.randint(1, 3))


def buffers(config: ModelConfig, rng: random.Random, waves: int = 1) -> Case:
    """Adjacent buffers of one width in any order, some of them idle, the region anywhere in memory."""
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
    "per_sequence": (PerSequenceAttention(TORCH), ragged),
    "padded": (PaddedAttention(), padded),
    "padded, living": (PaddedAttention(), living),
    "slots": (SlotsAttention(), buffers),
    "slots, with prompts": (SlotsAttention(), ragged),
    "paged": (PagedAttention(), blocks),
    "paged, in runs": (PagedAttention(), ragged),
}
every_backend = pytest.mark.parametrize("name", BACKENDS)
HEADS = [(4, 4), (4, 2), (6, 1)]  # and KV heads


@every_backend
@settings(max_examples=45, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_backends_agree_with_the_oracle(name: str, rng: random.Random) -> None:
    backend, make = BACKENDS[name]
    heads, kv_heads = rng.choice(HEADS)
    case = make(_config(heads, kv_heads), rng)
    cache = case.cache()
    batch, out = case.attend(backend, cache)
    rows = case.rows(batch)
    assert out.shape == (case.plan.num_computed, heads * 4)
    assert len(rows) == case.plan.num_tokens
    assert torch.allclose(out[rows], case.wanted(), rtol=0, atol=1e-12)
    assert out.isfinite().all(), "an idle row is NaN"


@every_backend
@settings(max_examples=30, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_slots_of_other_sequences_do_not_matter(name: str, rng: random.Random) -> None:
    """The same bits, whatever lies in the slots that no token of the sequence occupies."""
    backend, make = BACKENDS[name]
    case = make(_config(4, 2), rng)
    results = []
    for poison in (0.0, POISON, -1e3):
        batch, out = case.attend(backend, case.cache(poison))
        results.append(out[case.rows(batch)])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("make", [padded, living])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_rows_that_change_hands_are_cleared(make: Callable[..., Case], rng: random.Random) -> None:
    """NaN lies everywhere but in the sequences' own slots, and all of the rows are new in this plan."""
    case = make(_config(4, 2), rng)
    new = Case(case.config, case.sequences, replace(case.plan, admitted=tuple(case.sequences)), case.num_slots)
    batch, out = new.attend(PaddedAttention(), new.cache(math.nan))
    assert torch.allclose(out[new.rows(batch)], new.wanted(), rtol=0, atol=1e-12)
    cache, before = new.cache(POISON), new.cache(POISON)
    new.attend(PaddedAttention(), cache)
    case.attend(PaddedAttention(), before)  # which writes the same, and clears nothing outside the window
    for kv in (before.keys, before.values):
        kv[LAYER, _masked(new.plan, set(case.sequences))] = 0
    assert torch.equal(cache.keys, before.keys)
    assert torch.equal(cache.values, before.values)


def _masked(plan: Plan, new: set[str]) -> list[int]:
    """Column by column, the slots that a rectangle's plan clears, if the rows of the sequences `new` are new."""
    rectangle = plan.shape
    assert isinstance(rectangle, Rectangle)
    held: dict[str, tuple[int, set[int]]] = {}  # the row and the columns of each sequence
    for work, place in zip(plan.work, plan.places, strict=True):
        located = [rectangle.locate(slot) for slot in place.slots(0, work.stop)]
        held[work.sequence] = located[0][0], {column for _, column in located}
    earlier = [min(columns) for name, (_, columns) in held.items() if name not in new]
    first = min(earlier, default=rectangle.begin) if new else rectangle.begin
    return [
        rectangle.slot(row, column)
        for name, (row, columns) in held.items()
        for column in range(rectangle.begin, rectangle.stop)
        if column not in columns and (name in new or column < first or column >= rectangle.start)
    ]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_attention_reads_the_window_alone_also_where_it_wraps_around(rng: random.Random) -> None:
    """Two ranges of each row: NaN in all other slots changes no bit."""
    case = living(_config(4, 2), rng)
    rectangle = case.plan.shape
    assert isinstance(rectangle, Rectangle)
    inside = [rectangle.slot(row, column) for row in range(rectangle.rows) for column in _columns(rectangle)]
    results = []
    for poison in (0.0, math.nan):
        cache = case.cache()
        outside = [slot for slot in range(case.num_slots) if slot not in inside]
        cache.keys[:, outside] = cache.values[:, outside] = poison
        batch, out = case.attend(PaddedAttention(), cache)
        results.append(out)
        parts = getattr(batch.waves[0].reads, "parts", (batch.waves[0].reads,))
        assert len(parts) == 1 + rectangle.wraps
        assert sum(part.keys[LAYER].shape[2] for part in parts) == rectangle.stop - rectangle.begin
    assert torch.equal(*results)


def _columns(rectangle: Rectangle) -> range:
    return range(rectangle.begin, rectangle.stop)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_buffers_that_change_hands_are_cleared(rng: random.Random) -> None:
    """NaN lies everywhere but in the sequences' own slots, and all of them begin here or have been shuffled here."""
    case = buffers(_config(4, 2), rng)
    moves = tuple(
        Move("shuffle", 0, place.offset, work.start)
        for work, place in zip(case.plan.work, extents_of(case.plan), strict=True)
        if work.start
    )
    new = Case(
        case.config, case.sequences, replace(case.plan, moves=moves, admitted=tuple(case.sequences)), case.num_slots
    )
    batch, out = new.attend(SlotsAttention(), new.cache(math.nan))
    assert torch.allclose(out[new.rows(batch)], new.wanted(), rtol=0, atol=1e-12)


@every_backend
@settings(max_examples=30, deadline=None, derandomize=True)
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
        if work.start == 0 and name.startswith("slots") and isinstance(place, Extent):  # its buffer has been taken
            rest = [*range(place.offset + work.stop, place.offset + place.capacity)]
            wanted.keys[LAYER, rest] = wanted.values[LAYER, rest] = 0
    if isinstance(case.plan.shape, Rectangle):
        masked = _masked(case.plan, {work.sequence for work in case.plan.work if work.start == 0})
        wanted.keys[LAYER, masked] = wanted.values[LAYER, masked] = 0
    assert torch.equal(cache.keys, wanted.keys)
    assert torch.equal(cache.values, wanted.values)


@pytest.mark.parametrize("name", ["per_sequence", "paged", "paged, in runs"])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_two_waves_attend_as_one(name: str, rng: random.Random) -> None:
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_single_queries_in_the_serving_dtypes(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    """Decode steps take another path in 16 bits than in 32: both agree with the oracle to their rounding."""
    config, lengths = _config(heads, kv_heads), (1, 4, 9)
    generator = torch.Generator().manual_seed(heads)
    cache = KVStorage(config, 40, dtype, torch.device("cpu"))
    cache.keys.normal_(generator=generator)
    cache.values.normal_(generator=generator)
    sequences = {f"s{n}": Sequence(asks(f"s{n}", n, 8)) for n in lengths}
    plan = Plan(
        0, 0, tuple(Work(f"s{n}", n - 1, n) for n in lengths), tuple(Extent(12 * i, 12) for i in range(len(lengths)))
    )
    q = torch.randn(3, heads, 4, generator=generator).to(dtype)
    k, v = (torch.randn(3, kv_heads, 4, generator=generator).to(dtype) for _ in "kv")
    backend = PerSequenceAttention(TORCH)
    (wave,) = backend.batch(plan, sequences, cache).waves
    out = backend.attend(torch.cat((q, k, v), 1), None, cache, LAYER, wave)
    assert out.dtype == dtype
    for i, n in enumerate(lengths):
        run = slice(12 * i, 12 * i + n)
        queries = q[i].expand(n, heads, 4)  # the oracle attends whole texts: only its last row counts
        whole = (x.double() for x in (queries, cache.keys[LAYER, run], cache.values[LAYER, run]))
        wanted = layers.attention(*whole)[-1]
        assert torch.allclose(out[i].double(), wanted, rtol=0, atol=8 * torch.finfo(dtype).eps)
