"""Conversations: the statistics that they stand for, that they follow from the seed alone, and the data in a file."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from helpers import refusal

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.workload.conversations import LONGEST, MEANS, Asked, as_requests, conversations, draw_lengths, parse_asked
from minifuse.workload.laws import parse_arrival
from minifuse.workload.sharegpt import Found, read_sharegpt

SAMPLE = 4000


@pytest.fixture(scope="module")
def sample() -> list[list[tuple[int, int]]]:
    return [draw_lengths(Asked(), number, seed=1) for number in range(SAMPLE)]


def drawn(asked: Asked, count: int = 20, **options: Any) -> list[Request]:
    return conversations(asked, count, 100, LONGEST, **options)


def by_conversation(requests: list[Request]) -> dict[str | None, list[Request]]:
    found: dict[str | None, list[Request]] = {}
    for request in requests:
        found.setdefault(request.conversation, []).append(request)
    return found


# --- statistics


def test_means_are_the_published_ones(sample: list[list[tuple[int, int]]]) -> None:
    turns = statistics.mean(map(len, sample))
    prompts = statistics.mean(prompt for turns in sample for prompt, _ in turns)
    answers = statistics.mean(answer for turns in sample for _, answer in turns)
    assert (turns, prompts, answers) == tuple(pytest.approx(mean, rel=0.04) for mean in MEANS)


def test_turns_have_a_heavy_tail(sample: list[list[tuple[int, int]]]) -> None:
    turns = sorted(map(len, sample))
    assert sum(count >= 5 for count in turns) / SAMPLE == pytest.approx(0.36, abs=0.02)  # 3.6.4
    assert turns[SAMPLE // 2] < statistics.mean(turns) / 1.5
    assert turns[-1] > 8 * statistics.mean(turns)


def test_long_conversations_are_dropped_whole(sample: list[list[tuple[int, int]]]) -> None:
    sizes = sorted(sum(map(sum, turns)) for turns in sample)
    assert LONGEST // 2 < sizes[-1] <= LONGEST
    assert sizes[-1] != sizes[-2]  # cut, several would have the limit


@pytest.mark.parametrize("scale", [0.1, 0.01])
def test_a_scale_shortens_lengths_and_the_limit_alike(scale: float, sample: list[list[tuple[int, int]]]) -> None:
    scaled = [draw_lengths(Asked(scale), number, seed=1) for number in range(500)]
    assert max(sum(map(sum, turns)) for turns in scaled) <= scale * LONGEST
    same = [(a, b) for a, b in zip(sample, scaled, strict=False) if len(a) == len(b)]
    assert len(same) > 490
    for whole, short in same[:100]:
        assert short == [tuple(max(1, round(scale * length)) for length in turn) for turn in whole]


def test_a_minimum_of_turns_leaves_the_others_out() -> None:
    turns = [len(draw_lengths(Asked(min_turns=5), number)) for number in range(500)]
    assert min(turns) == 5
    assert 9 < statistics.mean(turns) < 14


def _related(sample: list[list[tuple[int, int]]], side: int) -> float:
    """Return the correlation of the logarithms of a conversation's first two prompts (side 0) or answers (1)."""
    first, second = zip(
        *[[math.log(turn[side]) for turn in turns[:2]] for turns in sample if len(turns) > 1], strict=True
    )
    return statistics.correlation(first, second)


def test_lengths_of_a_conversation_may_be_alike(sample: list[list[tuple[int, int]]]) -> None:
    alike = [draw_lengths(Asked(correlation=0.5), number, seed=1) for number in range(SAMPLE)]
    for side in (0, 1):
        assert _related(sample, side) == pytest.approx(0.0, abs=0.06)
        assert _related(alike, side) == pytest.approx(0.5, abs=0.08)  # of whole tokens, without what is too long
        mean, wanted = statistics.mean(turn[side] for turns in alike for turn in turns), MEANS[1 + side]
        assert mean == pytest.approx(wanted, rel=0.05)


def test_lengths_are_all_alike_with_a_correlation_of_one() -> None:
    for number in range(20):
        prompts, answers = ({turn[side] for turn in draw_lengths(Asked(correlation=1.0), number)} for side in (0, 1))
        assert len(prompts) == len(answers) == 1


# --- requests


def test_turns_follow_each_other_after_a_reaction() -> None:
    requests = drawn(Asked(reaction=30.0), 300, arrival=parse_arrival("constant:2s"), seed=3)
    delays = []
    for number, (name, turns) in enumerate(by_conversation(requests).items()):
        assert name == f"c{number}"
        assert [turn.id for turn in turns] == [f"c{number}.{i}" for i in range(len(turns))]
        assert [turn.after for turn in turns] == [None, *(turn.id for turn in turns[:-1])]
        assert [turn.arrival_s for turn in turns] == [2.0 * number, *[0.0] * (len(turns) - 1)]
        assert turns[0].delay_s == 0
        delays += [turn.delay_s for turn in turns[1:]]
    assert statistics.mean(delays) == pytest.approx(30, rel=0.1)
    assert statistics.stdev(delays) == pytest.approx(30, rel=0.15)


def test_answers_have_the_lengths_drawn_and_prompts_no_stop_token() -> None:
    requests = drawn(Asked(0.1), 30, stop_ids=(5, 6))
    lengths = [turn for number in range(30) for turn in draw_lengths(Asked(0.1), number)]
    assert [(len(request.prompt), request.max_new_tokens) for request in requests] == lengths
    tokens = {token for request in requests for token in request.prompt}
    assert tokens == {*range(100)} - {5, 6}  # all others, in so many prompts
    assert all(request.ignore_eos for request in requests)


def test_a_shorter_workload_is_the_beginning_of_a_longer() -> None:
    arrival = parse_arrival("poisson:50ms")
    short, long = (drawn(Asked(0.05), count, arrival=arrival, seed=7) for count in (5, 9))
    assert short == long[: len(short)]
    assert len(by_conversation(long)) == 9


def test_choices_do_not_disturb_each_other() -> None:
    plain, hasty = drawn(Asked(0.05)), drawn(Asked(0.05, reaction=1.0))
    assert [(r.prompt, r.max_new_tokens) for r in plain] == [(r.prompt, r.max_new_tokens) for r in hasty]
    assert [60 * r.delay_s for r in hasty] == pytest.approx([r.delay_s for r in plain])
    assert drawn(Asked(0.05), seed=1) != plain


def test_golden() -> None:
    """What a seed means must not change: figures were measured with it."""
    assert draw_lengths(Asked(), 1) == [(19, 52), (12, 116), (11, 484)]
    _, second, _ = conversations(Asked(), 2, 100, LONGEST)[-3:]
    assert (second.prompt[:3], round(second.delay_s, 3)) == ((48, 88, 42), 64.642)


def test_no_reaction_time_at_all() -> None:
    assert {request.delay_s for request in drawn(Asked(0.05, reaction=0.0))} == {0.0}


# --- what is asked for


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("sharegpt", Asked()),
        ("sharegpt:scale=0.1,reaction=500ms,min_turns=5", Asked(0.1, 0.5, 5)),
        ("sharegpt:min_turns=2,file=a b/c.json", Asked(min_turns=2, file="a b/c.json")),
        ("sharegpt:correlation=0.5", Asked(correlation=0.5)),
    ],
)
def test_what_is_asked_for(text: str, asked: Asked) -> None:
    assert parse_asked(text) == asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sharegpt:", 'The workload is "sharegpt:", with the option "": give sharegpt, or it with scale=0.1,'),
        ("sharegpt:scal=0.1", 'with the option "scal=0.1" (did you mean "scale"?): give sharegpt'),
        ("sharegpt:scale", 'with the option "scale": give'),
        ("sharegpt:scale=", 'with the option "scale=": give'),
        ("sharegpt:scale=2", 'The scale of sharegpt is "2": give a number from 0.01 to 1.'),
        ("sharegpt:reaction=60", 'The mean reaction time of sharegpt is "60": give a number with a unit'),
        ("sharegpt:reaction=9999min", 'reaction time of sharegpt is "9999min": give at most 100000s.'),
        ("sharegpt:min_turns=0", 'The min_turns of sharegpt is "0": give a whole number from 1 to 32.'),
        ("sharegpt:min_turns=2,min_turns=3", "with min_turns twice: give it once."),
        ("sharegpt:file=x.json,scale=0.5", "a file have lengths of their own: leave scale out."),
        ("sharegpt:file=x.json,correlation=0", "a file have lengths of their own: leave correlation out."),
        ("sharegpt:correlation=1.5", 'The correlation of sharegpt is "1.5": give a number from 0 to 1.'),
    ],
)
def test_options_refused(text: str, message: str) -> None:
    with refusal(UsageError, message):
        parse_asked(text)


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        (
            Asked(),
            {"max_context": 1024},
            "up to 16,384 tokens, and the context of the model has 1,024: give scale=0.062",
        ),
        (Asked(), {"max_context": 64}, "has 64: choose a model of a longer context."),
        (Asked(), {"count": 0}, "The number of conversations is 0: give at least 1."),
        (Asked(), {"vocab_size": 2, "stop_ids": (0, 1)}, "All 2 tokens of the vocabulary end an answer"),
        (
            Asked(0.01, min_turns=32),
            {},
            "No conversation of sharegpt with scale=0.01 has 32 turns and up to 163 tokens",
        ),
    ],
)
def test_refused(asked: Asked, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.workload.conversations.TRIES", 50)
    with refusal(UsageError, message):
        conversations(asked, **{"count": 1, "vocab_size": 100, "max_context": LONGEST, **options})


def test_too_many_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.workload.conversations.MAX_TOKENS", 100)
    with pytest.raises(UsageError, match=r"The prompts of 20 conversations have .* tokens, and over 100 take too much"):
        drawn(Asked(0.1))


# --- the data in a file


def said(*messages: tuple[str, str], **more: object) -> dict[str, object]:
    return {"conversations": [{"from": sender, "value": text} for sender, text in messages], **more}


def read(tmp_path: Path, *listed: object, count: int = 10, max_context: int = 100, min_turns: int = 1) -> Found:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(listed), encoding="utf-8")
    return read_sharegpt(str(path), lambda text, continues=False: tuple(map(ord, text)), count, max_context, min_turns)


def texts(found: Found) -> list[list[tuple[str, int]]]:
    return [[("".join(map(chr, prompt)), answer) for prompt, answer in turns] for turns in found.conversations]


def test_messages_become_turns(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        said(("human", "ab"), ("gpt", "xyz"), ("human", "c"), ("gpt", "x"), id="plain"),
        said(("gpt", "before"), ("human", "a"), ("human", "b"), ("gpt", "x"), ("gpt", "y"), ("human", "unanswered")),
        said(("system", "s"), ("user", "u"), ("gpt", " "), ("gpt", "xy"), ("human", ""), ("gpt", "z"), ("human", "")),
    )
    assert texts(found) == [[("ab", 3), ("c", 1)], [("a\nb", 3)], [("s\nu", 4)]]
    assert (found.too_long, found.too_short) == (0, 0)


def test_long_and_short_conversations_are_counted(tmp_path: Path) -> None:
    fits = said(("human", "a" * 60), ("gpt", "b" * 40))
    long = said(("human", "a" * 60), ("gpt", "b" * 41))
    listed = (long, fits, said(), said(("human", "a")), said(("gpt", "b")), fits, long, said())
    found = read(tmp_path, *listed)
    assert (len(found.conversations), found.too_long, found.too_short) == (2, 2, 4)
    assert read(tmp_path, *listed, count=1) == (
        found.conversations[:1],
        1,
        0,
    )  # those behind the last are not looked at
    two = said(("human", "a"), ("gpt", "b"), ("human", "a"), ("gpt", "b"))
    assert read(tmp_path, fits, two, min_turns=2) == ([[((97,), 1)] * 2], 0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "sharegpt.json: Invalid JSON: EOF while parsing an object at line 1 column 2: give a JSON file"),
        ("", "sharegpt.json: Invalid JSON: EOF"),
        ("[" * 100_000, "recursion limit exceeded"),
        ("{}", "it is {}: Input should be a valid array: give a JSON file as of ShareGPT"),
        ("[1]", "1 is not an object: give one"),
        ('[{"items": []}]', "[0].conversations is missing"),
        ('[{"conversations": []}, {"conversations": {}}]', "[1].conversations is {}: Input should be a valid array"),
        ('[{"conversations": [{"from": "cat", "value": "x"}]}]', '[0].conversations[0].from is "cat": Input'),
        ('[{"conversations": [{"from": "gpt", "value": 1}]}]', "[0].conversations[0].value is 1: Input"),
        ('[{"conversations": [{"from": "gpt", "value": "\\ud800"}]}]', "Invalid JSON"),
        ("[]", "holds no conversation of at least 1 answered turns and at most 100 tokens"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(text, encoding="utf-8")
    with refusal(UsageError, message):
        read_sharegpt(str(path), lambda text, continues=False: tuple(map(ord, text)), 1, 100)


def test_damage_behind_what_is_wanted_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[1\].conversations is missing"):
        read(tmp_path, said(("human", "a"), ("gpt", "b")), {}, count=1)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(UsageError, match=r"x\.json cannot be read \(No such file or directory\): give a JSON file"):
        read_sharegpt(str(path), lambda text, continues=False: (), 1, 100)
    path.write_bytes(b'["\xff"]')
    with pytest.raises(UsageError, match="Invalid JSON: invalid unicode code point at line 1 column 3"):
        read_sharegpt(str(path), lambda text, continues=False: (), 1, 100)


def test_conversations_of_a_file_follow_each_other_too() -> None:
    first, second = as_requests([[((1, 2), 3), ((4,), 5)]], 60.0)
    assert (first.prompt, first.max_new_tokens, first.after) == ((1, 2), 3, None)
    assert (second.prompt, second.max_new_tokens, second.after, second.conversation) == ((4,), 5, "c0.0", "c0")
