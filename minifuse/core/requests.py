"""The life of requests: submitted, received, started, finished, refused or ended early."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from minifuse.core.errors import RequestRefused
from minifuse.core.in_flight import InFlight
from minifuse.core.plan import Placement, Plan, Proposal, Reason
from minifuse.core.report import Completion, KVUsage, StepReport
from minifuse.core.request import FinishReason, Phase, Request, Sequence
from minifuse.core.stages import Arrivals, Batching, Memory, Reader


class Observer:
    """Follows the loop: the trace, checks, a watchdog. What it raises ends the run."""

    def requested(self, request: Request, num_history: int = 0, *, measured: bool = False) -> None: ...  # or arrived
    def refused(self, request_id: str, why: str, received: bool = False) -> None: ...  # received: after it had arrived
    def aborted(self, request_id: str, end_s: float) -> None: ...
    def proposed(self, worker: int | None, proposal: Proposal, requests: "Requests") -> Proposal:  # None: nothing runs
        return proposal  # perhaps with more reasons

    def placed(self, proposal: Proposal, placement: Placement, requests: "Requests") -> None: ...
    def planned(self, plan: Plan, placement: Placement) -> None: ...
    def completed(self, report: StepReport, requests: "Requests") -> None: ...
    def waited(self, reasons: Iterable[Reason], start_s: float, end_s: float) -> None: ...  # and nothing ran
    def woke(self, in_vain: bool, running: bool) -> None: ...  # in vain: only because a policy asked for it
    def ended(self, unfinished: Iterable[str], end_s: float, finished: Iterable[Sequence]) -> None: ...


@dataclass(eq=False, repr=False)
class Requests:
    """The requests of an engine, and how they come and go. It alone writes `Sequence`."""

    batching: Batching
    memory: Memory
    reader: Reader
    arrivals: Arrivals
    observer: Observer

    def __post_init__(self) -> None:
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}  # in the order in which they ended
        self.refused: dict[str, str] = {}  # requests refused after they were received: why
        self.ended_between: deque[str] = deque()  # requests that ended otherwise than with an iteration
        self.in_flight = InFlight(self.batching.workers + 1, self.batching.depth)  # one carries moves behind everything
        self.now = 0.0  # the time of the last event, in seconds since the run began
        self.stages_failed = False  # they are told nothing more

    @property
    def unfinished(self) -> bool:
        return bool(self.arrivals or self.sequences or self.in_flight)

    def submit(self, prompts: tuple[Request, ...], now: float) -> None:
        """Take in the prompts of a request, to be received at their arrival time, or at `now` if that has passed.

        Raises:
            RequestRefused: one of them could never be served. Nothing has changed.
        """
        try:
            prompts = self.arrivals.read(prompts)
            known = [self.reader.fit(request) for request in self.arrivals.check(prompts)]
            for request in known:
                self.reader.check(request)
            self.memory.check(*known)
        except RequestRefused as refusal:
            for prompt in prompts:
                self.observer.refused(prompt.id, str(refusal))
            raise
        for request, num_history in self.arrivals.add(prompts, now):
            measured = request.arrival_s != prompts[0].arrival_s  # that of all of them
            self.observer.requested(self.reader.fit(request), num_history, measured=measured)

    def receive(self) -> None:
        """Hand requests whose arrival time has come to the stages."""
        for arrived, num_history in self.arrivals.due(self.now):
            request = self.reader.fit(arrived)
            sequence = Sequence(request, num_history=num_history)
            try:
                if request.after is not None:  # its whole text has been known only since the last request ended
                    self.observer.requested(request, num_history, measured=True)
                    self.reader.check(request, num_history)
                    self.memory.check(request)
                sequence = self.reader.begin(request)
                sequence.num_history = num_history
                self.sequences[request.id] = sequence
                self.memory.receive(sequence)
                self.batching.receive(sequence)
            except RequestRefused as refusal:  # its text is too long, or what it unfolds into cannot be computed
                self.end_early(sequence, FinishReason.REFUSED, str(refusal))

    def reach(self, event_s: float) -> None:
        """Advance time to an event, receiving earlier arrivals each at its own time.

        A plan that runs in this thread hides arrivals until it has ended. The policy learns of them before it learns of
        that end, as it does in virtual time.
        """
        while (arrives_s := self.arrivals.next_s) is not None and arrives_s < event_s:
            self.now = max(self.now, arrives_s)
            self.receive()
        self.now = max(self.now, event_s)

    def start(self, plan: Plan) -> dict[str, Sequence]:
        """A plan is about to be submitted. Returns the sequences that it has work on."""
        for name in plan.evicted:
            self.sequences[name].phase = Phase.SUSPENDED
        for name in plan.admitted:
            self.sequences[name].phase = plan.phase
        working = {name: self.sequences[name] for name in plan.sequences}
        for sequence in working.values():
            sequence.phase = plan.phase
        self.in_flight.launch(plan, working, self.now)
        return working

    def take(self, completion: Completion, usage: KVUsage) -> StepReport:
        """Write down what a completed plan produced, and release what has finished.

        What it computed for sequences that have ended meanwhile, or beyond the end of an answer, is discarded.
        """
        plan, ran, ended_s = completion
        leaving = self.in_flight.leaving
        if plan.phase is Phase.PREPROCESSING:
            for name in {*plan.admitted, *plan.sequences} - leaving.keys():
                self.sequences[name].phase = Phase.READY
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        discarded = sum(work.num_tokens for work in plan.work if work.sequence in leaving) if leaving else 0
        num_pieces: dict[str, int] = {}
        for work in plan.work:
            num_pieces[work.sequence] = num_pieces.get(work.sequence, 0) + 1
        for name, count in num_pieces.items():
            if name in leaving:
                continue
            sequence, new = self.sequences[name], ran.tokens.get(name, ())
            if taken := sequence.take(new, count, ran.results.get(name, {})):
                tokens[name] = taken
            discarded += len(new) - len(taken)
            reason = FinishReason.NAN if name in ran.not_finite else sequence.why_finished()
            if reason is not None:
                finished[name] = reason
        started_s, freed = self.in_flight.land(plan, ended_s)
        for sequence in freed:
            self.release(sequence)
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        return StepReport(plan, started_s, ended_s, tokens, finished, usage, ran.measured, discarded)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence. Its memory is freed when no plan in flight uses it."""
        sequence.phase = Phase.FINISHED
        sequence.finish_reason, sequence.ended_s = reason, self.now
        if not self.stages_failed:
            self.batching.release(sequence)
        self.sequences.pop(sequence.id, None)
        self.finished[sequence.id] = sequence
        if not self.in_flight.leave(sequence):
            self.release(sequence)
        for request, why in self.arrivals.ended(sequence):
            self.end_unseen(request, FinishReason.REFUSED, why)

    def end_early(self, sequence: Sequence, reason: FinishReason, why: str = "") -> None:
        """End a sequence that no completed plan has finished."""
        self.ended_between.append(sequence.id)
        if reason is FinishReason.REFUSED:
            self.refused[sequence.id] = why
            self.observer.refused(sequence.id, why, received=True)
        elif reason is FinishReason.ABORTED:
            self.observer.aborted(sequence.id, self.now)
        self._finish(sequence, reason)

    def end_unseen(self, request: Request, reason: FinishReason, why: str = "") -> None:
        """End a request before it has arrived: the stages never see it."""
        if request.after is not None:
            self.observer.requested(request)
        self.end_early(Sequence(request), reason, why)

    def release(self, sequence: Sequence) -> None:
        """Free the memory of a sequence that has ended."""
        if not self.stages_failed:
            self.memory.release(sequence, self.now)
        sequence.graph = None  # its results stay
