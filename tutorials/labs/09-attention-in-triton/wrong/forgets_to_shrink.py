"""Sums weights as if the peak had always been the same."""

import reference
import triton
import triton.language as tl
from reference import *


@triton.jit
def shrink_of(peak, new_peak):
    return tl.where(peak == float("-inf"), 0.0, 1.0)


reference.shrink_of = shrink_of
