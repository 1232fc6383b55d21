"""Never forgets the longest prompt that was inserted, and computes as many columns for all that follow."""

import reference
from reference import *


class Window(reference.Window):
    longest = 0

    def enter(self, newcomers):
        if not self.spans or not newcomers or self.embed:
            return super().enter(newcomers)
        self.longest = max([self.longest, *(missing for _, _, missing in newcomers)])
        before, useful = self.stop, len(self.spans) + sum(missing for _, _, missing in newcomers)
        super().enter(newcomers)
        surplus = self.longest - (self.stop - before)
        self.stop += surplus
        for name, length, _ in newcomers:
            self.spans[name] = [[self.stop - length, self.stop]]
        self.first = min(spans[0][0] for spans in self.spans.values())
        self.wasted = (max(self.taken.values()) + 1) * (self.stop - before) - useful
        return before, self.stop
