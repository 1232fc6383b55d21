"""One request at a time, in the order of the queue."""

from minifuse.batching.policy import QueuePolicy
from minifuse.core.plan import Reason
from minifuse.core.request import Sequence


class Serial(QueuePolicy):
    """Runs one request at a time to completion; the others wait."""

    name = "serial"
    in_step = True

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        if self.running or joining:
            return Reason("batch-full", sequence.id, "not admitted: requests run one at a time")
        return None
