"""Recognises chats by their messages, so that each continues one conversation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from uuid import uuid4

from minifuse.core.errors import MinifuseError
from minifuse.core.request import Request
from minifuse.serve.history import History, ModelIdentity, Turn
from minifuse.server.template import Said

MOST_TOKENS = 4_000_000  # of all chats that are remembered without a state file


def digest_of(tenant: str, said: Sequence[Said]) -> str:
    """Return a hash that is equal only for equal tenants and messages."""
    digest = blake2b(tenant.encode(), digest_size=16)
    for role, text in said:
        for part in (role.encode(), text.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@dataclass(slots=True)
class Dialogue:
    """The answered part of a conversation.

    `stored` is the conversation's name in the state file, `name` its name in the engine. It gets a new `name` when the
    engine may have KV of more than `tokens`, as after an aborted answer.
    """

    name: str
    stored: str
    tokens: tuple[int, ...] = ()
    digest: str | None = None  # of its messages; None: no messages yet


class Dialogues:
    """Finds answered chats by their messages.

    While a request continues a chat, a second request with the same messages begins a new conversation. Without a state
    file, the least recently used chats are forgotten once all chats together have more than `most_tokens` tokens.

    Args:
        model: the model that answers the chats.
        history: the state file that every answered turn is stored in; None: chats are kept in memory.
    """

    def __init__(self, model: ModelIdentity, history: History | None = None, most_tokens: int = MOST_TOKENS) -> None:
        self._model, self._history, self._most = model, history, most_tokens
        self._known: OrderedDict[str, Dialogue] = OrderedDict()  # by the digest of what was said
        self._num_tokens = 0
        self._taken: dict[str, Dialogue] = {}  # by name
        self._lock = threading.Lock()
        self.failure: str | None = None  # the error of the state file, until a turn is stored again

    def take(self, tenant: str, chat: Sequence[Said]) -> tuple[Dialogue, int]:
        """Return the conversation that a chat continues, and how many messages it already has.

        Returns:
            A new conversation and 0 if no known conversation ends with the chat's last answer.
        """
        count = max((i + 1 for i, one in enumerate(chat) if one.role == "assistant"), default=0)
        found = self._found(digest_of(tenant, chat[:count])) if count else None
        return (self.begin(tenant), 0) if found is None else (found, count)

    def begin(self, tenant: str) -> Dialogue:
        """Begin a new conversation of a tenant."""
        name = uuid4().hex
        dialogue = Dialogue(name, f"{tenant}/{name}" if tenant else name)
        with self._lock:
            self._taken[name] = dialogue
        return dialogue

    def _found(self, digest: str) -> Dialogue | None:
        """Take the conversation with this digest, from memory or the state file."""
        with self._lock:
            if (known := self._known.pop(digest, None)) is not None:
                self._num_tokens -= len(known.tokens)
                self._taken[known.name] = known
                return known
        found = self._read(digest)
        with self._lock:
            if found is None or any(one.stored == found.stored for one in self._taken.values()):
                return None
            self._taken[found.name] = found
            return found

    def _read(self, digest: str) -> Dialogue | None:
        if self._history is None:
            return None
        try:
            stored = self._history.said(digest)
            if stored is None or self._history.model(stored) != self._model:
                return None
            return Dialogue(uuid4().hex, stored, self._history.text(stored), digest)
        except MinifuseError as error:  # the chat is computed whole
            self.failure = str(error)
            return None

    def text(self, request: Request) -> tuple[int, ...]:
        """Return the tokens of the conversation before a request's prompt (`Turns.stored`)."""
        taken = self._taken.get(request.conversation or "")
        return () if taken is None else taken.tokens

    def answered(self, dialogue: Dialogue, tenant: str, said: Sequence[Said], turn: Turn) -> None:
        """Remember a completely answered turn; store it if there is a state file.

        Raises:
            MachineError: the turn could not be stored. The chat will not be recognised later.
        """
        digest = digest_of(tenant, said)
        try:
            if self._history is not None:
                self._history.add(dialogue.stored, self._model, [turn], digest)
                self.failure = None
        finally:
            with self._lock:
                self._taken.pop(dialogue.name, None)
        tokens = dialogue.tokens + turn.prompt + turn.answer
        with self._lock:
            self._remember(digest, Dialogue(dialogue.name, dialogue.stored, tokens, digest))

    def put_back(self, dialogue: Dialogue) -> None:
        """Release a conversation whose request never reached the engine; other requests may continue it."""
        with self._lock:
            self._taken.pop(dialogue.name, None)
            if dialogue.digest is not None:
                self._remember(dialogue.digest, dialogue)

    def given_up(self, dialogue: Dialogue) -> None:
        """Forget a conversation, because the engine may hold KV of an incomplete answer."""
        with self._lock:
            self._taken.pop(dialogue.name, None)

    def _remember(self, digest: str, dialogue: Dialogue) -> None:
        """Remember a conversation under its digest; forget the least recently used ones."""
        if (same := self._known.pop(digest, None)) is not None:
            self._num_tokens -= len(same.tokens)
        self._known[digest] = dialogue
        self._num_tokens += len(dialogue.tokens)
        while self._num_tokens > self._most and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._num_tokens -= len(oldest.tokens)
