"""Defines cell graphs, requests to models of cells, as a subject of the laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minifuse.techniques import Technique
from minifuse.testing.graphs.scenario import GraphScenario, graph_mixes, graph_scenarios
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case, Subject

if TYPE_CHECKING:
    from minifuse.testing.graphs.case import GraphCase

__all__ = ["GRAPHS", "GraphScenario"]


def graph_case(row: Technique, scenario: GraphScenario) -> Case:
    """Make a case of cell graphs. Imports torch, which the small model needs."""
    from minifuse.testing.graphs.case import GraphCase

    return GraphCase(row, scenario)


def in_real_time(case: GraphCase, seen: Observation) -> None:
    """Call `minifuse.testing.graphs.real_time`, which imports torch."""
    from minifuse.testing.graphs import real_time

    real_time.in_real_time(case, seen)


GRAPHS = Subject(
    kind="cells",
    noun="models of cells",
    mixes=graph_mixes,
    scenarios=graph_scenarios,
    case=graph_case,
    laws={"in_real_time": in_real_time},
    law_names=("order", "pinned"),
)
