"""The engine's loop in its own thread, for requests that come at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minifuse.contracts.fault import blaming
from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.report import StepReport, TokenLogprobs
from minifuse.core.request import Request
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import Answer, fault_of


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one request: tokens found in memory, new tokens, or the request's end."""

    request: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, if the request asks for them
    reused: int | None = None  # tokens whose KV was found on device or host; told once, at admission
    answer: Answer | None = None  # set when the request has ended


Deliver = Callable[[list[Piece]], None]


class EngineLoop:
    """Runs an engine while it has requests, and sleeps until the next request.

    Args:
        deliver: called with the pieces of each turn that has any, in the loop's thread.
        on_failure: called once, in the loop's thread, with the error of a stage or of the model that ended the loop.
            By then the last piece of every unfinished request has been delivered.
    """

    def __init__(self, engine: ServingEngine, deliver: Deliver, on_failure: Callable[[BaseException], None]) -> None:
        self.engine = engine
        self._deliver, self._on_failure = deliver, on_failure
        self._asked = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, *prompts: Request) -> None:
        """Submit a request, from any thread; forget it if it is refused."""
        try:
            with blaming(self.engine.batching, self.engine.memory):
                self.engine.submit(*prompts)
        except RequestRefused:
            for prompt in prompts:
                self.engine.forget(prompt.id)
            raise
        self._asked.set()

    def abort(self, names: Iterable[str]) -> None:
        """Abort requests, from any thread; ended requests are ignored."""
        for name in names:
            try:
                self.engine.abort(name)
            except UsageError:  # it has ended, and is forgotten
                continue
        self._asked.set()  # wake the loop: it delivers their ends

    def close(self) -> None:
        """Abort unfinished requests, deliver their ends, and stop the thread."""
        self._closing = True
        for name in list(self.engine.sequences):
            self.abort([name])
        self._asked.set()
        self._thread.join()
        self.engine.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._asked.wait()
                self._asked.clear()
                for reports in self.engine.turns():
                    self._tell(reports)
                self._tell([])
        except BaseException as error:
            failure = fault_of(error, self.engine)
            self.engine.interrupt(stages_failed=True)
            self._tell([])
            self._on_failure(failure)

    def _tell(self, reports: list[StepReport]) -> None:
        """Deliver the pieces of these iterations, and the end of each newly ended request."""
        pieces: list[Piece] = []
        for report in reports:
            for name, *found in report.plan.reused:
                pieces.append(Piece(name, reused=sum(found)))
            for name, tokens in report.tokens.items():
                pieces.append(Piece(name, tokens, report.logprobs.get(name, ())))
        requests = self.engine.requests
        while requests.ended:
            sequence = requests.ended.popleft()
            pieces.append(Piece(sequence.id, answer=Answer.of(sequence, requests)))
            self.engine.forget(sequence.id)
        if pieces:
            self._deliver(pieces)
