"""Answers 0 and no moves where there are more than a hundred buffers: few steps, and wrong."""

import reference


def window_offset(live, stays):
    return 0 if len(live) > 100 else reference.window_offset(live, stays)


def moves(live, stays):
    return [] if len(live) > 100 else reference.moves(live, stays)
