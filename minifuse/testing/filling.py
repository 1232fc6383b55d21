"""Law "work conserving": a policy that claims to fill its batch leaves no places empty."""

from __future__ import annotations

import math
from collections.abc import Iterable

from minifuse.batching.prefill_first import num_missing
from minifuse.contracts.proposal import ends_of_texts, num_counted
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Proposal
from minifuse.core.request import Sequence
from minifuse.stages import Batching, Memory
from minifuse.testing.subject import Case
from minifuse.testing.waiting import WaitingBooks

PATIENCE = 2  # consecutive moments: prompts and single tokens may alternate; a proposal that evicts admits none


class FillBooks:
    """Counts consecutive moments at which a waiting request could have joined the batch.

    A request could have joined if the batch has a free place, the iteration has tokens left, and memory has room for
    every waiting request, each tried alone.
    """

    def __init__(self, case: Case, policy: Batching, waiting: WaitingBooks) -> None:
        options = vars(case.options["batching"])
        sizes = [name.removeprefix("batching.") for name in case.row.batch_sizes if name.startswith("batching.")]
        self.claimed = policy.work_conserving
        self.places: float = options[sizes[0]] if sizes else math.inf
        self.tokens = min(policy.token_budget or math.inf, waiting.max_tokens or math.inf)
        self.policy = policy
        self.waiting = waiting
        self.now = -math.inf
        self.changes = False  # whether a request has been admitted or evicted at this moment
        self.left_out: list[str] = []  # requests left out at this moment, after the last proposal
        self.num_idle = 0  # moments in a row with requests left out

    def propose(self, proposal: Proposal, memory: Memory, now: float, *, growing: bool) -> None:
        """Record a worker's proposal, after `self.waiting` has recorded it."""
        if not self.claimed:
            return
        if now > self.now:
            self.num_idle = self.num_idle + 1 if self.left_out else 0
            if self.num_idle == PATIENCE:
                found = f"at {self.now:.9g} s, as before, there is room, and {self.left_out} wait"
                raise LawBroken("work conserving", f"{found}: the policy claims work_conserving")
            self.now, self.changes = now, False
        self.changes |= bool(proposal.admit or proposal.evict)
        could_join = not self.changes and not self._is_full(proposal) and not self._is_apart(proposal, memory)
        units = self._units(self.waiting.waiting.values()) if could_join else []
        fit = all(self._fits(prompts, memory, growing) for prompts in units)
        self.left_out = [prompt.id for prompts in units for prompt in prompts] if fit else []

    def _units(self, sequences: Iterable[Sequence]) -> list[list[Sequence]]:
        """Group the sequences that share one place of the batch.

        The sequences of a request share a place if the policy starts them together; otherwise each takes its own.
        """
        units: dict[str, list[Sequence]] = {}
        for one in sequences:
            units.setdefault((self.waiting.together and one.request.group) or one.id, []).append(one)
        return list(units.values())

    def _is_full(self, proposal: Proposal) -> bool:
        """Return whether the iteration has no tokens left, or the batch no place.

        A worker whose request was aborted is busy until its plan ends: such a plan takes a place.
        """
        planned = num_counted(self.policy, proposal.work, ends_of_texts(proposal.work, self.waiting.running))
        taken = max(len(self._units(self.waiting.running.values())), self.waiting.num_plans)
        return planned >= self.tokens or taken >= self.places

    def _is_apart(self, proposal: Proposal, memory: Memory) -> bool:
        """Return whether only prompts run while a sequence waits to compute a single token.

        Then the sequence may wait. With a memory that keeps no KV, every sequence is computed as a prompt.
        """
        prompts = bool(proposal.work) and all(work.num_tokens > 1 for work in proposal.work)
        return prompts and any(num_missing(memory.missing(one)) == 1 for one in self.waiting.waiting.values())

    def _fits(self, prompts: list[Sequence], memory: Memory, growing: bool) -> bool:
        """Return whether memory has room for `prompts` and, if `growing`, next tokens of running sequences."""
        room = memory.room()
        if growing and any(room.extend(one) for one in self.waiting.running.values()):
            return False
        return not any(room.admit(one, growing=growing) for one in prompts)
