"""`minifuse run` and `minifuse compare`: what they serve and how they show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.techniques import TECHNIQUES
from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

SMALL = ("--requests", 3, "--prompt-length", "uniform:2:6", "--output-length", "uniform:3:9")
OUTPUT = {
    *("id", "group", "prompt_token_ids", "token_ids", "text", "finish_reason"),
    *("conversation", "user", "priority", "prompt_tokens", "history_tokens", "output_tokens"),
    *("arrival_s", "first_token_s", "finish_s", "ttft_s", "tpot_s", "e2e_s", "normalized_latency_s"),
}


def test_json_has_its_shape(minifuse: Cli, wordless: Path) -> None:
    outcome = minifuse("run", "--model", wordless, *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    run = outcome.json()
    assert set(run) == {"schema", "technique", "stages", "model", "outputs", "metrics"}
    assert (run["schema"], run["technique"], run["model"]) == ("minifuse.run/1", "orca", str(wordless))
    assert run["stages"] == TECHNIQUES["orca"].stages
    assert [output["id"] for output in run["outputs"]] == ["r0", "r1", "r2"]
    for output in run["outputs"]:
        assert set(output) == OUTPUT
        assert 3 <= len(output["token_ids"]) <= 9 or output["finish_reason"] == "stop"
        assert output["text"] is None
        assert output["group"] is None
        assert output["arrival_s"] == 0 < output["first_token_s"] <= output["finish_s"]
    assert run["metrics"]["requests"]["total"] == 3


def test_lines_and_figures(minifuse: Cli, worded: Path) -> None:
    typed = ("run", "--model", worded, "--ignore-eos", "--max-new-tokens", 4)
    outcome = minifuse(*typed, "one two", "three")
    assert outcome.code == 0
    run = minifuse(*typed, "--json", "one two", "three").json()
    texts = {output["id"]: output["text"] for output in run["outputs"]}
    assert sorted(outcome.out.splitlines()) == [
        f"r0 [length] one two -> {texts['r0']}",
        f"r1 [length] three -> {texts['r1']}",
    ]
    assert "Throughput" in outcome.err
    assert "\x1b" not in outcome.out + outcome.err
    assert max(map(len, outcome.err.splitlines())) <= 80


def test_a_file_says_what_its_requests_are(minifuse: Cli, worded: Path, requests: Cli) -> None:
    path = requests(
        {"prompt": "one two", "max_new_tokens": 2, "ignore_eos": True},
        {"prompt": "three", "arrival_s": 0.0},
        {"prompt_token_ids": [4], "max_new_tokens": 9, "arrival_s": 7.5},
        {"prompt": "five"},
    )
    outcome = minifuse(
        *("run", "--model", worded, "--prompts", path, "--clock", "virtual", "--json"),
        *("--max-new-tokens", 5, "--arrival", "constant:2s"),
    )
    outputs = outcome.json()["outputs"]
    assert [output["arrival_s"] for output in outputs] == [0, 0, 7.5, 6]
    assert [output["prompt_token_ids"] for output in outputs] == [[2, 3], [4], [4], [6]]
    assert len(outputs[0]["token_ids"]) == 2
    assert all(len(output["token_ids"]) <= limit for output, limit in zip(outputs, (2, 5, 9, 5), strict=True))


def test_each_request_draws_from_a_seed_of_its_own(minifuse: Cli, wordless: Path, requests: Cli) -> None:
    sampled = ("--temperature", 2, "--ignore-eos", "--max-new-tokens", 30, "--json")

    def tokens(path: Path, *more: object) -> list[list[int]]:
        run = minifuse("run", "--model", wordless, "--prompts", path, *sampled, *more).json()
        return [output["token_ids"] for output in run["outputs"]]

    same = {"prompt_token_ids": [2, 3]}
    first, second = tokens(requests(same, same))
    assert first != second
    assert tokens(requests(same, same), "--technique", "static") == [first, second]
    assert tokens(requests(same), "--seed", 1) == [second]
    assert tokens(requests({**same, "seed": 1}), "--seed", 5) == [second]


def test_requests_of_several_prompts(minifuse: Cli, worded: Path, requests: Cli) -> None:
    """Every prompt is answered on its own; one arrival and one name hold for all prompts of a request."""
    path = requests(
        {"prompt": ["one", "two three"]},
        {"prompt": "four"},
        {"id": ["a", "b"], "prompt_token_ids": [[3], [4]]},
        {"id": "c", "prompt": ["five"], "arrival_s": 9},
    )
    typed = ("run", "--model", worded, "--prompts", path, "--arrival", "constant:2s", "--clock", "virtual")
    typed += ("--max-new-tokens", 3, "--ignore-eos")
    run = minifuse(*typed, "--json").json()
    assert [(o["id"], o["group"], o["arrival_s"], o["prompt_token_ids"]) for o in run["outputs"]] == [
        ("r0/0", "r0", 0, [2]),
        ("r0/1", "r0", 0, [3, 4]),
        ("r1", None, 2, [5]),
        ("a", "r2", 4, [3]),
        ("b", "r2", 4, [4]),
        ("c", None, 9, [6]),
    ]
    assert run["metrics"]["requests"]["total"] == 6
    outcome = minifuse(*typed)
    assert sorted(line.split(" -> ")[0] for line in outcome.out.splitlines()) == [
        *("a [length] two", "b [length] three", "c [length] five"),
        *("r0/0 [length] one", "r0/1 [length] two three", "r1 [length] four"),
    ]
    figures = {line[:34].strip(): line[34:].strip() for line in outcome.err.splitlines()}
    assert (figures["Requests"], figures["Prompts"]) == ("4", "6: 6 length")
    assert figures["Throughput"].endswith(" prompts/s")


@pytest.mark.parametrize("laws", [(), ("--prompt-length", "uniform:2:6", "--output-length", "uniform:3:9")])
def test_made_up_requests_of_several_prompts(minifuse: Cli, tiny: str, laws: tuple[str, ...]) -> None:
    """Both of tiny's tasks and of random tokens; the prompts of a request arrive together."""
    typed = (
        "run",
        "--requests",
        3,
        "--prompts-per-request",
        2,
        *laws,
        "--arrival",
        "constant:1s",
        "--clock",
        "virtual",
    )
    outputs = minifuse(*typed, "--json").json()["outputs"]
    assert [(o["id"], o["group"], o["arrival_s"]) for o in outputs] == [
        (f"r{i}/{j}", f"r{i}", i) for i in range(3) for j in range(2)
    ]
    if not laws:
        assert "6 of 6" in minifuse(*typed).err


def test_max_new_tokens_cuts_made_up_answers_only_when_typed(minifuse: Cli) -> None:
    made = ("run", "--model", "random:small", "--clock", "virtual", "--json", "--output-length", "fixed:300")
    assert {len(output["token_ids"]) for output in minifuse(*made).json()["outputs"]} == {300}
    cut = minifuse(*made, "--max-new-tokens", 10).json()
    assert {len(output["token_ids"]) for output in cut["outputs"]} == {10}


def test_stages_can_be_exchanged(minifuse: Cli, wordless: Path) -> None:
    outcome = minifuse(
        *("run", "--model", wordless, *SMALL, "--json"),
        *("--batching", "dynamic", "--set", "batching.window=1ms", "--max-batch", 2),
    )
    run = outcome.json()
    assert run["stages"] == {"batching": "dynamic", "memory": "contiguous", "attention": "per_sequence"}
    assert run["technique"] == "dynamic+contiguous+per_sequence"
    assert run["metrics"]["mean_batch_size"] <= 2


@pytest.mark.parametrize("flag", ["--technique", "--batching", "--memory", "--attention"])
def test_an_empty_name_is_refused(minifuse: Cli, flag: str) -> None:
    minifuse("run", flag, "").refused("''")


@pytest.mark.parametrize("way", ["itself", "symbolic link", "hard link", "weights"])
def test_a_trace_is_not_written_over_what_is_read(minifuse: Cli, wordless: Path, tmp_path: Path, way: str) -> None:
    prompts, trace = tmp_path / "p.jsonl", tmp_path / "t.jsonl"
    prompts.write_text('{"prompt_token_ids": [1]}\n')
    if way == "itself":
        trace = prompts
    elif way == "symbolic link":
        trace.symlink_to(prompts)
    elif way == "hard link":
        trace.hardlink_to(prompts)
    else:
        trace = wordless / "config.json"
    before = trace.read_bytes()
    refused = minifuse("run", "--model", wordless, "--prompts", prompts, "--trace", trace)
    refused.refused("this command reads: give a file of its own")
    assert trace.read_bytes() == before


def test_goodput_is_counted(minifuse: Cli, wordless: Path) -> None:
    run = minifuse("run", "--model", wordless, *SMALL, "--goodput", "ttft:1e6,e2e:0", "--json").json()
    assert run["metrics"]["goodput"] == {"bounds_s": {"ttft": 1000, "e2e": 0}, "requests": 0, "requests_per_s": 0}


def test_virtual_time_needs_no_weights_and_repeats_itself(minifuse: Cli) -> None:
    typed = ("run", "--model", "random:llama-2-70b", "--clock", "virtual", "--hardware", "h200", "--dtype", "float16")
    outcome = minifuse(*typed, "--arrival", "poisson:50ms", "--json")
    assert outcome.code == 0
    assert "placeholder" in outcome.err
    assert {token for output in outcome.json()["outputs"] for token in output["token_ids"]} == {-1}
    assert minifuse(*typed, "--arrival", "poisson:50ms", "--json").out == outcome.out
    assert minifuse(*typed, "--requests", 2).out.splitlines()[0].endswith(" -> -1 x98")


def test_virtual_time_with_a_real_model_says_what_the_model_says(minifuse: Cli, wordless: Path) -> None:
    typed = ("run", "--model", wordless, *SMALL, "--dtype", "float64", "--json")
    real, virtual = minifuse(*typed), minifuse(*typed, "--clock", "virtual")
    assert virtual.err == ""
    assert virtual.out == minifuse(*typed, "--clock", "virtual").out
    tokens = [[output["token_ids"] for output in outcome.json()["outputs"]] for outcome in (real, virtual)]
    assert tokens[0] == tokens[1]


def test_compare_shows_one_row_for_each(minifuse: Cli, wordless: Path) -> None:
    names = ("naive", "static", "orca", "fusion", "vllm")
    outcome = minifuse("compare", *names, "--model", wordless, *SMALL, "--dtype", "float64")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + len(names)]] == list(names)
    assert all(line.split()[-1] == "0" for line in lines[2 : 2 + len(names)])  # answers that differ
    assert max(map(len, lines)) <= 80


def test_compare_as_json(minifuse: Cli, wordless: Path) -> None:
    typed = ("compare", "static", "orca", "--model", wordless, *SMALL, "--set", "batching.token_budget=4", "--json")
    compared = minifuse(*typed).json()
    assert {key: compared[key] for key in ("schema", "model", "dtype", "clock", "requests")} == {
        "schema": "minifuse.compare/2",
        "model": str(wordless),
        "dtype": "float32",
        "clock": "real",
        "requests": 3,
    }
    assert [row["technique"] for row in compared["techniques"]] == ["static", "orca"]
    assert compared["techniques"][0]["metrics"]["tokens"]["idle"] > 0
    assert compared["techniques"][1]["metrics"]["tokens"]["idle"] == 0
    placeholders = minifuse("compare", "static", "orca", "--model", "random:small", "--clock", "virtual", "--json")
    assert [row["differing"] for row in placeholders.json()["techniques"]] == [None, None]


def test_compare_counts_requests_and_prompts(minifuse: Cli) -> None:
    typed = ("compare", "orca", "fusion", "--model", "random:small", "--clock", "virtual", "--requests", 3)
    compared = minifuse(*typed, "--prompts-per-request", 2, "--json").json()
    assert (compared["requests"], compared["prompts"]) == (3, 6)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--technique", "orca"), {"batching.max_batch": "3"}),
        (("--technique", "fusion"), {"memory.slots": "3"}),
        (("--technique", "instances"), {"batching.instances": "3"}),
        (("--memory", "slots"), {"batching.max_batch": "3", "memory.slots": "3"}),
        (("--memory", "slots", "--set", "memory.slots=9"), {"batching.max_batch": "3", "memory.slots": "9"}),
    ],
)
def test_max_batch_is_the_size_of_the_batch_whatever_its_name(
    minifuse: Cli, tmp_path: Path, arguments: tuple[str, ...], options: dict[str, str]
) -> None:
    """Six requests, three at a time. In a mix no other option may hold the batch below what was asked for."""
    path = tmp_path / "trace.jsonl"
    laws = ("--requests", 6, "--prompt-length", 4, "--output-length", 20, "--ignore-eos")
    typed = ("run", "--model", "random:small", "--clock", "virtual", *laws, *arguments, "--trace", path)
    assert minifuse(*typed, "--max-batch", 3).code == 0
    run, *events = read_trace(path)
    assert run["options"] == options
    served, most = set[str](), 0
    for event in events:
        if event["event"] == "step":
            served |= set(event["admitted"])
            most = max(most, len(served))
            served -= set(event["finished"])
    assert most == 3


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("orca", "naive"), "note: naive has no batch size, which --max-batch could set.\n"),
        (("naive", "serial"), "note: naive and serial have no batch size, which --max-batch could set.\n"),
        (("orca", "static"), ""),
    ],
)
def test_compare_tells_who_has_no_batch_size(minifuse: Cli, names: tuple[str, ...], told: str) -> None:
    virtual = ("--model", "random:small", "--clock", "virtual", "--requests", 2, "--output-length", 2)
    outcome = minifuse("compare", *names, *virtual, "--max-batch", 1, "--json")
    assert outcome.code == 0
    assert [row["technique"] for row in outcome.json()["techniques"]] == [*names]
    assert "".join(line for line in outcome.err.splitlines(keepends=True) if "--max-batch" in line) == told


def test_compare_gives_max_batch_to_all_who_have_one(minifuse: Cli) -> None:
    laws = ("--requests", 12, "--prompt-length", 4, "--output-length", 20, "--ignore-eos")
    typed = ("compare", "orca", "fusion", "serial", "--model", "random:small", "--clock", "virtual", *laws, "--json")
    for size in (3, 12):  # the default is 8
        outcome = minifuse(*typed, "--set", "batching.preprocess=inline", "--max-batch", size)
        assert [row["metrics"]["mean_batch_size"] for row in outcome.json()["techniques"]] == [size, size, 1]


def test_compare_tells_of_refused_requests_by_its_exit_code(minifuse: Cli, wordless: Path, requests: Cli) -> None:
    path = requests({"prompt_token_ids": [1], "max_new_tokens": 2}, {"prompt_token_ids": []})
    outcome = minifuse("compare", "orca", "serial", "--model", wordless, "--prompts", path)
    assert outcome.code == 1
    assert outcome.err.count("'r1' has an empty prompt") == 2


def test_a_crowd_shows_what_is_right_and_what_is_not(
    minifuse: Cli, worded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an untrained model in place of tiny: wrong answers are shown as such, and are no failure."""
    monkeypatch.setattr("minifuse.model.text.load.TINY", worded)
    outcome = minifuse("run", "--requests", 5, "--max-new-tokens", 3)
    assert outcome.code == 0
    assert outcome.out.count("wrong: expected ") == 5
    assert "0 of 5" in outcome.err


# --- the shipped model


def test_tiny_serves_a_crowd_by_default(minifuse: Cli, tiny: str) -> None:
    outcome = minifuse("run", "--requests", 6)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 6
    assert "right" in outcome.out
    assert "Answers right" in outcome.err
    run = minifuse("run", "--requests", 6, "--json").json()
    assert [output["finish_reason"] for output in run["outputs"]] == ["stop"] * 6


def test_tiny_answers_a_typed_prompt(minifuse: Cli, tiny: str) -> None:
    outcome = minifuse("run", "count from 3 to 9")
    assert (outcome.code, outcome.out) == (0, "r0 count from 3 to 9 -> 3 4 5 6 7 8 9\n")


def test_tiny_with_a_law_of_lengths_gets_random_tokens(minifuse: Cli, tiny: str) -> None:
    run = minifuse("run", "--requests", 2, "--output-length", 3, "--ignore-eos", "--json").json()
    assert [len(output["token_ids"]) for output in run["outputs"]] == [3, 3]


def test_why_tells_of_every_request_that_waits(minifuse: Callable[..., Any], tmp_path: Path) -> None:
    crowd = ("run", "--model", "random:small", "--clock", "virtual", "--requests", "4", "--technique", "static")
    trace = tmp_path / "t.jsonl"
    outcome = minifuse(*crowd, "--set", "batching.max_batch=2", "--why", "--json", "--trace", trace)
    assert outcome.code == 0
    assert len(outcome.json()["outputs"]) == 4
    lines = outcome.err.splitlines()
    assert lines[1:4] == [
        "    0.000 s step 0 of worker 0 admits r0 r1",
        "            r2 not admitted: the batch has 2 requests",
        "            r3 not considered: worker 0 admits none behind r2",
    ]
    first = next(event for event in read_trace(trace) if event["event"] == "step")
    assert [reason[:2] for reason in first["reasons"]] == [["batch-full", "r2"], ["behind", "r3"]]


def test_a_run_that_served_nothing_has_no_table(minifuse: Cli) -> None:
    done = minifuse("run", "--model", "random:small", "--clock", "virtual", "--requests", 2, "--kv-memory", "1KiB")
    assert done.code
    assert "Throughput" not in done.err


def test_no_table_is_narrower_than_a_line_can_be(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    assert max(map(len, minifuse("explain", "orca").out.splitlines())) > 20


@pytest.mark.parametrize("typed", [("orca", "sort 7 2 5"), ("orca", "--workload", "tour")])
def test_a_prompt_that_names_a_technique_is_noted(typed: tuple[str, ...], minifuse: Cli) -> None:
    told = "note: orca is served as a prompt: --technique orca chooses the technique of that name."
    assert told in minifuse("run", *typed).err
