"""Takes a block ahead as long as many are free."""

import reference
from reference import *


class Blocks(reference.Blocks):
    def write(self, name, start, stop):
        copies = super().write(name, start, stop)
        if copies is not None and len(self.free) > 6 and stop % self.size == 0:
            self.tables[name].append(self._take())
        return copies
