"""Chats that are refused before they reach the engine."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from server.conftest import tiny

from minifuse.serve.history import ModelIdentity, Turn
from minifuse.server.completions import Completions
from minifuse.server.dialogues import Dialogue, Dialogues
from minifuse.server.failures import Refused
from minifuse.server.forms import ChatForm
from minifuse.server.gateway import Gateway
from minifuse.server.settings import ServerSettings
from minifuse.server.template import Said, Template

FIRST = (Said("user", "remember ann 17"),)
SAID = (*FIRST, Said("assistant", "ok"))


class Counted(Dialogues):
    """Keeps the names of the conversations that have begun and were not released."""

    def __init__(self) -> None:
        super().__init__(ModelIdentity("tiny", "d1"))
        self.begun: set[str] = set()

    def begin(self, tenant: str) -> Dialogue:
        dialogue = super().begin(tenant)
        self.begun.add(dialogue.name)
        return dialogue

    def put_back(self, dialogue: Dialogue) -> None:
        super().put_back(dialogue)
        self.begun.discard(dialogue.name)


def test_a_refused_chat_that_cannot_be_continued_releases_its_old_and_new_conversation() -> None:
    """The template does not append turns, and the whole chat is longer than the context."""
    source, _ = tiny()
    template = Mock(spec=Template)
    template.rest.return_value = None
    template.whole.return_value = (1,) * (source.config.max_context + 1)
    dialogues = Counted()
    completions = Completions(Mock(spec=Gateway), source, source.tokenizer(), template, dialogues, ServerSettings())
    known, _ = dialogues.take("", FIRST)
    dialogues.answered(known, "", SAID, Turn((1, 2), (3, 0), "stop"))
    dialogues.begun.clear()
    messages = [{"role": one.role, "content": one.text} for one in (*SAID, Said("user", "recall ann"))]
    with pytest.raises(Refused, match="context"):
        completions.of_chat(ChatForm(messages=messages), "")
    assert not dialogues.begun
    assert dialogues.take("", (*SAID, Said("user", "recall ann")))[0].name == known.name
