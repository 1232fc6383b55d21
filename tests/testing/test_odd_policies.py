"""The laws do not blame a policy that is odd and right, nor the memory beneath it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from minifuse.batching.policy import QueuePolicy
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import option
from minifuse.stages import Memory, register
from minifuse.testing import check_laws


@pytest.mark.parametrize("examples", [2, pytest.param(40, marks=pytest.mark.long)])
def test_a_sequence_may_be_behind_the_others_in_its_rectangle(own_register: None, examples: int) -> None:
    """Only the first three pieces of work run, so that others of the batch wait in rows that have been opened."""

    @register
    class Three(QueuePolicy):
        name = "three"

        @dataclass(frozen=True)
        class Options:
            max_batch: int = option(8, "requests in one iteration", minimum=1, batch_size=True)

        def rank(self, sequence: Sequence) -> float:
            return -sequence.request.arrival_s

        def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
            return None

        def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
            proposal = super().propose(worker, now, memory)
            return replace(proposal, work=proposal.work[:3])

    for stages in ({"memory": "padded", "attention": "padded"}, {"memory": "contiguous", "attention": "per_sequence"}):
        assert "three" in check_laws(examples, batching="three", **stages)
