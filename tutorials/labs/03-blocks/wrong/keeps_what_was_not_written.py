"""Gives back the blocks that are written, and no others."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def release(self, name):
        kept = -(-self.written[name] // self.size)
        self.tables[name] = self.tables[name][:kept]
        super().release(name)
