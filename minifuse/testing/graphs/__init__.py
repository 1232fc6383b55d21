"""Cell graphs under the laws: requests to models of cells, whose memory holds the states of nodes."""

from minifuse.testing.graphs.case import GraphCase
from minifuse.testing.graphs.real_time import in_real_time
from minifuse.testing.graphs.scenario import GraphScenario, graph_mixes, graph_scenarios
from minifuse.testing.subject import Subject

__all__ = ["GRAPHS", "GraphCase", "GraphScenario"]

GRAPHS = Subject(
    kind="cells",
    noun="models of cells",
    mixes=graph_mixes,
    scenarios=graph_scenarios,
    case=GraphCase,
    laws={"in_real_time": in_real_time},
    law_names=("order", "pinned"),
)
