"""The attention kernels on a device, against their twins in float64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from gpu_cases import LONGEST, ON_GPU, Draw, batch_of, near

from minifuse.kernels.launch import INTERPRETED
from minifuse.kernels.ragged import Ragged

pytest.importorskip("triton", reason="Triton is for Linux only")

from minifuse.kernels.copy import gather_slots, move_slots, scatter_slots
from minifuse.kernels.multi_token import multi_token_attention, multi_token_attention_torch
from minifuse.kernels.rotary_write import rotate_and_write
from minifuse.kernels.slots import slots_attention, slots_attention_torch
from minifuse.kernels.split_kv import decode_attention
from minifuse.kernels.splits import SPLIT

pytestmark = ON_GPU


def lengths(rng: random.Random, longest: int) -> int:
    return rng.choice([1, 2, 15, 16, 17, 64, 65, rng.randint(1, longest), longest])


def random_parts(rng: random.Random) -> list[tuple[int, int]]:
    """Prompts, chunks, decodes, and sequences without a query."""
    parts = []
    for _ in range(rng.randint(1, 3 if INTERPRETED else 9)):
        context = min(lengths(rng, LONGEST), LONGEST)
        parts.append((rng.choice([0, 1, 1, context, rng.randint(1, context)]), context))
    return parts


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
def test_multi_token(device, dtype, rng, reference, padded) -> None:
    draw = Draw(rng, device, dtype)
    parts = random_parts(rng)
    if reference and INTERPRETED:
        parts = [(min(n, 3), min(max(n, context), 20)) for n, context in parts]
    batch = batch_of(draw, parts, *draw.form(), padded=padded)
    near(batch.attend(multi_token_attention, reference=reference), batch.twin(multi_token_attention_torch), dtype)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_decode(device, dtype, rng, padded) -> None:
    draw = Draw(rng, device, dtype)
    split = 32 if INTERPRETED else SPLIT
    longest = LONGEST if INTERPRETED else 5 * LONGEST
    parts = [(1, min(lengths(rng, longest), longest)) for _ in range(rng.randint(1, 4 if INTERPRETED else 20))]
    batch = batch_of(draw, parts, *draw.form(), padded=padded)
    near(batch.attend(decode_attention, split=split), batch.twin(multi_token_attention_torch), dtype)


def test_decode_of_so_many_splits_that_they_are_reduced_in_steps(device, dtype) -> None:
    draw = Draw(random.Random(0), device, dtype)
    batch = batch_of(draw, [(1, 16 * 150 + 3), (1, 5), (1, 16 * 64), (1, 16 * 64 + 1)], (2, 1, 16), 16)
    near(batch.attend(decode_attention, split=16), batch.twin(multi_token_attention_torch), dtype)


def test_slots(device, dtype, rng) -> None:
    draw = Draw(rng, device, dtype)
    offset, size, width = rng.randint(0, 3), rng.randint(1, 4), rng.choice([1, 40, LONGEST])
    (num_heads, num_kv_heads, dim), _ = draw.form()
    keys, values = (draw.nan((offset + size + 1) * width, num_kv_heads, dim) for _ in "kv")
    held = [rng.randint(1, width) for _ in range(size)]
    for row, length in enumerate(held):
        begin = (offset + row) * width
        keys[begin : begin + length] = draw.normal(length, num_kv_heads, dim)
        values[begin : begin + length] = draw.normal(length, num_kv_heads, dim)
    q, out = draw.normal(size, num_heads, dim), draw.nan(size, num_heads, dim)
    arguments = {"offset": offset, "size": size, "width": width, "max_length": rng.choice([None, max(held)])}
    want = slots_attention_torch(q.double(), keys.double(), values.double(), draw.int32(held), **arguments)
    got = slots_attention(q, keys, values, draw.int32(held), **arguments, out=out, split=32 if INTERPRETED else SPLIT)
    assert got is out
    near(got, want, dtype)


def test_attention_without_queries(device, dtype) -> None:
    draw = Draw(random.Random(0), device, dtype)
    idle = batch_of(draw, [(0, 7), (0, 2)], (4, 2, 16), 16)
    assert idle.attend(multi_token_attention).shape == (0, 4, 16)
    no_sequences = Ragged(draw.int32([0]), draw.int32([]), idle.ragged.tables[:0], 16, 0, 0)
    assert replace(idle, ragged=no_sequences).attend(decode_attention).shape == (0, 4, 16)
    keys, values = idle.keys, idle.values
    assert slots_attention(idle.q, keys, values, draw.int32([]), offset=0, size=0, width=4).shape == (0, 4, 16)


@pytest.mark.skipif(INTERPRETED, reason="10 GB of KV")
@pytest.mark.parametrize("page", [0, 16])
def test_slots_beyond_2_to_the_31_elements(device, page) -> None:
    """The context lies at the very end of a storage of more than 2^32 bytes, elements past 2^31."""
    draw = Draw(random.Random(page), device, torch.bfloat16)
    slots, kv_heads, dim = 2**31 // 1024 + 4096, 8, 128
    keys, values = (torch.full((slots, kv_heads, dim), float("nan"), dtype=torch.bfloat16, device=device) for _ in "kv")
    context = 1000
    begin = slots - 1024
    keys[begin : begin + context] = draw.normal(context, kv_heads, dim)
    values[begin : begin + context] = draw.normal(context, kv_heads, dim)
    blocks = list(range(begin // 16, slots // 16)) if page else [begin]
    for queries, kernel in ((200, multi_token_attention), (1, decode_attention)):
        bounds = draw.int32([0, queries])
        ragged = Ragged(bounds, draw.int32([context]), draw.int32([blocks]), page, queries, context)
        q = draw.normal(queries, 32, dim)
        near(kernel(q, keys, values, ragged), multi_token_attention_torch(q, keys, values, ragged), torch.bfloat16)
    q = draw.normal(1, 32, dim)
    where = {"offset": slots // 1024 - 1, "size": 1, "width": 1024}
    arguments = (q, keys, values, draw.int32([context]))
    near(slots_attention(*arguments, **where), slots_attention_torch(*arguments, **where), torch.bfloat16)
    into = torch.arange(slots - 50, slots, device=device)
    new = draw.normal(50, kv_heads, dim)
    rotate_and_write(new, new, new, keys, values, into, None)
    assert torch.equal(keys[into], new)
    move_slots(keys[None], values[None], [(slots - 50, 7, 50)])
    assert torch.equal(values[7:57], new)
    staging = gather_slots(keys[None], values[None], into)
    assert torch.equal(staging[0, 0], new)
    scatter_slots(staging, keys[None], values[None], into - 3000)
    assert torch.equal(keys[into - 3000], new)
