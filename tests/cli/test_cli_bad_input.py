"""Bad options, files, models and machines: one sentence that says what to do, an exit code, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Cli = Callable[..., Any]

RANDOM = ("--model", "random:small")
FUSION, INSTANCES = ("--technique", "fusion"), ("--technique", "instances")
VLLM = ("--technique", "vllm")


BAD_VALUES = [
    ("--max-new-tokens", "0"),
    ("--max-new-tokens", "-3"),
    ("--max-new-tokens", "many"),
    ("--requests", "0"),
    ("--prompts-per-request", "0"),
    ("--prompts-per-request", "-1"),
    ("--prompts-per-request", "two"),
    ("--max-batch", "0"),
    ("--seed", "-1"),
    ("--temperature", "-1"),
    ("--temperature", "nan"),
    ("--top-k", "-1"),
    ("--top-p", "2"),
    ("--top-p", "0"),
    ("--kv-memory", "abc"),
    ("--kv-memory", "0"),
    ("--dtype", "float8"),
    ("--device", "tpu"),
    ("--clock", "sundial"),
    ("--numerics", "exact"),
]


@pytest.mark.parametrize(("flag", "value"), BAD_VALUES)
@pytest.mark.parametrize("command", [("run",), ("compare", "orca", "serial")])
def test_a_bad_value_is_refused_by_its_flag(minifuse: Cli, command: tuple[str, ...], flag: str, value: str) -> None:
    minifuse(*command, flag, value, "--model", "no such model").refused(flag, f'"{value}"', "give")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--arrival", "nonsense"], ["arrival law", "poisson:50ms"]),
        (["run", "--hardware", "h200"], ["--clock virtual"]),
        (["run", "--clock", "virtual", "--hardware", "h20"], ['did you mean "h200"']),
        (["run", "--technique", "orka"], ['did you mean "orca"', "static"]),
        (["run", "--set", "batching.max_batch"], ["--set", "stage.option=value"]),
        (["run", "--set", "batching.max_batch=2", "--set", "batching.max_batch=3"], ["twice"]),
        (["run", "--set", "batching.max_batch=2", "--max-batch", "3"], ["both given"]),
        (["run", "--technique", "serial", "--max-batch", "3"], ["'serial'", "'contiguous'", "no", "batch size"]),
        (["run", *FUSION, "--set", "memory.slots=2", "--max-batch", "3"], ["memory.slots", "both given"]),
        (["run", *INSTANCES, "--set", "batching.instances=2", "--max-batch", "3"], ["instances", "both given"]),
        (["run", *INSTANCES, "--max-batch", "5000"], ["instances", "5000", "from 1 to 1024"]),
        (
            ["run", *VLLM, "--set", "memory.transfer=overlapped"],
            ["memory.transfer is overlapped", "leave memory.transf"],
        ),
        (
            ["run", *VLLM, "--attention", "slots"],
            ["KV as slots", "the memory 'slots'", "the attention 'packed' or 'paged'"],
        ),
        (["run", "--set", "attention.backend=cuda"], ["backend", "'cuda'", "give auto or triton or native or torch"]),
        (
            ["run", "--set", "attention.backend=triton", "--dtype", "float64"],
            ["float64", "float32, float16 or bfloat16"],
        ),
        (["run", "--numerics", "reference", "--tensor-parallel", "2"], ["one rank", "--numerics fast"]),
        (["run", *RANDOM, "hello", "--prompts", "x"], ["both given"]),
        (["run", *RANDOM, "hello", "--requests", "3"], ["--requests", "synthetic"]),
        (["run", *RANDOM, "--prompts", "x", "--output-length", "3"], ["--output-length", "synthetic"]),
        (
            ["run", *RANDOM, "hello", "--prompts-per-request", "2"],
            ["--prompts-per-request", "synthetic", "typed prompts"],
        ),
        (["run", *RANDOM, "--prompts", "x", "--prompts-per-request", "2"], ["--prompts-per-request", "--prompts are"]),
        (["run", "--model", "small"], ["'small'", "random:small"]),
        (["run", "--model", "random:smal"], ["'smal'", "medium"]),
        (["run", *RANDOM, "--kv-memory", "100"], ["less than the", "raise --kv-memory"]),
        (["run", *RANDOM, "--prompts", "/no/such/file"], ["/no/such/file", "No such file"]),
        (["run", *RANDOM, "hello"], ["random:small", "no tokenizer.json", "prompt_token_ids"]),
        (["run", *RANDOM, "caf\udce9"], ["not UTF-8"]),
        (["compare"], ["no technique", "two or more"]),
        (["compare", "orca"], ["two or more"]),
        (["compare", "orca", "orca"], ["different"]),
        (["compare", "orca", "stattic"], ['did you mean "static"']),
        (["compare", "orca", "serial", "--set", "batching.window=1s"], ["none of these", "batching.max_batch"]),
        (["compare", "orca", "fusion", "--set", "memory.slots=4", "--max-batch", "3"], ["memory.slots", "both given"]),
        (["explain", "orka"], ['did you mean "orca"']),
        (["explain", "memory.static"], ["memory.static"]),
        (["explain", "tokne", "budget"], ["'tokne budget'", 'did you mean "token budget"', "minifuse explain lists"]),
        (["rum"], ["rum", "minifuse --help"]),
        (["run", "--modle", "x"], ["--modle", "--model"]),
        (["run", "--requests"], ["--requests", "argument"]),
        (["doctor", "now"], ["now", "minifuse doctor --help"]),
    ],
)
def test_a_bad_command_line_is_refused(minifuse: Cli, arguments: list[str], words: list[str]) -> None:
    minifuse(*arguments).refused(*words)


def test_a_bad_line_is_named(minifuse: Cli, wordless: Path, requests: Cli) -> None:
    path = requests({"prompt_token_ids": [1]}, "{broken")
    minifuse("run", "--model", wordless, "--prompts", path).refused("requests.jsonl:2", "JSON")


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"prompt_token_ids": []}, "empty prompt"),
    "strange": ({"prompt_token_ids": [1, 7]}, "the token id 7"),
    "negative": ({"prompt_token_ids": [-1]}, "the token id -1"),
    "nothing": ({"prompt_token_ids": [1], "max_new_tokens": 0}, "at least 1"),
    "less": ({"prompt_token_ids": [1], "max_new_tokens": -5}, "at least 1"),
    "context": ({"prompt_token_ids": [1] * 60, "max_new_tokens": 5}, "context is 64"),
    "text": ({"prompt": "one"}, "no tokenizer.json"),
    "memory": ({"prompt_token_ids": [1] * 40, "max_new_tokens": 20}, "--kv-memory"),
}


def test_one_bad_request_never_stops_the_others(minifuse: Cli, wordless: Path, requests: Cli) -> None:
    bad = [{"id": name, **fields} for name, (fields, _) in BAD_REQUESTS.items()]
    path = requests({"id": "first", "prompt_token_ids": [2, 3]}, *bad, {"id": "last", "prompt_token_ids": [4]})
    small = ("--model", wordless, "--prompts", path, "--max-new-tokens", 3, "--kv-memory", "6400B")  # 50 tokens
    outcome = minifuse("run", *small, "--json")
    assert outcome.code == 1
    outputs = {output["id"]: output for output in outcome.json()["outputs"]}
    assert list(outputs) == ["first", *BAD_REQUESTS, "last"]
    assert [line.split("'")[1] for line in outcome.err.splitlines()] == list(BAD_REQUESTS)
    for name, (_, words) in BAD_REQUESTS.items():
        assert outputs[name]["finish_reason"] == "refused"
        assert outputs[name]["token_ids"] == []
        assert words in outputs[name]["error"]
        assert f"error: {outputs[name]['error']}\n" in outcome.err
    for name in ("first", "last"):
        assert outputs[name]["finish_reason"] in ("stop", "length")
        assert "error" not in outputs[name]
    lines = minifuse("run", *small).out.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["first", "last"]


@pytest.mark.parametrize("command", [("run", *FUSION), ("compare", "orca", "fusion")])
def test_memory_too_small_for_its_slots_is_said_before_the_weights_are_read(
    minifuse: Cli, make_model: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A slot would hold less than one token. Weights that cannot be read would be refused later."""
    make_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"none")
    typed = (*command, "--model", tmp_path, "--requests", 1)
    minifuse(*typed, "--set", "memory.slots=1000000", "--kv-memory", "1MiB").refused("1000000 slots", "--kv-memory")
    minifuse(*typed, "--kv-memory", "100").refused("less than the 128 bytes of one token", "raise --kv-memory")
    minifuse(*typed).refused("model.safetensors")


def test_a_request_longer_than_a_slot_is_refused_alone(minifuse: Cli, wordless: Path, requests: Cli) -> None:
    path = requests(
        {"id": "fits", "prompt_token_ids": [1] * 8, "max_new_tokens": 3},
        {"id": "long", "prompt_token_ids": [1] * 9, "max_new_tokens": 3},
    )
    typed = ("run", *FUSION, "--set", "memory.slots=2", "--kv-memory", "2560B")  # 20 tokens
    outcome = minifuse(*typed, "--model", wordless, "--prompts", path, "--ignore-eos", "--json")
    assert outcome.code == 1
    assert [output["finish_reason"] for output in outcome.json()["outputs"]] == ["length", "refused"]
    assert outcome.err.startswith("error: Request 'long' may need KV for 11 tokens and each of the 2 slots holds 10: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([[1], [2], [3]], "Request 'many' has 3 prompts, and the memory has slots for 2: "),
        ([[1], []], "Request 'many/1' has an empty prompt: "),
        ([[7], [1]], "Request 'many/0' has the token id 7"),
    ],
)
def test_a_request_of_several_prompts_is_refused_as_one(
    minifuse: Cli, wordless: Path, requests: Cli, prompts: list[list[int]], words: str
) -> None:
    path = requests({"id": "many", "prompt_token_ids": prompts}, {"id": "fits", "prompt_token_ids": [[1], [2]]})
    typed = ("run", *FUSION, "--set", "memory.slots=2", "--model", wordless, "--prompts", path, "--max-new-tokens", 2)
    outcome = minifuse(*typed, "--ignore-eos", "--json")
    assert outcome.code == 1
    reasons = {output["id"]: output["finish_reason"] for output in outcome.json()["outputs"]}
    assert reasons == {f"many/{i}": "refused" for i in range(len(prompts))} | {"fits/0": "length", "fits/1": "length"}
    assert all(words in output["error"] for output in outcome.json()["outputs"][: len(prompts)])
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"error: All {len(prompts)} prompts of 'many' are refused: {words}")
    assert f"{len(prompts) + 2}: 2 length, {len(prompts)} refused" in minifuse(*typed, "--ignore-eos").err


def test_an_empty_typed_prompt_is_refused_alone(minifuse: Cli, worded: Path) -> None:
    outcome = minifuse("run", "--model", worded, "--max-new-tokens", 2, "", "one two")
    assert outcome.code == 1
    assert "'r0' has an empty prompt" in outcome.err
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["r1"]


@pytest.mark.parametrize("name", ["no/such/folder/trace.jsonl", "."])
def test_an_unwritable_trace_is_refused_before_the_model_is_looked_for(
    minifuse: Cli, tmp_path: Path, name: str
) -> None:
    minifuse("run", "--trace", tmp_path / name, "--model", "no such model").refused("--trace", "cannot be written")


def test_a_refused_run_leaves_no_trace_behind(minifuse: Cli, tmp_path: Path) -> None:
    minifuse("run", "--trace", tmp_path / "trace.jsonl", "--model", "no such model").refused("no such model")
    assert list(tmp_path.iterdir()) == []


# --- models that cannot be read


# --- machines that lack something


def test_cuda_without_cuda(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    minifuse("run", *RANDOM, "--device", "cuda").refused("--device is cuda", "--device cpu", code=3)


def test_kv_memory_larger_than_memory(minifuse: Cli) -> None:
    minifuse("run", *RANDOM, "--kv-memory", "10000TiB", "--device", "cpu").refused("lower --kv-memory", code=3)


# --- defects and interruptions are sentences too


def test_ctrl_c_while_loading(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minifuse.cli.run.load", interrupted)
    minifuse("run", *RANDOM).refused("Interrupted", code=130)


def test_a_defect(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(*_: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("minifuse.cli.run.load", defective)
    minifuse("run", *RANDOM).refused("ZeroDivisionError: division by zero", "MINIFUSE_TRACEBACK=1", code=1)
    monkeypatch.setenv("MINIFUSE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        minifuse("run", *RANDOM)


def test_techniques_that_disagree_in_float64(minifuse: Cli, monkeypatch: pytest.MonkeyPatch, wordless: Path) -> None:
    from minifuse.cli.run import show_served as honest

    def lying(engine: Any, row: Any, workload: Any, **options: Any) -> Any:
        served = honest(engine, row, workload, **options)
        if row.name == "serial":
            from dataclasses import replace

            first, *others = served.answers
            return replace(served, answers=(replace(first, token_ids=(6, *first.token_ids)), *others))
        return served

    monkeypatch.setattr("minifuse.cli.compare.show_served", lying)
    workload = ("--model", wordless, "--requests", 3, "--prompt-length", 4, "--output-length", 4, "--json")
    outcome = minifuse("compare", "orca", "serial", *workload, "--dtype", "float64")
    assert (outcome.code, [row["differing"] for row in outcome.json()["techniques"]]) == (1, [[], ["r0"]])
    assert (
        outcome.err
        == "error: serial answers r0 otherwise than orca, in float64: a stage of one of them has a defect.\n"
    )
    outcome = minifuse("compare", "orca", "serial", *workload)
    assert (outcome.code, [row["differing"] for row in outcome.json()["techniques"]]) == (0, [[], ["r0"]])
    assert json.loads(outcome.out)["schema"] == "minifuse.compare/2"
