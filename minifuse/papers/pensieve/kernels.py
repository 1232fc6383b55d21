"""The four contenders of Pensieve's Figure 3.17 (section 3.6.6).

They compute the same attention of one batch, whose KV lies in blocks in any order: the last tokens of every context
attend to this context. `ours` reads the blocks in place. `copied` first copies the contexts to contiguous memory, then
runs a fused attention kernel. `rounds` attends one token of every request at a time. `ideal` runs the fused kernel on
KV that is already contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from minifuse.attention.vectorised import RaggedIndex, attend
from minifuse.core.errors import MachineError
from minifuse.execute.timing import timed
from minifuse.kernels.ragged import Ragged
from minifuse.papers.pensieve.scene import ALLOWED, PAGE, TRIES, Scene, error, future_of, made_of, wanted_of


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to attend one layer.

    `index_s` are the seconds of building the index, once per iteration for all layers. `run` attends one layer. `rows`
    puts the result of `run` into the order of the queries, [T, num_heads, head_dim]; it is never timed.
    """

    index_s: float
    run: Callable[[], Any]
    rows: Callable[[Any], Tensor]


def contenders(scene: Scene) -> tuple[dict[str, Contender], str]:
    """Return the four contenders, checked against float64, and the name of the fused attention.

    Raises:
        MachineError: the result of a contender is wrong.
    """
    wanted = wanted_of(scene)
    fused, ideal, index_s = _fastest(scene, wanted)
    four = {"ideal": ideal, "ours": _ours(scene), "copied": _copied(scene, fused, index_s), "rounds": _rounds(scene)}
    allowed = ALLOWED[scene.q.dtype]
    for name, contender in four.items():
        found = error(contender.rows(contender.run()), wanted, scene)
        if not found <= allowed:  # or NaN
            raise MachineError(
                f"On this machine the contender {name} is off by {found:.1g} of its result, and {allowed:.1g} is "
                "allowed: give another --dtype."
            )
    return four, fused.name


def _ours(scene: Scene) -> Contender:
    queries = [scene.num_queries] * len(scene.contexts)
    index, index_s = made_of(scene, lambda: _index(scene, queries, scene.contexts))
    if scene.kernels:
        from minifuse.kernels.multi_token import multi_token_attention

        return Contender(
            index_s, lambda: multi_token_attention(scene.q, scene.keys, scene.values, index), lambda out: out
        )
    return Contender(
        index_s, lambda: attend(scene.q, scene.keys, scene.values, index), lambda out: out.view(scene.q.shape)
    )


def _rounds(scene: Scene) -> Contender:
    """Attend one query of every request per round, with the context up to it."""
    n, size = scene.num_queries, len(scene.contexts)

    def make() -> list[Any]:
        return [_index(scene, [1] * size, [context - n + i + 1 for context in scene.contexts]) for i in range(n)]

    indices, index_s = made_of(scene, make)
    queries = scene.q.unflatten(0, (size, n)).transpose(0, 1).contiguous()  # [n, S, num_heads, head_dim]
    one: Callable[..., Tensor] = attend
    if scene.kernels:
        from minifuse.kernels.split_kv import decode_attention

        one = decode_attention
    return Contender(
        index_s,
        lambda: [one(q, scene.keys, scene.values, index) for q, index in zip(queries, indices, strict=True)],
        lambda out: torch.stack(out, 1).view(scene.q.shape),
    )


def _index(scene: Scene, queries: list[int], contexts: Sequence[int]) -> Any:
    """Return where queries and KV lie, as the argument that attention in place takes here."""
    if not scene.kernels:
        return RaggedIndex.of(queries, contexts, scene.tables, PAGE, *scene.heads, scene.device)
    widest = max(map(len, scene.tables))
    tables = [[*table, *[-1] * (widest - len(table))] for table in scene.tables]
    cu_seqlens, contexts_, tables_ = (
        torch.tensor(x, dtype=torch.int32, device=scene.device) for x in ([0, *accumulate(queries)], contexts, tables)
    )
    return Ragged(cu_seqlens, contexts_, tables_, PAGE, max(queries), max(contexts))


def _copied(scene: Scene, fused: Fused, index_s: float) -> Contender:
    """Copy the contexts to contiguous memory, then attend as `ideal` does."""
    if scene.kernels:
        from minifuse.kernels.copy import gather_slots

        def copied() -> Any:
            return fused.attend(*gather_slots(scene.keys[None], scene.values[None], fused.slots)[:, 0])
    else:
        space = [kv.new_empty((len(fused.slots), *kv.shape[1:])) for kv in (scene.keys, scene.values)]  # kept

        def copied() -> Any:
            for kv, out in zip((scene.keys, scene.values), space, strict=True):
                torch.index_select(kv, 0, fused.slots, out=out)
            return fused.attend(*space)

    return Contender(index_s, copied, fused.rows)


def _fastest(scene: Scene, wanted: Mapping[int, Tensor]) -> tuple[Fused, Contender, float]:
    """Find the fastest correct fused attention of torch, its contender, and its `index_s`."""
    best: tuple[float, Fused, Contender, float] | None = None
    for way in ways(scene):
        try:
            fused, index_s = made_of(scene, way)
            keys, values = (kv.index_select(0, fused.slots) for kv in (scene.keys, scene.values))
            contender = Contender(index_s, partial(fused.attend, keys, values), fused.rows)
            if not error(fused.rows(contender.run()), wanted, scene) <= ALLOWED[scene.q.dtype]:
                continue
            seconds = timed(contender.run, TRIES, scene.device.type)
        except RuntimeError:  # torch: there is no such kernel for this shape, dtype or device
            continue
        if best is None or seconds < best[0]:
            best = seconds, fused, contender, index_s
    if best is None:
        raise MachineError("None of torch's fused attentions computes this on this machine: give another --dtype.")
    return best[1:]


# --- ways to compute a batch of requests from contiguous KV by torch's fused attention


@dataclass(frozen=True, slots=True)
class Fused:
    """A way to compute a scene from contiguous KV by torch's fused attention."""

    name: str
    slots: Tensor  # [n]: row i of the contiguous KV is a copy of slot slots[i]
    attend: Callable[[Tensor, Tensor], Any]  # keys and values, each [n, num_kv_heads, head_dim]
    rows: Callable[[Any], Tensor]


def ways(scene: Scene) -> Iterator[Callable[[], Fused]]:
    """Yield every way that is the fastest for some machine, dtype or lengths."""
    yield partial(_rectangle, scene)
    yield partial(_one_by_one, scene)
    if scene.device.type == "cuda":
        yield partial(_rectangle, scene, SDPBackend.EFFICIENT_ATTENTION)
        yield partial(_rectangle, scene, SDPBackend.CUDNN_ATTENTION)
        yield partial(_flash_of_any_lengths, scene)
        if min(scene.contexts) == max(scene.contexts):
            yield partial(_lower_right, scene)


def _rectangle(scene: Scene, backend: SDPBackend | None = None) -> Fused:
    """Attend all requests in one call with a mask, padded to the longest context.

    The query heads of a KV head are rows of one matrix. A context is padded with copies of its last token.
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
    """Attend each request in a call of its own, without padding."""
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
    """Attend requests of equal contexts in one call of flash attention, without a mask."""
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
    """Attend concatenated requests by flash attention without padding, as `varlen_attn` does."""
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
    """[S, num_kv_heads, rows, head_dim]: a row per query and query head of the KV head."""
    size, num_kv_heads = len(scene.contexts), scene.heads[1]
    q = scene.q.view(size, scene.num_queries, num_kv_heads, -1, scene.q.shape[2])
    return q.transpose(1, 2).flatten(2, 3).contiguous()


def _unfolded(scene: Scene, out: Tensor) -> Tensor:
    rows: Tensor = out.unflatten(2, (scene.num_queries, -1))
    return rows.transpose(1, 2).reshape(scene.q.shape)


def _mask(scene: Scene, future: Tensor) -> Tensor:
    """[1 or S, 1, rows, longest]: added to the scores; rows are aligned."""
    num_heads, num_kv_heads = scene.heads
    rows = future.repeat_interleave(num_heads // num_kv_heads, 1)
    wide = torch.zeros((*rows.shape[:2], -(-rows.shape[2] // 16) * 16), dtype=scene.q.dtype, device=scene.device)
    return wide[..., : rows.shape[2]].masked_fill_(rows, -math.inf)[:, None]
