"""What the command line says of requests whose logits are not finite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import model_directory
from safetensors.torch import load_file, save_file

from minifuse.trace.log import read_trace

GOOD, BAD = [1, 2, 3], [1, 30, 3]  # 30 overflows, in the norm's mean


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """A model whose weights are finite, and in which what has read token 30 is not."""
    directory = model_directory(tmp_path / "model", "opt", "float32", tie_word_embeddings=False)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.decoder.embed_tokens.weight"][30] = 3e38
    save_file(tensors, path)
    return directory


@pytest.fixture
def prompts(requests: Callable[..., Path]) -> Path:
    sampled = {"temperature": 0.7, "seed": 3}
    lines = [{"prompt_token_ids": tokens, **more} for tokens in (GOOD, BAD) for more in ({}, sampled)]
    return requests(*({"max_new_tokens": 4, "ignore_eos": True, **line} for line in lines))


def test_run_says_so_everywhere(overflowing: Path, prompts: Path, minifuse: Callable[..., object]) -> None:
    trace = overflowing.parent / "trace.jsonl"
    found = minifuse("run", "--model", overflowing, "--prompts", prompts, "--json", "--trace", trace)
    assert found.code == 1
    answers = {tuple(output["prompt_token_ids"]): output for output in found.json()["outputs"]}
    assert (answers[1, 30, 3]["finish_reason"], answers[1, 30, 3]["token_ids"]) == ("nan", [])
    assert (answers[1, 2, 3]["finish_reason"], len(answers[1, 2, 3]["token_ids"])) == ("length", 4)
    numbers = found.json()["metrics"]["requests"]
    assert (numbers["nan"], numbers["length"], numbers["total"]) == (2, 2, 4)
    ends = [reason for event in read_trace(trace) for reason in event.get("finished", {}).values()]
    assert sorted(ends) == ["length", "length", "nan", "nan"]
    assert found.err.count("NaN or infinite") == 1
    shown = minifuse("run", "--model", overflowing, "--prompts", prompts)
    assert shown.code == 1
    assert shown.out.count("[nan]") == 2
    assert "2 length, 2 nan" in shown.err


def test_compare_says_so(overflowing: Path, prompts: Path, minifuse: Callable[..., object]) -> None:
    found = minifuse(
        *("compare", "orca", "static", "--model", overflowing, "--prompts", prompts, "--json"),
        *("--numerics", "reference"),
    )
    assert found.code == 1
    for row in json.loads(found.out)["techniques"]:
        assert (row["differing"], row["metrics"]["requests"]["nan"]) == ([], 2)
    assert "NaN or infinite" in found.err
