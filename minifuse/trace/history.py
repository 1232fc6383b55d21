"""Reads a run from its trace: iterations in time order, and each request's story."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.core.plan import TRANSFORMER
from minifuse.core.request import FinishReason, Phase
from minifuse.trace.checks import (
    ERRORS,
    Damaged,
    because,
    check_answer,
    check_header,
    check_known,
    check_reasons,
    check_request,
    check_span,
    check_step,
    check_text,
    check_time,
)
from minifuse.trace.log import Event, arrival_of
from minifuse.trace.why import Choice

WaitKind = Literal["waiting", "ready", "suspended"]
Reasons = tuple[tuple[str, str, str], ...]  # code, request, text


class Wait(NamedTuple):
    """A time in which a request waited for admission, the batch, or readmission."""

    kind: WaitKind
    start_s: float
    end_s: float


class Decision(NamedTuple):
    """A moment of choice: what was chosen, and why requests were left out."""

    number: int  # the number of the step; pauses have -1, -2, and so on
    at_s: float
    reasons: Reasons
    choice: Choice = Choice()
    joining: frozenset[str] = frozenset()  # requests admitted or computed


@dataclass(frozen=True, slots=True)
class Iteration:
    """A step of the trace; a step without work has only transfers."""

    step: int
    worker: int
    start_s: float
    end_s: float
    work: tuple[tuple[str, int, int, str], ...]  # request, start, stop, cell
    event: Event

    @property
    def decision(self) -> Decision:
        """Return the decision that led to this iteration."""
        joining = frozenset([*self.event["admitted"], *self.requests])
        choice = Choice(self.worker, self.event["evicted"], self.cells)
        return Decision(self.step, self.start_s, _reasons(self.event), choice, joining)

    @property
    def preprocesses(self) -> bool:
        """Return whether the iteration prepares requests for another worker, or for the batch."""
        return bool(self.event["phase"] == Phase.PREPROCESSING.value)

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def requests(self) -> list[str]:
        """Return the requests that the iteration computes, each once."""
        return list(dict.fromkeys([name for name, *_ in self.work]))

    @property
    def cells(self) -> dict[str, int]:
        """Count the tokens, or the nodes of each type, that the iteration computes."""
        found: dict[str, int] = {}
        for _, start, stop, cell in self.work:
            found[cell] = found.get(cell, 0) + stop - start
        return found

    def work_of(self, name: str) -> list[tuple[int, int, str]]:
        """Return the iteration's work for a request: start, stop, cell."""
        return [(start, stop, cell) for owner, start, stop, cell in self.work if owner == name]

    def tokens_of(self, name: str) -> int:
        """Count the tokens, or nodes, that the iteration computes for a request."""
        return sum([stop - start for owner, start, stop, _ in self.work if owner == name])


@dataclass(slots=True)
class Story:
    """One request, followed through the iterations; times are seconds on the run's clock."""

    id: str
    arrival_s: float
    prompt_tokens: int
    request: Event
    arrived: bool = True  # False: the request that this one follows has not ended
    iterations: list[int] = field(default_factory=list)  # indices of the iterations with its work
    waits: list[Wait] = field(default_factory=list)
    tokens: list[tuple[float, int]] = field(default_factory=list)  # each token's time, and the index of its iteration
    evictions: list[tuple[int, int | None]] = field(default_factory=list)  # iterations of each eviction and readmission
    admitted_s: float | None = None  # for the first time
    ended_s: float | None = None
    reason: str = FinishReason.INTERRUPTED.value  # until an event says otherwise

    @property
    def finished(self) -> bool:
        return self.reason in (FinishReason.STOP.value, FinishReason.LENGTH.value)

    def prefills(self, start: int, stop: int, cell: str) -> bool:
        """Return whether computing tokens [start, stop) is prefill.

        Computing several tokens, or one token of the prompt, is prefill.
        """
        return cell == TRANSFORMER and (stop - start > 1 or start < self.prompt_tokens)

    def phase_in(self, one: Iteration) -> str:
        """Return an iteration's phase for this request: pre-processing, prompt, decoding, or a cell's name."""
        own = one.work_of(self.id)
        if one.preprocesses:
            return "pre-processing"
        if own[-1][2] != TRANSFORMER:
            return own[-1][2]
        return "prompt" if any(self.prefills(*work) for work in own) else "decoding"


@dataclass(slots=True)
class History:
    """A run, or the part of it that its trace has."""

    header: Event
    stories: dict[str, Story] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)  # request, why
    iterations: list[Iteration] = field(default_factory=list)  # in order of start
    pauses: list[Decision] = field(default_factory=list)  # when nothing ran though there were requests
    pauses_end_s: list[float] = field(default_factory=list)
    last_s: float = 0.0
    of_cells: bool = False

    @classmethod
    def of(cls, events: Iterable[Event], name: str = "the trace") -> History:
        """Read a run from its events; events of an unknown kind are skipped.

        Args:
            name: names the trace in messages.

        Raises:
            UsageError: an event lacks a key, or has a value of another type.
        """
        run = cls(header={})
        steps: dict[int, Iteration] = {}
        for number, event in enumerate(events, start=1):
            try:
                run._read(event, steps)
            except ERRORS as error:
                raise UsageError(
                    f"Line {number} of {name} cannot be understood: {because(error)}: write it again with --trace."
                ) from None
        run._tell(sorted(steps.values(), key=lambda one: (one.start_s, one.step)))
        return run

    @property
    def decisions(self) -> Iterator[Decision]:
        """Yield the decisions of iterations and pauses in time order."""
        asked = [one.decision for one in self.iterations if one.work]
        yield from sorted([*asked, *self.pauses], key=lambda decision: decision.at_s)

    @property
    def has_tokens(self) -> bool:
        """Return whether answers are tokens; graphs of cells may have only results."""
        return not self.of_cells or any(story.tokens for story in self.stories.values())

    def end_of(self, story: Story) -> float:
        """Return when a request ended or, if it is unfinished, when the run ended."""
        return self.last_s if story.ended_s is None else story.ended_s

    @property
    def by_arrival(self) -> list[Story]:
        """Return the requests in order of arrival; equal arrivals in order of submission."""
        return sorted(self.stories.values(), key=lambda story: story.arrival_s)

    @property
    def workers(self) -> list[int]:
        """Return the workers that computed something."""
        return sorted({one.worker for one in self.iterations if one.work})

    def _read(self, event: Event, steps: dict[int, Iteration]) -> None:
        """Read an event; `_tell` follows the requests later, when all steps are known."""
        if event["event"] in ("step", "wait", "aborted", "end"):
            self.last_s = max(self.last_s, check_time(event["wall"]["end_s"]))
        match event["event"]:
            case "run":
                check_header(event)
                self.header = event
            case "request":
                check_request(event)
                arrival_s, arrived = arrival_of(event)
                story = Story(event["id"], arrival_s, event["prompt_tokens"], event, arrived)
                self.stories.setdefault(event["id"], story)
            case "answer":
                check_answer(event, self.stories)
            case "refused":
                self.refused.append((check_text(event["id"], "an id"), check_text(event["why"], "why")))
                if event.get("received"):  # otherwise another request, which is served, may have this id
                    check_known([event["id"]], self.stories, "refused")
                    del self.stories[event["id"]]
            case "aborted":
                check_known([event["id"]], self.stories, "aborted")
                story = self.stories[event["id"]]
                story.reason, story.ended_s = FinishReason.ABORTED.value, float(event["wall"]["end_s"])
            case "step":
                check_step(event, self.stories)
                number = event["step"]
                if number in steps:
                    raise Damaged(f"step {number} has been told before")
                work = tuple((one[0], one[1], one[2], one[3] if len(one) > 3 else TRANSFORMER) for one in event["work"])
                wall = event["wall"]
                steps[number] = Iteration(number, event["worker"], wall["start_s"], wall["end_s"], work, event)
            case "wait":
                check_reasons(event)
                start_s, end_s = check_span(event["wall"])
                self.pauses.append(Decision(-1 - len(self.pauses), start_s, _reasons(event)))
                self.pauses_end_s.append(end_s)
            case "end":
                for name in event["unfinished"]:
                    check_text(name, "an id")

    def _tell(self, steps: list[Iteration]) -> None:
        """Follow every request through the iterations."""
        self.iterations = steps
        ready: dict[str, float] = {}  # request -> when its prompt had been computed, outside of the batch
        suspended: dict[str, float] = {}  # request -> when it was evicted
        for index, one in enumerate(steps):
            event = one.event
            for name in event["evicted"]:
                story = self.stories[name]
                suspended[name] = one.start_s
                story.evictions.append((index, None))
                if name in ready:
                    _add(story, "ready", ready.pop(name), one.start_s)
            for name in event["admitted"]:
                story = self.stories[name]
                if story.admitted_s is None:
                    story.admitted_s = one.start_s
                    _add(story, "waiting", story.arrival_s, one.start_s)
                if name in suspended:
                    _add(story, "suspended", suspended.pop(name), one.start_s)
                    story.evictions[-1] = (story.evictions[-1][0], index)
            for name in one.requests:
                story = self.stories[name]
                story.iterations.append(index)
                if one.preprocesses:
                    ready[name] = one.end_s
                elif name in ready:
                    _add(story, "ready", ready.pop(name), one.start_s)
            for name, tokens in event["tokens"].items():
                self.stories[name].tokens += [(one.end_s, index)] * len(tokens)
            for name, reason in event["finished"].items():
                self.stories[name].reason, self.stories[name].ended_s = reason, one.end_s
        self.of_cells = any(cell != TRANSFORMER for one in steps for *_, cell in one.work)
        for name, story in self.stories.items():
            story.tokens.sort(key=lambda token: token[0])
            until = self.end_of(story)
            if story.admitted_s is None and story.arrived:
                _add(story, "waiting", story.arrival_s, until)
            if name in suspended:
                _add(story, "suspended", suspended[name], until)
            elif name in ready and story.ended_s is None:
                _add(story, "ready", ready[name], until)


def _add(story: Story, kind: WaitKind, start_s: float, end_s: float) -> None:
    if end_s > start_s:
        story.waits.append(Wait(kind, start_s, end_s))


def _reasons(event: Event) -> Reasons:
    given: list[Any] = event.get("reasons", [])
    return tuple((code, name, text) for code, name, text in given)
