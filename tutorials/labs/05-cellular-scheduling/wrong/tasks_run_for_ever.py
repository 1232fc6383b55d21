"""Does not count that a task has completed: criterion (b) finds no type after its first task."""

import reference
from reference import *


class Scheduler(reference.Scheduler):
    def completed(self, worker):
        kind, _ = self.tasks[worker][0]
        super().completed(worker)
        self.running[kind] += 1
