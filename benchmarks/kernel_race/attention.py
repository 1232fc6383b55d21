"""Attention: chunks, decode and adjacent buffers, against scaled_dot_product_attention and flex_attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from minifuse.kernels.ragged import Ragged

from .case import BF16, Case, Contender, Trial, Work, normal, permuted

__all__ = ["Heads", "attention_work", "buffers", "chunks", "decode"]

CHUNK_TARGET = ">= 330 TFLOP/s for chunks >= 2k at context >= 8k (stretch 400); within 10% of contiguous KV"
DECODE_TARGET = ">= 85% of measured copy at >= 1 GB of KV (stretch 90%)"
SLOTS_TARGET = "not slower than the paged one"
FLASH, CUDNN, FLEX = "sdpa flash", "sdpa cuDNN", "flex_attention"
ONE_LENGTH = "takes one length for all sequences"


@dataclass(frozen=True)
class Heads:
    query: int = 32
    kv: int = 8
    dim: int = 128

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} heads of {self.dim}"


def attention_work(parts: Sequence[tuple[int, int]], heads: Heads) -> Work:
    """The work of (queries, context) pairs, where the queries are the last tokens of each context.

    A query and a token that it attends to cost 4 flops per head and dimension: with c cached and n new tokens, a chunk
    has n c + n (n + 1) / 2 such pairs.

    >>> attention_work([(2, 3)], Heads(1, 1, 10)).flops  # pairs: 1 cached x 2 + 3
    200
    """
    pairs = sum(n * (context - n) + n * (n + 1) // 2 for n, context in parts)
    queries, tokens = (sum(numbers) for numbers in zip(*parts, strict=True))
    elements = 2 * queries * heads.query * heads.dim + 2 * tokens * heads.kv * heads.dim
    return Work(moved=BF16 * elements, flops=4 * heads.query * heads.dim * pairs)


@dataclass(frozen=True)
class _KV:
    """The same contexts in consecutive slots, one after the other, and in permuted blocks with NaN in unused slots."""

    keys: Tensor  # [tokens, num_kv_heads, head_dim]
    values: Tensor
    paged_keys: Tensor
    paged_values: Tensor
    starts: Sequence[int]  # of each context in `keys`
    tables: Tensor

    @classmethod
    def of(cls, contexts: Sequence[int], heads: Heads, page: int, device: torch.device, dtype: torch.dtype) -> _KV:
        tokens = sum(contexts)
        keys, values = (normal((tokens, heads.kv, heads.dim), device, dtype, seed) for seed in (1, 2))
        starts = [0, *accumulate(contexts)][:-1]
        blocks = [-(-context // page) for context in contexts]
        order = permuted(sum(blocks)).split(blocks)
        tables = torch.full((len(contexts), max(blocks)), -1, dtype=torch.int32)
        slots = []
        for row, (own_blocks, context) in enumerate(zip(order, contexts, strict=True)):
            tables[row, : len(own_blocks)] = own_blocks
            token = torch.arange(context)
            slots.append(own_blocks[token // page] * page + token % page)
        all_slots = torch.cat(slots).to(device)
        shape = (sum(blocks) * page, heads.kv, heads.dim)
        paged = []
        for kv in (keys, values):
            paged.append(torch.full(shape, float("nan"), device=device, dtype=dtype))
            paged[-1][all_slots] = kv
        return cls(keys, values, paged[0], paged[1], starts, tables.to(device))


def _int32(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _raggeds(parts: Sequence[tuple[int, int]], kv: _KV, page: int) -> tuple[Ragged, Ragged]:
    """The batch over blocks, and over consecutive slots."""
    device = kv.keys.device
    queries, contexts = zip(*parts, strict=True)
    bounds, lengths = _int32([0, *accumulate(queries)], device), _int32(contexts, device)
    longest = max(queries), max(contexts)
    starts = _int32(kv.starts, device)[:, None]
    return Ragged(bounds, lengths, kv.tables, page, *longest), Ragged(bounds, lengths, starts, 0, *longest)


def _twin(twin: Callable[..., Tensor], q: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> list[Tensor]:
    """A twin in float32, one KV head after the other: the scores of all heads would not fit."""
    heads = zip(q.chunk(keys.shape[1], 1), keys.split(1, 1), values.split(1, 1), strict=True)
    return [torch.cat([twin(*(x.float() for x in head), *rest) for head in heads], 1)]


def chunks(parts: Sequence[tuple[int, int]], heads: Heads, name: str = "", page: int = 16) -> Case:
    """Multi-token attention of (queries, context) pairs."""
    size = name or ", ".join(f"{n} of {context} tokens" for n, context in parts)

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.multi_token import multi_token_attention, multi_token_attention_torch

        kv = _KV.of([context for _, context in parts], heads, page, device, dtype)
        q = normal((sum(n for n, _ in parts), heads.query, heads.dim), device, dtype, 3)
        paged, whole = _raggeds(parts, kv, page)
        contenders: dict[str, Contender | str] = {
            "multi_token_attention": Contender(
                lambda: multi_token_attention(q, kv.paged_keys, kv.paged_values, paged),
            ),
            "the same on contiguous KV": Contender(lambda: multi_token_attention(q, kv.keys, kv.values, whole)),
        }
        if len(parts) == 1:
            contenders |= _peers_of_a_chunk(q, kv.keys, kv.values)
        else:
            contenders |= dict.fromkeys((FLASH, CUDNN, FLEX), ONE_LENGTH)
        return Trial(contenders, lambda: _twin(multi_token_attention_torch, q, kv.keys, kv.values, whole))

    return Case(
        "multi_token_attention",
        f"{size}, {heads}, pages of {page}",
        CHUNK_TARGET,
        attention_work(parts, heads),
        ("multi_token_attention", "the same on contiguous KV", FLASH, CUDNN, FLEX),
        prepare,
    )


def _peers_of_a_chunk(q: Tensor, keys: Tensor, values: Tensor) -> dict[str, Contender | str]:
    """PyTorch's attention of the last len(q) tokens of one context. It takes heads before tokens: views, not copies."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, context = len(q), len(keys)
    q_, k_, v_ = (x.transpose(0, 1)[None] for x in (q, keys, values))  # [1, heads, tokens, head_dim]

    def read(out: Tensor) -> list[Tensor]:
        return [out[0].transpose(0, 1)]

    def whole(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q_, k_, v_, is_causal=True, enable_gqa=True)

    def chunk() -> Tensor:  # the triangle ends at the last key
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q_, k_, v_, causal_lower_right(n, context), enable_gqa=True)

    peers: dict[str, Contender | str] = {
        FLASH: Contender(chunk if n < context else lambda: whole(SDPBackend.FLASH_ATTENTION), read),
        CUDNN: "its causal mask begins at the first key, and a chunk's ends at the last"
        if n < context
        else Contender(lambda: whole(SDPBackend.CUDNN_ATTENTION), read),
    }
    try:
        mask = create_block_mask(lambda b, h, row, key: row + (context - n) >= key, None, None, n, context, q.device)
        compiled = torch.compile(flex_attention, dynamic=False)
        peers[FLEX] = Contender(lambda: compiled(q_, k_, v_, block_mask=mask, enable_gqa=True), read)
    except Exception as error:
        peers[FLEX] = f"{type(error).__name__}: {error}"[:200]
    return peers


def decode(contexts: Sequence[int], heads: Heads, name: str, page: int = 16) -> Case:
    """Split-KV decode: one query for each of `contexts`."""
    parts = [(1, context) for context in contexts]

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.multi_token import multi_token_attention_torch
        from minifuse.kernels.split_kv import decode_attention

        kv = _KV.of(contexts, heads, page, device, dtype)
        q = normal((len(contexts), heads.query, heads.dim), device, dtype, 3)
        paged, whole = _raggeds(parts, kv, page)
        contenders: dict[str, Contender | str] = {
            "decode_attention": Contender(lambda: decode_attention(q, kv.paged_keys, kv.paged_values, paged)),
            "the same on contiguous KV": Contender(lambda: decode_attention(q, kv.keys, kv.values, whole)),
            **_peers_of_decode(q, kv, contexts),
        }
        return Trial(contenders, lambda: _twin(multi_token_attention_torch, q, kv.keys, kv.values, whole))

    return Case(
        "decode_attention",
        f"{name}, {heads}, pages of {page}",
        DECODE_TARGET,
        attention_work(parts, heads),
        ("decode_attention", "the same on contiguous KV", FLASH, CUDNN, FLEX),
        prepare,
    )


def _peers_of_decode(q: Tensor, kv: _KV, contexts: Sequence[int]) -> dict[str, Contender | str]:
    """PyTorch's attention over a rectangle of KV as wide as the longest context; flex_attention skips the padding."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    longest, rows = max(contexts), len(contexts)
    q_ = q[:, :, None]  # [rows, heads, 1, head_dim]
    if min(contexts) == longest:
        k_, v_ = (x.unflatten(0, (rows, longest)).transpose(1, 2) for x in (kv.keys, kv.values))
    else:
        k_, v_ = (_padded(x, kv.starts, contexts).transpose(1, 2) for x in (kv.keys, kv.values))

    def read(out: Tensor) -> list[Tensor]:
        return [out[:, :, 0]]

    def attend(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q_, k_, v_, enable_gqa=True)

    peers: dict[str, Contender | str] = dict.fromkeys((FLASH, CUDNN), ONE_LENGTH)
    if min(contexts) == longest:
        peers[FLASH] = Contender(lambda: attend(SDPBackend.FLASH_ATTENTION), read)
        peers[CUDNN] = Contender(lambda: attend(SDPBackend.CUDNN_ATTENTION), read)
    lengths = _int32(contexts, q.device)
    try:
        mask = create_block_mask(lambda b, h, row, key: key < lengths[b], rows, None, 1, longest, q.device)
        compiled = torch.compile(flex_attention, dynamic=False)
        peers[FLEX] = Contender(lambda: compiled(q_, k_, v_, block_mask=mask, enable_gqa=True), read)
    except Exception as error:
        peers[FLEX] = f"{type(error).__name__}: {error}"[:200]
    return peers


def _padded(kv: Tensor, starts: Sequence[int], contexts: Sequence[int]) -> Tensor:
    """[rows, longest, num_kv_heads, head_dim], with zeros after shorter contexts."""
    out = kv.new_zeros((len(contexts), max(contexts), *kv.shape[1:]))
    for row, (start, context) in enumerate(zip(starts, contexts, strict=True)):
        out[row, :context] = kv[start : start + context]
    return out


def buffers(lengths: Sequence[int], width: int, heads: Heads, name: str, page: int = 16) -> Case:
    """Decode over adjacent buffers, against the paged kernel on the same contexts."""

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.slots import slots_attention, slots_attention_torch
        from minifuse.kernels.split_kv import decode_attention

        kv = _KV.of(lengths, heads, page, device, dtype)
        q = normal((len(lengths), heads.query, heads.dim), device, dtype, 3)
        paged, _ = _raggeds([(1, length) for length in lengths], kv, page)
        shape = (len(lengths) * width, heads.kv, heads.dim)
        keys, values = (torch.full(shape, float("nan"), device=device, dtype=dtype) for _ in "kv")
        for row, (start, length) in enumerate(zip(kv.starts, lengths, strict=True)):
            keys[row * width : row * width + length] = kv.keys[start : start + length]
            values[row * width : row * width + length] = kv.values[start : start + length]
        region = {"offset": 0, "size": len(lengths), "width": width}
        lengths_ = _int32(lengths, device)

        def twin(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return slots_attention_torch(q, k, v, lengths_, **region)

        return Trial(
            {
                "slots_attention": Contender(
                    lambda: slots_attention(q, keys, values, lengths_, **region, max_length=max(lengths))
                ),
                "decode_attention, paged": Contender(
                    lambda: decode_attention(q, kv.paged_keys, kv.paged_values, paged)
                ),
            },
            lambda: _twin(twin, q, keys, values),
        )

    return Case(
        "slots_attention",
        f"{name}, {heads}",
        SLOTS_TARGET,
        attention_work([(1, length) for length in lengths], heads),
        ("slots_attention", "decode_attention, paged"),
        prepare,
    )
