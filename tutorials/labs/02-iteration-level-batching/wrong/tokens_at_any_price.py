"""Gives every running request that decodes its token, even beyond the budget."""

import reference
from reference import *


class Policy(reference.Policy):
    def propose(self, running, waiting):
        single = [one for one in running if one["stop"] - one["start"] == 1]
        work = [[one["name"], one["start"], one["stop"]] for one in single]
        left, admit = self.token_budget - len(work), []
        for one in running:
            if one not in single and left > 0:
                left -= self._piece(one, left, work)
        for one in waiting:
            if left <= 0 or len(running) + len(admit) >= self.max_batch:
                break
            admit.append(one["name"])
            left -= self._piece(one, left, work)
        return {"admit": admit, "work": work}
