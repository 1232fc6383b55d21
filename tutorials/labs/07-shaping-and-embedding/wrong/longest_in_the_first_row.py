"""Newcomers of an empty window get rows in the order of their lengths."""

import reference
from reference import *


class Window(reference.Window):
    def enter(self, newcomers):
        if not self.spans:
            newcomers = sorted(newcomers, key=lambda one: -one[1])
        return super().enter(newcomers)
