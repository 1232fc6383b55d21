"""Walks over the whole queue, though nobody else can join."""

import reference
from reference import *


class Policy(reference.Policy):
    def propose(self, running, waiting):
        joining = []
        for one in waiting:
            if len(running) + len(joining) < self.max_batch:
                joining.append(one)
        return super().propose(running, joining)
