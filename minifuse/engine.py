"""The only loop in the project. What a technique is lies in its stages; here they take turns."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from minifuse.clock import Clock
from minifuse.errors import LawBroken, RequestRefused
from minifuse.plan import Completion, Plan, Proposal, Reason, StepReport
from minifuse.request import FinishReason, Limits, Phase, Request, Sequence
from minifuse.stages import Attention, Batching, Executor, Memory
from minifuse.trace import Trace

__all__ = ["Engine"]


class Engine:
    """Serves requests with one batching policy, the workers it asks for, one memory and one attention layout.

    `limits` says what the model can read. Time is in seconds since the run began.
    """

    def __init__(
        self,
        batching: Batching,
        memory: Memory,
        attention: Attention,
        executor: Executor,
        clock: Clock,
        *,
        limits: Limits,
        trace: Trace | None = None,
    ) -> None:
        self.batching = batching
        self.memory = memory
        self.attention = attention
        self.executor = executor
        self.clock = clock
        self.limits = limits
        self.trace = trace or Trace()
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}
        self.now = 0.0
        self._arrivals: list[tuple[float, int, Request]] = []  # a heap of what has not arrived yet
        self._submitted: set[str] = set()
        self._groups: set[str] = set()
        self._idle = list(range(batching.workers))
        self._started: dict[int, float] = {}  # step -> when it was dispatched
        self._in_flight: set[str] = set()  # sequences of plans that have not completed
        self._waiting: list[Proposal] = []  # of the idle workers: proposals without work
        self._steps = 0

    def submit(self, *prompts: Request) -> None:
        """Take a request in; it is received when its arrival time has come.

        Args:
            prompts: the request; one of several prompts is given as one `Request` for each of them, all of one group.

        Raises:
            RequestRefused: it could never be served, or one of its prompts could not. Nothing has changed.
        """
        try:
            self._check(prompts)
        except RequestRefused as refusal:
            for prompt in prompts:
                self.trace.refused(prompt.id, str(refusal))
            raise
        if prompts[0].group is not None:
            self._groups.add(prompts[0].group)
        for prompt in prompts:
            self._submitted.add(prompt.id)
            self.trace.request(prompt)
            heapq.heappush(self._arrivals, (prompt.arrival_s, len(self._submitted), prompt))

    def _check(self, prompts: tuple[Request, ...]) -> None:
        group = prompts[0].group
        if len(prompts) > 1 and group is None:
            raise RequestRefused(
                f"Requests {prompts[0].id!r} to {prompts[-1].id!r} were submitted as one, and have no group: give the "
                "prompts of one request the same."
            )
        if group in self._groups:
            raise RequestRefused(
                f"A request of the group {group!r} was submitted before: give every request a group of its own, and "
                "submit its prompts together."
            )
        for i, prompt in enumerate(prompts):
            if prompt.id in self._submitted or any(prompt.id == other.id for other in prompts[:i]):
                raise RequestRefused(f"Request {prompt.id!r} was submitted twice: give every request an id of its own.")
            if (prompt.group, prompt.arrival_s) != (prompts[0].group, prompts[0].arrival_s):
                raise RequestRefused(
                    f"Requests {prompts[0].id!r} and {prompt.id!r} were submitted as one, and differ in group or "
                    "arrival: give the prompts of one request the same of both."
                )
            self.limits.check(prompt)
        self.memory.check(*prompts)

    @property
    def unfinished(self) -> bool:
        return bool(self._arrivals or self.sequences)

    def run(self) -> Iterator[StepReport]:
        """Serve until nothing is left, telling of every iteration as it completes."""
        self.clock.now()  # a real clock starts when first read: that must not be after the first iteration
        while self.unfinished:
            self.receive()
            self.dispatch()
            yield from self.collect()
        self.trace.end((), self.now)

    def receive(self) -> None:
        """Hand requests whose arrival time has come to the batching policy."""
        while self._arrivals and self._arrivals[0][0] <= self.now:
            _, _, request = heapq.heappop(self._arrivals)
            sequence = Sequence(request)
            self.sequences[request.id] = sequence
            self.batching.receive(sequence)

    def dispatch(self) -> None:
        """For each idle worker: propose, place, lay out, submit."""
        self._waiting = []
        for worker in sorted(self._idle):
            proposal = self.batching.propose(worker, self.now, self.memory)
            if not proposal.work:
                self._waiting.append(proposal)
                continue
            self._check_free(worker, proposal)
            placement = self.memory.place(proposal)
            grid, waves = self.attention.layout(proposal.work, placement)
            plan = Plan(
                step=self._steps,
                worker=worker,
                work=proposal.work,
                places=placement.places,
                admitted=tuple(sequence.id for sequence in proposal.admit),
                grid=grid,
                moves=placement.moves,
                waves=waves,
                reasons=proposal.reasons,
                phase=proposal.phase,
                evicted=tuple(sequence.id for sequence in proposal.evict),
            )
            for name in plan.evicted:
                self.sequences[name].phase = Phase.SUSPENDED
            self._enter(plan, proposal.phase)
            self._steps += 1
            self._idle.remove(worker)
            self._in_flight.update(work.sequence for work in plan.work)
            self._started[plan.step] = self.now
            self.executor.submit(plan, self.sequences, self.now)

    def _check_free(self, worker: int, proposal: Proposal) -> None:
        """Nobody is given out twice, nor evicted at work."""
        for name in [work.sequence for work in proposal.work] + [sequence.id for sequence in proposal.evict]:
            if name in self._in_flight:
                raise LawBroken("conservation", f"worker {worker} was given {name}, whose last work is not done")
        if gone := {sequence.id for sequence in proposal.evict}.intersection(work.sequence for work in proposal.work):
            raise LawBroken("conservation", f"worker {worker} was to evict {min(gone)} and to work on it")

    def _enter(self, plan: Plan, phase: Phase) -> None:
        """Everyone whom a plan concerns enters a phase of life."""
        for name in plan.admitted:
            self.sequences[name].phase = phase
        for work in plan.work:
            self.sequences[work.sequence].phase = phase

    def collect(self) -> list[StepReport]:
        """Wait for the next event: a plan completes, a request arrives, or a policy wanted to be asked again."""
        if not self.unfinished:
            return []
        until = self._next_event()
        reasons = tuple(dict.fromkeys(reason for proposal in self._waiting for reason in proposal.reasons))
        if not self._started and (until is None or until <= self.now):
            raise LawBroken("progress", f"nothing runs and nothing will: {_all(reasons)}")
        completions = self.executor.wait(until)
        if not completions:
            assert until is not None
            if self.sequences and not self._started:
                self.trace.wait(reasons, self.now, until)
            # The event's own time, not the moment the host woke up: decisions must not depend on that.
            self.now = max(self.now, until)
            return []
        self.now = max(self.now, completions[-1].ended_s)
        return [self.commit(completion) for completion in completions]

    def _next_event(self) -> float | None:
        """The time of the next arrival or of a policy's wish to be asked again, whichever comes first."""
        times = [self._arrivals[0][0]] if self._arrivals else []
        times += [proposal.wake_at for proposal in self._waiting if proposal.wake_at is not None]
        return min(times, default=None)

    def commit(self, completion: Completion) -> StepReport:
        """Write down what a completed plan brought, and let go of what has finished."""
        plan, (tokens, ended, moving_s, messages), ended_s = completion
        self.memory.commit(plan, tokens)
        if plan.phase is Phase.PREPROCESSING:
            self._enter(plan, Phase.READY)
        finished: dict[str, FinishReason] = {}
        for name, token in tokens.items():
            sequence = self.sequences[name]
            sequence.tokens.append(token)
            reason = sequence.why_finished()
            if reason is not None:
                finished[name] = reason
        finished |= dict.fromkeys(ended, FinishReason.STOP)
        usage = self.memory.usage()
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        self._idle.append(plan.worker)
        self._in_flight.difference_update(work.sequence for work in plan.work)
        started = self._started.pop(plan.step)
        report = StepReport(plan, started, ended_s, tokens, finished, usage, moving_s, messages)
        self.trace.step(report)
        return report

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.phase = Phase.FINISHED
        sequence.finish_reason = reason
        self.batching.release(sequence)
        self.memory.release(sequence)
        self.finished[sequence.id] = self.sequences.pop(sequence.id)

    def interrupt(self) -> list[str]:
        """Give up everything unfinished, keeping what each has said so far. Returns their ids."""
        self.executor.close()
        self._receive_rest()
        names = [name for name, sequence in self.sequences.items() if not sequence.finished]
        for name in names:
            self._finish(self.sequences[name], FinishReason.INTERRUPTED)
        self.trace.end(names, self.clock.now())
        return names

    def _receive_rest(self) -> None:
        """Make sequences of the requests that had not arrived yet, without handing them to anybody."""
        while self._arrivals:
            _, _, request = heapq.heappop(self._arrivals)
            self.sequences[request.id] = Sequence(request)


def _all(reasons: tuple[Reason, ...]) -> str:
    return "; ".join(map(str, reasons)) or "the batching policy proposed no work and gave no reason."
