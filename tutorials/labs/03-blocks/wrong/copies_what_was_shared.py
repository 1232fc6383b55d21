"""Never forgets that a block was shared, though the other holder has gone."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.ever = set()

    def release(self, name):
        self.ever |= {block for block in self.tables[name] if self.holders[block] > 1}
        super().release(name)
        self.ever -= {*self.free}

    def _is_copied(self, table, start):
        first = start // self.size
        return super()._is_copied(table, start) or (start % self.size > 0 and table[first] in self.ever)
