"""Makes the mixes and workloads of cell graphs on which the laws are tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.plan import Plan
from minifuse.core.request import Request
from minifuse.core.unfolded import Unfolded
from minifuse.serve.assembly import choose
from minifuse.techniques import Technique
from minifuse.testing.capacity import slots_needed
from minifuse.testing.drawn import draw_options
from minifuse.testing.graphs.recipes import CHAINS, GRAPHS, Recipe
from minifuse.testing.subject import Scenario, mixes


@dataclass(frozen=True, kw_only=True)
class GraphScenario(Scenario):
    """Requests to the small model, in memory `slack` slots larger than the largest request needs."""

    slack: int  # below 0, the largest request must be refused
    pace: int = 0  # seed for the varying seconds of plans; 0: all plans take equally long
    sized_for: tuple[Request, ...] = ()  # the requests that determine the size of memory; (): `requests`

    def seconds(self, plan: Plan) -> float:
        if not self.pace:
            return 0.01
        return Random(f"{self.pace}/{plan.step}/{plan.worker}").choice([0.01, 0.01, 0.002, 0.013, 0.03])

    def with_requests(self, requests: tuple[Request, ...]) -> GraphScenario:
        return replace(self, requests=requests, sized_for=self.sized_for or self.requests)

    def alone(self, request: Request) -> GraphScenario:
        return replace(self, requests=(request,), sized_for=())


_FORK = Unfolded(
    Request("fork", ()), graph=CellGraph((Node("a", ()), Node("a", (Output(0),)), Node("a", (Output(0),))))
)


def only_chains(row: Technique) -> bool:
    """Return whether a technique refuses every graph that is no chain."""
    return slots_needed(choose(row), (_FORK,)) is None


def graph_mixes(**only: str) -> Iterator[Technique]:
    """Yield every technique and mix that serves models of cells, by cell and by operator."""
    for row in mixes("cells", **only):
        yield row
        if "batching.per" in row.option_names and not only_chains(row):  # operators of a cell are no chain
            yield replace(row, name=f"{row.name} by operator", options={**row.options, "batching.per": "operator"})


OPTIONS = {
    "batching.max_batch": st.integers(1, 6),
    "batching.order": st.sampled_from(["fcfs", "priority"]),
    "batching.ageing": st.sampled_from([None, 0.004, 0.03]),
    "batching.min_batch": st.sampled_from([1, 1, 2, 3]),
    "batching.batch_sizes": st.sampled_from([None, None, "1,4", "1,2,8", "6,1,3"]),
    "batching.max_batches": st.sampled_from([None, None, "decoder=7,leaf=3,lstm=4,wide=3"]),
    "batching.priorities": st.sampled_from([None, None, "leaf,encoder,wide"]),
    "batching.max_tasks": st.integers(1, 5),
    "batching.workers": st.sampled_from([1, 1, 2, 2, 3]),
    "batching.bucket_width": st.sampled_from([1, 2, 3, 10]),
    "batching.pad": st.sampled_from(["bucket", "longest"]),
    "batching.overlap": st.booleans(),
}


@st.composite
def graph_scenarios(draw: st.DrawFn, row: Technique, kinds: tuple[str, ...] = ()) -> GraphScenario:
    """Draw two to seven requests with small graphs, most of which `row` can serve.

    Args:
        kinds: the kinds of graphs to choose from.
    """
    if not kinds:
        some = [CHAINS, CHAINS, CHAINS, (*CHAINS, "tree")]  # trees must be refused
        every = [GRAPHS, GRAPHS, CHAINS, ("tree",), ("dag",), ("seq2seq",)]
        kinds = draw(st.sampled_from(some if only_chains(row) else every))
    count = draw(st.sampled_from([2, 3, 4, 5, 7]))
    requests = tuple(
        Request(
            id=f"r{i}",
            prompt=(),
            max_new_tokens=draw(st.sampled_from([1, 2, 4, 9, 9, 9])),
            stop_ids=draw(st.sampled_from([(), (), (3,), (6, 8)])),
            ignore_eos=draw(st.sampled_from([False, False, True])),
            arrival_s=draw(st.sampled_from([0.0, 0.0, 0.0, 0.005, 0.02, 0.035, 0.2])),
            priority=draw(st.sampled_from([0, 0, 1, 2, -1])),
            user=(None, "u0", "u1")[i % 3],
            structure=Recipe(draw(st.sampled_from(kinds)), draw(st.integers(1, 6)), draw(st.integers(0, 99))),
        )
        for i in range(count)
    )
    options = draw_options(draw, OPTIONS)
    options["batching.min_batch"] = min(options["batching.max_batch"], options["batching.min_batch"])
    if options["batching.batch_sizes"]:
        options["batching.min_batch"] = 1  # each type has the size 1
    return GraphScenario(
        requests=requests,
        aborts=tuple(draw(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6).map("r{}".format)), max_size=2))),
        slack=draw(st.sampled_from([-1, 0, 0, 1, 3, 8, 300, 300])),
        options=tuple(options.items()),
        shared=draw(st.booleans()),
        pace=draw(st.sampled_from([0, 1, 2, 3])),
    )
