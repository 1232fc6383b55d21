"""The register of figures: names, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import sentence

from minifuse.core.errors import UsageError
from minifuse.papers import EXPERIMENTS, experiments
from minifuse.papers.experiment import Conditions

FIGURES = {
    "Flover": ["flover-fig7", "flover-fig8", "flover-fig9", "flover-fig10"],
    "BatchMaker": [f"batchmaker-fig2.{number}" for number in (3, 5, 7, 8, 9, 11, 13, 14, 15)],
    "Pensieve": [f"pensieve-fig3.{number}" for number in (3, 4, *range(12, 19))],
    "Baton": ["baton-table1", "baton-table2", "baton-fig6", "baton-fig7", "baton-fig8"],
    "FluidInfer": ["fluidinfer-fig11", "fluidinfer-fig12", "fluidinfer-short"],
}
CONTEXT = "random:llama-2-7b"  # of 4,096 tokens
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("flover-fig9", {"scale": "quick", "tokens": 600}, ["--tokens 600", "2100 tokens", "2040", "at most 582"]),
    ("flover-fig8", {"scale": "paper", "tokens": 2041}, ["--tokens 2041", "at most 2040"]),
    ("flover-fig8", {"scale": "paper", "model": "random:opt-66b"}, ["random:opt-66b", "40 GB", "smaller --model"]),
    ("flover-fig8", {"scale": "paper", "dtype": "float64"}, ["float64", "shorter --dtype"]),
    ("flover-fig7", {"scale": "quick", "model": "no such"}, ["'no such'"]),
    ("flover-fig10", {"scale": "paper", "tokens": 1400}, ["TP2 L3600 16R intra", "80 GB", "fewer --tokens"]),
    ("flover-fig10", {"scale": "paper", "model": "random:llama-2-13b-gqa-16k"}, ["10 KV heads", "4 ranks"]),
    ("flover-fig10", {"scale": "quick", "tokens": 1050}, ["--tokens 1050", "at most"]),
    ("pensieve-fig3.3", {"scale": "quick", "tokens": 2000}, ["2000 steps", "random:small is 2048", "--tokens"]),
    ("pensieve-fig3.3", {"scale": "paper", "model": "tiny"}, ["tiny is 1024", "--model"]),
    ("pensieve-fig3.3", {"scale": "paper", "model": "random:llama-2-70b"}, ["80 GB"]),
    ("pensieve-fig3.4", {"model": "toy"}, ["'toy'"]),
    ("pensieve-fig3.17", {"tokens": 257}, ["--tokens is 257", "at most 256"]),
    ("pensieve-fig3.17", {"model": "medium"}, ["'medium'", "random:medium"]),
    ("pensieve-fig3.18", {"requests": 200_000}, ["200,000", "at most 100,000"]),
    ("baton-table1", {"scale": "paper", "model": CONTEXT}, ["batch of 4", "4,096", "--model"]),
    ("baton-table1", {"scale": "paper", "model": "random:llama-2-70b-16k"}, ["-70b-16k", "48 GB", "--dtype"]),
    ("baton-table1", {"requests": 20_000}, ["20,000", "at most 10,000"]),
    ("fluidinfer-fig11", {"scale": "paper", "model": "random:llama-2-70b", "requests": 8}, ["kv_memory"]),
]


@pytest.mark.parametrize("paper", FIGURES)
def test_a_name_is_a_figure_or_a_paper(paper: str) -> None:
    rows = experiments(paper.lower())
    assert [row.name for row in rows] == FIGURES[paper]
    assert {(row.paper, row.group) for row in rows} == {(paper, paper.lower())}
    for row in rows:
        assert experiments(row.name) == (row,)
        number = row.name.removeprefix(f"{row.group}-")
        assert row.figure == number.replace("fig", "Fig. ").replace("table", "Table ")


@pytest.mark.parametrize(("name", "nearest"), [("flover-fig6", "flover-fig"), ("pensieve-fig3.19", "pensieve-fig3.1")])
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    assert name not in EXPERIMENTS
    with pytest.raises(UsageError) as refused:
        experiments(name)
    sentence(refused.value, f"'{name}'", f'did you mean "{nearest}')


@pytest.mark.parametrize(("name", "conditions", "words"), REFUSED)
def test_what_cannot_run_is_refused_before_it_starts(name: str, conditions: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        EXPERIMENTS[name].prepare(Conditions(**conditions))
    sentence(refused.value, *words)
