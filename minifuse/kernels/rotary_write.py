"""Rotary embedding and the KV write in one pass over q, k and v.

In every head of q and k, a dimension d < rotary_dim becomes

    x'[d] = x[d] cos[d] + x[partner(d)] sin[d]

in float32, where `sin` includes the sign of the rotation (Su et al., 2021). The partner of d is d + rotary_dim / 2
or d - rotary_dim / 2; if interleaved, it is the other dimension of the pair (2i, 2i + 1). Dimensions d >= rotary_dim do
not change. Each program handles BLOCK_H heads of one token: it writes heads of q to a new tensor, or heads of k and v
to the token's slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import FLOATS, Form, Shipped, check, check_tensor
from minifuse.kernels.rotary import RotaryRows

KERNEL = "rotate_and_write"
ELEMENTS = 4096  # of a program's tile: four loads of 16 bytes in flight in each of 128 threads
NUM_WARPS = 4


@triton.jit
def _dims(stride_h, head, head_mask, START: tl.constexpr, STOP: tl.constexpr):
    """Return offsets and mask of dimensions [START, STOP) of the heads in `head_mask`."""
    dim = START + tl.arange(0, triton.next_power_of_2(STOP - START))
    return head[:, None] * stride_h + dim[None, :], head_mask[:, None] & (dim < STOP)[None, :]


@triton.jit
def _rotate(
    out_ptr,
    x_ptr,
    cos_ptr,
    sin_ptr,
    stride_oh,
    stride_xh,
    head,  # [BLOCK_H] int64
    exists,  # [BLOCK_H], whether there is such a head
    stored,  # [BLOCK_H], whether the head is also written
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Rotate some heads of one token; all loads come before the first store."""
    HALF: tl.constexpr = ROTARY_DIM // 2
    if ROTARY_DIM < HEAD_DIM:
        at, mask = _dims(stride_xh, head, exists, ROTARY_DIM, HEAD_DIM)
        rest = tl.load(x_ptr + at, mask=mask)
    if ROTARY_DIM > 0 and INTERLEAVED:
        at, mask = _dims(stride_xh, head, exists, 0, ROTARY_DIM)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        cos, sin = _angles(cos_ptr, sin_ptr, x, 0, ROTARY_DIM)
        a, b = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
        partner = tl.reshape(tl.join(b, a), x.shape)
        at, mask = _dims(stride_oh, head, stored, 0, ROTARY_DIM)
        tl.store(out_ptr + at, tl.fma(partner, sin, x * cos).to(out_ptr.dtype.element_ty), mask=mask)
    elif ROTARY_DIM > 0:
        at, mask = _dims(stride_xh, head, exists, 0, HALF)
        a = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x_ptr + HALF + at, mask=mask, other=0.0).to(tl.float32)
        cos, sin = _angles(cos_ptr, sin_ptr, a, 0, HALF)
        cos_b, sin_b = _angles(cos_ptr, sin_ptr, b, HALF, ROTARY_DIM)
        at, mask = _dims(stride_oh, head, stored, 0, HALF)
        tl.store(out_ptr + at, tl.fma(b, sin, a * cos).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(out_ptr + HALF + at, tl.fma(a, sin_b, b * cos_b).to(out_ptr.dtype.element_ty), mask=mask)
    if ROTARY_DIM < HEAD_DIM:
        at, mask = _dims(stride_oh, head, stored, ROTARY_DIM, HEAD_DIM)
        tl.store(out_ptr + at, rest, mask=mask)


@triton.jit
def _angles(cos_ptr, sin_ptr, like, START: tl.constexpr, STOP: tl.constexpr):
    """Load cosines and sines of dimensions [START, STOP), for each row of `like`."""
    dim = START + tl.arange(0, triton.next_power_of_2(STOP - START))
    cos = tl.load(cos_ptr + dim, mask=dim < STOP, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + dim, mask=dim < STOP, other=0.0).to(tl.float32)
    return tl.broadcast_to(cos[None, :], like.shape), tl.broadcast_to(sin[None, :], like.shape)


@triton.jit
def _rotate_and_write_kernel(
    out_ptr,  # [n, num_heads, head_dim]
    q_ptr,  # [n, num_heads, head_dim]
    k_ptr,  # [n, num_kv_heads, head_dim]
    v_ptr,  # [n, num_kv_heads, head_dim]
    keys_ptr,  # [slots, num_kv_heads, head_dim]
    values_ptr,  # [slots, num_kv_heads, head_dim]
    slots_ptr,  # [n]
    cos_ptr,  # [n, rotary_dim]
    sin_ptr,  # [n, rotary_dim]
    stride_ot,
    stride_oh,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_keys,
    stride_keys_h,
    stride_values,
    stride_values_h,
    stride_cos,
    stride_sin,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,  # 0: nothing to rotate, and no programs for q
    INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Each program handles BLOCK_H heads of one token: of q, or of k and v."""
    Q_BLOCKS: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H if ROTARY_DIM > 0 else 0
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    cos_ptr += token * stride_cos
    sin_ptr += token * stride_sin
    if block < Q_BLOCKS:
        head = block.to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
        exists = head < NUM_HEADS
        _rotate(
            out_ptr + token * stride_ot, q_ptr + token * stride_qt, cos_ptr, sin_ptr, stride_oh, stride_qh,
            head, exists, exists, HEAD_DIM, ROTARY_DIM, INTERLEAVED,
        )  # fmt: skip
    else:
        head = (block - Q_BLOCKS).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
        exists = head < NUM_KV_HEADS
        slot = tl.load(slots_ptr + token)
        stored = head < tl.where(slot >= 0, NUM_KV_HEADS, 0)  # not a branch: the loads need not wait for the slot
        at, mask = _dims(stride_vh, head, exists, 0, HEAD_DIM)
        value = tl.load(v_ptr + token * stride_vt + at, mask=mask)
        _rotate(
            keys_ptr + slot * stride_keys, k_ptr + token * stride_kt, cos_ptr, sin_ptr, stride_keys_h, stride_kh,
            head, exists, stored, HEAD_DIM, ROTARY_DIM, INTERLEAVED,
        )  # fmt: skip
        at, mask = _dims(stride_values_h, head, stored, 0, HEAD_DIM)
        tl.store(values_ptr + slot * stride_values + at, value, mask=mask)


def _form(num_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int, interleaved: bool) -> Form:
    heads = num_heads if rotary_dim else num_kv_heads
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "ROTARY_DIM": rotary_dim,
        "INTERLEAVED": interleaved,
        "BLOCK_H": min(triton.next_power_of_2(heads), max(1, ELEMENTS // triton.next_power_of_2(head_dim))),
        "num_warps": NUM_WARPS,
    }


def rotate_and_write_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    rotary: tuple[Tensor, Tensor] | None,
    *,
    interleaved: bool = False,
) -> Tensor:
    """Do `rotate_and_write` in torch."""
    if rotary is not None:
        q, k = (RotaryRows(*rotary, interleaved).rotate(x).to(x.dtype) for x in (q, k))
    live = slots >= 0
    keys[slots[live]] = k[live]
    values[slots[live]] = v[live]
    return q


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    rotary: tuple[Tensor, Tensor] | None,
    *,
    interleaved: bool = False,
) -> Tensor:
    """Rotate `q` and `k`, and write `k` and `v` into one layer's slots.

    Args:
        q: [n, num_heads, head_dim]. `q`, `k` and `v` may be views of one matrix: only their last dimension need be
            contiguous.
        k, v: [n, num_kv_heads, head_dim].
        keys, values: [slots, num_kv_heads, head_dim], of the type of `q`; both are written.
        slots: [n] int64, each within the storage and all different, or -1: such a row's `k` and `v` are not written.
            Slots are not checked, because their values are on the device.
        rotary: cosines and signed sines of the tokens' positions, both [n, 1, rotary_dim]; rotary_dim is even and at
            most head_dim. None: nothing is rotated.
        interleaved: whether neighbours are rotated together, rather than dimensions half of rotary_dim apart.

    Returns:
        The rotated queries, a new tensor [n, num_heads, head_dim]; or `q` itself if `rotary` is None.

    Raises:
        KernelError: the kernel cannot take an argument.
    """
    check_tensor(KERNEL, "q", q, [None, None, None])
    n, num_heads, head_dim = q.shape
    dtypes = (q.dtype,)
    check_tensor(KERNEL, "k", k, [n, None, head_dim], dtypes, q.device)
    num_kv_heads = k.shape[1]
    check_tensor(KERNEL, "v", v, [n, num_kv_heads, head_dim], dtypes, q.device)
    check_tensor(KERNEL, "keys", keys, [None, num_kv_heads, head_dim], dtypes, q.device)
    check_tensor(KERNEL, "values", values, [keys.shape[0], num_kv_heads, head_dim], dtypes, q.device)
    check_tensor(KERNEL, "slots", slots, [n], [torch.int64], q.device, contiguous=True)
    rotary_dim = 0
    cos, sin = q, q  # not read
    if rotary is not None:
        cos, sin = rotary
        check_tensor(KERNEL, "cos", cos, [n, 1, None], FLOATS, q.device)
        rotary_dim = cos.shape[-1]
        check_tensor(KERNEL, "sin", sin, [n, 1, rotary_dim], FLOATS, q.device)
        fits = 0 < rotary_dim <= head_dim and rotary_dim % 2 == 0
        message = f"cos has {rotary_dim} dimensions and a head {head_dim}: give an even number from 2 to {head_dim}."
        check(KERNEL, fits, message)
    out = q if rotary is None else torch.empty((n, num_heads, head_dim), dtype=q.dtype, device=q.device)
    if n == 0:
        return out
    form = _form(num_heads, num_kv_heads, head_dim, rotary_dim, interleaved)
    q_blocks = triton.cdiv(num_heads, form["BLOCK_H"]) if rotary_dim else 0
    _rotate_and_write_kernel[(n, q_blocks + triton.cdiv(num_kv_heads, form["BLOCK_H"]))](
        out, q, k, v, keys, values, slots, cos, sin,
        *out.stride()[:2], *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *keys.stride()[:2], *values.stride()[:2],
        cos.stride(0), sin.stride(0), **form,
    )  # fmt: skip
    return out


FORMS = {
    "d128 h32 kv8": _form(32, 8, 128, 128, False),
    "d64 h32 kv8": _form(32, 8, 64, 64, False),
    "d256 rotary64 interleaved": _form(16, 16, 256, 64, True),
    "d64 learned positions": _form(12, 12, 64, 0, False),
}
ANGLES = {"cos_ptr": "*fp32", "sin_ptr": "*fp32"}
SHIPPED = [Shipped(f"rotary_write {name}", _rotate_and_write_kernel, form, ANGLES) for name, form in FORMS.items()]
