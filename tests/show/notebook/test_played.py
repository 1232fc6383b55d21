"""Runs in a line: the engine's own answers, options that reach it, and the command line's sentences."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minifuse.show.notebook
from minifuse.cli import main
from minifuse.core.errors import MachineError, MinifuseError, UsageError
from minifuse.core.request import Sampling
from minifuse.model.source import resolve
from minifuse.naive.oracle import answer
from minifuse.show.notebook import play as play_in_a_line
from minifuse.show.notebook import played
from minifuse.show.notebook.colours import owner_colour
from minifuse.show.notebook.lanes import draw_lanes
from minifuse.show.notebook.memory import draw_memory
from minifuse.show.notebook.played import play
from minifuse.show.notebook.prompts import asks
from minifuse.show.notebook.series import draw_series
from minifuse.simulate.cost import HARDWARE
from minifuse.trace.log import read_trace

from .runs import TEXTS, few, run_of, talks


def command_line(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to stderr."""
    told = io.StringIO()
    with redirect_stderr(told), redirect_stdout(io.StringIO()):
        code = main(list(arguments))
    return code, told.getvalue()


@pytest.fixture(scope="module")
def right() -> dict[str, list[int]]:
    """The tokens of the naive reference, which recomputes everything in float64."""
    model = resolve("tiny").load("float64")
    return {one.id: answer(model, one) for one in few()}


@pytest.mark.parametrize("name", ["static", "orca", "fusion", "fusion unshuffled", "baton", "baton-pd", "dynamic"])
def test_tokens_are_those_of_the_naive_reference(name: str, right: dict[str, list[int]]) -> None:
    assert run_of(name).tokens == right


@pytest.mark.parametrize("name", ["vllm", "fluid", "fastserve", "cellular"])
def test_tokens_are_the_same_where_memory_is_short(name: str, right: dict[str, list[int]]) -> None:
    assert play(name, few(), kv_memory="72KiB").tokens == right


def test_processes_that_share_the_model_need_no_guard_for_main(right: dict[str, list[int]]) -> None:
    """A notebook's cells are no module that another process could import."""
    code = "from minifuse.show.notebook import asks, play\n"
    code += f"played = play('orca', asks(*{TEXTS[:2]}), clock='real', tensor_parallel=2); print(played.tokens)"
    told = subprocess.run([sys.executable], input=code, capture_output=True, text=True, check=True, timeout=100)
    first = {name: right[name] for name in ("r0", "r1")}
    assert told.stdout == f"{first}\n"


def test_answers_are_the_texts_of_the_tokens() -> None:
    answers = run_of("orca").answers
    assert [*answers.values()][:4] == ["3 4 5 6 7 8 9", "2 5 7", "owl tree moon cat", "42"]
    assert [*answers] == [f"r{i}" for i in range(len(TEXTS))]


def test_conversations_are_remembered() -> None:
    answers = run_of("pensieve").answers
    assert [answers[f"c{i}.2"] for i in range(4)] == ["ann 17"] * 4
    assert any(event.get("reused") for event in run_of("pensieve").events)


def test_a_run_is_what_the_command_line_makes(tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    options = ["--kv-memory", "192KiB", "--clock", "virtual", "--arrival", "constant:0.1ms", "--max-new-tokens", "24"]
    options += ["--max-batch", "3", "--set", "memory.block_size=4", "--set", "memory.share=on", "--why"]
    code, told = command_line("run", *TEXTS, "--technique", "vllm", *options, "--trace", str(trace))
    assert code == 0, told
    requests = asks(*TEXTS, every=0.0001)
    played = play("vllm", requests, max_batch=3, memory__block_size=4, memory__share=True, why=True)
    assert played.events == read_trace(trace)
    assert max(len(event.get("reasons", ())) for event in played.events) > 1  # of each that waits


def test_the_same_seed_gives_the_same_run() -> None:
    def drawn(seed: int) -> Any:
        one = [replace(one, sampling=Sampling(temperature=2.0, seed=seed)) for one in few()]
        return play("orca", one).events

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_seed_is_that_of_random_weights() -> None:
    def tokens(seed: int) -> dict[str, list[int]]:
        requests = asks((5, 8), model="random:small")
        return play("serial", requests, model="random:small", clock="real", seed=seed, kv_memory=None).tokens

    assert tokens(1) == tokens(1) != tokens(2)


def test_options_reach_the_engine() -> None:
    played = play("vllm", few(), kv_memory="96KiB", max_batch=2, memory__block_size=4, batching__order="priority")
    steps = [event for event in played.events if event["event"] == "step"]
    assert {place[-1] for step in steps for place in step["places"]} == {4}
    assert max(len({name for name, *_ in step["work"]}) for step in steps) == 2
    assert played.capacity == 64 == played.engine.memory.usage().capacity
    assert played.events[0]["options"]["batching.order"] == "priority"
    assert play("orca", few(), kv_memory=None).capacity > 4096


def test_stages_are_exchanged() -> None:
    played = play("orca", few(), memory="paged", attention="paged", memory__block_size=8)
    assert played.events[0]["stages"] == {"batching": "iteration", "memory": "paged", "attention": "paged"}
    assert played.name == "iteration+paged+paged"


def test_hardware_may_be_a_machine_of_ones_own() -> None:
    named, own, faster = (
        play("orca", few(), hardware=one).history.last_s
        for one in ("h200", HARDWARE["h200"], replace(HARDWARE["h200"], overhead_s=0.0))
    )
    assert named == own > faster


def test_hardware_is_whose_time_is_simulated() -> None:
    slow, fast = (play("orca", few(), hardware=name).history.last_s for name in ("cpu", "h200"))
    assert fast < slow


def test_what_is_told_of_a_run() -> None:
    played = run_of("static")
    assert played.metrics == played.served.metrics()
    assert played.steps == [event["step"] for event in played.events if event["event"] == "step" and event["work"]]
    assert (
        repr(played) == f"<static: 6 requests in {len(played.steps)} iterations, {played.history.last_s * 1e3:.4g} ms>"
    )


def test_a_label_is_the_name_of_the_run_wherever_it_is_shown() -> None:
    played = play("orca", few(), label="orca, $2 a_token$")
    assert played.name == "orca, $2 a_token$"
    assert played.events == run_of("orca").events
    for picture in (draw_lanes(played), draw_memory(played, 1), draw_series(played)):
        axes = picture.axes[0]
        assert (axes.get_title(loc="left") + axes.get_title()).count("orca, $2 a_token$") == 1
        assert picture._repr_png_()[0]  # and is no formula
    with pytest.raises(UsageError, match=r"^orca, \$2 a_token\$ has no request 'x'"):
        owner_colour(played, "x")


@pytest.mark.parametrize("label", ["", " ", 3])
def test_a_label_is_a_text(label: Any) -> None:
    with pytest.raises(UsageError, match=r"label is .*: give a text"):
        play("orca", few(), label=label)


def test_that_a_run_needs_no_weights_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    play("cellular", asks(3, model="lstm:hidden=64"), model="lstm:hidden=64")
    play("orca", asks((3, 2), model="random:small"), model="random:small", kv_memory=None)
    assert capsys.readouterr() == ("", "")


def test_a_request_that_is_refused_is_told_and_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    played = play("orca", asks("sort 7 2 5", (120, 30), "add 1 and 2"))
    assert [*played.tokens] == ["r0", "r2"]
    assert played.answers == {"r0": "2 5 7", "r2": "3"}
    assert [*played.refused] == ["r1"]
    assert capsys.readouterr().err == f"error: {played.refused['r1']}\n"
    assert "1 refused" in repr(played)


# What is given to play, and to the command line, which refuses it in the same words.
WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"name": "orka"}, ["--technique", "orka"]),
    ({"kv_memory": "many"}, ["--kv-memory", "many"]),
    ({"kv_memory": "1"}, ["--kv-memory", "1"]),
    ({"clock": "slow"}, ["--clock", "slow"]),
    ({"hardware": "abacus"}, ["--hardware", "abacus", "--clock", "virtual"]),
    ({"hardware": "cpu", "clock": "real"}, ["--hardware", "cpu"]),
    ({"max_batch": 0}, ["--max-batch", "0"]),
    ({"name": "naive", "max_batch": 2}, ["--technique", "naive", "--max-batch", "2"]),
    ({"max_batch": 2, "batching__max_batch": 3}, ["--max-batch", "2", "--set", "batching.max_batch=3"]),
    ({"memory": "heap"}, ["--memory", "heap"]),
    ({"memory": "paged"}, ["--memory", "paged"]),
    ({"model": "huge"}, ["--model", "huge"]),
    ({"dtype": "int3"}, ["--dtype", "int3"]),
    ({"numerics": "odd"}, ["--numerics", "odd"]),
    ({"seed": -1}, ["--seed", "-1"]),
    ({"tensor_parallel": 3}, ["--tensor-parallel", "3", "--clock", "virtual"]),
    ({"tensor_parallel": 3, "clock": "real"}, ["--tensor-parallel", "3"]),
    ({"name": "vllm", "memory__block_size": 0}, ["--technique", "vllm", "--set", "memory.block_size=0"]),
    ({"name": "vllm", "memory__block": 4}, ["--technique", "vllm", "--set", "memory.block=4"]),
    ({"name": "vllm", "memory__share": 3}, ["--technique", "vllm", "--set", "memory.share=3"]),
    ({"name": "static", "model": "treelstm"}, ["--technique", "static", "--model", "treelstm"]),
]


@pytest.mark.parametrize(("given", "typed"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, list) else "")
def test_wrong_arguments_are_refused_as_the_command_line_does(given: dict[str, Any], typed: list[str]) -> None:
    with pytest.raises(MinifuseError) as refused:
        play(**{"name": "orca", "requests": few(), **given})
    code, told = command_line("run", *typed)
    assert (code, told) == (refused.value.exit_code, f"error: {refused.value}\n")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("block_size", "play has no argument 'block_size': name an option of a stage with "),
        ("memori__block_size", "play has no argument 'memori__block_size'"),
        ("memory_block_size", "batching__, memory__ or attention__ before it."),
    ],
)
def test_an_option_without_its_stage_is_refused(name: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        play("vllm", few(), **{name: 4})  # type: ignore[arg-type]
    assert told in str(refused.value)


@pytest.mark.parametrize("requests", ["sort 2 1", ["sort 2 1"], few()[0], None, 3])
def test_what_are_no_requests_is_refused(requests: Any) -> None:
    with pytest.raises(UsageError, match="give"):
        play("orca", requests)


def test_an_interrupted_run_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = played.serve
    monkeypatch.setattr(played, "serve", lambda *given: replace(serve(*given), interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        play("orca", few())


@pytest.mark.parametrize("missing", ["matplotlib", "IPython"])
def test_without_the_extra_there_is_a_sentence(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_in_a_line is play
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MachineError) as refused:
        importlib.reload(minifuse.show.notebook)
    told = (
        f"minifuse.show.notebook needs {missing}, which is not installed: "
        "pip install -e '.[tutorials]' -c constraints.txt."
    )
    assert str(refused.value) == told


def test_conversations_of_every_technique_are_the_same() -> None:
    requests = talks()
    pensieve, orca = (play(name, requests, kv_memory="1MiB") for name in ("pensieve", "orca"))
    assert pensieve.tokens == orca.tokens
