"""Vectorised multi-token attention against the oracle's plainest one, on random ragged work in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minifuse.attention import vectorised
from minifuse.attention.vectorised import RaggedIndex, attend
from minifuse.naive import layers

CPU = torch.device("cpu")
HEAD_DIM = 4


@dataclass
class Case:
    """Sequences of (queries, context), their tokens' q, k and v, and the KV spread over permuted blocks."""

    work: list[tuple[int, int]]
    page: int
    heads: tuple[int, int]
    seed: int = 0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        rng, generator = random.Random(self.seed), torch.Generator().manual_seed(self.seed)
        self.qkv = [
            tuple(
                torch.randn(context, heads, HEAD_DIM, dtype=torch.float64, generator=generator).to(self.dtype)
                for heads in (self.heads[0], self.heads[1], self.heads[1])
            )
            for _, context in self.work
        ]
        if self.page:
            counts = [-(-context // self.page) + rng.randint(0, 1) for _, context in self.work]
            blocks = rng.sample(range(sum(counts) + 3), sum(counts))
            self.tables = [[blocks.pop() for _ in range(count)] for count in counts]
            self.num_slots = (sum(counts) + 3) * self.page
        else:
            self.tables, self.num_slots = [], rng.randint(0, 3)
            for _, context in self.work:
                self.tables.append([self.num_slots])
                self.num_slots += context + rng.randint(0, 3)

    def slots(self, s: int) -> list[int]:
        table, context = self.tables[s], self.work[s][1]
        if not self.page:
            return [table[0] + t for t in range(context)]
        return [table[t // self.page] * self.page + t % self.page for t in range(context)]

    def index(self) -> RaggedIndex:
        queries, contexts = [n for n, _ in self.work], [c for _, c in self.work]
        return RaggedIndex.of(queries, contexts, self.tables, self.page, *self.heads, CPU)

    def attend(self, poison: float = float("nan")) -> Tensor:
        """With `poison` in all slots that no sequence uses."""
        keys, values = (
            torch.full((self.num_slots, self.heads[1], HEAD_DIM), poison, dtype=self.dtype) for _ in range(2)
        )
        for s, (_, k, v) in enumerate(self.qkv):
            keys[self.slots(s)], values[self.slots(s)] = k, v
        rows = [q[context - count :] for (count, context), (q, _, _) in zip(self.work, self.qkv, strict=True)]
        q = torch.cat(rows) if rows else torch.empty(0, self.heads[0], HEAD_DIM, dtype=self.dtype)
        return attend(q, keys, values, self.index())

    def wanted(self) -> Tensor:
        """Every sequence alone, in float64, and the rows of the work taken from it."""
        whole = [layers.attention(*(x.double() for x in qkv)) for qkv in self.qkv]
        return torch.cat([x[context - count :] for x, (count, context) in zip(whole, self.work, strict=True)])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Decode steps, chunks and prefills together, some alike, over blocks or contiguous."""
    work = []
    for context in draw(st.lists(st.integers(1, 40), min_size=1, max_size=9)):
        work.append((draw(st.one_of(st.just(1), st.integers(1, min(context, 5)), st.just(context))), context))
    heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2), (5, 1)]))
    return Case(work, draw(st.sampled_from([0, 1, 3, 4, 16])), heads, draw(st.integers(0, 1000)))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=atol)


@given(cases())
@settings(max_examples=75, deadline=None)
def test_ragged_work_agrees_with_the_oracle(case: Case) -> None:
    """The content of other slots is never read, even NaN."""
    close(case.attend(), case.wanted())


@given(cases(), st.integers(1, 7), st.integers(1, 200), st.sampled_from([0, 100]))
@settings(max_examples=100, deadline=None)
def test_any_division_of_the_work(case: Case, block: int, elements: int, few: int) -> None:
    """Blocks of queries, parts of groups, and either way to weight the values: the constants only cost or save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorised, "BLOCK", block)
        patch.setattr(vectorised, "ELEMENTS", elements * vectorised.HEAD_DIM)
        patch.setattr(vectorised, "FEW", few)
        close(case.attend(), case.wanted())


@given(cases(), st.sampled_from([0.0, -1e6, 1e300]))
@settings(max_examples=50, deadline=None)
def test_other_slots_do_not_change_a_bit(case: Case, poison: float) -> None:
    assert torch.equal(case.attend(0.5), case.attend(poison))


@pytest.mark.parametrize("page", [0, 4])
@pytest.mark.parametrize(
    "work",
    [
        pytest.param([(1, 1)], id="one token"),
        pytest.param([(1, 300)] * 3, id="decode, equal contexts"),
        pytest.param([(1, 9), (1, 400), (1, 10), (1, 11)], id="decode, very uneven contexts"),
        pytest.param([(300, 300)], id="a prefill of several blocks"),
        pytest.param([(140, 200), (1, 70), (130, 130), (1, 60), (3, 3)], id="everything at once"),
        pytest.param([(0, 5), (2, 6), (0, 1)], id="sequences without queries"),
    ],
)
def test_shapes_of_work(work: list[tuple[int, int]], page: int) -> None:
    case = Case(work, page, (4, 2))
    close(case.attend(), case.wanted())


def test_nothing_to_attend() -> None:
    assert Case([], 4, (4, 2)).attend().shape == (0, 16)


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 2e-6), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)], ids=str
)
def test_other_types(dtype: torch.dtype, atol: float) -> None:
    case = Case([(1, 40), (1, 37), (20, 50), (7, 7)], 4, (6, 2), dtype=dtype)
    got = case.attend()
    assert got.dtype == dtype
    close(got, case.wanted(), atol)


def test_scores_of_16_bit_tensors_are_float32() -> None:
    """Two keys whose scores, 512 and 513, are one number in bfloat16: e to 1 in weights."""
    k = torch.zeros(2, 1, 4, dtype=torch.bfloat16)
    k[:, 0, 0], k[1, 0, 1] = 32.0, 0.0625
    q = torch.tensor([[[32.0, 32.0, 0.0, 0.0]]], dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    v[1] = 1
    got = attend(q, k, v, RaggedIndex.of([1], [2], [[0]], 0, 1, 1, CPU))
    assert got[0, 0].item() == pytest.approx(torch.tensor(1.0).sigmoid().item(), abs=4e-3)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, vectorised.BLOCK))
@settings(max_examples=50, deadline=None)
def test_work_grows_with_tokens(contexts: list[int], queries: int) -> None:
    """A batch with one long sequence costs little more than its tokens: no other is padded to it."""
    counts = [min(queries, context) for context in contexts]
    index = RaggedIndex.of(counts, contexts, [[0]] * len(contexts), 0, 2, 1, CPU)
    read = sum(part.kv.numel() for part in index.groups)
    assert sum(contexts) <= read <= vectorised.WASTE * sum(contexts) + vectorised.SLACK * len(contexts)


def test_equal_sequences_are_one_product() -> None:
    index = RaggedIndex.of([1] * 32, [64] * 32, [[64 * s] for s in range(32)], 0, 2, 1, CPU)
    assert [tuple(part.kv.shape) for part in index.groups] == [(32, 64)]


def test_intermediates_are_bounded() -> None:
    """A part is at most ELEMENTS scores or key elements, as long as it has more than one unit."""
    index = RaggedIndex.of([1] * 60 + [200], [700] * 60 + [900], [[0]] * 61, 0, 8, 4, CPU)
    for part in index.groups:
        units, width = part.kv.shape
        rows = len(part.queries) // units
        assert units == 1 or units * width * max(rows, vectorised.HEAD_DIM) <= vectorised.ELEMENTS


def test_long_contexts_are_not_padded() -> None:
    """Where one sequence fills the tensors alone, a group would save nothing."""
    contexts = [2000, 1990, 1980, 1970]
    index = RaggedIndex.of([1] * 4, contexts, [[0]] * 4, 0, 8, 8, CPU)
    assert sum(part.kv.numel() for part in index.groups) == 8 * sum(contexts)  # KV heads
