"""A sequence takes in what plans produce: tokens up to the end of its answer, nodes, and results."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import lstm
from helpers import asks, breach, make_engine, refusal, sentence

from minifuse.core.errors import RequestRefused
from minifuse.core.request import FinishReason, Request, Sampling, Sequence
from minifuse.core.unfolded import Unfolded, unfolded


@pytest.mark.parametrize(
    ("produced", "taken", "reason"),
    [
        ((), (), None),
        ((5,), (5,), None),
        ((5, 6), (5, 6), None),
        ((5, 9, 6), (5, 9), FinishReason.STOP),  # 9 ends the answer: what comes after it is cut off
        ((5, 6, 7, 8, 4), (5, 6, 7, 8), FinishReason.LENGTH),
        ((5, 6, 7, 9, 4), (5, 6, 7, 9), FinishReason.STOP),  # a stop token that is the last one allowed
    ],
)
def test_tokens_are_taken_up_to_the_end_of_the_answer(
    produced: tuple[int, ...], taken: tuple[int, ...], reason: FinishReason | None
) -> None:
    sequence = Sequence(asks("a", (1, 2), 4, stop_ids=(9,)))
    assert sequence.take(produced, 1, {}) == taken
    assert (tuple(sequence.answer), sequence.why_finished()) == (taken, reason)


def test_tokens_of_several_plans_add_up_to_the_limit() -> None:
    sequence = Sequence(asks("a", 2, 4))
    assert [sequence.take((5, 6), 1, {}), sequence.take((5, 6), 1, {}), sequence.answer] == [
        (5, 6),
        (5, 6),
        [5, 6, 5, 6],
    ]
    assert sequence.why_finished() is FinishReason.LENGTH


def test_a_stop_token_that_is_ignored_ends_nothing() -> None:
    sequence = Sequence(asks("a", 2, 4, stop_ids=(9,), ignore_eos=True))
    assert sequence.take((9, 9, 6), 1, {}) == (9, 9, 6)
    assert sequence.why_finished() is None


def test_the_prompt_is_never_searched_for_a_stop_token() -> None:
    assert Sequence(asks("a", (1, 9), 4, stop_ids=(9,))).why_finished() is None


def test_a_graph_ends_with_its_last_node() -> None:
    sequence = Unfolded(Request("g", (1,)), graph=lstm(3))
    sequence.take((), 2, {1: "state"})
    assert (sequence.num_nodes_done, sequence.why_finished()) == (2, None)
    sequence.take((), 1, {2: "output"})
    assert (sequence.num_nodes_done, sequence.why_finished()) == (3, FinishReason.STOP)
    assert sequence.results == {1: "state", 2: "output"}


def test_a_graph_also_ends_with_its_answer() -> None:
    sequence = Unfolded(Request("g", (1,), 2), graph=lstm(9))
    assert sequence.take((5, 6, 7), 3, {}) == (5, 6)
    assert sequence.why_finished() is FinishReason.LENGTH


def test_a_text_counts_no_nodes_and_has_no_graph() -> None:
    sequence = Sequence(asks("a", 2, 4))
    sequence.take((5,), 1, {})
    assert sequence.results == {}
    with breach("layout", "a is a text"):
        _ = unfolded(sequence)
    graph = lstm(2)
    assert unfolded(Unfolded(Request("g", (1,)), graph=graph)) is graph


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": float("nan")},
        {"temperature": -0.5},
        {"temperature": float("inf")},
        {"temperature": "1"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"seed": None},
    ],
)
def test_sampling_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as error:
        make_engine().submit(Request("a", (1, 2), sampling=Sampling(**wrong)))
    ((name, value),) = wrong.items()
    sentence(error.value, f"{name} = {value!r}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 3},
        {"id": ""},
        {"group": 1},
        {"conversation": 1},
        {"after": 1},
        {"user": 1},
        {"user": ""},
        {"stop_ids": 3},
        {"stop_ids": ("x",)},
        {"sampling": {"temperature": 1}},
    ],
)
def test_fields_of_another_type(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as error:
        make_engine().submit(Request(**{"id": "a", "prompt": (1, 2), **wrong}))
    ((name, value),) = wrong.items()
    sentence(error.value, repr(value), "id that is no text" if name == "id" else name)


@pytest.mark.parametrize("wrong", [{"prompt": (True,)}, {"prompt": (1.5,)}, {"max_new_tokens": True}])
def test_tokens_are_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused):
        make_engine().submit(Request(**{"id": "a", "prompt": (1, 2), **wrong}))


def test_a_prompt_that_is_none() -> None:
    with refusal(RequestRefused, "'a'", "None", "token ids"):
        make_engine().submit(Request("a", None))  # type: ignore[arg-type]


def test_a_prompt_may_be_a_list() -> None:
    engine = make_engine()
    engine.submit(Request("a", [1, 2], 1))  # type: ignore[arg-type]
    list(engine.run())
    assert engine.finished["a"].request.prompt == (1, 2)
