"""Small models on disk, and the command line as a function and as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from registers import keep_registers

from minifuse.cli import main
from minifuse.cli.plugin import PREFIX, plugin_files
from minifuse.model.text.checkpoint import write_weights
from minifuse.model.text.load import TINY, build, random_weights, resolve_text
from minifuse.serve import calibrate
from minifuse.simulate.machine_profile import Rates

WORDS = ("<eos>", "<unk>", "one", "two", "three", "four", "five")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "eos_token_id": 0,
}


@pytest.fixture
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's two rates, which take a second to measure; test_cli_calibrate.py measures them once."""
    monkeypatch.setattr(calibrate, "rates", lambda dtype, device: Rates(bandwidth=1e10, flops=1e11, memory=1e9))


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command line."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def answers(self) -> dict[str, str]:
        """The text of every answer, by id."""
        assert self.code == 0, self.err
        return {output["id"]: output["text"] for output in self.json()["outputs"]}

    def refused(self, *words: str, code: int = 2) -> None:
        """One sentence on stderr with these words, nothing on stdout."""
        assert (self.code, self.out) == (code, "")
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert self.err.rstrip().endswith((".", "?"))
        for word in words:
            assert word in self.err


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The models here are too small to share, and the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Python may keep no bytecode, processes of the command line share some, instead of each compiling all."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(autouse=True)
def _plugins_forgotten() -> Iterator[None]:
    """What a test has loaded with --plugin is not there for the next."""
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.startswith(PREFIX):
            del sys.modules[name]


@pytest.fixture
def minifuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command line in this process: `minifuse("run", "--json")`."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Outcome(code, out, err)

    return call


@pytest.fixture
def afresh(minifuse: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """The command line in this process, as in one of its own: what a call has loaded is gone when it has ended."""

    def call(*arguments: object) -> Outcome:
        before = {*sys.modules}
        with pytest.MonkeyPatch.context() as patch:
            keep_registers(patch)
            try:
                return minifuse(*arguments)
            finally:
                files = {*map(str, plugin_files())}
                loaded = {name for name in {*sys.modules} - before if name.startswith(PREFIX)}
                loaded |= {name for name, module in sys.modules.items() if getattr(module, "__file__", None) in files}
                for name in loaded:
                    del sys.modules[name]

    return call


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The command line as a process of its own, one thread wide; killed at the end of the test."""
    processes: list[subprocess.Popen[str]] = []

    def call(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "minifuse", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            text=True,
            # A shell's background job ignores SIGINT, and so would whatever it starts: not what a test of Ctrl-C wants.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def process(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., Outcome]:
    """The command line as a process of its own, run to its end: `process("list", TRITON_INTERPRET="1")`."""

    def call(*arguments: object, **environment: str) -> Outcome:
        started = start(*arguments, **environment)
        out, err = started.communicate()
        assert "Traceback" not in out + err
        return Outcome(started.returncode, out, err)

    return call


@pytest.fixture(scope="session")
def wordless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory without a tokenizer."""
    return _make_model(tmp_path_factory.mktemp("wordless"))


@pytest.fixture(scope="session")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a tokenizer that knows a few words."""
    directory = _make_model(tmp_path_factory.mktemp("worded"))
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<eos>", "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "<unk>"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def _make_model(directory: Path, **changes: object) -> Path:
    """A checkpoint with random weights and `CONFIG`, changed like this after the weights were made."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    write_weights(random_weights(build(resolve_text(str(directory)).config), seed=1), directory)
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    return directory


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Path]:
    """`make_model(directory, model_type="mamba")` writes a small checkpoint whose config.json is changed like this."""
    return _make_model


@pytest.fixture
def requests(tmp_path: Path) -> Callable[..., Path]:
    """A file of JSON lines: `requests({"prompt_token_ids": [1]}, ...)`, or of any lines."""

    def write(*lines: object) -> Path:
        path = tmp_path / "requests.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return path

    return write


@pytest.fixture(scope="session")
def tiny() -> str:
    """The shipped model, which must be there."""
    assert (TINY / "model.safetensors").exists(), "the weights of tiny are not in the package"
    return "tiny"
