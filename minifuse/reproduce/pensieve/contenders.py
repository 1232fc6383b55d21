"""The four contenders of Pensieve's Figure 3.17, on one batch whose KV lies in blocks in any order (section 3.6.6).

All compute the same: the last tokens of every context attend to it. `ours` does so over the blocks where they lie;
`copied` copies the contexts out to contiguous memory first, for a fused attention kernel; `rounds` attends one token
of every request at a time; `ideal` is the fused kernel on KV that was contiguous already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minifuse.attention.vectorised import RaggedIndex, attend
from minifuse.core.errors import MachineError
from minifuse.kernels.ragged import Ragged
from minifuse.reproduce.pensieve.fused import Fused, ways
from minifuse.reproduce.pensieve.scene import ALLOWED, PAGE, TRIES, Scene, error, made_of, wanted_of
from minifuse.simulate.timing import timed


@dataclass(frozen=True, slots=True)
class Contender:
    """`index_s` are the seconds of building the index, once an iteration for all layers; `run` attends one layer.

    `rows` puts what `run` returns into the order of the queries: [T, num_heads, head_dim]. That is never timed.
    """

    index_s: float
    run: Callable[[], Any]
    rows: Callable[[Any], Tensor]


def contenders(scene: Scene) -> tuple[dict[str, Contender], str]:
    """The four contenders, each checked against float64, and the name of the fastest fused attention.

    Raises:
        MachineError: one computes something else.
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
    """A round for each query token: one of every request, whose context ends with it."""
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
    """Where queries and KV lie, in the form that attention in place takes here."""
    if not scene.kernels:
        return RaggedIndex.of(queries, contexts, scene.tables, PAGE, *scene.heads, scene.device)
    widest = max(map(len, scene.tables))
    tables = [[*table, *[-1] * (widest - len(table))] for table in scene.tables]
    cu_seqlens, contexts_, tables_ = (
        torch.tensor(x, dtype=torch.int32, device=scene.device) for x in ([0, *accumulate(queries)], contexts, tables)
    )
    return Ragged(cu_seqlens, contexts_, tables_, PAGE, max(queries), max(contexts))


def _copied(scene: Scene, fused: Fused, index_s: float) -> Contender:
    """The copy, then what `ideal` does. Its space is kept: allocating it costs a CPU more than filling it."""
    if scene.kernels:
        from minifuse.kernels.copy import gather_slots

        def copied() -> Any:
            return fused.attend(*gather_slots(scene.keys[None], scene.values[None], fused.slots)[:, 0])
    else:
        space = [kv.new_empty((len(fused.slots), *kv.shape[1:])) for kv in (scene.keys, scene.values)]

        def copied() -> Any:
            for kv, out in zip((scene.keys, scene.values), space, strict=True):
                torch.index_select(kv, 0, fused.slots, out=out)
            return fused.attend(*space)

    return Contender(index_s, copied, fused.rows)


def _fastest(scene: Scene, wanted: Mapping[int, Tensor]) -> tuple[Fused, Contender, float]:
    """The fastest of torch's fused attentions that accept this scene and compute the correct result."""
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
