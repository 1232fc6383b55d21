"""The batching policy of Orca, whose decisions are the student's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minifuse.core.plan import Proposal, Reason, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import option
from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import Remote, StudentFault, check_form
from minifuse.stages import Batching, Memory, register
from minifuse.techniques import mix, technique

__all__ = ["ROW", "Students", "asked", "valid"]


def asked(policy: Remote, running: list[dict], waiting: list[dict]) -> tuple[list[str], list[list]]:
    """What the student's policy admits, and its work: of requests that it was told, and of tokens that they miss."""
    return valid(policy("propose", running, waiting), running, waiting)


def valid(found: Any, running: list[dict], waiting: list[dict]) -> tuple[list[str], list[list]]:
    """The two parts of a proposal, if it can be carried out at all: whether it is a good one is for the tests."""
    if not isinstance(found, dict) or found.keys() != {"admit", "work"}:
        raise StudentFault(f"propose returned {found!r:.120}: return a dictionary with 'admit' and 'work', no more.")
    admit: list[str] = check_form(found["admit"], list[str], "propose, in 'admit',")
    work: list[list] = check_form(found["work"], list[tuple[str, int, int]], "propose, in 'work',")
    newcomers = {one["name"]: one for one in waiting}
    for name in admit:
        if newcomers.get(name) is None or admit.count(name) > 1:
            raise StudentFault(f"propose admits {name}: admit requests that wait, each once.")
    known = {one["name"]: one for one in running} | {name: newcomers[name] for name in admit}
    seen = set()
    for piece in work:
        name, start, stop = piece
        one = known.get(name)
        if one is None or name in seen:
            why = "has two pieces of work" if name in seen else "neither runs nor is admitted"
            raise StudentFault(f"propose returned the work {[name, start, stop]}, and {name} {why}.")
        if start != one["start"] or not start < stop <= one["stop"]:
            missing = f"{name} misses tokens {one['start']} to {one['stop'] - 1}"
            raise StudentFault(
                f"propose returned the work {[name, start, stop]}, and {missing}: begin with the first of them, "
                "compute at least one, and none behind the last."
            )
        seen.add(name)
    if idle := [name for name in admit if name not in seen]:
        raise StudentFault(f"propose admits {idle[0]} without work: a request that joins computes at least one token.")
    if not work and (running or waiting):
        raise StudentFault(f"propose returned no work, with {len(running)} requests running, {len(waiting)} waiting.")
    return admit, work


@register
class Students(OfStudent, Batching):
    """Asks the student's `Policy` before every iteration, and admits what memory has room for, in the order told."""

    name = "lab-iteration"

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)
        token_budget: int | None = option(16, "tokens in one iteration, at most; none: 100,000", minimum=1)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.policy = self.work.make("Policy", self.options.max_batch, self.token_budget)
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}

    @property
    def token_budget(self) -> int:
        return 100_000 if self.options.token_budget is None else int(self.options.token_budget)

    def receive(self, sequence: Sequence) -> None:
        self.waiting[sequence.id] = sequence

    def release(self, sequence: Sequence) -> None:
        self.waiting.pop(sequence.id, None)
        self.running.pop(sequence.id, None)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if not self.running and not self.waiting:
            return Proposal()
        admit, work = asked(self.policy, told(self.running, memory), told(self.waiting, memory))
        room, taken, reasons = memory.room(), list[Sequence](), list[Reason]()
        for name in admit:
            if full := room.admit(self.waiting[name]):
                reasons.append(full)
                break
            taken.append(self.waiting[name])
        cut = {*admit[len(taken) :]}
        planned = tuple(Work(*piece) for piece in work if piece[0] not in cut)
        if not planned:  # memory has room for none of them yet
            return Proposal(reasons=tuple(reasons))
        for sequence in taken:
            self.running[sequence.id] = self.waiting.pop(sequence.id)
        return Proposal(planned, tuple(taken), tuple(reasons))


def told(sequences: dict[str, Sequence], memory: Memory) -> list[dict]:
    """What the student is told of sequences."""
    spans = {name: memory.missing(sequence)[0] for name, sequence in sequences.items()}
    return [{"name": name, "start": span.start, "stop": span.stop} for name, span in spans.items()]


ROW = mix(technique("orca"), batching="lab-iteration")
