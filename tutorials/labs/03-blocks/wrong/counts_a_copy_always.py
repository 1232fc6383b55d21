"""Wants a block for a copy, whether one is made or not."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def write(self, name, start, stop):
        table = self.tables[name]
        more = max(0, -(-stop // self.size) - len(table))
        if more and more + (start % self.size > 0) > len(self.free):
            return None
        return super().write(name, start, stop)
