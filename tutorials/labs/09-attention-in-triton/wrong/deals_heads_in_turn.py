"""Gives head h the KV head h modulo their number, where consecutive heads share one."""

# ruff: noqa: N803  # constants of a kernel have capitals

import reference
import triton
import triton.language as tl
from reference import *


@triton.jit
def kv_head_of(head, HEADS: tl.constexpr, KV_HEADS: tl.constexpr):
    return head % KV_HEADS


reference.kv_head_of = kv_head_of
