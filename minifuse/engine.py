"""The only loop in the project. What makes a technique lies in its stages; here they take turns."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from minifuse.clock import Clock
from minifuse.errors import LawBroken, RequestRefused
from minifuse.in_flight import InFlight
from minifuse.plan import Plan, Proposal
from minifuse.report import Completion, StepReport
from minifuse.request import FinishReason, Phase, Request, Sequence, check_prompts
from minifuse.stages import Attention, Batching, Executor, Memory, Reader
from minifuse.trace import Trace

__all__ = ["Engine"]


class Engine:
    """Serves requests with one batching policy, the workers it asks for, one memory and one attention layout.

    `reader` says which requests the model can read, and what each begins as. Times are in seconds since the run began.
    """

    def __init__(
        self,
        batching: Batching,
        memory: Memory,
        attention: Attention,
        executor: Executor,
        clock: Clock,
        *,
        reader: Reader,
        trace: Trace | None = None,
    ) -> None:
        self.batching = batching
        self.memory = memory
        self.attention = attention
        self.executor = executor
        self.clock = clock
        self.reader = reader
        self.trace = trace or Trace()
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}
        self.refused: dict[str, str] = {}  # requests refused after they were received: why
        self.in_flight = InFlight(batching.workers + 1, batching.depth)  # the last one carries moves behind everything
        self.now = 0.0
        self._arrivals: list[tuple[float, int, Request]] = []  # a heap of what has not arrived yet
        self._submitted: set[str] = set()
        self._groups: set[str] = set()
        self._waiting: list[Proposal] = []  # proposals without work, of workers that could take more
        self._committed = False  # whether a plan has been since memory was last asked for moves

    def submit(self, *prompts: Request) -> None:
        """Take a request in; it is received when its arrival time has come.

        A request of several prompts is one `Request` for each of them, all of one group.

        Raises:
            RequestRefused: it, or one of its prompts, could never be served. Nothing has changed.
        """
        try:
            check_prompts(prompts, self._submitted, self._groups)
            for prompt in prompts:
                self.reader.check(prompt)
            self.memory.check(*prompts)
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

    @property
    def unfinished(self) -> bool:
        return bool(self._arrivals or self.sequences or self.in_flight)

    def run(self) -> Iterator[StepReport]:
        """Serve until nothing is left, reporting every iteration as it completes."""
        self.clock.now()  # a real clock starts when first read: that must not be after the first iteration
        while self.unfinished:
            self.receive()
            self.dispatch()
            yield from self.collect()
        self.trace.end((), self.now)

    def receive(self) -> None:
        """Hand requests whose arrival time has come to the stages."""
        while self._arrivals and self._arrivals[0][0] <= self.now:
            _, _, request = heapq.heappop(self._arrivals)
            sequence = Sequence(request)
            try:
                sequence = self.reader.begin(request)
                self.sequences[request.id] = sequence
                self.memory.receive(sequence)
                self.batching.receive(sequence)
            except RequestRefused as refusal:  # what the request unfolds into cannot be computed
                self.sequences[request.id] = sequence
                self.refused[request.id] = str(refusal)
                self.trace.refused(request.id, str(refusal), received=True)
                self._finish(sequence, FinishReason.REFUSED)

    def dispatch(self) -> None:
        """For each worker that can take more: propose, place, lay out, submit. Then move what memory wants ahead."""
        self._waiting = []
        for worker in range(self.batching.workers):
            while self.in_flight.has_room(worker):
                proposal = self.batching.propose(worker, self.now, self.memory)
                if not proposal.work:
                    self._waiting.append(proposal)
                    break
                self._submit(worker, proposal)
        if self._committed:  # not at an arrival, which a machine that computes may notice later than a replay does
            self._committed = False
            if moves := self.memory.ahead(self.now):  # a plan of moves alone, of a worker of its own
                plan = Plan(self.in_flight.num_launched, self.batching.workers, (), (), moves=moves)
                self.in_flight.launch(plan, (), self.now)
                self.executor.submit(plan, {}, self.now)

    def _submit(self, worker: int, proposal: Proposal) -> None:
        self.in_flight.check(worker, proposal, self.sequences)
        placement = self.memory.place(proposal, self.now)
        layout = self.attention.layout(proposal.work, placement)
        plan = Plan.of(self.in_flight.num_launched, worker, proposal, placement, layout)
        for sequence in proposal.evict:
            sequence.phase = Phase.SUSPENDED
        concerned = {name: self.sequences[name] for name in plan.sequences}
        for sequence in (*proposal.admit, *concerned.values()):
            sequence.phase = plan.phase
        self.in_flight.launch(plan, concerned, self.now)
        self.executor.submit(plan, concerned, self.now)

    def collect(self) -> list[StepReport]:
        """Wait for the next event: a plan completes, a request arrives, or a policy asked to be woken."""
        if not self.unfinished:
            return []
        until = self._next_event()
        reasons = tuple(dict.fromkeys(reason for proposal in self._waiting for reason in proposal.reasons))
        if not self.in_flight and (until is None or until <= self.now):
            why = "; ".join(map(str, reasons)) or "the batching policy proposed no work and gave no reason."
            raise LawBroken("progress", f"nothing runs and nothing will: {why}")
        completions = self.executor.wait(until)
        if not completions:
            assert until is not None
            if self.sequences and not self.in_flight:
                self.trace.wait(reasons, self.now, until)
            # The event's own time, not the moment the host woke up: decisions must not depend on that.
            self.now = max(self.now, until)
            return []
        self.now = max(self.now, completions[-1].ended_s)
        return [self.commit(completion) for completion in completions]

    def _next_event(self) -> float | None:
        """The time of the next arrival, or the earliest at which a policy asked to be woken, whichever comes first."""
        times = [arrival_s for arrival_s, _, _ in self._arrivals[:1]]
        times += [proposal.wake_at for proposal in self._waiting if proposal.wake_at is not None]
        return min(times, default=None)

    def commit(self, completion: Completion) -> StepReport:
        """Write down what a completed plan produced, and release what has finished.

        What it computed for sequences that have ended meanwhile, or beyond the end of an answer, is discarded.
        """
        plan, ran, ended_s = completion
        leaving = self.in_flight.leaving
        produced = {name: new for name, new in ran.tokens.items() if name not in leaving} if leaving else ran.tokens
        self._committed = True
        if plan.work:
            usage = self.memory.commit(plan, produced, self.now)
            self.batching.commit(plan, self.now)
        else:
            usage = self.memory.landed(plan.moves, self.now)
        if plan.phase is Phase.PREPROCESSING:
            for name in (*plan.admitted, *plan.sequences):
                self.sequences[name].phase = Phase.READY
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        discarded = sum(work.num_tokens for work in plan.work if work.sequence in leaving) if leaving else 0
        for name, num_pieces in Counter([work.sequence for work in plan.work]).items():
            if name in leaving:
                continue
            sequence, new = self.sequences[name], produced.get(name, ())
            if taken := sequence.take(new, num_pieces, ran.results.get(name)):
                tokens[name] = taken
            discarded += len(new) - len(taken)
            if reason := sequence.why_finished():
                finished[name] = reason
        started_s, freed = self.in_flight.land(plan, ended_s)
        for sequence in freed:
            self._release(sequence)
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        measured = (ran.moving_s, ran.messages, ran.gathers, ran.transfers)
        report = StepReport(plan, started_s, ended_s, tokens, finished, usage, *measured, discarded=discarded)
        self.trace.step(report)
        return report

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """A sequence leaves at once. Its memory is free when no plan in flight touches it any more."""
        sequence.phase = Phase.FINISHED
        sequence.finish_reason = reason
        self.batching.release(sequence)
        self.finished[sequence.id] = self.sequences.pop(sequence.id)
        if not self.in_flight.leave(sequence):
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.memory.release(sequence, self.now)
        sequence.graph = None  # its results stay

    def interrupt(self) -> list[str]:
        """Give up every unfinished request, keeping the tokens that it has so far. Returns their ids."""
        self.executor.close()
        for sequence in self.in_flight.abandon():
            self._release(sequence)
        while self._arrivals:  # the stages never see these
            _, _, request = heapq.heappop(self._arrivals)
            self.sequences[request.id] = Sequence(request)
        names = [name for name, sequence in self.sequences.items() if not sequence.finished]
        for name in names:
            self._finish(self.sequences[name], FinishReason.INTERRUPTED)
        self.trace.end(names, self.clock.now())
        return names
