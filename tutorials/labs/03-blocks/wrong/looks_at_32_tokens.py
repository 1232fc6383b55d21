"""Compares no more than the first 32 tokens of two texts."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def _parent(self, tokens):
        return super()._parent(tokens[:33])
