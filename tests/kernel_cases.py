"""Shared by the tests of the kernels: contexts with KV in blocks or consecutive slots and NaN elsewhere, and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from minifuse.core.errors import KernelError
from minifuse.kernels.ragged import Ragged

# Heads, KV heads and head dimension of the attention kernels' tests.
SHAPES = {
    "alone": (2, 2, 16),
    "group 4": (4, 1, 16),
    "group 3 d24": (6, 2, 24),
    "group 7 d8": (7, 1, 8),
    "group 20": (20, 1, 16),
    "d72": (2, 1, 72),
}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.float64: 1e-12}


def shapes_by_layout(shapes: dict[str, tuple[int, int, int]], layouts: Sequence[object]) -> list[Any]:
    """Parameters `heads, kv_heads, dim, layout`: the first shape in every layout, and each other shape in one.

    The rest of the product is `long`: the interpreter takes a second for each.
    """
    return [
        pytest.param(*shape, layout, id=f"{name}-{layout}", marks=() if shorter else pytest.mark.long)
        for i, (name, shape) in enumerate(shapes.items())
        for j, layout in enumerate(layouts)
        for shorter in [i == 0 or i % len(layouts) == j]
    ]


class Context:
    """The queries, keys and values of one context in float64, the same in every layout."""

    def __init__(self, seed: int, length: int, heads: int = 2, kv_heads: int = 1, dim: int = 16) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.q, self.k, self.v = (
            torch.randn(length, n, dim, generator=draw, dtype=torch.float64) for n in (heads, kv_heads, kv_heads)
        )

    def expected(self, queries: range, first: int = 0) -> Tensor:
        """Attention of those queries in float64, one head of one query at a time."""
        out = torch.empty_like(self.q[queries.start : queries.stop])
        group = self.q.shape[1] // self.k.shape[1]
        for row, column in enumerate(queries):
            low = min(first, column)  # before `first` a query attends to itself alone
            for head in range(self.q.shape[1]):
                k, v = (kv[low : column + 1, head // group] for kv in (self.k, self.v))
                weights = torch.softmax(k @ self.q[column, head] / self.q.shape[2] ** 0.5, 0)
                out[row, head] = weights @ v
        return out


Part = tuple[Context, range]  # a context, and which of its tokens are queries; tokens after them are left out


def parts_of(shapes: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[Part]:
    """For each (queries, context) a context of that length, and its last tokens as queries."""
    return [
        (Context(seed, context, heads, kv_heads, dim), range(context - queries, context))
        for seed, (queries, context) in enumerate(shapes)
    ]


def expected(parts: list[Part], first: list[int] | None = None) -> Tensor:
    starts = first or [0] * len(parts)
    return torch.cat([context.expected(queries, low) for (context, queries), low in zip(parts, starts, strict=True)])


def lay_out(
    parts: list[Part], page: int, dtype: torch.dtype = torch.float32, seed: int = 0, first: list[int] | None = None
) -> tuple[Tensor, Tensor, Tensor, Ragged]:
    """The arguments of a kernel: the queries of the parts, and their KV in a random order."""
    draw = torch.Generator().manual_seed(seed)
    tensors = [
        (context.q[queries.start : end].to(dtype), context.k[:end].to(dtype), context.v[:end].to(dtype))
        for context, queries in parts
        for end in (queries.stop,)
    ]
    return ragged_batch(tensors, page, lambda n: torch.randperm(n, generator=draw).tolist(), first)


def ragged_batch(
    parts: Sequence[tuple[Tensor, ...]], page: int, order: Callable[[int], list[int]], first: list[int] | None = None
) -> tuple[Tensor, Tensor, Tensor, Ragged]:
    """Lay the KV of some sequences out; slots that no query may read are NaN.

    Args:
        parts: of each sequence its last queries [queries, num_heads, head_dim], and keys and values of its context.
        page: slots in a block; 0: every context in consecutive slots.
        order: makes a random order of the numbers below n.
        first: as in `Ragged`.

    Returns:
        The queries of all sequences, keys, values, and the batch.
    """
    contexts = [len(k) for _, k, _ in parts]
    size = page or max(contexts) + 3
    blocks = [-(-context // size) for context in contexts]
    free = order(sum(blocks) + 2)
    _, some_keys, _ = parts[0]
    shape = (len(free) * size, *some_keys.shape[1:])
    keys, values = (torch.full(shape, float("nan"), dtype=some_keys.dtype, device=some_keys.device) for _ in "kv")
    tables = torch.full((len(parts), max(blocks) + 1 if page else 1), -1, dtype=torch.int32)
    for s, (q, k, v) in enumerate(parts):
        own_blocks = torch.tensor([free.pop() for _ in range(blocks[s])])
        tables[s, : len(own_blocks)] = own_blocks if page else own_blocks * size
        token = torch.arange(min(first[s], contexts[s] - len(q)) if first else 0, contexts[s])
        slots = (own_blocks[token // size] * size + token % size).to(keys.device)
        keys[slots], values[slots] = (kv[token.to(keys.device)] for kv in (k, v))

    def int32(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=keys.device)

    queries = [len(q) for q, _, _ in parts]
    ragged = Ragged(
        int32([0, *accumulate(queries)]),
        int32(contexts),
        tables.to(keys.device),
        page,
        max(queries),
        max(contexts),
        int32(first) if first else None,
    )
    return torch.cat([q for q, _, _ in parts]), keys, values, ragged


def as_views(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries cut out of a fused projection, KV of one of several layers, and an output whose odd heads are 7."""
    rows, heads, dim = q.shape
    fused = torch.full((rows, heads + 6, dim), float("nan"))
    fused[:, 2 : 2 + heads] = q
    storage = torch.full((2, 3, *keys.shape), float("nan"))
    storage[:, 1] = torch.stack([keys, values])
    return fused[:, 2 : 2 + heads], storage[0, 1], storage[1, 1], torch.full((rows, 2 * heads, dim), 7.0)


def assert_near(got: Tensor, want: Tensor, factor: float = 1.0) -> None:
    """`got` is finite, and within `factor` times the tolerance of its dtype."""
    assert got.isfinite().all()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=factor * TOLERANCE[got.dtype])


def assert_rounded(got: Tensor, want: Tensor, dtype: torch.dtype, rtol: float, atol: float) -> None:
    """`got` is contiguous, of `dtype`, and as near to the float64 tensor `want` as its rounding allows."""
    assert got.dtype == dtype
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)


def assert_refused(kernel: Callable[..., Tensor], sentence: str, *arguments: Any, **options: Any) -> None:
    """The kernel's launcher raises an error of one sentence, which names the kernel and contains `sentence`."""
    with pytest.raises(KernelError) as error:
        kernel(*arguments, **options)
    assert sentence in str(error.value)
    assert str(error.value).startswith(f"{kernel.__name__}: ")
    assert str(error.value).endswith(".")


REFUSED = [  # a change of (q, keys, values, ragged) for two contexts of at most 20 tokens and 4 heads, and the error
    (lambda q, k, v, r: (q.double(), k, v, r), "q is float64: give float32 or float16 or bfloat16"),
    (lambda q, k, v, r: (q.bfloat16(), k, v, r), "q is bfloat16, which Triton's interpreter gets wrong"),
    (lambda q, k, v, r: (q.mT.contiguous().mT, k, v, r), "its last dimension must be contiguous"),
    (lambda q, k, v, r: (q, k.half(), v, r), "keys is float16: give float32"),
    (lambda q, k, v, r: (q, k[..., :8], v, r), "keys has the shape"),
    (lambda q, k, v, r: (q, k, v[1:], r), "values has the shape"),
    (lambda q, k, v, r: (q, k, v.transpose(0, 1).contiguous().transpose(0, 1), r), "give them the same"),
    (lambda q, k, v, r: (q[:, :3], k, v, r), "there are 3 heads and 2 KV heads: give a multiple"),
    (lambda q, k, v, r: (q, *(kv[:1].expand(2**31, -1, -1) for kv in (k, v)), r), "give fewer than 2^31"),
    (lambda q, k, v, r: (q, k, v, r, q[:, :2]), "out has the shape"),
    (lambda q, k, v, r: (q, k, v, r, q.half()), "out is float16"),
    (lambda q, k, v, r: (q, k, v, replace(r, contexts=r.contexts.long())), "contexts is int64: give int32"),
    (lambda q, k, v, r: (q, k, v, replace(r, tables=r.tables[:1])), "tables has the shape"),
    (lambda q, k, v, r: (q, k, v, replace(r, first=r.cu_seqlens)), "first has the shape [3]"),
    (lambda q, k, v, r: (q, k, v, replace(r, page=-1)), "page is -1"),
    (lambda q, k, v, r: (q, k, v, replace(r, max_context=49)), "a context has 49 tokens and the tables reach 48"),
    (lambda q, k, v, r: (q, k, v, replace(r, page=0, max_context=81)), "the tables reach 80"),
]
