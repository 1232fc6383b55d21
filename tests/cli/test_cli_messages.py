"""What messages quote cannot steer a terminal or fill it, and what would fill the memory is refused."""

from __future__ import annotations

import ast
import io
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import minifuse.cli
from minifuse.cli.failures import told
from minifuse.core.errors import LONGEST, LawBroken, RequestRefused, UsageError

Cli = Callable[..., Any]

NASTY = "a\x1b[2J\r\n\t\x9b1m\u202e"
READERS = [("run", "--prompts", "-"), ("trace", "-"), ("replay", "-", "-o", "page.html")]
VIRTUAL = ("--model", "random:small", "--clock", "virtual")


def readable(text: str) -> bool:
    """One line that a terminal shows as it is, of a length that a person reads."""
    return text.endswith("\n") and text[:-1].isprintable() and len(text) <= LONGEST + len("error: \n")


@pytest.mark.parametrize("given", [NASTY, "x" * 100_000, f"{NASTY} " * 10_000], ids=["control", "long", "both"])
@pytest.mark.parametrize(
    "typed",
    [
        ("run", "--technique", "{}"),
        ("run", "--set", "{}"),
        ("run", "--set", "batching.{}=1"),
        ("run", "--set", "batching.max_batch={}"),
        ("run", "--kv-memory", "{}"),
        ("run", "--clock", "{}"),
        ("run", "--requests", "{}"),
        ("run", "--arrival", "{}"),
        ("run", "--output-length", "{}"),
        ("run", "--workload", "{}"),
        ("run", "--goodput", "{}"),
        ("run", "--model", "{}"),
        ("run", "--prompts", "{}"),
        ("run", "--trace", "nowhere/{}"),
        ("run", "--{}"),
        ("--plugin", "{}", "list"),
        ("chat", "--conversation", "{}"),
        ("trace", "{}"),
        ("replay", "{}", "-o", "page.html"),
        ("explain", "{}"),
        ("tutorial", "{}"),
        ("reproduce", "{}"),
        ("lab", "start", "{}"),
        ("lab", "check", "{}"),
        ("{}",),
    ],
    ids=" ".join,
)
def test_what_was_typed_is_quoted_on_one_line(
    typed: tuple[str, ...], given: str, minifuse: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = minifuse(*(text.format(given) for text in typed))
    assert (outcome.code, outcome.out) == (2, "")
    assert readable(outcome.err), outcome.err[:2000]
    assert not [*tmp_path.iterdir()]


def test_what_a_file_says_is_quoted_on_one_line(minifuse: Cli, requests: Cli) -> None:
    for given in (NASTY, "x" * 100_000):
        path = requests(
            {"id": given, "prompt_token_ids": []}, {"id": "ok", "prompt_token_ids": [1], "max_new_tokens": 1}
        )
        outcome = minifuse("run", *VIRTUAL, "--prompts", path)
        assert outcome.code == 1
        lines = outcome.err.splitlines(keepends=True)
        assert all(line[:-1].isprintable() for line in lines), lines
        assert readable(next(line for line in lines if line.startswith("error: ")))
        for line in (f'{{"{given}": 1}}', {given: 1}, {"prompt": {"a": given}}, {"id": given}):
            assert readable(minifuse("run", *VIRTUAL, "--prompts", requests(line)).err)


@pytest.mark.parametrize("kind", [UsageError, RequestRefused, lambda what: LawBroken("law", what)])
def test_the_message_of_every_error_is_readable(kind: Callable[[str], Exception]) -> None:
    for what in (NASTY, "x" * 100_000):
        assert readable(f"{kind(what)}\n")


def test_every_message_of_the_command_line_goes_one_way() -> None:
    """A message that is printed in another way may quote what steers the terminal."""
    ways = set()
    for path in Path(minifuse.cli.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and any(ast.unparse(one.value) == "sys.stderr" for one in call.keywords):
                ways |= {(path.name, ast.unparse(one)) for one in call.args if not isinstance(one, ast.Constant)}
    assert ways == {("text.py", "shortened(one_line(message), 2 * LONGEST)"), ("__init__.py", "SHOW_CURSOR")}


@pytest.mark.parametrize(
    "ends", [lambda: bytearray(1 << 62), lambda: torch.empty(1 << 60), lambda: [0] * (1 << 60)], ids="btl"
)
def test_too_little_memory_is_what_the_machine_lacks(ends: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as error:
        ends()
    message, code = told(error.value)
    assert code == 3
    assert message.startswith("The machine has too little memory (")
    assert readable(f"{message}\n")


STAGE = """
from minifuse import register
from minifuse.batching import Iteration

@register
class Stage(Iteration):
    "Asks for too much."
    name = "greedy"

    def propose(self, *given):
        return bytearray(1 << 62)
"""


@pytest.mark.parametrize("text", ["much = bytearray(1 << 62)", STAGE], ids=["import", "stage"])
def test_a_plugin_that_asks_for_too_much_memory(text: str, afresh: Cli, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(text)
    outcome = afresh("--plugin", plugin, "run", "--batching", "greedy", *VIRTUAL, "--requests", 2)
    assert outcome.code == 3
    assert "error: The machine has too little memory (" in outcome.err
    if text is STAGE:
        assert "raised MemoryError at mine.py, line 11" in outcome.err


def test_a_line_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.truncate(400_000_000)  # zeros, which take no room on the disk
    done = subprocess.run(
        [sys.executable, "-m", "minifuse", "run", *VIRTUAL, "--prompts", str(path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000)),
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: The machine has too little memory (MemoryError): ")


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> int:
    """So few bytes are read."""
    for module in ("io.lines", "cli.chat", "cli.plugin"):
        monkeypatch.setattr(f"minifuse.{module}.MOST_LINE", 1 << 20)
    monkeypatch.setattr("minifuse.io.lines.MOST_TEXT", 3 << 20)
    return 3 << 20


class Endless(io.RawIOBase):
    """A stream without an end, which tells how much was read of it."""

    def __init__(self, part: bytes) -> None:
        self.part = part
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        into[:] = (self.part * len(into))[: len(into)]
        self.given += len(into)
        return len(into)


@pytest.mark.parametrize(
    ("typed", "part"),
    [*((typed, part) for typed in READERS for part in (b"a", b"\n")), (("chat",), b"a")],
    ids=lambda value: value[0] if isinstance(value, tuple) else repr(value),
)
def test_standard_input_without_an_end(
    typed: tuple[str, ...], part: bytes, little: int, minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    endless = Endless(part)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    minifuse(*typed).refused("standard input", "MiB, the most that is read", code=3)
    assert endless.given <= little + (2 << 20)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        (("run", *VIRTUAL, "--prompts", "{}"), "long.jsonl"),
        (("run", *VIRTUAL, "--workload", "sharegpt:file={}"), "long.json"),
        (("trace", "{}"), "long.jsonl"),
        (("--plugin", "{}", "list"), "long.py"),
        (("run", "--clock", "virtual", "--model", "."), "config.json"),
        (("run", *VIRTUAL, "--technique", "pensieve", "--set", "memory.profile={}"), "profile.json"),
        (("lab", "similar", "{}", "--lab", "3"), "solution.py"),
    ],
)
def test_a_file_that_is_too_long(
    typed: tuple[str, ...], name: str, little: int, minifuse: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Path(name).open("wb") as file:
        file.truncate(little + 1)
    minifuse(*(text.format(name) for text in typed)).refused(name, "MiB, the most that is read", code=3)


def test_a_line_that_is_too_long_is_named(little: int, minifuse: Cli, requests: Cli, monkeypatch: Any) -> None:
    lines = json.dumps({"prompt_token_ids": [1]}), json.dumps({"prompt": "a" * (1 << 20)})
    path = requests(*lines)
    minifuse("run", *VIRTUAL, "--prompts", path).refused(f"{path}:2", "1 MiB", code=3)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    minifuse("run", *VIRTUAL, "--prompts", "-").refused("standard input:2", "1 MiB", code=3)
