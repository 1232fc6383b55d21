"""The bounds check of conftest.py: it catches every kind of access one element too far, and passes ordinary ones."""

# ruff: noqa: N803 - constants of a kernel are in capitals
from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

N, BLOCK = 16, 32


@triton.jit
def shift(out_ptr, x_ptr, n, FROM: tl.constexpr, TO: tl.constexpr, BLOCK: tl.constexpr):
    """out[TO : TO + n] = x[FROM : FROM + n]"""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + FROM + i, mask=i < n)
    tl.store(out_ptr + TO + i, x, mask=i < n)


@triton.jit
def one(out_ptr, x_ptr, FROM: tl.constexpr, TO: tl.constexpr):
    """out[TO] = x[FROM], without a mask"""
    tl.store(out_ptr + TO, tl.load(x_ptr + FROM))


@triton.jit
def pair(out_ptr, halves_ptr, FROM: tl.constexpr):
    """Two float16 read as one float32"""
    tl.store(out_ptr, tl.load((halves_ptr + FROM).to(tl.pointer_type(tl.float32))))


@triton.jit
def count(out_ptr, n, CAS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if CAS:
        tl.atomic_cas(out_ptr + i, tl.zeros([BLOCK], tl.int32), tl.full([BLOCK], 1, tl.int32))
    else:
        tl.atomic_add(out_ptr + i, 1, mask=i < n)


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Views into larger storages: the memory beside them is allocated, but outside the views."""
    return torch.zeros(N + 8, dtype=dtype)[4 : 4 + N], torch.arange(N + 8, dtype=dtype)[4 : 4 + N]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_masked_accesses_inside_pass(dtype: torch.dtype) -> None:
    out, x = tensors(dtype)
    shift[(1,)](out, x, N, 0, 0, BLOCK)
    assert torch.equal(out, x)


@pytest.mark.parametrize(
    ("n", "origin", "target", "complaint"),
    [
        (N + 1, 0, 0, "load in 1 lanes.* element 16 of x_ptr, which spans 16"),
        (N, 1, 0, "load in 1 lanes.* element 16 of x_ptr"),
        (N, -1, 0, "load in 1 lanes.* element -1 of x_ptr"),
        (N, 0, 1, "store in 1 lanes.* element 16 of out_ptr"),
        (N, 0, -2, "store in 2 lanes.* element -2 of out_ptr"),
        (N, 10**6, 0, "load in 16 lanes"),
    ],
)
def test_one_element_too_far_is_caught(n: int, origin: int, target: int, complaint: str) -> None:
    out, x = tensors()
    with pytest.raises(InterpreterError, match=complaint):
        shift[(1,)](out, x, n, origin, target, BLOCK)


def test_keyword_arguments_and_no_mask() -> None:
    out, x = tensors()
    one[(1,)](out, x_ptr=x, FROM=N - 1, TO=0)
    assert out[0] == x[-1]
    with pytest.raises(InterpreterError, match=r"load in 1 lanes.* element 16 of x_ptr"):
        one[(1,)](out, x_ptr=x, FROM=N, TO=0)
    with pytest.raises(InterpreterError, match=r"store in 1 lanes.* element 16 of out_ptr"):
        one[(1,)](out, x_ptr=x, FROM=0, TO=N)


def test_a_tensor_of_an_earlier_launch_is_outside() -> None:
    storage = torch.zeros(3 * N)
    shift[(1,)](storage[:N], storage[2 * N :], N, 0, 0, BLOCK)
    with pytest.raises(InterpreterError, match="load"):
        shift[(1,)](storage[:N], storage[:N], N, 2 * N, 0, BLOCK)


def test_half_inside_is_outside() -> None:
    halves = torch.zeros(N, dtype=torch.float16)
    pair[(1,)](torch.zeros(1), halves, N - 2)
    with pytest.raises(InterpreterError, match="load in 1 lanes"):
        pair[(1,)](torch.zeros(1), halves, N - 1)


def test_tensors_that_overlap() -> None:
    storage = torch.zeros(N)
    shift[(1,)](storage, storage[2:4], N - 2, 0, 0, BLOCK)  # past the inner one, but within the outer
    with pytest.raises(InterpreterError, match="load in 1 lanes"):
        shift[(1,)](storage, storage[2:4], N - 1, 0, 0, BLOCK)


def test_a_launch_without_memory() -> None:
    with pytest.raises(InterpreterError, match="no memory"):
        one[(1,)](torch.empty(0), torch.empty(0), FROM=0, TO=0)


def test_atomics() -> None:
    out = torch.zeros(BLOCK, dtype=torch.int32)
    count[(1,)](out[:N], N, False, BLOCK)
    count[(1,)](out[:N], 0, True, N)
    assert out.sum() == N
    with pytest.raises(InterpreterError, match=r"atomic operation in 1 lanes.* element 16 of out_ptr"):
        count[(1,)](out[:N], N + 1, False, BLOCK)
    with pytest.raises(InterpreterError, match="atomic operation in 16 lanes"):
        count[(1,)](out[:N], 0, True, BLOCK)
