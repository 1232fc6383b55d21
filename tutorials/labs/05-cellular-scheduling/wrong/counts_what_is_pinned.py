"""Counts ready nodes that are pinned to another worker as ready for this one."""

import reference
from reference import *


class Total:
    """Of each worker and of none together: what is added for one of them."""

    def __init__(self):
        self.count = 0

    def __getitem__(self, worker):
        return self.count if worker is None else 0

    def __setitem__(self, worker, count):
        self.count += count - self[worker]


class Scheduler(reference.Scheduler):
    def __init__(self, types, max_tasks):
        super().__init__(types, max_tasks)
        self.ready = {kind: Total() for kind in types}
