"""Takes it that whom it admits has been admitted: memory that had no room is never asked again."""

import reference
from reference import *


class Policy(reference.Policy):
    def __init__(self, max_batch, token_budget):
        super().__init__(max_batch, token_budget)
        self.admitted = set()

    def propose(self, running, waiting):
        found = super().propose(running, [one for one in waiting[: self.max_batch] if one["name"] not in self.admitted])
        self.admitted |= {*found["admit"]}
        return found
