"""Short texts parsed into values, and the sentences that refuse all others."""

from __future__ import annotations

import doctest
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.errors import ModelError, RequestRefused, UsageError
from minifuse.core.request import Request
from minifuse.io import parsing
from minifuse.io.lines import read_lines, read_object
from minifuse.io.parsing import did_you_mean, one_of, parse_duration, parse_float, parse_goodput, parse_int, parse_size
from minifuse.model.text.reader import TextReader
from minifuse.workload.files import Encode, read_jsonl
from minifuse.workload.forms import Line


def refusal(call: Callable[[], object]) -> str:
    """The sentence of a usage error, or nothing: no other exception may be raised."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(parsing).failed == 0
    assert doctest.testmod(parsing).attempted >= 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("50us", 5e-5), ("1.5min", 90.0), (" 3 s ", 3.0), (".5s", 0.5), ("1e3ms", 1)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "500", "ms", "-2s", "2h", "1 2s", "nan", "infs", "1e999s", "٣s", "2S"])
def test_a_duration_needs_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text, "--window")
    assert str(caught.value) == (
        f'--window is "{text}": give a number with a unit (us, ms, s, min), such as 500ms or 2s.'
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 * 2**20), ("1GiB", 2**30), ("4096", 4096), ("4096B", 4096), ("1.5KiB", 1536), ("64MB", 64_000_000),
     ("2kb", 2000), ("3 TiB", 3 * 2**40), ("1gib", 2**30), ("0.1KiB", 102)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "64M", "64 apples", "-1MiB", "0", "0.5", "nan", "inf", "1e30GiB", "1e400GiB", "MiB"]
)
def test_a_size_is_at_least_one_byte(text: str) -> None:
    with pytest.raises(UsageError, match="such as 64MiB or 1GiB") as caught:
        parse_size(text, "--kv-memory")
    assert str(caught.value).startswith(f'--kv-memory is "{text}": give at least one byte ')


def test_numbers_in_a_range() -> None:
    assert parse_int("8", "x", 1, 8) == 8
    assert parse_int(" +1 ", "x", 1, 8) == 1
    assert parse_float("2.5", "x", 0, 8) == 2.5
    for text in ("0", "9", "3.0", "", "1_000", "9" * 5000, "x"):
        with pytest.raises(UsageError, match=r": give a whole number from 1 to 8\.$"):
            parse_int(text, "x", 1, 8)
    for text in ("0.9", "9", "", "nan", "inf", "2s", "-1"):
        with pytest.raises(UsageError, match=r": give a number from 1 to 8\.$"):
            parse_float(text, "x", 1, 8)


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_duration, parse_size, parse_goodput):
        assert refusal(lambda parse=parse: parse(text))[-1:] in ("", ".")  # type: ignore[misc]


def test_goodput_bounds_are_milliseconds() -> None:
    assert parse_goodput("ttft:200,tpot:50") == {"ttft": 0.2, "tpot": 0.05}
    assert parse_goodput(" e2e : 1500 ") == {"e2e": 1.5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tftt:2", 'The goodput bound "tftt:2" is unknown (did you mean "ttft"?): give ttft, tpot or e2e, as in '
         "ttft:200."),
        ("", 'The goodput bound "" is unknown: give ttft, tpot or e2e, as in ttft:200.'),
        ("ttft:200,", 'The goodput bound "" is unknown: give ttft, tpot or e2e, as in ttft:200.'),
        ("ttft", 'The goodput bound ttft (milliseconds) is "": give a number from 0 to 1e+09.'),
        ("ttft:-1", 'The goodput bound ttft (milliseconds) is "-1": give a number from 0 to 1e+09.'),
        ("tpot:200ms", 'The goodput bound tpot (milliseconds) is "200ms": give a number from 0 to 1e+09.'),
        ("ttft:1,ttft:2", 'The goodput bounds are "ttft:1,ttft:2", with ttft twice: give each at most once.'),
    ],
)  # fmt: skip
def test_texts_that_are_not_goodput_bounds(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_goodput(text)
    assert str(caught.value) == sentence


def test_lists_and_suggestions_in_sentences() -> None:
    assert one_of(["a"]) == "a"
    assert one_of(["a", "b", "c"]) == "a, b or c"
    assert did_you_mean("promt", ["prompt", "seed"]) == ' (did you mean "prompt"?)'
    assert did_you_mean("PROMT", ["prompt", "seed"]) == ' (did you mean "prompt"?)'
    assert did_you_mean("Prompt", ["prompt", "seed"]) == ' (did you mean "prompt"?)'
    assert did_you_mean("zzz", ["prompt", "seed"]) == ""
    assert did_you_mean("prompt", ["prompt", "seed"]) == ""  # it is spelt correctly: the mistake is elsewhere


def test_null_and_absent_fields_have_their_default() -> None:
    absent, null, default = read({"prompt": "x"}, {"prompt": "x", "seed": None, "temperature": None}, {"prompt": "x"})
    assert null.sampling == replace(absent.sampling, seed=absent.sampling.seed + 1)
    assert (null.sampling.temperature, null.id, null.user) == (default.sampling.temperature, "r1", None)


@given(st.text())
def test_no_line_breaks_the_reader(line: str) -> None:
    sentence = refusal(lambda: read_object("f:1", line, Line))
    assert not sentence or sentence.startswith("f:1: ")


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes("\ufeffone\u2028still one\r\ntwo\x0cstill two\n".encode())
    assert list(read_lines(path)) == ["one\u2028still one\r", "two\x0cstill two", ""]


# --- lines of request files


def encode(text: str, *, continues: bool = False) -> list[int]:
    return [ord(letter) for letter in text]


def read(*lines: str | dict[str, Any], encode: Encode = encode) -> list[Request]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return read_jsonl(texts, encode, name="p.jsonl")


P = '"prompt": "x"'
STRING, INTEGER, LIST = (f"Input should be a valid {kind}" for kind in ("string", "integer", "list"))
FILLED = "List should have at least 1 item after validation, not 0"
NAMED = "String should have at least 1 character"
BROKEN = f"{STRING}, unable to parse raw data as a unicode string"
AT_LEAST_0, FINITE = "Input should be greater than or equal to 0", "Input should be a finite number"
NUMBER = "Input should be a valid number"
ONE_ID_EACH = "give one id for each prompt, or one string for the whole request"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes at column 2): give one object on each line"),
        ("[" * 100_000, "not readable as JSON: give numbers and lists of sane size"),
        (f'{{{P}, "seed": {"9" * 5000}}}', "not readable as JSON: give numbers and lists of sane size"),
        ("[1, 2]", "[1, 2] is not an object: give one"),
        ("3", "3 is not an object: give one"),
        ('{"promt": "x"}', 'unknown field "promt" (did you mean "prompt"?): give id, prompt, prompt_token_ids, '
         "max_new_tokens, arrival_s, priority, user, conversation, think_s, eos_token_id, ignore_eos, temperature, "
         "top_k, top_p or seed"),
        (f'{{{P}, "seed": 1, "seed": 2}}', 'field "seed" stands here twice: give it once'),
        (f'{{{P}, "prompt_token_ids": [1]}}', "both prompt and prompt_token_ids are given: give exactly one of them"),
        ("{}", "no prompt or prompt_token_ids is given: give exactly one of them"),
        ('{"prompt": null}', "no prompt or prompt_token_ids is given: give exactly one of them"),
        ('{"prompt": 5}', f"prompt is 5: {STRING} or {LIST}"),
        ('{"prompt": []}', f"prompt is []: {STRING} or {FILLED}"),
        ('{"prompt": ["x", null]}', f"prompt[1] is null: {STRING}"),
        ('{"prompt": ["x", "\\ud800"]}', f'prompt[1] is "\\ud800": {BROKEN}'),
        ('{"prompt": "\\ud800"}', f'prompt is "\\ud800": {BROKEN} or {LIST}'),
        (f'{{{P}, "id": 7}}', f"id is 7: {STRING} or {LIST}"),
        (f'{{{P}, "id": ""}}', f'id is "": {NAMED} or {LIST}'),
        (f'{{{P}, "id": []}}', f"id is []: {STRING} or {FILLED}"),
        (f'{{{P}, "id": ["a", "b"]}}', f"id is a list of 2 and there is 1 prompt: {ONE_ID_EACH}"),
        ('{"prompt": ["x", "y", "z"], "id": ["a", "b"]}', f"id is a list of 2 and there are 3 prompts: {ONE_ID_EACH}"),
        ('{"prompt": ["x", "y"], "id": ["a"]}', f"id is a list of 1 and there are 2 prompts: {ONE_ID_EACH}"),
        ('{"prompt": ["x", "y"], "id": ["a", "a"]}', 'id holds "a" twice: give every prompt an id of its own'),
        ('{"prompt": ["x", "y"], "id": ["a", ""]}', f'id[1] is "": {NAMED}'),
        ('{"prompt": ["x", "y"], "id": ["a", 3]}', f"id[1] is 3: {STRING}"),
        (f'{{{P}, "conversation": ["{"c" * 99}"]}}', f'conversation is ["{"c" * 35}...: {STRING}'),
        ('{"prompt_token_ids": 5}', f"prompt_token_ids is 5: {LIST}"),
        ('{"prompt_token_ids": [[1], 2]}', "prompt_token_ids mixes token ids and lists of them: give one or the other"),
        ('{"prompt_token_ids": [[1], [2, true]]}', f"prompt_token_ids[1][1] is true: {INTEGER}"),
        ('{"prompt_token_ids": [1, [2]]}', "prompt_token_ids mixes token ids and lists of them: give one or the other"),
        ('{"prompt_token_ids": [1, true]}', f"prompt_token_ids[1] is true: {INTEGER} or {LIST}"),
        ('{"prompt_token_ids": [1.0]}', f"prompt_token_ids[0] is 1.0: {INTEGER} or {LIST}"),
        (f'{{{P}, "max_new_tokens": true}}', f"max_new_tokens is true: {INTEGER}"),
        (f'{{{P}, "max_new_tokens": 8.0}}', f"max_new_tokens is 8.0: {INTEGER}"),
        (f'{{{P}, "priority": "high"}}', f'priority is "high": {INTEGER}'),
        (f'{{{P}, "arrival_s": -0.1}}', f"arrival_s is -0.1: {AT_LEAST_0}"),
        (f'{{{P}, "arrival_s": NaN}}', f"arrival_s is NaN: {FINITE}"),
        (f'{{{P}, "arrival_s": Infinity}}', f"arrival_s is Infinity: {FINITE}"),
        (f'{{{P}, "arrival_s": true}}', f"arrival_s is true: {NUMBER}"),
        (f'{{{P}, "arrival_s": "1s"}}', f'arrival_s is "1s": {NUMBER}'),
        (f'{{{P}, "temperature": -1}}', f"temperature is -1: {AT_LEAST_0}"),
        (f'{{{P}, "temperature": NaN}}', f"temperature is NaN: {FINITE}"),
        (f'{{{P}, "top_p": 0}}', "top_p is 0: Input should be greater than 0"),
        (f'{{{P}, "top_p": 1.5}}', "top_p is 1.5: Input should be less than or equal to 1"),
        (f'{{{P}, "top_k": -1}}', f"top_k is -1: {AT_LEAST_0}"),
        (f'{{{P}, "seed": -1}}', f"seed is -1: {AT_LEAST_0}"),
        (f'{{{P}, "ignore_eos": 1}}', "ignore_eos is 1: Input should be a valid boolean"),
        (f'{{{P}, "eos_token_id": "2"}}', f'eos_token_id is "2": {INTEGER} or {LIST}'),
        (f'{{{P}, "eos_token_id": [2, null]}}', f"eos_token_id[1] is null: {INTEGER}"),
    ],
)  # fmt: skip
def test_lines_refused(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        read({"prompt": "fine"}, "", line)
    assert str(caught.value) == f"p.jsonl:3: {problem}."


def test_duplicate_ids_name_both_lines() -> None:
    with pytest.raises(UsageError) as caught:
        read({"id": "a", "prompt": "x"}, "", {"id": "a", "prompt": "y"})
    assert str(caught.value) == 'p.jsonl:3: the id "a" is taken by p.jsonl:1: give every request an id of its own.'
    with pytest.raises(UsageError, match=r'^p\.jsonl:2: the id "r1" is taken by p\.jsonl:1'):
        read({"id": "r1", "prompt": "x"}, {"prompt": "y"})


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ({"id": "a"}, {"id": "a"}, "a"),
        ({"id": "a"}, {"id": ["b", "a/1"]}, "a/1"),
        ({"id": ["a", "r1"]}, {}, "r1"),
        ({"id": ["a", "r1/1"]}, {}, "r1/1"),
        ({}, {"id": ["a", "r0"]}, "r0"),  # the name of a group: its prompts are r0/0 and r0/1
        ({"id": ["a", "b"]}, {"id": "r0"}, "r0"),
    ],
)
def test_ids_given_and_made_are_unique_over_groups_and_prompts(
    first: dict[str, Any], second: dict[str, Any], taken: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read({"prompt": ["x", "y"], **first}, {"prompt": ["x", "y"], **second})
    assert str(caught.value) == (
        f'p.jsonl:2: the id "{taken}" is taken by p.jsonl:1: give every request an id of its own.'
    )


def test_a_text_for_a_model_without_a_tokenizer_is_that_requests_problem() -> None:
    def none(text: str, *, continues: bool = False) -> list[int]:
        raise ModelError("The model has no tokenizer.json: give prompt_token_ids.")

    ids, text = read({"prompt_token_ids": [1]}, {"prompt": "x"}, encode=none)
    assert (ids.prompt, ids.problem) == ((1,), None)
    assert text.problem == "in p.jsonl:2 is text: The model has no tokenizer.json: give prompt_token_ids."
    with pytest.raises(RequestRefused, match=r"^Request 'r1' in p\.jsonl:2 is text: The model has no tokenizer"):
        TextReader(10, 10).check(text)
    assert [r.problem for r in read({"prompt": ["x", "y"]}, encode=none)] == [
        "in p.jsonl:1 is text: The model has no tokenizer.json: give prompt_token_ids."
    ] * 2


def test_files_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file or directory")):
        with pytest.raises(UsageError) as caught:
            read_jsonl(path, encode)
        assert str(caught.value) == f"{path} cannot be read ({reason}): give a file of JSON lines."
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "x"}\n{"prompt": "\xff"}\n')
    with pytest.raises(UsageError) as caught:
        read_jsonl(path, encode)
    assert str(caught.value) == f"{path}:2: byte 13 of this line is not UTF-8: give UTF-8."
    for nothing in (b"", b"\n \n"):
        path.write_bytes(nothing)
        with pytest.raises(UsageError) as caught:
            read_jsonl(path, encode)
        assert str(caught.value) == f'{path} holds no request: give one per line, such as {{"prompt": "Hello"}}.'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["id", "prompt", "prompt_token_ids", "max_new_tokens", "arrival_s", "priority", "conversation", "eos_token_id",
         "ignore_eos", "temperature", "top_k", "top_p", "seed"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), st.booleans())
def test_any_object_is_a_sound_request_or_a_usage_error(line: dict[str, Any], named: bool) -> None:
    line = {"prompt": "x", **line} if named else line
    if sentence := refusal(lambda: read(line)):
        assert sentence.startswith("p.jsonl:1: ")
        return
    requests = read(line)
    assert len({request.id for request in requests}) == len(requests)
    assert len({request.group for request in requests}) == 1
    assert (requests[0].group is None) == (len(requests) == 1)
    for request in requests:
        sampling = request.sampling
        assert isinstance(request.id, str)
        assert all(type(token) is int for token in (*request.prompt, *request.stop_ids, request.max_new_tokens))
        assert 0 <= request.arrival_s < math.inf
        assert 0 <= sampling.temperature < math.inf
        assert 0 < sampling.top_p <= 1
        assert sampling.top_k >= 0
        assert type(request.ignore_eos) is bool
