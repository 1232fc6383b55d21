"""Serves a list of requests to the end, with one answer for each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from minifuse.contracts.checks import checks_of
from minifuse.contracts.fault import blaming
from minifuse.core.errors import MachineError, RequestRefused, UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.submitted import by_request, check_are_requests
from minifuse.core.turns import ANSWERED, WITHOUT_ANSWER
from minifuse.serve.engine import ServingEngine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.requests import ServedRequests
from minifuse.trace.ended import Metrics
from minifuse.trace.log import Trace
from minifuse.trace.metrics import compute_metrics, flat_metrics, read_events

if TYPE_CHECKING:
    from minifuse.serve.conversations import Conversations


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request ended. Times are in seconds from the run's start; None if never."""

    request: Request
    token_ids: tuple[int, ...]  # the new tokens only
    finish_reason: FinishReason
    first_token_s: float | None = None
    finish_s: float | None = None
    why_refused: str | None = None
    results: Mapping[int, Any] = field(default_factory=dict)  # for a cell graph: the outputs of result nodes, by node
    num_history: int = 0  # how many leading tokens of the prompt are the text of earlier turns

    @classmethod
    def of(cls, sequence: Sequence, requests: ServedRequests) -> Answer:
        """Make the answer of a sequence that has ended."""
        reason = sequence.finish_reason
        assert reason is not None
        finish_s = None if reason in WITHOUT_ANSWER else sequence.ended_s
        return cls(
            sequence.request,
            tuple(sequence.answer),
            reason,
            requests.first_token_s.get(sequence.id),
            finish_s,
            requests.refused.get(sequence.id),
            sequence.results,
            sequence.num_history,
        )

    @property
    def complete(self) -> bool:
        """Return whether the request was answered to its end."""
        return self.finish_reason in ANSWERED

    @property
    def new_prompt(self) -> tuple[int, ...]:
        """Return the prompt without the history."""
        return self.request.prompt[self.num_history :]

    def row(self) -> dict[str, Any]:
        """Return a flat dict of plain values, without tokens and results.

        Values whose names end in `_s` are seconds. `arrival_s`, `first_token_s` and `finish_s` are counted from the
        start of the run; None if it never happened. The other times are defined in `minifuse.trace.metrics`, and only
        complete answers have them.
        """
        request, first_s, finish_s = self.request, self.first_token_s, self.finish_s
        num_output = len(self.token_ids)
        row: dict[str, Any] = {
            "id": request.id,
            "group": request.group,
            "conversation": request.conversation,
            "user": request.user,
            "priority": request.priority,
            "finish_reason": self.finish_reason.value,
            "prompt_tokens": len(self.new_prompt),
            "history_tokens": self.num_history,
            "output_tokens": num_output,
            "arrival_s": request.arrival_s,
            "first_token_s": first_s,
            "finish_s": finish_s,
            **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s")),
        }
        if self.complete and finish_s is not None:
            row["e2e_s"] = finish_s - request.arrival_s
            if first_s is not None:
                row["ttft_s"] = first_s - request.arrival_s
                row["normalized_latency_s"] = row["e2e_s"] / num_output
                row["tpot_s"] = (finish_s - first_s) / (num_output - 1) if num_output > 1 else None
        return row


@dataclass(frozen=True, slots=True)
class Served:
    """A whole run: the trace, and an answer for every request.

    Answers are in the order of the given requests. After them come the answers of requests submitted during the run, in
    the order in which these ended.

    `interrupted`: whether Ctrl-C came, even if every request already had its answer.
    """

    answers: tuple[Answer, ...]
    trace: Trace
    interrupted: bool = False

    def whole(self) -> Served:
        """Return this run unless it is incomplete.

        Raises:
            KeyboardInterrupt: the run was interrupted.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self

    def rows(self, by: str | None = None) -> list[dict[str, Any]]:
        """Return one flat dict per request, see `Answer.row`.

        Args:
            by: "user", "priority" or "conversation": return one flat dict per group, see `RunningMetrics.groups`.

        Raises:
            UsageError: `by` is something else, or the trace has kept no events.
        """
        if by is None:
            return [answer.row() for answer in self.answers]
        groups = read_events(self.trace.kept(), by=by).groups()
        return [{by: name, **flat_metrics(metrics)} for name, metrics in groups.items()]

    def to_frame(self, by: str | None = None) -> Any:
        """Return `rows` as a pandas DataFrame.

        Raises:
            MachineError: pandas is not installed.
            UsageError: see `rows`.
        """
        try:
            import pandas
        except ImportError:
            raise MachineError(
                "to_frame() makes a pandas DataFrame, and pandas is not installed: pip install pandas, or use rows()."
            ) from None
        return pandas.DataFrame(self.rows(by))

    def metrics(self, goodput: Mapping[str, float] | None = None) -> Metrics:
        """Return the metrics of the run (`minifuse.trace.metrics`); `goodput` is as from `parse_goodput`.

        Raises:
            UsageError: the trace has not kept its events.
        """
        return compute_metrics(self.trace.kept(), goodput)


def serve(
    engine: ServingEngine,
    requests: Iterable[Request],
    on_answer: Callable[[Answer], None] = lambda answer: None,
    on_step: Callable[[StepReport], None] = lambda report: None,
    on_failure: Callable[[BaseException], None] | None = None,
    *,
    conversations: Conversations | None = None,
) -> Served:
    """Serve all requests to the end. At Ctrl-C, unfinished requests end as interrupted.

    Neighbours of one group are the prompts of one request. If one request is refused, the others go on. The callbacks
    may submit further requests to the engine, and abort requests. Each of these has an answer, too.

    Args:
        on_answer: is called as each request ends, first for requests refused at submission. Requests that are submitted
            while a run is being given up are answered without a call.
        on_step: is called after every iteration.
        on_failure: is called with an error of a stage or of the model, once unfinished requests are answered as
            interrupted. Without `on_failure`, the error is raised at that point.
        conversations: the conversations of a state file. Requests continue them, and each complete turn is stored
            durably before `on_answer` is called; `conversations.failures` says what could not be stored.

    Raises:
        UsageError: something given is no request, the engine has already served or is running, or the conversations
            have another model.
    """
    if not isinstance(requests, Iterable):
        raise UsageError(f"serve was given {requests!r:.60}: give a list of requests.")
    requests = list(requests)
    check_are_requests(requests)
    if conversations is not None:
        conversations.check(engine.trace.header.get("model"))
    engine.serve_once()
    if conversations is not None:
        engine.arrivals.stored = conversations.text
    answers: dict[int, Answer] = {}
    failure: BaseException | None = None
    interrupted = False
    index: dict[str, int] = {}  # id -> place among the given requests

    def unserved(number: int, request: Request, why_refused: str | None = None) -> None:
        reason = FinishReason.INTERRUPTED if why_refused is None else FinishReason.REFUSED
        answers[number] = Answer(request, (), reason, why_refused=why_refused)
        on_answer(answers[number])

    def answer_ended(tell: Callable[[Answer], None] = on_answer) -> None:
        """Answer the requests that have ended and have no answer yet."""
        while engine.requests.ended:
            sequence = engine.requests.ended.popleft()
            answer = Answer.of(sequence, engine.requests)
            answers[index.get(sequence.id, len(requests) + len(answers))] = answer  # other requests come last
            if conversations is not None:
                conversations.keep(sequence)
            tell(answer)

    def given_up(stages_failed: bool = False) -> None:
        """End the run early, and answer every request that has no answer yet."""
        engine.interrupt(stages_failed=stages_failed)
        answer_ended()
        for i, request in enumerate(requests):  # requests that were never submitted
            if i not in answers:
                unserved(i, request)
        withdrawn = engine.close()
        # Requests that callbacks have just submitted and aborted are answered without calls: those might never end.
        answer_ended(tell=lambda answer: None)
        for request in withdrawn:
            answers[len(requests) + len(answers)] = Answer(request, (), FinishReason.INTERRUPTED)

    # Ctrl-C may interrupt computing and waiting, but leaves no records half written.
    with uninterrupted(forget=True) as hold, few_collections():
        try:
            numbers = count()
            for prompts in by_request(requests):
                numbered = {next(numbers): prompt for prompt in prompts}
                try:
                    with blaming(engine.batching, engine.memory):
                        engine.submit(*prompts)
                    index.update((request.id, i) for i, request in numbered.items())
                except RequestRefused as refusal:
                    for i, request in numbered.items():
                        unserved(i, request, str(refusal))
            answer_ended()  # requests that a callback for a refused request has aborted
            turns = engine.turns(hold.released)
            while True:
                try:
                    reports = next(turns, None)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # an error of a stage or of the model; callbacks are called elsewhere
                    failure = fault_of(error, engine)
                    given_up(stages_failed=True)
                    break
                if reports is None:
                    break
                answer_ended()
                for report in reports:
                    on_step(report)
                answer_ended()
        except KeyboardInterrupt:
            interrupted = True
            given_up()
        finally:
            engine.close()
    if failure is not None:
        if on_failure is None:
            raise failure
        on_failure(failure)
    in_order = tuple(answer for _, answer in sorted(answers.items()))
    return Served(in_order, engine.trace, interrupted or hold.pending)


@contextmanager
def few_collections() -> Iterator[None]:
    """Keep the garbage collector from scanning older objects and the reports of a run.

    It would take as long as scheduling to scan older objects, and 7% of a run in virtual time to scan reports.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100 * thresholds[0], *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def fault_of(error: BaseException, engine: ServingEngine) -> BaseException:
    """Return the fault of a user's stage that caused an error, or the error itself."""
    for checks in checks_of(engine.batching, engine.memory, engine.attention):
        if fault := checks.fault_of(error, engine.requests):
            fault.__cause__ = error
            return fault
    return error
