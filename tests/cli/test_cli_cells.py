"""`minifuse run`, `compare`, `list` and `explain` for models of cells: what they serve, show and refuse."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.cli import main
from minifuse.core.request import Request
from minifuse.model.cells.config import CellConfig
from minifuse.model.cells.source import CellSource, resolve_cells
from minifuse.naive.cells import evaluate
from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

LSTM, SEQ2SEQ, TREELSTM = (f"{kind}:hidden=8,vocab=50" for kind in ("lstm", "seq2seq", "treelstm"))
SMALL = ("--requests", 4, "--dtype", "float64")


def by_hand(model: str, request: Request) -> list[list[list[float]]]:
    """The outputs of a graph's results, one node at a time, in float64 and from seed 0."""
    source = resolve_cells(model)
    assert source is not None
    cells = source.load("float64")
    graph = cells.unfold(request)
    outputs = evaluate(cells, graph)
    return [[part.tolist() for part in outputs[node]] for node in sorted(graph.topology.results)]


def outputs_of(outcome: Any) -> dict[str, Any]:
    return {output["id"]: output for output in outcome.json()["outputs"]}


def near(results: list[dict[str, Any]], expected: list[list[list[float]]]) -> bool:
    return len(results) == len(expected) and all(
        got == pytest.approx(wanted, abs=1e-12)
        for result, parts in zip(results, expected, strict=True)
        for got, wanted in zip(result["outputs"], parts, strict=True)
    )


# --- run


def test_a_chain_is_served_by_default(minifuse: Cli) -> None:
    outcome = minifuse("run", "--model", LSTM, *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    run = outcome.json()
    assert run["technique"] == "cellular"
    assert run["stages"] == {"batching": "cellular", "memory": "states", "attention": "cells"}
    assert [output["id"] for output in run["outputs"]] == ["r0", "r1", "r2", "r3"]
    for output in run["outputs"]:
        (result,) = output["results"]
        assert result["node"] == len(output["prompt_token_ids"]) - 1
        assert near(output["results"], by_hand(LSTM, Request("x", tuple(output["prompt_token_ids"]))))
        assert output["token_ids"] == []
    assert run["metrics"]["nodes"] == sum(len(output["prompt_token_ids"]) for output in run["outputs"])


def test_lines_and_figures_of_a_chain(minifuse: Cli) -> None:
    run = outputs_of(minifuse("run", "--model", LSTM, *SMALL, "--json"))
    outcome = minifuse("run", "--model", LSTM, *SMALL)
    assert outcome.code == 0
    lines = dict(line.split(": ", 1) for line in outcome.out.splitlines())
    assert set(lines) == set(run)
    for name, line in lines.items():
        h = run[name]["results"][0]["outputs"][0]
        assert line == f"h = {h[0]:.4f} {h[1]:.4f} {h[2]:.4f} ... (8 numbers)"
    assert "Nodes computed" in outcome.err
    assert "States in use" in outcome.err
    assert "KV" not in outcome.err
    assert "token" not in outcome.err
    assert max(map(len, outcome.err.splitlines())) <= 80


def test_few_numbers_are_all_shown(minifuse: Cli) -> None:
    outcome = minifuse("run", "--model", "lstm:hidden=3,vocab=50", "--requests", 1)
    assert outcome.out.count("0.") == 3
    assert "..." not in outcome.out


def test_translations(minifuse: Cli) -> None:
    typed = ("run", "--model", SEQ2SEQ, *SMALL)
    outputs = outputs_of(minifuse(*typed, "--json"))
    for output in outputs.values():
        assert output["finish_reason"] in ("length", "stop")
        assert near(
            output["results"],
            by_hand(SEQ2SEQ, Request("x", tuple(output["prompt_token_ids"]), len(output["token_ids"]))),
        )
    cut = outputs_of(minifuse(*typed, "--json", "--max-new-tokens", 2))
    for name, output in outputs.items():
        assert cut[name]["token_ids"] == output["token_ids"][:2]
    outcome = minifuse(*typed)
    for name, output in outputs.items():
        assert f"-> {' '.join(map(str, output['token_ids']))}" in next(
            line for line in outcome.out.splitlines() if line.startswith(name)
        )
    assert "tokens/s" in outcome.err


def test_requests_that_cannot_be_read_fail_alone(minifuse: Cli, requests: Cli) -> None:
    path = requests(
        {"id": "text", "prompt": "hello"},
        {"id": "hot", "prompt_token_ids": [4], "temperature": 1},
        {"id": "far", "prompt_token_ids": [50]},
        {"id": "good", "prompt_token_ids": [4]},
    )
    outcome = minifuse("run", "--model", LSTM, "--prompts", path)
    assert outcome.code == 1
    assert [line.split(":")[0] for line in outcome.out.splitlines()] == ["good"]
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert [line.split("'")[1] for line in errors] == ["text", "hot", "far"]
    assert "has no tokenizer: give prompt_token_ids instead." in errors[0]
    assert "has a temperature" in errors[1]
    assert "Requests" in outcome.err
    path = requests({"tree": [1, 2, 3]}, {"tree": [1, 2]}, {"tree": ["x", 2]}, {"prompt_token_ids": [4]})
    outcome = minifuse("run", "--model", TREELSTM, "--prompts", path, "--json")
    assert outcome.code == 1
    assert [output["finish_reason"] for output in outcome.json()["outputs"]] == [
        "refused",
        "stop",
        "refused",
        "refused",
    ]
    assert minifuse("run", "--model", LSTM, "--prompts", requests({"tree": [1, 2]})).code == 2


def test_a_virtual_clock_needs_no_weights(minifuse: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    typed = ("--requests", 5, "--clock", "virtual", "--hardware", "h200", "--arrival", "poisson:1ms", "--trace", trace)
    outcome = minifuse("run", "--model", "lstm:hidden=1024", *typed)
    assert outcome.code == 0
    assert "note: in virtual time no weights are made for lstm:hidden=1024: nothing is computed.\n" in outcome.err
    assert outcome.out.splitlines()[0].endswith(": not computed")
    header = read_trace(trace)[0]
    assert (header["model"], header["technique"]) == ("lstm:hidden=1024", "cellular")
    outcome = minifuse("run", "--model", "seq2seq:hidden=64,vocab=100", *typed)
    assert outcome.out.splitlines()[0].endswith("-1 x" + outcome.out.splitlines()[0].rpartition("x")[2])


def test_the_picture_counts_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", "--model", LSTM, "--requests", "4"]) == 0
    assert "nodes/s" in shown.getvalue()
    assert "states in use" in shown.getvalue()
    assert "KV" not in shown.getvalue()
    assert "tokens" not in shown.getvalue()


# --- a transformer beside them


def test_a_transformer_can_be_asked_sentences(minifuse: Cli) -> None:
    typed = ("--model", "random:small", "--clock", "virtual", "--requests", 4, "--json")
    outputs = outputs_of(minifuse("run", *typed, "--workload", "wmt15:max=50"))
    assert len({len(output["prompt_token_ids"]) for output in outputs.values()}) > 1
    assert all(len(output["token_ids"]) <= 50 for output in outputs.values())
    assert "results" not in outputs["r0"]
    assert minifuse("run", *typed, "--workload", "treebank").code == 2


# --- what is refused before anything is made


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            (LSTM, "hello"),
            "no tokenizer: give token ids with --prompts FILE, or synthetic requests with --workload wmt15.",
        ),
        ((TREELSTM, "hello"), "or synthetic requests with --workload treebank."),
        ((LSTM, "--tensor-parallel", 2), "--tensor-parallel is 2, and lstm:hidden=8,vocab=50 is made of cells"),
        ((LSTM, "--numerics", "reference"), "--numerics is reference, which is for transformers"),
        ((SEQ2SEQ, "--temperature", 1), "--temperature, --top-k or --top-p is given"),
        ((SEQ2SEQ, "--top-k", 3), "--temperature, --top-k or --top-p is given"),
        ((LSTM, "--prompts-per-request", 2), "--prompts-per-request is given"),
        ((TREELSTM, "--prompt-length", "9"), "--prompt-length is given, which means nothing to a model of treelstm"),
        ((LSTM, "--output-length", "9"), "--output-length is given, which means nothing"),
        ((LSTM, "--max-new-tokens", "9"), "--max-new-tokens is given, which means nothing"),
        ((TREELSTM, "--ignore-eos"), "--ignore-eos is given, which means nothing"),
        ((LSTM, "--workload", "wmt15", "--prompt-length", "9"), "--prompt-length and --workload wmt15 are both given"),
        (
            (LSTM, "--workload", "wmt15", "--prompts", "x"),
            "--workload is for synthetic requests, and --prompts are given",
        ),
        (("tiny", "--workload", "wmt15", "hi"), "--workload is for synthetic requests, and typed prompts are given"),
        ((LSTM, "--technique", "orca"), "orca does not serve models of cells (lstm, seq2seq, treelstm): choose "),
        ((LSTM, "--batching", "iteration"), "'iteration' and the memory 'states' serve no kind of model"),
        ((LSTM, "--memory", "contiguous", "--attention", "per_sequence"), "The memory 'contiguous' does not serve"),
        (("tiny", "--technique", "cellular", "--memory", "states", "--attention", "cells"), "does not serve transf"),
        ((LSTM, "--kv-memory", 63), "The memory of 63 bytes is less than the 64 bytes of one state of lstm:hidden=8"),
    ],
)
def test_refused(minifuse: Cli, typed: tuple[object, ...], message: str) -> None:
    minifuse("run", "--model", *typed).refused(message)


# --- compare


def test_other_results_are_told(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batching whose second run computes something else."""
    from minifuse.execute.cells import CellRunner

    honest, models = CellRunner.__init__, []

    def init(self: CellRunner, model: Any, *rest: Any) -> None:
        if model.device.type == "cpu":
            models.append(model)
        if len(models) == 4:  # a warm-up and a run of each technique: the second one's run
            for parameter in model.cells["lstm"].parameters():
                parameter.mul_(1.001)
        honest(self, model, *rest)

    monkeypatch.setattr(CellRunner, "__init__", init)
    outcome = minifuse("compare", "cellular", "graph-merged", "--model", LSTM, *SMALL, "--json")
    assert outcome.code == 1
    assert [len(row["differing"]) for row in outcome.json()["techniques"]] == [0, 4]
    assert "graph-merged answers r0, r1, r2, r3 otherwise than cellular, in float64" in outcome.err


def test_compare_refuses_what_does_not_serve(minifuse: Cli) -> None:
    minifuse("compare", "cellular", "orca", "--model", LSTM).refused("orca does not serve models of cells")
    refused = minifuse("compare", "cellular", "graph-padded", "--model", "tiny")
    refused.refused("graph-padded does not serve transformers")


def test_comparing_in_virtual_time(minifuse: Cli) -> None:
    typed = ("--model", "treelstm:hidden=1024", "--clock", "virtual", "--hardware", "h200", "--requests", 8)
    outcome = minifuse("compare", "cellular", "graph-merged", *typed)
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines()[2:4]]
    assert [(row[0], row[-1]) for row in rows] == [("cellular", "-"), ("graph-merged", "-")]
    assert "states" in outcome.out
    assert "KV" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


# --- a cell of one's own

GRU = """
from torch import nn

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.model.cells.config import register_cells
from minifuse.model.cells.model import CellModel
from minifuse.core.request import Request


class Gru(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.cell = nn.GRUCell(config.hidden_size, config.hidden_size)

    def forward(self, word, h):
        return self.cell(self.embedding(word), h)


def build(config, dtype, device, seed):
    import torch

    torch.manual_seed(seed)

    def unfold(request):
        if 7 in request.prompt:
            raise ValueError("seven is not a word")
        if 8 in request.prompt:
            return CellGraph((Node("gru", (1, Output(1))), Node("gru", (1, Output(0)))))
        states = [Zeros((config.hidden_size,)), *(Output(i) for i in range(len(request.prompt) - 1))]
        return CellGraph(tuple(Node("gru", inputs) for inputs in zip(request.prompt, states)))

    return CellModel("gru", {"gru": Gru(config)}, unfold, Request("example", (1, 2)), dtype=dtype, device=device)


register_cells("KIND", build)
"""


def write(path: Path, kind: str) -> Path:
    path.write_text(GRU.replace("KIND", kind))  # what is registered stays: each test has a kind of its own
    return path


def test_a_cell_of_ones_own(minifuse: Cli, tmp_path: Path, requests: Cli) -> None:
    plugin = write(tmp_path / "mine.py", "gru1")
    path = requests({"id": "a", "prompt_token_ids": [4, 5, 6]}, {"id": "b", "prompt_token_ids": [4]})
    typed = ("run", "--model", "gru1:hidden=6,vocab=20", "--dtype", "float64", "--prompts", path)
    outcome = minifuse("--plugin", plugin, *typed, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    outputs = outputs_of(outcome)
    model = CellSource("gru1", CellConfig("gru1", 6, 20)).load("float64")
    for output in outputs.values():
        graph = model.unfold(Request("x", tuple(output["prompt_token_ids"])))
        (last,) = evaluate(model, graph)[len(graph) - 1]
        assert output["results"][0]["outputs"][0] == pytest.approx(last.tolist(), abs=1e-12)
    lines = dict(line.split(": ", 1) for line in minifuse(*typed).out.splitlines())
    assert lines["a"].startswith("output = ")
    assert lines["a"].endswith(" ... (6 numbers)")


def test_graphs_that_cannot_be_computed_fail_alone(minifuse: Cli, tmp_path: Path, requests: Cli) -> None:
    plugin = write(tmp_path / "mine.py", "gru2")
    path = requests(*[{"id": f"x{token}", "prompt_token_ids": [4, token]} for token in (5, 6, 7, 8)])
    outcome = minifuse("--plugin", plugin, "run", "--model", "gru2:hidden=6,vocab=20", "--prompts", path)
    assert outcome.code == 1
    assert sorted(line.split(":")[0] for line in outcome.out.splitlines()) == ["x5", "x6"]
    assert "error: Request 'x7' could not be unfolded: ValueError: seven is not a word." in outcome.err
    assert "error: Request 'x8' unfolds into a graph with a cycle" in outcome.err
    outcome = minifuse("run", "--model", "gru2:hidden=6,vocab=20", "--prompts", path, "--json")
    reasons = {output["id"]: (output["finish_reason"], "error" in output) for output in outcome.json()["outputs"]}
    assert reasons == {"x5": ("stop", False), "x6": ("stop", False), "x7": ("refused", True), "x8": ("refused", True)}


# --- list and explain


def test_list_tells_what_a_technique_serves(minifuse: Cli) -> None:
    serves = {row["name"]: row["serves"] for row in minifuse("list", "--json").json()["techniques"]}
    assert serves["orca"] == ["transformer"]
    assert serves["cellular"] == ["transformer", "cells"]
    assert serves["graph-padded"] == serves["graph-merged"] == ["cells"]


def test_explain_tells_how_to_run_it_on_cells(minifuse: Cli) -> None:
    outcome = minifuse("explain", "cellular").out
    assert "transformers, models of cells (lstm, seq2seq, treelstm)" in outcome
    for stage in ("contiguous for transformers", "states for models of cells"):
        assert stage in outcome
    commands = [line.split("minifuse ")[1].strip() for line in outcome.splitlines() if "minifuse run" in line]
    own = "run --technique cellular"
    assert commands[:2] == [own, f"{own} --model lstm --workload wmt15"]
    assert "--model" not in minifuse("explain", "orca").out


@pytest.mark.parametrize("option", ["priorities=internal,leaf", "max_batches=internal=2"])
def test_options_name_types_that_the_model_has(minifuse: Cli, option: str) -> None:
    refused = minifuse("run", "--model", TREELSTM, "--requests", 2, "--set", f"batching.{option}")
    refused.refused(f"no type of cell of {TREELSTM} 'internal' (did you mean", "internal2")
