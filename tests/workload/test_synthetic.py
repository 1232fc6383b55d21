"""Requests and arrivals: golden values, and the laws of the distributions. Bad files: test_parsing.py."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.errors import UsageError
from minifuse.core.request import Request, Sampling
from minifuse.core.submitted import by_request
from minifuse.workload.conversations import conversations, parse_asked
from minifuse.workload.files import read_jsonl
from minifuse.workload.laws import Arrival, Lognormal, Uniform, parse_arrival, parse_lengths, parse_users
from minifuse.workload.synthetic import RequestDefaults, arrive, share_out, synthetic

ARRIVALS = st.sampled_from(["none", "constant:500ms", "poisson:50ms", "gamma:50ms:cv=2", "gamma:1s:burstiness=4"])
LENGTHS = st.sampled_from(["7", "fixed:3", "uniform:1:9", "lognormal:20:0.8", "lognormal:20:1:max=25"])


# --- arrivals


def test_arrival_laws_read() -> None:
    assert parse_arrival("none") == Arrival(0, 0)
    assert parse_arrival("constant:500ms") == Arrival(0.5, 0)
    assert parse_arrival("poisson:50ms") == Arrival(0.05, 1)
    assert parse_arrival(" gamma:2s:cv=2 ") == Arrival(2, 2)
    assert parse_arrival("gamma:50ms:burstiness=0.25") == parse_arrival("gamma:50ms:cv=2")
    assert parse_arrival("gamma:50ms:cv=1") == parse_arrival("gamma:50ms:burstiness=1") == parse_arrival("poisson:50ms")


def test_times_of_the_laws_without_chance() -> None:
    rng = random.Random(0)
    state = rng.getstate()
    assert Arrival().times(3, rng) == [0, 0, 0]
    assert Arrival(0.5).times(4, rng) == [0, 0.5, 1, 1.5]
    assert rng.getstate() == state


@given(ARRIVALS, st.integers(0, 60), st.integers())
def test_times_ascend_from_zero(law: str, n: int, seed: int) -> None:
    times = parse_arrival(law).times(n, random.Random(seed))
    assert len(times) == n
    assert times == sorted(times)
    assert times[:1] == [0.0][:n]
    assert times[: n // 2] == parse_arrival(law).times(n // 2, random.Random(seed))


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float, seed: int) -> None:
    n = 40_000
    times = Arrival(0.05, cv).times(n + 1, random.Random(seed))
    gaps = [late - early for early, late in pairwise(times)]
    # The mean of n gaps deviates by cv / sqrt(n) of itself; five deviations are passed once in 1.7 million runs.
    assert statistics.fmean(gaps) == pytest.approx(0.05, rel=5 * cv / math.sqrt(n))
    # The sample variance of a gamma deviates by sqrt((2 + 6 cv^2) / n) of itself (its excess kurtosis is 6 cv^2).
    assert statistics.variance(gaps) == pytest.approx((0.05 * cv) ** 2, rel=5 * math.sqrt((2 + 6 * cv**2) / n))


def test_poisson_gaps_are_exponential() -> None:
    times = parse_arrival("poisson:1s").times(10_001, random.Random(5))
    gaps = sorted(late - early for early, late in pairwise(times))
    distance = max(abs((i + 0.5) / 10_000 - (1 - math.exp(-gap))) for i, gap in enumerate(gaps))
    assert distance < 2.5 / math.sqrt(10_000)  # Kolmogorov and Smirnov: passed once in 100,000 runs


LAWS = "none, constant:500ms, poisson:50ms, gamma:50ms:cv=2 or gamma:50ms:burstiness=0.25"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("poison:50ms", f'The arrival law is "poison:50ms" (did you mean "poisson"?): give {LAWS}.'),
        ("poisson", f'The arrival law is "poisson": give {LAWS}.'),
        ("gamma:50ms", f'The arrival law is "gamma:50ms": give {LAWS}.'),
        ("", f'The arrival law is "": give {LAWS}.'),
        ("constant:500", 'The gap between arrivals is "500": give a number with a unit (us, ms, s, min), such as '
         "500ms or 2s."),
        ("constant:0s", 'The gap between arrivals is "0s": give one above 0, or the law none.'),
        ("gamma:5s:cv=0", 'The coefficient of variation of a gamma arrival is "0": give a number from 0.001 to 100.'),
        ("gamma:5s:cv=x", 'The coefficient of variation of a gamma arrival is "x": give a number from 0.001 to 100.'),
        ("gamma:5s:burstiness=-1", 'The burstiness of a gamma arrival is "-1": give a number from 0.0001 to 1e+06.'),
    ],
)  # fmt: skip
def test_arrival_laws_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arrival(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("law", ["gamma:1us:cv=100", "gamma:1000min:cv=0.001", "gamma:50ms:burstiness=0.0001"])
def test_the_ends_of_the_range_give_finite_times(law: str) -> None:
    assert all(map(math.isfinite, parse_arrival(law).times(2000, random.Random(0))))


# --- lengths


def test_length_laws_read() -> None:
    assert parse_lengths("32") == parse_lengths("fixed:32") == Uniform(32, 32)
    assert parse_lengths("uniform:8:64") == Uniform(8, 64)
    assert parse_lengths("lognormal:64:0.8") == Lognormal(64, 0.8)
    assert parse_lengths("lognormal:64:0.8:max=512") == Lognormal(64, 0.8, 512)


def draws(law: str, n: int = 20_000) -> list[int]:
    lengths, rng = parse_lengths(law), random.Random(11)
    return [lengths.draw(rng) for _ in range(n)]


def test_draws_follow_their_law() -> None:
    assert set(draws("5")) == {5}
    uniform = draws("uniform:2:4")
    assert set(uniform) == {2, 3, 4}
    assert all(abs(uniform.count(length) - 20_000 / 3) < 5 * math.sqrt(20_000 * 2 / 9) for length in (2, 3, 4))
    lengths, sigma = draws("lognormal:200:0.8"), 0.8
    # The deviation of a lognormal is sqrt(exp(sigma^2) - 1) of its mean; rounding adds at most half a token.
    assert abs(statistics.fmean(lengths) - 200) < 0.5 + 5 * 200 * math.sqrt((math.exp(sigma**2) - 1) / 20_000)
    assert statistics.pstdev(map(math.log, lengths)) == pytest.approx(sigma, rel=0.03)
    clipped = draws("lognormal:200:0.8:max=300")
    assert clipped == [min(length, 300) for length in lengths]


@given(LENGTHS, st.integers())
def test_every_length_is_at_least_one_whole_token(law: str, seed: int) -> None:
    length = parse_lengths(law).draw(random.Random(seed))
    assert isinstance(length, int)
    assert length >= 1


def test_short_lognormals_are_at_least_one() -> None:
    assert min(draws("lognormal:1:3")) == 1
    assert max(draws("lognormal:1048576:5")) == 1 << 20


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("unifrom:8:64", 'The length law is "unifrom:8:64" (did you mean "uniform"?): give 32, fixed:32, uniform:8:64, '
         "lognormal:64:0.8 or lognormal:64:0.8:max=512."),
        ("uniform:8", 'The length law is "uniform:8": give 32, fixed:32, uniform:8:64, lognormal:64:0.8 or '
         "lognormal:64:0.8:max=512."),
        ("0", 'A fixed length is "0": give a whole number from 1 to 1048576.'),
        ("-3", 'A fixed length is "-3": give a whole number from 1 to 1048576.'),
        ("fixed:2.5", 'A fixed length is "2.5": give a whole number from 1 to 1048576.'),
        ("uniform:0:4", 'The shortest length is "0": give a whole number from 1 to 1048576.'),
        ("uniform:9:8", 'The longest length is "8": give a whole number from 9 to 1048576.'),
        ("lognormal:0.5:1", 'The mean length is "0.5": give a number from 1 to 1.04858e+06.'),
        ("lognormal:64:9", 'The sigma of a lognormal length is "9": give a number from 0 to 5.'),
        ("lognormal:64:1:max=0", 'The longest length is "0": give a whole number from 1 to 1048576.'),
    ],
)  # fmt: skip
def test_length_laws_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(text)
    assert str(caught.value) == sentence


# --- synthetic requests


def make(count: int = 20, prompt: str = "uniform:1:9", output: str = "uniform:1:9", arrival: str = "poisson:50ms",
         seed: int = 0, **options: Any) -> list[Request]:  # fmt: skip
    lengths = parse_lengths(prompt), parse_lengths(output)
    return synthetic(count, *lengths, options.pop("vocab_size", 100), parse_arrival(arrival), seed, **options)


def test_synthetic_golden() -> None:
    """Written down once: the same seed must give the same requests on every machine and version."""
    first, second = make(2, vocab_size=10, seed=7)
    assert first == Request("r0", (0, 5, 1, 4), 9)
    assert second == Request("r1", (5,), 4, arrival_s=0.016433814885849038)


def test_the_hash_seed_does_not_matter() -> None:
    code = (
        "from minifuse.workload.laws import *; from minifuse.workload.synthetic import *; "
        "print(synthetic(5, Uniform(1, 9), Uniform(1, 9), 100, parse_arrival('poisson:50ms')))"
    )

    def printed(hash_seed: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, check=True
        ).stdout

    assert printed("1") == printed("2") == f"{make(5)}\n".encode()


@settings(max_examples=30)
@given(LENGTHS, LENGTHS, LENGTHS, ARRIVALS, ARRIVALS, st.integers(0, 5))
def test_each_choice_has_a_stream_of_its_own(a: str, b: str, c: str, x: str, y: str, seed: int) -> None:
    base = make(8, a, b, x, seed)
    assert base == make(8, a, b, x, seed)
    assert make(3, a, b, x, seed) == base[:3]
    other = make(8, a, b, y, seed)
    assert [(r.prompt, r.max_new_tokens) for r in other] == [(r.prompt, r.max_new_tokens) for r in base]
    other = make(8, a, c, x, seed)
    assert [(r.prompt, r.arrival_s) for r in other] == [(r.prompt, r.arrival_s) for r in base]
    other = make(8, c, b, x, seed)
    assert [(r.max_new_tokens, r.arrival_s) for r in other] == [(r.max_new_tokens, r.arrival_s) for r in base]
    for mine, theirs in zip(base, other, strict=True):  # a longer prompt begins as the shorter one
        assert all(p == q for p, q in zip(mine.prompt, theirs.prompt, strict=False))


def test_streams_differ_from_each_other_and_between_seeds() -> None:
    requests = make(50, "uniform:1:100", "uniform:1:100")
    assert [len(r.prompt) for r in requests] != [r.max_new_tokens for r in requests]
    assert len({r.prompt for r in requests}) > 40
    assert [r.prompt for r in make(seed=0)] != [r.prompt for r in make(seed=1)]
    assert [r.arrival_s for r in make(seed=0)] != [r.arrival_s for r in make(seed=1)]


def test_synthetic_tokens_are_words_that_stop_nothing() -> None:
    defaults = RequestDefaults(max_new_tokens=999, stop_ids=(0, 3), ignore_eos=True, sampling=Sampling(0.7, seed=5))
    requests = make(50, "20", "uniform:2:5", vocab_size=5, defaults=defaults)
    assert {token for r in requests for token in r.prompt} == {1, 2, 4}
    assert {r.max_new_tokens for r in requests} == {2, 3, 4, 5}
    assert {(r.stop_ids, r.ignore_eos, r.sampling) for r in requests} == {((0, 3), True, Sampling(0.7, seed=5))}
    assert [r.id for r in requests] == [f"r{i}" for i in range(50)]


def test_synthetic_refusals() -> None:
    with pytest.raises(UsageError, match=r"^The number of requests is 0: give at least 1\.$"):
        make(0)
    with pytest.raises(UsageError, match=r"^All 2 tokens of the vocabulary end an answer: give fewer stop tokens\.$"):
        make(1, vocab_size=2, defaults=RequestDefaults(stop_ids=(0, 1)))
    with pytest.raises(UsageError, match=r"^The number of prompts of a request is 0: give at least 1\.$"):
        make(1, prompts_per_request=0)


@given(st.integers(1, 4), st.integers(1, 5), ARRIVALS, st.integers(0, 5))
def test_prompts_per_request_changes_nothing_else(size: int, count: int, law: str, seed: int) -> None:
    """The prompts are those of as many requests of one; arrivals and output lengths are those of as many requests."""
    prompts = make(count, arrival=law, seed=seed, prompts_per_request=size)
    asked = [*by_request(prompts)]
    assert [len(request) for request in asked] == [size] * count
    assert [r.prompt for r in prompts] == [r.prompt for r in make(count * size, arrival=law, seed=seed)]
    for mine, single in zip(asked, make(count, arrival=law, seed=seed), strict=True):
        assert {(r.max_new_tokens, r.arrival_s) for r in mine} == {(single.max_new_tokens, single.arrival_s)}


def test_prompts_of_one_request_have_its_name() -> None:
    assert [(r.id, r.group) for r in make(2, prompts_per_request=2)] == [
        ("r0/0", "r0"), ("r0/1", "r0"), ("r1/0", "r1"), ("r1/1", "r1"),
    ]  # fmt: skip
    assert {r.group for r in make(2)} == {None}


def test_arrive_replaces_times_only() -> None:
    requests = make(4)
    assert arrive(requests, Arrival(2.0)) == [
        Request(r.id, r.prompt, r.max_new_tokens, arrival_s=2.0 * i) for i, r in enumerate(requests)
    ]


def test_a_group_arrives_as_one() -> None:
    """Neighbours without a group are requests of their own."""
    prompts = [Request("a" * i, (1,), group=group) for i, group in enumerate(["x", "x", None, None, "y"], start=1)]
    assert [len(request) for request in by_request(prompts)] == [2, 1, 1, 1]
    assert [r.arrival_s for r in arrive(prompts, Arrival(2.0))] == [0, 0, 2, 4, 6]
    assert arrive([], Arrival(2.0)) == [*by_request([])] == []


def test_users_have_their_shares_whole_requests_and_conversations() -> None:
    prompts = synthetic(3000, Uniform(1, 1), Uniform(1, 1), 9, prompts_per_request=2)
    shared = [*share_out(prompts, (8, 1, 1), seed=5)]
    assert [replace(request, user=None) for request in shared] == prompts
    assert all(len({prompt.user for prompt in request}) == 1 for request in by_request(shared))
    counts = Counter(request.user for request in shared[::2])
    assert counts.keys() == {"u0", "u1", "u2"}
    assert all(abs(counts[f"u{i}"] - 300 * share) < 75 for i, share in enumerate((8, 1, 1)))  # over four deviations
    assert [*share_out(prompts[:100], (8, 1, 1), seed=5)] == shared[:100]
    assert [*share_out(prompts[:100], (8, 1, 1), seed=6)] != shared[:100]
    turns = [*share_out(conversations(parse_asked("sharegpt:scale=0.05"), 20, 9, 2048), (1, 1))]
    of_each = {(turn.conversation, turn.user) for turn in turns}
    assert len(of_each) == 20
    assert {user for _, user in of_each} == {"u0", "u1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", ["number of users", '"0"', "from 1 to 1000"]),
        ("four", ["number of users", '"four"']),
        ("1:0", ["share of a user", '"0"', "from 1 to 1000000"]),
        ("1:", ["share of a user", '""']),
        (":".join("1" * 1001), ["1001 users", "at most 1000"]),
    ],
)
def test_users_refused(text: str, words: list[str]) -> None:
    with refusal(UsageError, *words):
        parse_users(text)


# --- request files


def encode(text: str, continues: bool = False) -> list[int]:
    return [ord(letter) for letter in text]


def read(*lines: str | dict[str, Any], **options: Any) -> list[Request]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return read_jsonl(texts, encode, name="p.jsonl", **options)


def test_a_request_with_every_field() -> None:
    line = {
        "id": "a", "prompt_token_ids": [5, 6], "max_new_tokens": 9, "arrival_s": 2, "priority": -1, "conversation": "c",
        "user": "ann", "eos_token_id": [1, 2], "ignore_eos": True, "temperature": 1, "top_k": 40, "top_p": 0.9,
        "seed": 8,
    }  # fmt: skip
    sampling = Sampling(1.0, 40, 0.9, 8)
    assert read(line) == [Request("a", (5, 6), 9, (1, 2), True, sampling, 2.0, -1, "c", user="ann")]


def test_a_turn_without_a_user_has_that_of_the_turn_before() -> None:
    turns = [{"prompt": "a", "conversation": "c", "user": "ann"}, {"prompt": "b", "conversation": "c"}]
    ben = {"prompt": "c", "conversation": "c", "user": "ben"}
    found = read(*turns, {"prompt": "d", "conversation": "d"}, ben, {"prompt": "e", "conversation": "c"})
    assert [request.user for request in found] == ["ann", "ann", None, "ben", "ben"]
    assert [request.user for request in read({"prompt": ["a", "b"], "user": "ann"})] == ["ann", "ann"]


def test_what_a_line_leaves_out_has_its_default() -> None:
    defaults = RequestDefaults(7, (0,), True, Sampling(0.5, 3, 0.8, 4))
    plain = Request("r0", (72, 105), 7, (0,), True, Sampling(0.5, 3, 0.8, 4))
    assert read({"prompt": "Hi"}, defaults=defaults) == [plain]
    assert read({"prompt": "Hi", "seed": None, "conversation": None}, defaults=defaults) == [plain]
    own = read({"prompt": "Hi", "seed": 9, "eos_token_id": 6, "ignore_eos": False}, defaults=defaults)
    assert own == [Request("r0", (72, 105), 7, (6,), False, Sampling(0.5, 3, 0.8, 9))]


def test_defaults_may_depend_on_the_index() -> None:
    requests = read({"prompt": "a"}, "", {"prompt": "b"}, {"prompt": "c", "arrival_s": 9.0},
                    defaults=lambda i: RequestDefaults(arrival_s=i / 2))  # fmt: skip
    assert [r.arrival_s for r in requests] == [0.0, 0.5, 9.0]


def test_blank_lines_count_for_lines_but_not_for_names() -> None:
    requests = read("", {"prompt": "a"}, "  \t", {"id": "x", "prompt": "b"}, {"prompt": "c"}, "")
    assert [r.id for r in requests] == ["r0", "x", "r2"]


def test_what_only_the_engine_can_refuse_is_built() -> None:
    requests = read({"prompt": ""}, {"prompt_token_ids": []}, {"prompt_token_ids": [-1, 10**30], "max_new_tokens": -2},
                    {"prompt": "x", "max_new_tokens": 0})  # fmt: skip
    assert [r.prompt for r in requests] == [(), (), (-1, 10**30), (120,)]
    assert [r.max_new_tokens for r in requests] == [256, 256, -2, 0]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "h\xc3\xa9"}\r\n\r\n{"prompt": "a\xe2\x80\xa8b"}')
    expected = [Request("r0", (104, 233)), Request("r1", (97, 0x2028, 98), sampling=Sampling(seed=1))]
    assert read_jsonl(path, encode) == read_jsonl(str(path), encode) == expected


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=5))
def test_lines_give_back_what_was_written(prompts: list[list[int]]) -> None:
    def lines() -> Iterator[str]:
        yield from (json.dumps({"prompt_token_ids": prompt}) for prompt in prompts)

    assert [list(r.prompt) for r in read_jsonl(lines(), encode)] == prompts


# --- requests of several prompts


def test_a_list_of_prompts_is_one_request() -> None:
    line = {"prompt": ["a", "b"], "max_new_tokens": 9, "arrival_s": 2, "priority": -1,
            "eos_token_id": 5, "ignore_eos": True, "temperature": 1, "top_k": 4, "top_p": 0.9, "seed": 8}  # fmt: skip

    def prompt(id: str, token: int, seed: int) -> Request:
        return Request(id, (token,), 9, (5,), True, Sampling(1.0, 4, 0.9, seed), 2.0, -1, group="r0")

    assert read(line) == [prompt("r0/0", 97, 8), prompt("r0/1", 98, 9)]
    ids = read({**line, "prompt": None, "prompt_token_ids": [[97], [98]]})
    assert ids == read(line)


def test_names_of_several_prompts() -> None:
    requests = read(
        {"prompt": ["a", "b"]},
        {"id": "mine", "prompt": ["c", "d"]},
        {"id": ["x", "y"], "prompt": ["e", "f"]},
        {"id": ["r3", "z"], "prompt": ["g", "h"]},  # its group is r3 too: no other request has the name
        {"prompt": "i"},
    )
    assert [(r.id, r.group) for r in requests] == [
        ("r0/0", "r0"), ("r0/1", "r0"), ("mine/0", "mine"), ("mine/1", "mine"), ("x", "r2"), ("y", "r2"),
        ("r3", "r3"), ("z", "r3"), ("r4", None),
    ]  # fmt: skip
    assert [len(request) for request in by_request(requests)] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("name", [None, "r0", ["r0"]])
@pytest.mark.parametrize("prompt", [{"prompt": ["a"]}, {"prompt_token_ids": [[97]]}, {"prompt": "a"}])
def test_a_list_of_one_is_a_request_of_one_prompt(prompt: dict[str, Any], name: Any) -> None:
    assert read({**prompt, "id": name}) == read({"prompt": "a"}) == [Request("r0", (97,))]


def test_every_prompt_draws_from_a_seed_of_its_own() -> None:
    """Also across lines: the seeds of a line go on where those of the line before ended."""
    lines = {"prompt": ["a", "a", "a"]}, {"prompt": "a"}, {"prompt": ["a", "a"], "seed": 50}, {"prompt": ["a", "a"]}
    requests = read(*lines, defaults=RequestDefaults(sampling=Sampling(1.0, seed=4)))
    assert [r.sampling.seed for r in requests] == [4, 5, 6, 7, 50, 51, 10, 11]
    assert read({"prompt": ["a", "a"], "seed": 2**63 - 1})[1].sampling.seed == 2**63


def test_defaults_are_asked_for_once_per_request() -> None:
    requests = read({"prompt": ["a", "b"]}, "", {"prompt": ["c", "d"]}, {"prompt": "e"},
                    defaults=lambda i: RequestDefaults(arrival_s=i / 2))  # fmt: skip
    assert [r.arrival_s for r in requests] == [0.0, 0.0, 0.5, 0.5, 1.0]
