"""Conversations of the shipped model's own tasks."""

from __future__ import annotations

import pytest

from minifuse.core.errors import UsageError
from minifuse.model.tiny.tasks import crowd
from minifuse.workload.laws import parse_arrival
from minifuse.workload.talk import Talk, parse_talk, talk

TURNS = Talk(turns=3, reaction=0.01)


def encode(text: str, continues: bool = False) -> tuple[int, ...]:
    return tuple(text.encode())


def test_a_conversation_states_a_fact_first_and_asks_for_one_last() -> None:
    requests, expected = talk(TURNS, 30, encode, 24)
    turns: dict[str, list[str]] = {}
    for request in requests:
        turns.setdefault(str(request.conversation), []).append(bytes(request.prompt).decode())
    assert {len(prompts) for prompts in turns.values()} == {1, 2, 3}
    for name, prompts in turns.items():
        if len(prompts) == 1:
            continue
        assert expected[f"{name}.0"] == "ok"
        # The answer to the last turn names the fact that some earlier turn of the same conversation stated.
        fact = expected[f"{name}.{len(prompts) - 1}"]
        assert any(fact in prompt or fact in expected[f"{name}.{i}"] for i, prompt in enumerate(prompts[:-1]))


def test_those_of_one_turn_are_tasks_of_the_crowd() -> None:
    requests, expected = talk(TURNS, 30, encode, 24)
    long = {request.conversation for request in requests if request.after}
    alone = [request for request in requests if request.conversation not in long]
    for request, task in zip(alone, crowd(30), strict=False):
        assert (bytes(request.prompt).decode(), expected[request.id]) == (task.prompt, task.answer)


def test_a_turn_follows_the_one_before_it() -> None:
    requests, _ = talk(TURNS, 12, encode, 24, parse_arrival("constant:2s"))
    for request in requests:
        number, turn = (int(part) for part in request.id[1:].split("."))
        assert request.after == (f"c{number}.{turn - 1}" if turn else None)
        assert (request.delay_s > 0) == bool(turn)
        assert request.arrival_s == (0 if turn else 2 * number)
        assert request.max_new_tokens == 24


def test_the_first_of_a_larger_crowd_are_those_of_the_smaller_one() -> None:
    few, answers = talk(TURNS, 5, encode, 24, seed=7)
    many, more = talk(TURNS, 9, encode, 24, seed=7)
    assert many[: len(few)] == few
    assert answers.items() <= more.items()
    assert talk(TURNS, 5, encode, 24, seed=8)[0] != few


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crowd:turns=0", 'The turns of crowd is "0": give a whole number from 1 to 32'),
        ("crowd:turns=99", "from 1 to 32"),
        ("crowd:turn=2", r'with the option "turn=2" \(did you mean "turns"\?\): give crowd, or it with turns=4 or'),
        ("crowd:turns=2,turns=3", "with turns twice"),
        ("crowd:reaction=2s", "a conversation of one turn has no reaction: add turns=4"),
        ("crowd:turns=2,reaction=5", 'The mean reaction time of crowd is "5"'),
        ("crowd:turns=2,reaction=99999999min", "give at most"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_talk(text)
