"""`minifuse chat`: turns from standard input, streamed answers, and what each found of the text before it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.cli import chat
from minifuse.serve.history import History
from minifuse.serve.talk import Talk

Cli = Callable[..., Any]
LOOK_UP = ("remember ann 17", "sort 7 2 5", "", "recall ann")


@pytest.fixture
def talk(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`talk(lines, "--json")`: a chat whose standard input has these lines."""

    def call(lines: tuple[str | bytes, ...], *arguments: object) -> Any:
        data = b"".join(line if isinstance(line, bytes) else f"{line}\n".encode() for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return minifuse("chat", *arguments)

    return call


def objects(outcome: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_a_fact_of_an_earlier_turn_is_looked_up_and_its_kv_is_reused(talk: Cli, tiny: str) -> None:
    """The second turn finds 4 of the 5 tokens before it; the last of them is new, with the 4 of its prompt."""
    outcome = talk(LOOK_UP)
    assert (outcome.code, outcome.out) == (0, "ok\n2 5 7\nann 17\n")
    counts = [re.findall(r"\d+ [a-z ]+(?=[,;])", line) for line in outcome.err.splitlines()]
    assert counts == [
        ["0 reused on the device", "0 swapped in", "0 recomputed", "3 new"],
        ["4 reused on the device", "0 swapped in", "0 recomputed", "5 new"],
        ["12 reused on the device", "0 swapped in", "0 recomputed", "3 new"],
    ]


def test_one_object_a_turn(talk: Cli, tiny: str) -> None:
    outcome = talk((*LOOK_UP, "x " * 2000, "add 2 and 3"), "--json", "--technique", "orca", "--max-new-tokens", 8)
    assert outcome.code == 1
    found = objects(outcome)
    assert [one["schema"] for one in found] == ["minifuse.chat/1"] * 5
    assert [one["prompt"][:10] for one in found] == [
        "remember a",
        "sort 7 2 5",
        "recall ann",
        "x x x x x ",
        "add 2 and ",
    ]
    assert [one["finish_reason"] for one in found] == ["stop", "stop", "stop", "refused", "stop"]
    assert "error: line 5: " in outcome.err
    assert "context is 1024" in found[3]["error"]
    names = ("turn", "text", "history_tokens", "reused_on_device", "swapped_in", "recomputed", "new", "stored")
    rows = [tuple(one[name] for name in names) for one in found if one["turn"]]
    assert rows == [
        *((1, " ok", 0, 0, 0, 0, 3, False), (2, " 2 5 7", 5, 0, 0, 4, 5, False)),
        *((3, " ann 17", 13, 0, 0, 12, 3, False), (4, " 5", 18, 0, 0, 17, 5, False)),
    ]


def test_the_next_chat_goes_on_and_other_conversations_are_others(talk: Cli, tmp_path: Path, tiny: str) -> None:
    state = ("--state", tmp_path / "s.sqlite")
    assert "stored" in talk(LOOK_UP[:2], *state).err
    again = talk(LOOK_UP[3:], *state)
    assert again.out == "ann 17\n"
    assert "goes on behind 2 turns of 13 tokens" in again.err
    assert "turn 3: 0 reused on the device, 0 swapped in, 12 recomputed, 3 new" in again.err
    assert talk(LOOK_UP[3:], *state, "--conversation", "other").out != "ann 17\n"
    with History(state[1]) as history:
        assert [len(history.turns(name)) for name in ("chat", "other")] == [3, 1]


def test_ctrl_c_ends_the_answer_and_with_it_the_input_that_is_no_terminal(
    talk: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    add = chat._Stream.add
    calls = []

    def interrupted(self: Any, tokens: tuple[int, ...]) -> None:
        add(self, tokens)
        calls.append(tokens)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat._Stream, "add", interrupted)
    state = tmp_path / "s.sqlite"
    outcome = talk(("add 2 and 3", "count from 3 to 90", "sort 2 1"), "--state", state)
    assert (outcome.code, outcome.out) == (130, "5\n3 4\n")
    assert "aborted, not stored" in outcome.err  # no other answer comes
    with History(state) as history:
        assert [turn.finish_reason for turn in history.turns("chat")] == ["stop"]


def test_a_prompt_longer_than_the_context_is_to_be_shortened(talk: Cli, tiny: str) -> None:
    outcome = talk(("count from 3 to 9 " * 300, "add 2 and 3"))
    assert (outcome.code, outcome.out) == (1, "5\n")
    assert "tokens, and the context is 1024: shorten it." in outcome.err


def test_ctrl_c_before_there_is_an_answer(talk: Cli, monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    def say(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Talk, "say", say)
    assert talk(LOOK_UP).code == 130


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--model", "random:small"], ["random:small has no tokenizer", "minifuse run --prompts"]),
        (["--model", "lstm:hidden=16"], ["has no tokenizer"]),
        (["--conversation", "c"], ["--conversation", "add --state FILE"]),
        (["--state", "."], ["--state", "Is a directory"]),
        (["--state", "/no/such/folder/s"], ["--state", "No such file"]),
        (["--top-k", "3"], ["--top-k", "add --temperature"]),
        (["--clock", "virtual"], ["--clock"]),
    ],
)
def test_what_chat_refuses(typed: list[str], words: list[str], talk: Cli) -> None:
    talk(LOOK_UP, *typed).refused(*words)


def test_lines_that_are_not_utf_8_and_no_standard_input(talk: Cli, minifuse: Cli, monkeypatch: Any, tiny: str) -> None:
    outcome = talk((b"sort 2\xff\n", "sort 2 1"))
    assert (outcome.code, outcome.out) == (1, "1 2\n")
    assert "error: line 1: Byte 7 is not UTF-8: give UTF-8." in outcome.err
    monkeypatch.setattr(sys, "stdin", None)
    minifuse("chat").refused("Standard input is closed")


def test_a_chat_that_fills_the_context_says_so(talk: Cli, tiny: str) -> None:
    outcome = talk(("x" * 400,) * 3, "--max-new-tokens", 2)
    assert outcome.code == 1
    *_, last = outcome.err.splitlines()
    for part in ("line 3", "context is 1024", "begin another chat"):
        assert part in last


@pytest.mark.long
def test_on_a_terminal(tiny: str) -> None:
    """Ctrl-C ends an answer and no more, also the second time; at the prompt it ends nothing; Ctrl-D ends the chat."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "minifuse", "chat"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        end = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 4096).decode()
        seen = seen[seen.index(text) + len(text) :]

    until("Ctrl-D the chat.")
    until("> ")
    for _ in range(2):
        os.write(ours, b"count from 0 to 249\n")
        until("1 2 3")
        process.send_signal(signal.SIGINT)
        until("aborted)")
        until("> ")
        time.sleep(1.1)  # more than a keystroke
    process.send_signal(signal.SIGINT)
    until("Ctrl-D ends the chat.")
    os.write(ours, b"remember ann 17\n")
    until("ok")
    until("> ")
    os.write(ours, b"\x04")
    assert process.wait(60) == 0
    os.close(ours)


def test_chat_offers_no_option_that_means_nothing_to_it(minifuse: Cli) -> None:
    """A new option of `run` is not offered here before it has been thought of: it would be accepted and ignored."""
    offered = set(re.findall(r"^ *│? *(?:-\w, )?(--[a-z-]+)", minifuse("chat", "--help").out, re.MULTILINE))
    of_model = {"--model", "--dtype", "--numerics", "--device", "--tensor-parallel", "--kv-memory"}
    of_answers = {"--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed"}
    of_stages = {"--technique", "--batching", "--memory", "--attention", "--set"}
    assert offered - {"--help"} == of_model | of_answers | of_stages | {"--state", "--conversation", "--json"}
