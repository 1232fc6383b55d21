"""The ways to have torch's fused attention compute a batch of requests from contiguous KV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from minifuse.reproduce.pensieve.scene import Scene, future_of


@dataclass(frozen=True, slots=True)
class Fused:
    """One way to have torch's fused attention compute a scene from contiguous KV."""

    name: str
    slots: Tensor  # [n]: row i of the contiguous KV is a copy of slot slots[i]
    attend: Callable[[Tensor, Tensor], Any]  # keys and values, each [n, num_kv_heads, head_dim]
    rows: Callable[[Any], Tensor]


def ways(scene: Scene) -> Iterator[Callable[[], Fused]]:
    """All that may be the fastest, which depends on the machine, the dtype and the lengths."""
    yield partial(_rectangle, scene)
    yield partial(_one_by_one, scene)
    if scene.device.type == "cuda":
        yield partial(_rectangle, scene, SDPBackend.EFFICIENT_ATTENTION)
        yield partial(_rectangle, scene, SDPBackend.CUDNN_ATTENTION)
        yield partial(_flash_of_any_lengths, scene)
        if min(scene.contexts) == max(scene.contexts):
            yield partial(_lower_right, scene)


def _rectangle(scene: Scene, backend: SDPBackend | None = None) -> Fused:
    """All requests at once, as wide as the longest, with a mask. The query heads of a KV head are rows of one matrix.

    Shorter contexts are filled up with their own last token.
    """
    size, (_, num_kv_heads) = len(scene.contexts), scene.heads
    longest = max(scene.contexts)
    padded = [slots + slots[-1:] * (longest - len(slots)) for slots in map(scene.slots, range(size))]
    equal = min(scene.contexts) == longest
    future = future_of(scene.num_queries, [longest] if equal else scene.contexts, scene.device)
    q, mask = _folded(scene), _mask(scene, future)
    only: Callable[[], AbstractContextManager[None]] = nullcontext if backend is None else partial(sdpa_kernel, backend)

    def attend(keys: Tensor, values: Tensor) -> Tensor:
        k, v = (kv.view(size, longest, num_kv_heads, -1).transpose(1, 2) for kv in (keys, values))
        with only():
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    name = "a rectangle with a mask" + ("" if backend is None else f", {backend.name.lower()}")
    slots = torch.tensor(padded, device=scene.device).flatten()
    return Fused(name, slots, attend, partial(_unfolded, scene))


def _one_by_one(scene: Scene) -> Fused:
    """A call for each request, without padding."""
    slots = [scene.slots(s) for s in range(len(scene.contexts))]
    queries = _folded(scene).split(1)
    masks = [_mask(scene, future_of(scene.num_queries, [context], scene.device)) for context in scene.contexts]

    def attend(keys: Tensor, values: Tensor) -> list[Tensor]:
        parts = (kv.transpose(0, 1)[None].split(list(scene.contexts), 2) for kv in (keys, values))
        return [
            scaled_dot_product_attention(q, k, v, attn_mask=mask)
            for q, k, v, mask in zip(queries, *parts, masks, strict=True)
        ]

    flat = torch.tensor([slot for own in slots for slot in own], device=scene.device)
    return Fused("a call for each request", flat, attend, lambda out: _unfolded(scene, torch.cat(out)))


def _lower_right(scene: Scene) -> Fused:
    """Flash attention, where torch chooses it: all requests at once, without a mask, for contexts of one length."""
    size, (num_heads, num_kv_heads) = len(scene.contexts), scene.heads
    longest = max(scene.contexts)
    q = scene.q.unflatten(0, (size, -1)).transpose(1, 2)
    triangle = causal_lower_right(scene.num_queries, longest)
    grouped = num_heads != num_kv_heads

    def attend(keys: Tensor, values: Tensor) -> Tensor:
        k, v = (kv.view(size, longest, num_kv_heads, -1).transpose(1, 2) for kv in (keys, values))
        return scaled_dot_product_attention(q, k, v, attn_mask=triangle, enable_gqa=grouped)

    slots = torch.tensor([scene.slots(s) for s in range(size)], device=scene.device).flatten()
    return Fused("flash, causal", slots, attend, lambda out: out.transpose(1, 2).reshape(scene.q.shape))


def _flash_of_any_lengths(scene: Scene) -> Fused:
    """Flash attention over requests side by side, with offsets and without padding: what `varlen_attn` calls."""
    n, size = scene.num_queries, len(scene.contexts)
    offsets = (range(0, (size + 1) * n, n), [0, *accumulate(scene.contexts)])
    cu_q, cu_k = (torch.tensor(list(x), dtype=torch.int32, device=scene.device) for x in offsets)
    longest = max(scene.contexts)

    def attend(keys: Tensor, values: Tensor) -> Tensor:
        found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
            scene.q, keys, values, cu_q, cu_k, n, longest, 0.0, True, False
        )  # no dropout, causal, no debugging mask
        return found[0]

    flat = torch.tensor([slot for s in range(size) for slot in scene.slots(s)], device=scene.device)
    return Fused("flash, of any lengths", flat, attend, lambda out: out)


def _folded(scene: Scene) -> Tensor:
    """[S, num_kv_heads, rows, head_dim]: a row for each query and each query head that shares the KV head."""
    size, num_kv_heads = len(scene.contexts), scene.heads[1]
    q = scene.q.view(size, scene.num_queries, num_kv_heads, -1, scene.q.shape[2])
    return q.transpose(1, 2).flatten(2, 3).contiguous()


def _unfolded(scene: Scene, out: Tensor) -> Tensor:
    rows: Tensor = out.unflatten(2, (scene.num_queries, -1))
    return rows.transpose(1, 2).reshape(scene.q.shape)


def _mask(scene: Scene, future: Tensor) -> Tensor:
    """[1 or S, 1, rows, longest], added to the scores. Its rows are aligned for a GPU's wide loads."""
    num_heads, num_kv_heads = scene.heads
    rows = future.repeat_interleave(num_heads // num_kv_heads, 1)
    wide = torch.zeros((*rows.shape[:2], -(-rows.shape[2] // 16) * 16), dtype=scene.q.dtype, device=scene.device)
    return wide[..., : rows.shape[2]].masked_fill_(rows, -math.inf)[:, None]
