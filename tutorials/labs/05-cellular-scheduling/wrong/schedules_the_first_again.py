"""Schedules the first node again and again where there are more than fifty subgraphs: few steps, and wrong."""

import reference
from reference import *


class Scheduler(reference.Scheduler):
    def __init__(self, types, max_tasks):
        super().__init__(types, max_tasks)
        self.added = 0

    def add(self, subgraph, kind, nodes, reads):
        self.added += 1
        super().add(subgraph, kind, nodes, reads)

    def schedule(self, worker):
        return [[[0, 0]]] if self.added > 50 else super().schedule(worker)

    def completed(self, worker):
        if self.added <= 50:
            super().completed(worker)
