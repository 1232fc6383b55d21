"""Lets any worker go on with any subgraph."""

import reference
from reference import *


class Scheduler(reference.Scheduler):
    def submit(self, kind, batch, worker):
        members = [self.queues[kind][number] for number in batch]
        super().submit(kind, batch, worker)
        for subgraph in members:
            self.ready[kind][worker] -= len(subgraph.ready)
            subgraph.pinned = None
            self.ready[kind][None] += len(subgraph.ready)
