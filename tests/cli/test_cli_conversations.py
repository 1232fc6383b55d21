"""`minifuse run --workload sharegpt` and `crowd`: conversations, made up, from a file, or of tasks of tiny."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

RUN = ("run", "--model", "random:small", "--clock", "virtual", "--json")
SMALL = ("--requests", 3, "--workload", "sharegpt:scale=0.02,reaction=1s", "--arrival", "poisson:1s")


def test_conversations_are_served(minifuse: Cli) -> None:
    outcome = minifuse(*RUN, *SMALL, "--technique", "pensieve")
    assert outcome.code == 0, outcome.err
    result = outcome.json()
    outputs = {output["id"]: output for output in result["outputs"]}
    assert {name.partition(".")[0] for name in outputs} == {"c0", "c1", "c2"}  # --requests counts conversations
    assert len(outputs) > 3
    assert result["metrics"]["history"]["tokens"] > 0
    assert result["metrics"]["history"]["device_hit_rate"] == 1
    assert {output["finish_reason"] for output in outputs.values()} == {"length"}


def test_every_technique_serves_the_same_conversations(minifuse: Cli) -> None:
    outcome = minifuse("compare", "pensieve", "orca", *RUN[1:], *SMALL)
    assert outcome.code == 0, outcome.err
    pensieve, orca = (row["metrics"]["tokens"] for row in outcome.json()["techniques"])
    assert pensieve["reused"] == orca["recomputed"] > 0
    assert pensieve["recomputed"] == orca["reused"] == 0


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("--workload", "sharegpt"), ("of up to 16,384 tokens", "has 2,048", "give scale=0.125 or less.")),
        (("--workload", "sharegpt", "--model", "lstm"), ("and lstm is made of cells: give wmt15, or a transformer",)),
        (("--workload", "sharegpt:file=none.json"), ("none.json cannot be read",)),
        (
            ("--workload", "sharegpt", "--prompt-length", "9"),
            ("--prompt-length and --workload sharegpt are both given",),
        ),
    ],
)
def test_refused(minifuse: Cli, typed: tuple[str, ...], words: tuple[str, ...]) -> None:
    minifuse(*RUN, *typed).refused(*words)


def test_a_file_is_read_with_the_tokenizer(minifuse: Cli, worded: Path, tmp_path: Path) -> None:
    def said(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]}

    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([said("one two", "three", "four", "one one"), said("one " * 65, "two"), said("one")]))
    typed = ("run", "--model", worded, "--workload", f"sharegpt:file={path},reaction=0s", "--json")
    outcome = minifuse(*typed)
    assert outcome.code == 0
    outputs = outcome.json()["outputs"]
    assert [(output["id"], len(output["token_ids"])) for output in outputs] == [("c0.0", 1), ("c0.1", 2)]
    assert (
        f"note: {path}: conversations left out as too long: 1; conversations left out as too short or without an "
        "answer: 1; conversations served: 1 of the 16 that --requests asks for.\n"
    ) in outcome.err
    assert "note: " not in minifuse(*typed, "--requests", 1).err


TALK = ("--workload", "crowd:turns=4,reaction=5ms", "--requests", 6, "--max-new-tokens", 24, "--clock", "virtual")


@pytest.mark.parametrize("technique", ["pensieve", "vllm"])
def test_the_crowd_remembers(minifuse: Cli, technique: str) -> None:
    """Pensieve's kept KV and a history computed again both give the answers that depend on earlier turns."""
    outcome = minifuse("run", "--technique", technique, *TALK)
    answers = [line for line in outcome.out.splitlines() if line.startswith("c")]
    assert any(line.startswith("c0.1 [right]") for line in answers)
    assert all("[right]" in line for line in answers), outcome.out
    tokens = minifuse("run", "--technique", technique, *TALK, "--json").json()["metrics"]["tokens"]
    assert (tokens["reused"] > 0, tokens["recomputed"] > 0) == (technique == "pensieve", technique == "vllm")


@pytest.mark.parametrize("model", ["random:small", "lstm"])
def test_the_crowd_is_tinys(minifuse: Cli, model: str) -> None:
    minifuse("run", "--workload", "crowd:turns=2", "--model", model).refused(
        f"tasks that the model tiny has learnt, and --model is {model}: leave one of them out"
    )
