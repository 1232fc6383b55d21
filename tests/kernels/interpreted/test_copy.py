"""Copies of KV, against index arithmetic in plain Python."""

from __future__ import annotations

import random

import pytest
import torch

from minifuse.core.errors import KernelError
from minifuse.kernels.copy import (
    BLOCK,
    gather_slots,
    gather_slots_torch,
    move_slots,
    move_slots_torch,
    scatter_slots,
    scatter_slots_torch,
)

SHAPES = [(2, 2, 8), (3, 3, 5), (1, 1, 16), (2, 1, 1), (1, 12, 64), (1, 9, 200)]  # num_layers, num_kv_heads, head_dim


def storage(num_layers, slots, num_kv_heads, head_dim, dtype=torch.float32):
    """Keys and values whose elements all differ (up to rounding in float16)."""
    numbers = torch.randn(2, num_layers, slots, num_kv_heads, head_dim, generator=torch.Generator().manual_seed(1))
    keys, values = numbers.to(dtype)
    return keys, values


def moved(kv, moves):
    """The moves token by token, with all reads before all writes."""
    result = kv.clone()
    for source, target, num_tokens in moves:
        for token in range(num_tokens):
            result[:, target + token] = kv[:, source + token]
    return result


def random_moves(slots, seed):
    """Runs of up to nine slots, each of which is a source, a target or unused."""
    rng = random.Random(seed)
    runs, begin = [], 0
    while begin < slots:
        length = min(rng.randint(1, 9), slots - begin)
        runs.append((begin, length))
        begin += length
    rng.shuffle(runs)
    half = len(runs) // 2
    return [
        (source, target, min(length, room))
        for (source, length), (target, room) in zip(runs[:half], runs[half : 2 * half], strict=True)
    ]


@pytest.mark.parametrize("function", [move_slots, move_slots_torch])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_moves_in_every_layer(function, shape, dtype):
    num_layers, num_kv_heads, head_dim = shape
    keys, values = storage(num_layers, 60, num_kv_heads, head_dim, dtype)
    moves = random_moves(60, seed=num_kv_heads)
    assert len(moves) > 3
    expected = moved(keys, moves), moved(values, moves)
    function(keys, values, moves)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@pytest.mark.parametrize("num_tokens", [1, 63, 64, 65, 150])
def test_a_long_move_is_done_in_pieces(num_tokens):
    """A piece holds 64 of these tokens. Source and target may be adjacent."""
    keys, values = storage(2, 310, 4, 16)
    assert BLOCK == 64 * 4 * 16
    moves = [(5, 5 + num_tokens, num_tokens), (1, 0, 1)]
    expected = moved(keys, moves), moved(values, moves)
    move_slots(keys, values, moves)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


def test_one_source_may_go_to_several_targets():
    keys, values = storage(2, 30, 3, 4)
    moves = [(4, 10, 5), (6, 20, 4), (0, 29, 1)]
    expected = moved(keys, moves)
    move_slots(keys, values, moves)
    assert torch.equal(keys, expected)


def test_one_layer_alone_may_be_given():
    keys, values = storage(3, 20, 2, 8)
    before = keys.clone()
    expected = moved(keys, [(0, 10, 4)])
    move_slots(keys[1:2], values[1:2], [(0, 10, 4)])
    assert torch.equal(keys[1], expected[1])
    assert torch.equal(keys[::2], before[::2])


def test_empty_moves():
    keys, values = storage(2, 20, 2, 8)
    before = keys.clone()
    move_slots(keys, values, [])
    move_slots(keys, values, [(3, 3, 0)])
    move_slots(keys[:0], values[:0], [(0, 10, 4)])
    assert torch.equal(keys, before)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([(0, 17, 4)], "move_slots: 4 slots go from 0 to 17 and there are 20: stay within them."),
        ([(17, 0, 4)], "4 slots go from 17 to 0"),
        ([(-1, 5, 2)], "stay within them"),
        ([(3, -1, 1)], "stay within them"),
        ([(3, 5, -1)], "stay within them"),
        ([(0, 3, 4)], r"move_slots: \[\(0, 3, 4\)\] overlap: do one move after the other."),
    ],
)
def test_moves_that_cannot_happen_at_once_are_refused(moves, message):
    keys, values = storage(2, 20, 2, 8)
    before = keys.clone()
    with pytest.raises(KernelError, match=message):
        move_slots(keys, values, moves)
    assert torch.equal(keys, before)


def test_overlaps_are_found_in_random_moves():
    """Compared with the definition of an overlap, slot by slot."""
    rng = random.Random(0)
    found = 0
    for _ in range(300):
        moves = [(rng.randrange(16), rng.randrange(16), rng.randint(1, 4)) for _ in range(rng.randint(1, 3))]
        targets = [slot for _, target, n in moves for slot in range(target, target + n)]
        sources = {slot for source, _, n in moves for slot in range(source, source + n)}
        clash = len(set(targets)) < len(targets) or not sources.isdisjoint(targets)
        keys, values = storage(1, 20, 1, 2)
        if clash:
            found += 1
            with pytest.raises(KernelError):
                move_slots(keys, values, moves)
        else:
            expected = moved(keys, moves)
            move_slots(keys, values, moves)
            assert torch.equal(keys, expected)
    assert 50 < found < 290


@pytest.mark.parametrize("functions", [(gather_slots, scatter_slots), (gather_slots_torch, scatter_slots_torch)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 13])
def test_gather_then_scatter(functions, shape, n):
    gather, scatter = functions
    num_layers, num_kv_heads, head_dim = shape
    keys, values = storage(num_layers, 40, num_kv_heads, head_dim, torch.float16)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(n))[:n]
    staging = gather(keys, values, slots)
    assert staging.shape == (2, num_layers, n, num_kv_heads, head_dim)
    assert staging.is_contiguous()
    for token, slot in enumerate(slots.tolist()):
        assert torch.equal(staging[0, :, token], keys[:, slot])
        assert torch.equal(staging[1, :, token], values[:, slot])

    into = torch.randperm(40, generator=torch.Generator().manual_seed(7))[:n]
    back_keys, back_values = torch.full_like(keys, float("nan")), torch.full_like(values, float("nan"))
    scatter(staging, back_keys, back_values, into)
    assert torch.equal(back_keys[:, into], keys[:, slots])
    assert torch.equal(back_values[:, into], values[:, slots])
    others = sorted(set(range(40)) - set(into.tolist()))
    assert back_keys[:, others].isnan().all()
    assert back_values[:, others].isnan().all()


def test_slots_need_not_be_adjacent():
    """A storage in which the keys and the values of a token are adjacent."""
    both = torch.randn(2, 30, 2, 3, 8)
    keys, values = both.unbind(2)
    slots = torch.tensor([29, 0, 7])
    staging = gather_slots(keys, values, slots)
    assert torch.equal(staging, gather_slots_torch(keys, values, slots))
    expected = both.clone()
    expected[:, [1, 2, 3]] = both[:, slots]
    scatter_slots(staging, keys, values, torch.tensor([1, 2, 3]))
    assert torch.equal(both, expected)


def test_no_slots():
    keys, values = storage(2, 20, 2, 8)
    before = keys.clone()
    none = torch.empty(0, dtype=torch.int64)
    staging = gather_slots(keys, values, none)
    assert staging.shape == (2, 2, 0, 2, 8)
    scatter_slots(staging, keys, values, none)
    assert torch.equal(keys, before)


def test_a_storage_that_does_not_fit_is_refused():
    keys, values = storage(2, 20, 2, 8)
    slots = torch.tensor([3, 4])
    staging = gather_slots(keys, values, slots)
    apart = keys.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(KernelError, match=r"gather_slots: keys has the shape \[20, 2, 8\]: give one of"):
        gather_slots(keys[0], values[0], slots)
    with pytest.raises(KernelError, match=r"gather_slots: values has the shape"):
        gather_slots(keys, values[:, 1:], slots)
    with pytest.raises(KernelError, match=r"gather_slots: values is float16: give float32"):
        gather_slots(keys, values.half(), slots)
    with pytest.raises(KernelError, match=r"gather_slots: keys has the strides .*: the heads of a token must lie side"):
        gather_slots(apart, values, slots)
    with pytest.raises(KernelError, match=r"values has the strides .*: the heads of a token must lie side by side"):
        gather_slots(keys, apart, slots)
    with pytest.raises(KernelError, match=r"gather_slots: slots is int32: give int64"):
        gather_slots(keys, values, slots.int())
    with pytest.raises(KernelError, match=r"gather_slots: slots has the strides"):
        gather_slots(keys, values, torch.arange(6)[::2])
    with pytest.raises(KernelError, match=r"scatter_slots: staging has the shape \[2, 2, 2, 2, 8\]: give one of"):
        scatter_slots(staging, keys, values, slots[:1])
    with pytest.raises(KernelError, match=r"scatter_slots: staging is float16: give float32"):
        scatter_slots(staging.half(), keys, values, slots)
    with pytest.raises(KernelError, match=r"scatter_slots: staging has the strides"):
        scatter_slots(staging.transpose(0, 1).contiguous().transpose(0, 1), keys, values, slots)
    with pytest.raises(KernelError, match=r"move_slots: keys is int64: give"):
        move_slots(keys.long(), values.long(), [(0, 1, 1)])
    with pytest.raises(
        KernelError, match=r"move_slots: keys has the strides .*: slots must lie side by side in a layer"
    ):
        move_slots(keys[:, ::2], values[:, ::2], [(0, 1, 1)])
