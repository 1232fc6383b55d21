"""Looks for a block's holders in all tables."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def _is_copied(self, table, start):
        first = start // self.size
        if start % self.size == 0 or first >= len(table):
            return False
        count = 0
        for one in self.tables.values():
            count += table[first] in one
        return count > 1
