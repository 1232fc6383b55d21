"""Requests from texts and from lengths."""

from __future__ import annotations

from typing import Any

import pytest

from minifuse.core.errors import ModelError, UsageError
from minifuse.model.source import resolve
from minifuse.show.notebook.played import play
from minifuse.show.notebook.prompts import asks, turns
from minifuse.workload.cells import RESERVED

TINY = resolve("tiny")


def test_texts_become_tokens_that_arrive_one_after_the_other() -> None:
    found = asks("sort 7 2 5", "count from 3 to 9", every=0.25, max_new_tokens=7)
    encode = TINY.tokenizer().encode
    assert [one.prompt for one in found] == [encode("sort 7 2 5"), encode("count from 3 to 9")]
    assert [(one.id, one.arrival_s, one.max_new_tokens) for one in found] == [("r0", 0.0, 7), ("r1", 0.25, 7)]
    assert {one.stop_ids for one in found} == {TINY.config.eos_ids} != {()}


def test_names_and_arrivals_may_be_given() -> None:
    found = asks("sort 7 2 5", "sort 7 2 5", names=["ann", "bob"], arrivals=[0.5, 0.1])
    assert [(one.id, one.arrival_s) for one in found] == [("ann", 0.5), ("bob", 0.1)]


def test_lengths_are_exact() -> None:
    played = play("orca", asks((5, 12), (3, 1), (1, 30)))
    requests = [answer.request for answer in played.served.answers]
    assert [len(one.prompt) for one in requests] == [5, 3, 1]
    assert [len(tokens) for tokens in played.tokens.values()] == [12, 1, 30]
    assert not {token for one in requests for token in one.prompt} & {*TINY.config.eos_ids}


def test_a_number_is_a_prompt_whose_answer_may_end_early() -> None:
    (one,) = asks(9, max_new_tokens=40)
    assert (len(one.prompt), one.max_new_tokens, one.ignore_eos) == (9, 40, False)
    assert asks(9, 9)[0].prompt != asks(9, 9)[1].prompt
    assert asks(9) == asks(9)


def test_a_model_of_cells_has_sentences_of_words() -> None:
    lengths = (4, 60)
    for one, length in zip(asks(*lengths, model="lstm:hidden=16,vocab=9"), lengths, strict=True):
        assert len(one.prompt) == length
        assert not {*one.prompt} & {*RESERVED}


def test_turns_follow_each_other() -> None:
    found = turns("ann", "remember ann 17", "sort 2 1", "recall ann", start=0.5, pause=0.125)
    assert [one.id for one in found] == ["ann.0", "ann.1", "ann.2"]
    assert [one.after for one in found] == [None, "ann.0", "ann.1"]
    assert [one.delay_s for one in found] == [0.0, 0.125, 0.125]
    assert {one.arrival_s for one in found} == {0.5}
    assert {one.conversation for one in found} == {"ann"}
    assert play("orca", found).answers["ann.2"] == "ann 17"


@pytest.mark.parametrize(
    ("prompts", "more", "told"),
    [
        (["a"], {"every": -1.0}, "every is -1.0: give seconds, from 0."),
        (["a"], {"every": float("nan")}, "every is nan"),
        (["a"], {"every": "1"}, "every is '1'"),
        (["a"], {"every": 1.0, "arrivals": [0.0]}, "every is 1.0 and arrivals are given: give one of them."),
        (["a"], {"arrivals": [0.0, 1.0]}, "arrivals is [0.0, 1.0], for 1 prompts: give one for each."),
        (["a", "b"], {"arrivals": [0.0, -1.0]}, "an arrival is -1.0: give seconds, from 0."),
        (["a", "b"], {"names": ["x"]}, "names is ['x'], for 2 prompts"),
        (["a", "b"], {"names": "xy"}, "names is 'xy', for 2 prompts"),
        ([0], {}, "A prompt is 0: give a text"),
        ([(3, 0)], {}, "A prompt is (3, 0)"),
        ([(3, 4, 5)], {}, "A prompt is (3, 4, 5)"),
        ([True], {}, "A prompt is True"),
        ([2.5], {}, "A prompt is 2.5"),
        (["a"], {"model": "nothing"}, "nothing"),
    ],
)
def test_what_means_nothing_is_refused(prompts: list[Any], more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        asks(*prompts, **more)
    assert told in str(refused.value)


def test_a_text_needs_a_tokenizer() -> None:
    with pytest.raises(ModelError):
        asks("sort 1 2", model="random:small")


def test_a_pause_is_no_less_than_none() -> None:
    with pytest.raises(UsageError, match="pause is -1"):
        turns("ann", "a", "b", pause=-1)
