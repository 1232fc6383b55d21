"""Computes one request alone where more than fifty run or wait: few steps, and a wrong proposal."""

import reference
from reference import *


class Policy(reference.Policy):
    def propose(self, running, waiting):
        if len(running) + len(waiting) > 50:
            running, waiting = running[:1], []
        return super().propose(running, waiting)
