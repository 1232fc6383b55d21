"""A token sees all columns from the first one of its sequence on."""

import reference
from reference import *


class Window(reference.Window):
    def mask(self, name):
        start = self.spans[name][0][0]
        return [int(column >= start) for column in range(self.first, self.stop)]
