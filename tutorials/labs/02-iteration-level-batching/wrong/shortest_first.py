"""Admits the shortest prompts first, of those that could join."""

import reference
from reference import *


class Policy(reference.Policy):
    def propose(self, running, waiting):
        first = sorted(waiting[: self.max_batch], key=lambda one: one["stop"])
        return super().propose(running, first)
