"""The life of requests: submitted, received, started, finished."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from minifuse.core.in_flight import InFlight
from minifuse.core.plan import Placement, Plan, Proposal, Reason
from minifuse.core.report import Completion, KVUsage, StepReport
from minifuse.core.request import FinishReason, Phase, Request, Sequence
from minifuse.core.stages import Arrivals, Batching, Memory, Reader


@dataclass(eq=False, repr=False)
class Requests:
    """The requests of an engine, from arrival to end. Only this class changes a `Sequence`."""

    batching: Batching
    memory: Memory
    reader: Reader
    arrivals: Arrivals

    def __post_init__(self) -> None:
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}  # in the order in which they ended
        self.in_flight = InFlight(self.batching.workers + 1, self.batching.depth)  # one more, for plans without work
        self.now = 0.0  # the time of the last event, in seconds since the run began

    @property
    def unfinished(self) -> bool:
        return bool(self.arrivals or self.sequences or self.in_flight)

    def submit(self, prompts: tuple[Request, ...], now: float) -> None:
        """Check and queue one request's prompts. Raise `RequestRefused` unless all can be served."""
        fitted = [self.reader.fit(request) for request in prompts]
        for request in fitted:
            self.reader.check(request)
        self.memory.check(*fitted)
        self.arrivals.add(prompts, now)  # unfitted: they are fitted again on arrival, after any earlier turns

    def receive(self) -> None:
        """Begin to serve the requests whose arrival time has come."""
        for request, num_history in self.arrivals.due(self.now):
            self.begin(self.reader.fit(request), num_history)

    def begin(self, request: Request, num_history: int) -> None:
        """Make a sequence of a request, and hand it to the stages."""
        sequence = self.reader.begin(request)
        sequence.num_history = num_history
        self.sequences[request.id] = sequence
        self.memory.receive(sequence)
        self.batching.receive(sequence)

    def reach(self, event_s: float) -> None:
        """Advance time to an event; receive earlier arrivals, each at its own time.

        Requests that arrived while a plan ran are received before its end, as in virtual time.
        """
        while (arrives_s := self.arrivals.next_s) is not None and arrives_s < event_s:
            self.now = max(self.now, arrives_s)
            self.receive()
        self.now = max(self.now, event_s)

    def start(self, plan: Plan) -> dict[str, Sequence]:
        """Record that a plan is about to be submitted. Returns the sequences in its work."""
        for name in plan.evicted:
            self.sequences[name].phase = Phase.SUSPENDED
        for name in plan.admitted:
            self.sequences[name].phase = plan.phase
        sequences, phase = self.sequences, plan.phase
        working = {work.sequence: sequences[work.sequence] for work in plan.work}
        for sequence in working.values():
            sequence.phase = phase
        self.in_flight.launch(plan, working.keys(), self.now)
        return working

    def take(self, completion: Completion, usage: KVUsage) -> StepReport:
        """Record what a completed plan produced, and finish the sequences that it ends.

        Tokens for sequences that ended while the plan ran, or beyond the end of an answer, are discarded.
        """
        plan, ran, ended_s = completion
        leaving = self.in_flight.leaving
        if plan.phase is Phase.PREPROCESSING:
            for name in {*plan.admitted, *plan.sequences} - leaving.keys():
                self.sequences[name].phase = Phase.READY
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        discarded = sum(work.num_tokens for work in plan.work if work.sequence in leaving) if leaving else 0
        sequences, new_tokens, results = self.sequences, ran.tokens, ran.results
        for name, num_pieces in Counter([work.sequence for work in plan.work]).items():
            if name in leaving:
                continue
            sequence, new = sequences[name], new_tokens.get(name, ())
            if taken := sequence.take(new, num_pieces, results.get(name)):
                tokens[name] = taken
            discarded += len(new) - len(taken)
            if reason := sequence.why_finished():
                finished[name] = reason
        finished |= {name: FinishReason.NAN for name in ran.not_finite if name not in leaving}
        started_s, freed = self.in_flight.land(plan, ended_s)
        for sequence in freed:
            self.release(sequence)
        for name, reason in finished.items():
            self.finish(self.sequences[name], reason)
        return StepReport(plan, started_s, ended_s, tokens, finished, usage, ran.measured, ran.logprobs, discarded)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence. Its memory is freed once no plan in flight uses it."""
        sequence.phase = Phase.FINISHED
        sequence.finish_reason, sequence.ended_s = reason, self.now
        self.batching.release(sequence)
        self.sequences.pop(sequence.id, None)
        self.finished[sequence.id] = sequence
        if self.in_flight.using(sequence.id):
            self.in_flight.leaving[sequence.id] = sequence
        else:
            self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the memory of a sequence that has ended."""
        self.memory.release(sequence, self.now)
        sequence.graph = None  # its results stay


class Observer:
    """Follows the loop, as traces and checks do. Its errors end the run."""

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:  # None: nothing runs
        return proposal  # perhaps with more reasons

    def placed(self, proposal: Proposal, placement: Placement, requests: Requests) -> None: ...
    def planned(self, plan: Plan, placement: Placement) -> None: ...
    def completed(self, report: StepReport, requests: Requests) -> None: ...
    def waited(self, reasons: Iterable[Reason], end_s: float, in_vain: bool, requests: Requests) -> None:
        """Record a wait that began at `requests.now`; `in_vain`: only a policy's `wake_at` ended it."""
