"""Lets the one that took a block write there, though others share it."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.owner, self.now = {}, None

    def write(self, name, start, stop):
        self.now = name
        return super().write(name, start, stop)

    def _take(self):
        block = super()._take()
        self.owner[block] = self.now
        return block

    def _is_copied(self, table, start):
        return super()._is_copied(table, start) and self.owner[table[start // self.size]] != self.now
