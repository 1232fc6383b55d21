"""A talk: turns on one engine, and what each found of the text before it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, make_engine, make_real_engine, refusal

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.request import FinishReason, Request
from minifuse.model.source import resolve
from minifuse.serve.conversations import Conversations
from minifuse.serve.talk import Talk
from minifuse.testing.texts.models import CONTEXT, expected_answer

SOURCE = resolve("random:small")
SMALL = {"memory.chunk": 4, "memory.host": 64}


def test_every_turn_finds_the_text_before_it_on_the_device() -> None:
    talk = Talk(make_engine("pensieve", model="llama", settings=SMALL))
    text: tuple[int, ...] = ()
    seen: list[int] = []
    for i, prompt in enumerate([(5, 6, 7), (8,), (9, 2)]):
        exchange = talk.say(prompt, on_tokens=seen.extend, max_new_tokens=4)
        had_kv = max(0, len(text) - 1)
        assert (exchange.on_device, exchange.on_host, exchange.recomputed) == (had_kv, 0, 0)
        assert exchange.new == len(prompt) + (i > 0)
        assert exchange.answer.token_ids == expected_answer("llama", Request("", text + prompt, 4))
        text += prompt + exchange.answer.token_ids
        assert (talk.num_turns, talk.num_tokens) == (i + 1, len(text))
    assert tuple(seen) == text[3:7] + text[8:12] + text[14:]


@pytest.mark.parametrize(("technique", "times"), [("orca", 1), ("naive", 2)])
def test_without_kept_kv_the_history_is_recomputed(technique: str, times: int) -> None:
    """By naive for every token of the answer."""
    talk = Talk(make_engine(technique, model="llama"))
    talk.say((5, 6, 7), max_new_tokens=2)
    exchange = talk.say((8,), max_new_tokens=2)
    assert (exchange.on_device, exchange.on_host, exchange.recomputed, exchange.new) == (0, 0, 4 * times, 2)


def test_what_another_conversation_has_displaced_is_swapped_in_or_recomputed() -> None:
    """c has 11 tokens of KV in three chunks of 4; the other request takes 7 of the 8 chunks of the device."""
    for host, swapped in ((64, True), (0, False)):
        engine = make_engine("pensieve", model="llama", capacity=32, settings={"memory.chunk": 4, "memory.host": host})
        talk = Talk(engine, "c")
        talk.say((5, 6, 7, 8, 9, 1, 2, 3), max_new_tokens=4)
        engine.submit(asks("other", 24, 3))
        list(engine.run())
        exchange = talk.say((4,), max_new_tokens=2)
        assert exchange.on_device + exchange.on_host + exchange.recomputed == 11
        assert (exchange.on_host > 0, exchange.recomputed > 0) == (swapped, not swapped)
        text = (5, 6, 7, 8, 9, 1, 2, 3)
        text += expected_answer("llama", Request("", text, 4))
        assert exchange.answer.token_ids == expected_answer("llama", Request("", (*text, 4), 2))


def test_ctrl_c_ends_the_answer_and_the_next_turn_goes_on_behind_what_it_has() -> None:
    talk = Talk(make_engine("pensieve", model="llama"))
    seen: list[int] = []

    def interrupted(tokens: tuple[int, ...]) -> None:
        seen.extend(tokens)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    cut_off = talk.say((5, 6), on_tokens=interrupted, max_new_tokens=30)
    assert cut_off.answer.finish_reason is FinishReason.ABORTED
    assert list(cut_off.answer.token_ids) == seen == list(expected_answer("llama", Request("", (5, 6), 3)))
    text = (5, 6, *seen, 7)
    assert talk.say((7,), max_new_tokens=2).answer.token_ids == expected_answer("llama", Request("", text, 2))


def test_a_refused_turn_changes_nothing() -> None:
    talk = Talk(make_engine("pensieve", model="llama"))
    with pytest.raises(RequestRefused):
        talk.say((), max_new_tokens=2)
    first = talk.say((5, 6), max_new_tokens=2).answer
    with refusal(RequestRefused, "turn-3", f"context is {CONTEXT}"):
        talk.say((7,), max_new_tokens=CONTEXT)
    text = (5, 6, *first.token_ids, 8)
    assert talk.say((8,), max_new_tokens=2).answer.token_ids == expected_answer("llama", Request("", text, 2))
    assert talk.num_turns == 2


def test_several_talks_on_one_engine_and_one_that_is_taken_up_again() -> None:
    engine = make_engine("pensieve", model="llama", settings=SMALL)
    texts: dict[str, tuple[int, ...]] = {"c": (), "d": ()}
    talks = {name: Talk(engine, name) for name in texts}
    for name, prompt in (("c", (5, 6)), ("d", (7,)), ("c", (8,)), ("d", (9, 2)), ("c", (1,))):
        if prompt == (1,):
            talks[name] = Talk(engine, name)
            assert (talks[name].num_turns, talks[name].num_tokens) == (2, len(texts[name]))
        answer = talks[name].say(prompt, max_new_tokens=2).answer.token_ids
        assert answer == expected_answer("llama", Request("", texts[name] + prompt, 2))
        texts[name] += prompt + answer


def test_what_shows_an_answer_may_fail_and_the_conversation_goes_on() -> None:
    talk = Talk(make_engine("pensieve", model="llama", settings=SMALL))
    seen: list[tuple[int, ...]] = []

    def show(tokens: tuple[int, ...]) -> None:
        seen.append(tokens)
        raise ValueError("no such letter")

    with pytest.raises(ValueError, match="no such letter"):
        talk.say((5, 6), on_tokens=show, max_new_tokens=9)
    assert len(seen) == 1
    text = (5, 6, *seen[0], 7)
    assert talk.say((7,), max_new_tokens=2).answer.token_ids == expected_answer("llama", Request("", text, 2))


@pytest.mark.parametrize("name", ["", "\udcff"])
def test_what_is_no_name_of_a_conversation(name: str) -> None:
    with refusal(UsageError, "conversation", repr(name), "UTF-8 can spell"):
        Talk(make_engine(model="llama"), name)
    with refusal(RequestRefused, "'a'", repr(name), "UTF-8 can spell"):
        make_engine(model="llama").submit(asks("a", 2, 1, conversation=name))


@pytest.mark.parametrize("real", [False, True])
def test_a_talk_goes_on_in_the_next_process(real: bool, tmp_path: Path) -> None:
    def talk(*prompts: tuple[int, ...]) -> list[Any]:
        with Conversations(tmp_path / "state.sqlite", SOURCE) as conversations:
            engine = (make_real_engine if real else make_engine)("pensieve", model="llama")
            talk = Talk(engine, "c", conversations)
            begins = talk.num_turns, talk.num_tokens
            found = [talk.say(prompt, max_new_tokens=2) for prompt in prompts]
            engine.close()
            assert all(exchange.stored for exchange in found)
            return [begins, *((e.answer.num_history, e.on_device, e.recomputed) for e in found)]

    assert talk((5, 6), (7,)) == [(0, 0), (0, 0, 0), (4, 3, 0)]
    assert talk((8,), (9, 1)) == [(2, 7), (7, 0, 6), (10, 9, 0)]
    with Conversations(tmp_path / "state.sqlite", SOURCE) as conversations:
        text: tuple[int, ...] = ()
        for turn in conversations.history.turns("c"):
            text += turn.prompt
            assert turn.answer == expected_answer("llama", Request("", text, 2))
            text += turn.answer


def test_a_talk_of_another_model(tmp_path: Path) -> None:
    with Conversations(tmp_path / "state.sqlite", SOURCE) as conversations:
        Talk(make_engine(model="llama"), "c", conversations).say((5,), max_new_tokens=1)
    other = Conversations(tmp_path / "state.sqlite", resolve("random:medium"))
    with other as conversations, refusal(UsageError, "'c'", "random:small", "random:medium"):
        Talk(make_engine(model="llama"), "c", conversations)
