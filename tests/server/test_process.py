"""The server as a process: started, drained, killed, started again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.test_gone import soon

from minifuse.cli import main


class Process:
    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "minifuse", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://[\d.]+:\d+", line):
                self.url = found[0]
                break
        threading.Thread(target=self._read, daemon=True).start()
        for _ in range(200):
            try:
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                threading.Event().wait(0.05)
        raise AssertionError("".join(self.lines))

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += self.process.stderr

    def chat(self, messages: list[dict[str, str]], **more: Any) -> Any:
        return httpx.post(f"{self.url}/v1/chat/completions", json={"messages": messages, **more}, timeout=60)

    def say(self, messages: list[dict[str, str]], prompt: str) -> int:
        """Add a turn to a chat; return how many tokens of it were known."""
        messages.append({"role": "user", "content": prompt})
        told = self.chat(messages).json()
        messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
        return int(told["usage"]["prompt_tokens_details"]["cached_tokens"])

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    started = Process(*arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def test_what_has_not_ended_by_the_deadline_is_given_up() -> None:
    with process("--drain", "1s") as server:
        asked = {"prompt": [1], "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert rest[-1]["error"]["message"].startswith("The server shut down before the answer was complete")
        assert server.process.wait(30) == 0
    assert any(line.startswith("note: 1 request had not ended by the deadline") for line in server.lines)


def test_a_chat_goes_on_after_the_server_was_killed_and_sigterm_lets_answers_end(tmp_path: Path) -> None:
    """The second server, in which the chat goes on, is the one that SIGTERM ends."""
    state = str(tmp_path / "state.sqlite")
    chat: list[dict[str, str]] = []
    with process("--state", state) as server:
        assert server.say(chat, "remember ann 17") == 0
        server.end(signal.SIGKILL)
    with process("--state", state) as server:
        assert server.say(chat, "remember bob 4") == 0  # its KV is gone, its text is not
        assert server.say(chat, "recall ann") > 0
        assert chat[-1]["content"] == "ann 17"
        _sigterm_lets_an_answer_end(server)
    told = [json.loads(line) for line in server.lines if line.startswith("{")]
    assert told[-1]["path"] == "/v1/chat/completions"
    assert told[-1]["completion_tokens"] == 249
    from minifuse.serve.history import History

    with History(state) as history:
        turns = [len(history.turns(name)) for name in history.conversations()]
    assert sorted(turns) == [1, 3]  # of the count, and of the chat


def _sigterm_lets_an_answer_end(server: Process) -> None:
    """End the server while it answers."""
    asked = [{"role": "user", "content": "count from 3 to 250"}]
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(server.chat(asked).json()))
    asking.start()
    running = re.compile(r"^vllm:num_requests_running{.*} 1.0$", re.MULTILINE)
    assert soon(lambda: running.search(httpx.get(f"{server.url}/metrics").text) is not None)
    assert server.end() == 0
    asking.join()
    assert answers[0]["choices"][0]["message"]["content"].endswith(" 250")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/health")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "65536"], ["--port", "65535"]),
        (["--host", "300.1.1.1"], ["cannot listen at 300.1.1.1"]),
        (["--api-key", "a b"], ["--api-key", "printable"]),
        (["--drain", "5"], ["--drain", "unit"]),
        (["--max-body", "much"], ["--max-body"]),
        (["--model", "lstm"], ["lstm", "no tokenizer"]),
        (["--model", "random:small"], ["random:small", "no tokenizer"]),
        (["--clock", "virtual"], ["--clock"]),
        (["--technique", "nothing"], ["nothing"]),
    ],
)
def test_wrong_options_end_with_one_sentence(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("error: ")
    assert all(word in told for word in words)
