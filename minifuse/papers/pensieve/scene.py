"""The batch of Pensieve's Figure 3.17: KV in shuffled blocks, and the correct result."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import torch
from torch import Tensor

from minifuse.execute.timing import timed

PAGE = 16  # slots in a block
TRIES = 3
CHECKED = 3  # requests whose result is checked
# The allowed root mean square of a query's errors, relative to that of its result. Missing one token of n costs about
# n ** -0.5, which is 0.008 for 16384; rounding costs much less.
ALLOWED = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scene:
    """S requests with equally many queries, and one layer's KV in shuffled blocks."""

    num_queries: int
    contexts: Sequence[int]  # tokens of each, up to and including the last query
    tables: Sequence[Sequence[int]]  # block numbers
    q: Tensor  # [S * num_queries, num_heads, head_dim]
    keys: Tensor  # [slots, num_kv_heads, head_dim]
    values: Tensor
    kernels: bool  # whether to use the Triton kernels; outside their interpreter, these need CUDA tensors

    @classmethod
    def drawn(
        cls,
        num_queries: int,
        pasts: Sequence[int],
        heads: tuple[int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
        kernels: bool | None = None,
    ) -> Scene:
        """Draw random queries and KV, with blocks in random order.

        Args:
            pasts: tokens of each request before its queries.
            heads: num_heads, num_kv_heads, head_dim.
            kernels: whether to use the Triton kernels; None: if the device is a GPU.
        """
        num_heads, num_kv_heads, head_dim = heads
        contexts = [past + num_queries for past in pasts]
        counts = [-(-context // PAGE) for context in contexts]
        blocks = list(range(sum(counts)))
        random.Random(f"pensieve blocks {seed}").shuffle(blocks)
        ends = [0, *accumulate(counts)]
        generator = torch.Generator(device).manual_seed(seed)

        def normal(rows: int, heads: int) -> Tensor:
            return torch.randn((rows, heads, head_dim), dtype=dtype, device=device, generator=generator)

        return cls(
            num_queries,
            contexts,
            [blocks[begin:end] for begin, end in pairwise(ends)],
            normal(len(pasts) * num_queries, num_heads),
            normal(len(blocks) * PAGE, num_kv_heads),
            normal(len(blocks) * PAGE, num_kv_heads),
            device.type == "cuda" if kernels is None else kernels,
        )

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def heads(self) -> tuple[int, int]:
        return self.q.shape[1], self.keys.shape[1]

    def slots(self, s: int) -> list[int]:
        """Return the slots of the context of request s, token by token."""
        return [self.tables[s][t // PAGE] * PAGE + t % PAGE for t in range(self.contexts[s])]


def wanted_of(scene: Scene) -> dict[int, Tensor]:
    """Compute the correct result of some requests, in float64.

    These include the requests with the shortest and the longest context.
    """
    by_length = sorted(range(len(scene.contexts)), key=lambda s: scene.contexts[s])
    sample = {by_length[i * (len(by_length) - 1) // (CHECKED - 1)] for i in range(CHECKED)}
    n, (num_heads, num_kv_heads) = scene.num_queries, scene.heads
    found = {}
    for s in sample:
        slots = torch.tensor(scene.slots(s), device=scene.device)
        k, v = (kv[slots].double().repeat_interleave(num_heads // num_kv_heads, 1) for kv in (scene.keys, scene.values))
        q = scene.q[s * n : (s + 1) * n].double()
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
        scores.masked_fill_(future_of(n, [scene.contexts[s]], scene.device)[0], -math.inf)
        found[s] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return found


def future_of(num_queries: int, contexts: Sequence[int], device: torch.device) -> Tensor:
    """[contexts, num_queries, longest]: True at positions behind the query, which it must not see.

    >>> future_of(2, [3], torch.device("cpu")).int().tolist()
    [[[0, 0, 1], [0, 0, 0]]]
    """
    column = torch.arange(max(contexts), device=device)
    last = torch.tensor(contexts, device=device)[:, None] - num_queries + torch.arange(num_queries, device=device)
    return column > last[..., None]


def error(found: Tensor, wanted: Mapping[int, Tensor], scene: Scene) -> float:
    """Return the largest relative error (root mean square) of a query in `wanted`.

    Args:
        found: the result to check, [T, num_heads, head_dim].
        wanted: the correct rows of each checked request, in float64.
    """
    n = scene.num_queries
    worst = 0.0
    for s, rows in wanted.items():
        off = (found[s * n : (s + 1) * n].double() - rows).flatten(1).norm(dim=1) / rows.flatten(1).norm(dim=1)
        worst = max(worst, float(off.nan_to_num(math.inf).max()))
    return worst


def made_of(scene: Scene, make: Callable[[], T]) -> tuple[T, float]:
    """Return what `make` builds for the device, and the seconds that it takes."""

    def build() -> T:
        built = make()
        if scene.device.type == "cuda":
            torch.cuda.synchronize()
        return built

    return build(), timed(build, TRIES)
