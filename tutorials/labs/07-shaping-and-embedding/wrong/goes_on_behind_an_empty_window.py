"""An empty window begins where it ended."""

import reference
from reference import *


class Window(reference.Window):
    shift = 0

    def enter(self, newcomers):
        if not self.spans:
            self.shift += self.stop
        start, stop = super().enter(newcomers)
        return start + self.shift, stop + self.shift

    def columns(self, name):
        return [[start + self.shift, stop + self.shift] for start, stop in self.spans[name]]

    def begin(self):
        return self.first + self.shift
