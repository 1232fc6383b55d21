"""Lets a run continue the conversations of a state file, and store turns there."""

from __future__ import annotations

from pathlib import Path

from minifuse.core.errors import MachineError, RequestRefused, UsageError
from minifuse.core.request import Request, Sequence
from minifuse.core.turns import ANSWERED, WITHOUT_ANSWER
from minifuse.model.source import Source
from minifuse.serve.history import History, ModelIdentity, Turn


class Conversations:
    """The conversations of a state file, for one run of an engine.

    The first request of a conversation in a run continues the text in the file (`text`). A turn is written durably
    before its answer is shown (`keep`).

    A turn is stored when its answer is complete. A turn that was refused, or cut off by Ctrl-C, is never stored: the
    next run continues the turn before it. A turn that was aborted, or ended at NaN logits, is stored together with the
    next complete turn of its conversation in this run. So is a turn that could not be stored while the disk was full.

    Args:
        path: the state file; it is made if it does not exist.
        source: the model; a conversation that was begun with another model is refused.

    Attributes:
        failures: conversation -> why its latest turn could not be stored.

    Raises:
        UsageError: the file cannot be used (see `minifuse.serve.history.History`), or the model is not a transformer.
    """

    def __init__(self, path: Path | str, source: Source) -> None:
        if source.kind != "transformer":
            raise UsageError(
                f"The state file {path} is for conversations in text, and {source.name} is made of cells: leave it "
                "out, or give a transformer."
            )
        self.model = ModelIdentity(source.name, source.digest())
        self.history = History(path)
        self.failures: dict[str, str] = {}
        self._texts: dict[str, tuple[int, ...]] = {}  # conversation -> its text in the file
        self._waiting: dict[str, Sequence] = {}  # ended requests that are not stored yet

    def __enter__(self) -> Conversations:
        return self

    def __exit__(self, *error: object) -> None:
        self.history.close()

    def check(self, model: str | None) -> None:
        """Raise `UsageError` if the engine's model is not that of these conversations."""
        if model not in (None, self.model.name):
            raise UsageError(
                f"The conversations of {self.history.path} were opened for {self.model.name}, and the engine serves "
                f"{model}: give both the same source."
            )

    def text(self, request: Request) -> tuple[int, ...]:
        """Return the text that a request's conversation had before this run (`Turns.stored`).

        Raises:
            RequestRefused: the conversation was begun with another model, or cannot be read.
        """
        name = request.conversation
        if name is None:
            return ()
        if name not in self._texts:
            try:
                model = self.history.model(name)
                if model is not None and model.digest != self.model.digest:
                    raise RequestRefused(self._begun_with(request, model))
                self._texts[name] = self.history.text(name)
            except MachineError as error:
                why = str(error).replace("The", "the", 1)
                raise RequestRefused(f"Request {request.id!r} cannot continue {name!r}, for {why}") from None
        return self._texts[name]

    def _begun_with(self, request: Request, other: ModelIdentity) -> str:
        changed = ", whose config.json or vocabulary has changed since"
        why = changed if other.name == self.model.name else f", and not with {self.model.name}"
        return (
            f"Request {request.id!r} belongs to the conversation {request.conversation!r}, which {self.history.path} "
            f"has with the model {other.name}{why}: give that model, another conversation, or another state file."
        )

    def keep(self, sequence: Sequence) -> None:
        """Store a turn that has ended, durably, before its answer is shown.

        Call this for every request that ends. If the turn cannot be stored, `failures` says why; nothing is raised.
        """
        request = sequence.request
        name, reason = request.conversation, sequence.finish_reason
        if name is None or reason in WITHOUT_ANSWER:
            return
        self._waiting[request.id] = sequence
        if reason not in ANSWERED:
            return
        if min(sequence.tokens) < 0:
            self.failures[name] = (
                "Its tokens are placeholders, as virtual time has them of a model without weights: give it a model."
            )
            return
        chain: list[Sequence] = []
        after: str | None = request.id
        while after in self._waiting:
            chain.insert(0, self._waiting[after])
            after = chain[0].request.after
        try:
            self.history.add(name, self.model, [_turn(one) for one in chain])
        except MachineError as error:
            self.failures[name] = str(error)
            return
        self.failures.pop(name, None)
        self._texts.pop(name, None)  # so that the next engine reads the text with these turns
        for one in chain:
            del self._waiting[one.id]


def _turn(sequence: Sequence) -> Turn:
    assert sequence.finish_reason is not None
    prompt = sequence.request.prompt[sequence.num_history :]
    return Turn(prompt, tuple(sequence.answer), sequence.finish_reason.value)
