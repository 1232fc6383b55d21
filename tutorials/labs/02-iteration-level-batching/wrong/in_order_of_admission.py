"""Serves those that run in the order of admission, prompts and single tokens alike."""

import reference
from reference import *


class Policy(reference.Policy):
    def propose(self, running, waiting):
        left, work, admit = self.token_budget, [], []
        for one in running:
            if left:
                left -= self._piece(one, left, work)
        for one in waiting:
            if not left or len(running) + len(admit) >= self.max_batch:
                break
            admit.append(one["name"])
            left -= self._piece(one, left, work)
        return {"admit": admit, "work": work}
