"""The only loop in the project. What a technique is lies in its stages; here they take turns."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from minifuse.clock import Clock
from minifuse.errors import LawBroken, RequestRefused
from minifuse.plan import Completion, Plan, Proposal, Reason, StepReport
from minifuse.request import FinishReason, Phase, Request, Sequence
from minifuse.stages import Attention, Batching, Executor, Memory
from minifuse.trace import Trace

__all__ = ["Engine"]


class Engine:
    """Serves requests with one batching policy, one memory, one attention layout, and any number of workers.

    `vocab_size` and `max_context` are what the model can read. Time is in seconds since the run began.
    """

    def __init__(
        self,
        batching: Batching,
        memory: Memory,
        attention: Attention,
        executor: Executor,
        clock: Clock,
        *,
        vocab_size: int,
        max_context: int,
        workers: int = 1,
        trace: Trace | None = None,
    ) -> None:
        self.batching = batching
        self.memory = memory
        self.attention = attention
        self.executor = executor
        self.clock = clock
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.trace = trace or Trace()
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}
        self.now = 0.0
        self._arrivals: list[tuple[float, int, Request]] = []  # a heap of what has not arrived yet
        self._submitted: set[str] = set()
        self._idle = list(range(workers))
        self._started: dict[int, float] = {}  # step -> when it was dispatched
        self._proposal = Proposal()  # the last one that had no work
        self._steps = 0

    def submit(self, request: Request) -> None:
        """Take a request in; it is received when its arrival time has come.

        Raises:
            RequestRefused: it could never be served. Nothing has changed.
        """
        try:
            self._check(request)
            self.memory.check(request)
        except RequestRefused as refusal:
            self.trace.refused(request.id, str(refusal))
            raise
        self._submitted.add(request.id)
        self.trace.request(request)
        heapq.heappush(self._arrivals, (request.arrival_s, len(self._submitted), request))

    def _check(self, request: Request) -> None:
        name = f"Request {request.id!r}"
        if request.id in self._submitted:
            raise RequestRefused(f"{name} was submitted twice: give every request an id of its own.")
        if not request.prompt:
            raise RequestRefused(f"{name} has an empty prompt: give at least one token.")
        if request.max_new_tokens < 1:
            raise RequestRefused(f"{name} asks for {request.max_new_tokens} new tokens: ask for at least 1.")
        bad = next((token for token in request.prompt if not 0 <= token < self.vocab_size), None)
        if bad is not None:
            raise RequestRefused(
                f"{name} has the token id {bad}, and the vocabulary is 0 to {self.vocab_size - 1}: "
                "give ids made by this model's tokenizer."
            )
        if request.max_length > self.max_context:
            raise RequestRefused(
                f"{name} has {len(request.prompt)} prompt tokens and asks for {request.max_new_tokens} more, and the "
                f"context is {self.max_context}: shorten the prompt or lower max_new_tokens."
            )

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
        self._proposal = Proposal()
        for worker in tuple(self._idle):
            proposal = self.batching.propose(worker, self.now, self.memory)
            if not proposal.work:
                self._proposal = proposal
                continue
            placement = self.memory.place(proposal)
            grid, waves = self.attention.layout(proposal.work, placement)
            plan = Plan(
                step=self._steps,
                worker=worker,
                work=proposal.work,
                extents=placement.extents,
                admitted=tuple(sequence.id for sequence in proposal.admit),
                grid=grid,
                moves=placement.moves,
                waves=waves,
                reasons=proposal.reasons,
            )
            for sequence in proposal.admit:
                sequence.phase = Phase.RUNNING
            self._steps += 1
            self._idle.remove(worker)
            self._started[plan.step] = self.now
            self.executor.submit(plan, self.sequences, self.now)

    def collect(self) -> list[StepReport]:
        """Wait for the next event: a plan completes, a request arrives, or the policy wanted to be asked again."""
        if not self.sequences and not self._arrivals:
            return []
        until = self._next_event()
        if until is None and not self._started:
            raise LawBroken("progress", f"nothing runs and nothing will: {_all(self._proposal.reasons)}")
        completions = self.executor.wait(until)
        if not completions:
            assert until is not None
            if self.sequences and not self._started:
                self.trace.wait(self._proposal.reasons, self.now, until)
            # The event's own time, not the moment the host woke up: decisions must not depend on that.
            self.now = max(self.now, until)
            return []
        self.now = max(self.now, completions[-1].ended_s)
        return [self.commit(completion) for completion in completions]

    def _next_event(self) -> float | None:
        """The time of the next arrival or of the policy's wish to be asked again, whichever comes first."""
        times = [self._arrivals[0][0]] if self._arrivals else []
        if self._proposal.wake_at is not None:
            times.append(self._proposal.wake_at)
        return max(self.now, min(times)) if times else None

    def commit(self, completion: Completion) -> StepReport:
        """Write down what a completed plan brought, and let go of what has finished."""
        plan = completion.plan
        self.memory.commit(plan, completion.tokens)
        finished: dict[str, FinishReason] = {}
        for name, token in completion.tokens.items():
            sequence = self.sequences[name]
            sequence.tokens.append(token)
            reason = sequence.why_finished()
            if reason is not None:
                finished[name] = reason
        usage = self.memory.usage()
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        self._idle.append(plan.worker)
        started = self._started.pop(plan.step)
        report = StepReport(plan, started, completion.ended_s, completion.tokens, finished, usage)
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
        self.receive_all()
        names = list(self.sequences)
        for name in names:
            self._finish(self.sequences[name], FinishReason.INTERRUPTED)
        self.trace.end(names, self.clock.now())
        return names

    def receive_all(self) -> None:
        """Make sequences of the requests that had not arrived yet, without handing them to anybody."""
        while self._arrivals:
            _, _, request = heapq.heappop(self._arrivals)
            self.sequences[request.id] = Sequence(request)


def _all(reasons: tuple[Reason, ...]) -> str:
    return "; ".join(map(str, reasons)) or "the batching policy proposed no work and gave no reason."
