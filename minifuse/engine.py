"""The only loop in the project. What a technique is lies in its stages; here they take turns."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator

from minifuse.cell_graph import CellGraph
from minifuse.clock import Clock
from minifuse.errors import LawBroken, RequestRefused
from minifuse.plan import Completion, Plan, Proposal, Ran, Reason, StepReport
from minifuse.request import FinishReason, Limits, Phase, Request, Sequence
from minifuse.stages import Attention, Batching, Executor, Memory
from minifuse.trace import Trace

__all__ = ["Engine"]


class Engine:
    """Serves requests with one batching policy, the workers it asks for, one memory and one attention layout.

    `limits` says what the model can read, and `unfold` what a request to a model of cells unfolds into. Time is in
    seconds since the run began.
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
        unfold: Callable[[Request], CellGraph] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.batching = batching
        self.memory = memory
        self.attention = attention
        self.executor = executor
        self.clock = clock
        self.limits = limits
        self.unfold = unfold
        self.trace = trace or Trace()
        self.sequences: dict[str, Sequence] = {}  # received and not yet finished
        self.finished: dict[str, Sequence] = {}
        self.refused: dict[str, str] = {}  # of those that were received: why they cannot be served
        self.now = 0.0
        self._arrivals: list[tuple[float, int, Request]] = []  # a heap of what has not arrived yet
        self._submitted: set[str] = set()
        self._groups: set[str] = set()
        self._load = [0] * batching.workers  # plans in flight of each worker
        self._started: dict[int, float] = {}  # step -> when it was dispatched
        self._last_ended = [0.0] * batching.workers  # when each worker last completed a plan
        self._in_flight: dict[str, list[int]] = {}  # sequence -> the worker of each of its plans in flight
        self.leaving: dict[str, Sequence] = {}  # finished, while plans in flight still touch their memory
        self._waiting: list[Proposal] = []  # of workers that could take more: proposals without work
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
        return bool(self._arrivals or self.sequences or self.leaving)

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
            try:
                if self.unfold is not None:
                    sequence.graph = self.unfold(request)
                self.batching.receive(sequence)
            except RequestRefused as refusal:
                self._refuse(sequence, str(refusal))

    def _refuse(self, sequence: Sequence, why: str) -> None:
        """What it unfolds into cannot be computed: that shows only when it is received."""
        self.refused[sequence.id] = why
        self.trace.refused(sequence.id, why, received=True)
        self._finish(sequence, FinishReason.REFUSED)

    def dispatch(self) -> None:
        """For each worker that can take more: propose, place, lay out, submit."""
        self._waiting = []
        for worker in range(len(self._load)):
            while self._load[worker] < self.batching.depth:
                proposal = self.batching.propose(worker, self.now, self.memory)
                if not proposal.work:
                    self._waiting.append(proposal)
                    break
                self._submit(worker, proposal)

    def _submit(self, worker: int, proposal: Proposal) -> None:
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
        self._load[worker] += 1
        concerned = {name: self.sequences[name] for name in plan.sequences}
        for name in concerned:
            self._in_flight.setdefault(name, []).append(worker)
        self._started[plan.step] = self.now
        self.executor.submit(plan, concerned, self.now)

    def _check_free(self, worker: int, proposal: Proposal) -> None:
        """Nobody is given out twice, nor evicted at work.

        A worker runs its plans in order, so where it may have several, one may go on where the last will have ended. Of
        a graph, workers may have a part each.
        """
        for name in () if self.unfold else dict.fromkeys(work.sequence for work in proposal.work):
            given = self._in_flight.get(name, ())
            in_order = self.batching.depth > 1 and all(other == worker for other in given)
            if given and not in_order:
                raise LawBroken("conservation", f"worker {worker} was given {name}, whose last work is not done")
        for sequence in proposal.evict:
            if sequence.id in self._in_flight:
                raise LawBroken("conservation", f"{sequence.id} was to be evicted, and its last work is not done")
        if gone := {sequence.id for sequence in proposal.evict}.intersection(work.sequence for work in proposal.work):
            raise LawBroken("conservation", f"worker {worker} was to evict {min(gone)} and to work on it")

    def _enter(self, plan: Plan, phase: Phase) -> None:
        """Everyone whom a plan concerns enters a phase of life."""
        for name in plan.admitted:
            self.sequences[name].phase = phase
        for name in plan.sequences:
            self.sequences[name].phase = phase

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
        plan, ran, ended_s = completion
        tokens = ran.tokens
        if self.leaving:  # what came of work for those who have ended meanwhile is thrown away
            tokens = {name: token for name, token in tokens.items() if name not in self.leaving}
        discarded = sum(work.num_tokens for work in plan.work if work.sequence in self.leaving)
        # KV counts with what this plan has written; states, with what it has read and nobody needs any more.
        while_running = None if self.unfold is None else self.memory.usage()
        self.memory.commit(plan, tokens)
        self.batching.commit(plan)
        if plan.phase is Phase.PREPROCESSING:
            self._enter(plan, Phase.READY)
        finished: dict[str, FinishReason] = {}
        for name, token in tokens.items():
            sequence = self.sequences[name]
            sequence.tokens.append(token)
            reason = sequence.why_finished()
            if reason is not None:
                finished[name] = reason
        answers = self._commit_nodes(plan, ran, finished) if self.unfold is not None else {}
        discarded += sum(len(ran.answers[name]) - len(answer) for name, answer in answers.items())
        usage = while_running or self.memory.usage()
        self._land(plan)
        for name, reason in finished.items():
            self._finish(self.sequences[name], reason)
        started_s = max(self._started.pop(plan.step), self._last_ended[plan.worker])
        self._last_ended[plan.worker] = ended_s
        report = StepReport(
            *(plan, started_s, ended_s, tokens, finished, usage, ran.moving_s, ran.messages),
            answers=answers,
            gathers=ran.gathers,
            discarded=discarded,
        )
        self.trace.step(report)
        return report

    def _commit_nodes(self, plan: Plan, ran: Ran, finished: dict[str, FinishReason]) -> dict[str, tuple[int, ...]]:
        """Count nodes of cell graphs as done and keep what they came to; whoever has no more of them has finished.

        Returns the answers that came whole, each cut where a stop token ends it.
        """
        answers = {}
        for name, answer in ran.answers.items():
            if name in self.leaving:
                continue
            sequence = self.sequences[name]
            before = sequence.num_new
            for token in answer:
                sequence.tokens.append(token)
                if reason := sequence.why_finished():
                    finished[name] = reason
                    break
            answers[name] = tuple(sequence.answer[before:])
        for name, num_nodes in Counter(work.sequence for work in plan.work).items():
            if name in self.leaving:
                continue
            sequence = self.sequences[name]
            assert sequence.graph is not None  # whoever could not be unfolded was refused
            sequence.num_nodes_done += num_nodes
            sequence.results.update(ran.results.get(name, {}))
            if sequence.num_nodes_done == len(sequence.graph):
                finished.setdefault(name, FinishReason.STOP)
        return answers

    def _land(self, plan: Plan) -> None:
        """A plan is no longer in flight: memory that only it still touched is free."""
        self._load[plan.worker] -= 1
        for name in plan.sequences:
            workers = self._in_flight[name]
            workers.remove(plan.worker)
            if not workers:
                del self._in_flight[name]
                if name in self.leaving:
                    self._let_go(self.leaving.pop(name))

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """It leaves at once. Its memory is free when no plan in flight touches it any more."""
        sequence.phase = Phase.FINISHED
        sequence.finish_reason = reason
        self.batching.release(sequence)
        self.finished[sequence.id] = self.sequences.pop(sequence.id)
        if sequence.id in self._in_flight:
            self.leaving[sequence.id] = sequence
        else:
            self._let_go(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        self.memory.release(sequence)
        sequence.graph = None  # its results stay

    def interrupt(self) -> list[str]:
        """Give up everything unfinished, keeping what each has said so far. Returns their ids."""
        self.executor.close()
        self._in_flight.clear()  # nothing runs any more
        for sequence in self.leaving.values():
            self.memory.release(sequence)
        self.leaving.clear()
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
