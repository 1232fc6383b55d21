"""Lets the window begin one place too far to the left, so that it ends just before what stays."""

import reference
from reference import *


def window_offset(live, stays):
    count = sum(live)
    if stays is None or stays < count:
        return reference.window_offset(live, stays)
    return max(range(stays - count, min(stays, len(live) - count) + 1), key=lambda one: sum(live[one : one + count]))
