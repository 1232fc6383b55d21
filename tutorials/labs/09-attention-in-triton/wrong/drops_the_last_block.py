"""Reads full blocks only."""

# ruff: noqa: N803  # constants of a kernel have capitals

import reference
import triton
import triton.language as tl
from reference import *


@triton.jit
def in_context(token, end, context, PAGE: tl.constexpr):
    return (token < end) & (token < context // PAGE * PAGE)


reference.in_context = in_context
