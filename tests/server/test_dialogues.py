"""Chats are recognised by what was said, within one tenant."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_disk import full_disk

from minifuse.core.errors import MachineError
from minifuse.core.request import Request
from minifuse.serve.history import History, ModelIdentity, Turn
from minifuse.server.dialogues import Dialogues
from minifuse.server.template import Said

MODEL = ModelIdentity("tiny", "d1")
ASKED = (Said("user", "a"),)
SAID = (*ASKED, Said("assistant", "b"))
NEXT = (*SAID, Said("user", "c"))
TURN = Turn((1, 2), (3, 0), "stop")


def answered(dialogues: Dialogues, tenant: str = "t") -> str:
    dialogue, count = dialogues.take(tenant, ASKED)
    assert count == 0
    dialogues.answered(dialogue, tenant, SAID, TURN)
    return dialogue.name


def test_a_chat_goes_on_where_it_was_answered() -> None:
    dialogues = Dialogues(MODEL)
    name = answered(dialogues)
    dialogue, count = dialogues.take("t", NEXT)
    assert (dialogue.name, count, dialogue.tokens) == (name, 2, (1, 2, 3, 0))
    assert dialogues.text(Request("r", (), conversation=name)) == (1, 2, 3, 0)
    again, count = dialogues.take("t", NEXT)  # while the first is being answered
    assert (again.tokens, count) == ((), 0)
    assert again.name != name


@pytest.mark.parametrize(
    ("tenant", "chat"),
    [
        ("other", NEXT),
        ("t", (Said("user", "a"), Said("assistant", "B"), Said("user", "c"))),
        ("t", (Said("system", "a"), Said("assistant", "b"), Said("user", "c"))),
        ("t", (Said("user", "ab"), Said("assistant", ""), Said("user", "c"))),
        ("t", (Said("user", "c"),)),
    ],
)
def test_another_tenant_or_another_text_begins_anew(tenant: str, chat: tuple[Said, ...]) -> None:
    dialogues = Dialogues(MODEL)
    name = answered(dialogues)
    dialogue, count = dialogues.take(tenant, chat)
    assert (dialogue.tokens, count) == ((), 0)
    assert dialogue.name != name


def test_a_chat_that_was_given_up_is_not_continued() -> None:
    dialogues = Dialogues(MODEL)
    answered(dialogues)
    dialogue, _ = dialogues.take("t", NEXT)
    dialogues.given_up(dialogue)
    assert dialogues.take("t", NEXT)[1] == 0
    assert dialogues.text(Request("r", (), conversation=dialogue.name)) == ()


def test_a_chat_that_was_put_back_is_continued() -> None:
    dialogues = Dialogues(MODEL)
    answered(dialogues)
    dialogue, _ = dialogues.take("t", NEXT)
    dialogues.put_back(dialogue)
    again, count = dialogues.take("t", NEXT)
    assert (again.name, again.tokens, count) == (dialogue.name, (1, 2, 3, 0), 2)


def test_chats_that_say_the_same_count_once() -> None:
    dialogues = Dialogues(MODEL, most_tokens=8)
    for _ in range(10):
        answered(dialogues)
    answered(dialogues, "other")
    assert [dialogues.take(tenant, NEXT)[1] for tenant in ("t", "other")] == [2, 2]


def test_a_state_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with History(tmp_path / "s.sqlite") as history:
        answered(Dialogues(MODEL, history))
    with History(tmp_path / "s.sqlite") as history:
        dialogues = Dialogues(MODEL, history)
        (tmp_path / "s.sqlite").unlink()
        assert dialogues.take("t", NEXT)[1] == 0
        assert dialogues.failure is not None
        assert "has been removed" in dialogues.failure


def test_the_least_recently_used_chats_are_forgotten() -> None:
    dialogues = Dialogues(MODEL, most_tokens=8)
    for tenant in ("t1", "t2", "t3"):
        answered(dialogues, tenant)
    assert [dialogues.take(tenant, NEXT)[1] for tenant in ("t1", "t2", "t3")] == [0, 2, 2]


def test_a_state_file_remembers_chats_and_gives_each_a_name_of_this_run(tmp_path: Path) -> None:
    with History(tmp_path / "s.sqlite") as history:
        name = answered(Dialogues(MODEL, history))
    with History(tmp_path / "s.sqlite") as history:
        dialogues = Dialogues(MODEL, history)
        assert dialogues.take("other", NEXT)[1] == 0
        dialogue, count = dialogues.take("t", NEXT)
        assert (count, dialogue.tokens, dialogue.name != name) == (2, (1, 2, 3, 0), True)
        assert dialogues.take("t", NEXT)[1] == 0  # it is taken
        dialogues.given_up(dialogue)
        again, count = dialogues.take("t", NEXT)  # the file still has the answer, the engine another text
        assert (count, again.name != dialogue.name) == (2, True)
        dialogues.answered(again, "t", (*NEXT, Said("assistant", "d")), Turn((4,), (5,), "length"))
        assert history.text(again.stored) == (1, 2, 3, 0, 4, 5)
        assert Dialogues(ModelIdentity("tiny", "d2"), history).take("t", (*NEXT, Said("assistant", "d")))[1] == 0


def test_a_turn_that_cannot_be_stored_is_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with History(path) as history:
        dialogues = Dialogues(MODEL, history)
        dialogue, _ = dialogues.take("t", ASKED)
        with full_disk(path.stat().st_size), pytest.raises(MachineError):
            dialogues.answered(dialogue, "t", SAID, Turn(tuple(range(100_000)), (0,), "stop"))
        assert dialogues.take("t", NEXT)[1] == 0
        answered(dialogues)
        assert dialogues.take("t", NEXT)[1] == 2
