"""The register: a name is a figure or a paper."""

from __future__ import annotations

import pytest
from helpers import sentence

from minifuse.core.errors import UsageError
from minifuse.papers import EXPERIMENTS, experiments

FIGURES = {
    "Flover": ["flover-fig7", "flover-fig8", "flover-fig9"],
    "BatchMaker": [f"batchmaker-fig2.{number}" for number in (3, 5, 7, 8, 9, 11, 13, 14, 15)],
    "Pensieve": [f"pensieve-fig3.{number}" for number in (3, 4, *range(12, 19))],
}


@pytest.mark.parametrize("paper", FIGURES)
def test_a_name_is_a_figure_or_a_paper(paper: str) -> None:
    rows = experiments(paper.lower())
    assert [row.name for row in rows] == FIGURES[paper]
    assert {(row.paper, row.group) for row in rows} == {(paper, paper.lower())}
    for row in rows:
        assert experiments(row.name) == (row,)
        assert row.figure == f"Fig. {row.name.removeprefix(f'{row.group}-fig')}"


@pytest.mark.parametrize(("name", "nearest"), [("flover-fig6", "flover-fig"), ("pensieve-fig3.19", "pensieve-fig3.1")])
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    assert name not in EXPERIMENTS
    with pytest.raises(UsageError) as refused:
        experiments(name)
    sentence(refused.value, f"'{name}'", f'did you mean "{nearest}')
