"""What the laws for models of cells are tried on: every technique and mix that serves them, and workloads made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from minifuse.assembly import check_settings
from minifuse.cell_graph import CellGraph
from minifuse.errors import UsageError
from minifuse.model.cells.model import CellModel
from minifuse.plan import Plan
from minifuse.request import Request
from minifuse.stages import Kind, stage, stages
from minifuse.techniques import TECHNIQUES, Technique, for_model, mix
from minifuse.testing.cell_models import CHAINS, GRAPHS, Recipe, cell_model

__all__ = ["CellScenario", "cell_mixes", "cell_scenarios", "granularity", "is_chain"]


@dataclass(frozen=True)
class CellScenario:
    """A workload of cell graphs, a budget and settings, all small enough that every corner is met often."""

    requests: tuple[Request, ...]
    slack: int  # slots beyond those that the largest graph needs; below 0 it has to be refused
    options: tuple[tuple[str, Any], ...]  # as `--set` takes them; those a mix does not have are left out
    pace: int = 0  # how the seconds of plans vary: 0 for not at all

    def seconds(self, plan: Plan) -> float:
        if not self.pace:
            return 0.01
        return Random(f"{self.pace}/{plan.step}/{plan.worker}").choice([0.01, 0.01, 0.002, 0.013, 0.03])

    def settings(self, row: Technique) -> dict[str, Any]:
        """The options that the stages of `row` have, over its own."""
        known = row.option_names - row.options.keys()
        return {name: value for name, value in self.options if name in known}

    def graphs(self, row: Technique) -> dict[str, CellGraph]:
        """What each request unfolds into, at the granularity of this row."""
        model = self.model(row)
        return {request.id: model.unfold(request) for request in self.requests}

    def model(self, row: Technique) -> CellModel:
        return cell_model(granularity(row))

    def capacity(self, row: Technique) -> int:
        """Slots of memory."""
        needs = [slots_needed(row, graph) for graph in self.graphs(row).values()]
        return max(1, max(needs) + self.slack)

    def with_workers(self, workers: int) -> CellScenario:
        options = {**dict(self.options), "batching.workers": workers}
        return replace(self, options=tuple(options.items()))

    def with_requests(self, requests: tuple[Request, ...]) -> CellScenario:
        return replace(self, requests=requests)


def granularity(row: Technique) -> str:
    """Whether a node is a cell or a single operator."""
    return str(getattr(check_settings(row)["batching"], "per", "cell"))


def slots_needed(row: Technique, graph: CellGraph) -> int:
    """What a request takes that is served alone: its states that may be needed at once, or one row for all of them."""
    return graph.most_held if "states" in stage("memory", row.memory).offers else 1


def is_chain(graph: CellGraph) -> bool:
    """Whether each node reads the one before it and nothing else."""
    starts = sum(not sources for sources in graph.sources)
    ends = sum(not readers for readers in graph.readers)
    narrow = all(len(sources) <= 1 for sources in graph.sources) and all(len(nodes) <= 1 for nodes in graph.readers)
    return starts == ends == 1 and narrow


def cell_mixes(**only: str) -> Iterator[Technique]:
    """Every technique that serves models of cells, then every valid mix; `batching="mine"` keeps those with it.

    Those that batch cells or operators are put to the laws as both.
    """
    rows = [for_model(row, "cells") for row in TECHNIQUES.values() if "cells" in row.serves]
    for batching in _serving("batching"):
        for memory in _serving("memory"):
            for attention in _serving("attention"):
                try:
                    rows.append(mix(TECHNIQUES["cellular"], batching=batching, memory=memory, attention=attention))
                except UsageError:
                    continue  # the memory does not keep states the way this layout reads them
    seen = set()
    for row in rows:
        key = (*row.stages.values(), *row.options.items())
        if key in seen or any(getattr(row, kind) != name for kind, name in only.items()):
            continue
        seen.add(key)
        yield row
        if "batching.per" in row.option_names and row.memory != "rows":  # operators of a cell are no chain
            yield replace(row, name=f"{row.name} by operator", options={**row.options, "batching.per": "operator"})


def _serving(kind: Kind) -> list[str]:
    return [name for name, cls in stages(kind).items() if "cells" in cls.serves]


@st.composite
def cell_scenarios(draw: st.DrawFn, row: Technique | None = None, kinds: tuple[str, ...] = ()) -> CellScenario:
    """Two to seven requests of one to nine cells: chains, trees and others, or only those that `row` can serve.

    Args:
        kinds: of graphs, to choose from.
    """
    if not kinds:
        chains = row is not None and (row.memory == "rows" or row.batching == "graph_padded")
        some = [CHAINS, CHAINS, CHAINS, (*CHAINS, "tree")]  # trees are to be refused
        every = [GRAPHS, GRAPHS, CHAINS, ("tree",), ("dag",), ("seq2seq",)]
        kinds = draw(st.sampled_from(some if chains else every))
    count = draw(st.sampled_from([2, 3, 4, 5, 7]))
    requests = tuple(
        Request(
            id=f"r{i}",
            prompt=(),
            max_new_tokens=draw(st.sampled_from([1, 2, 4, 9, 9, 9])),
            stop_ids=draw(st.sampled_from([(), (), (3,), (6, 8)])),
            ignore_eos=draw(st.sampled_from([False, False, True])),
            arrival_s=draw(st.sampled_from([0.0, 0.0, 0.0, 0.005, 0.02, 0.035, 0.2])),
            structure=Recipe(draw(st.sampled_from(kinds)), draw(st.integers(1, 6)), draw(st.integers(0, 99))),
        )
        for i in range(count)
    )
    max_batch = draw(st.integers(1, 6))
    options = {
        "batching.max_batch": max_batch,
        "batching.min_batch": min(max_batch, draw(st.sampled_from([1, 1, 2, 3]))),
        "batching.max_batches": draw(st.sampled_from([None, None, "decoder=7,leaf=3,lstm=4,wide=3"])),
        "batching.priorities": draw(st.sampled_from([None, None, "leaf,encoder,wide"])),
        "batching.max_tasks": draw(st.integers(1, 5)),
        "batching.workers": draw(st.sampled_from([1, 1, 2, 2, 3])),
        "batching.bucket_width": draw(st.sampled_from([1, 2, 3, 10])),
        "batching.pad": draw(st.sampled_from(["bucket", "longest"])),
        "batching.overlap": draw(st.booleans()),
    }
    return CellScenario(
        requests=requests,
        slack=draw(st.sampled_from([-1, 0, 0, 1, 3, 8, 300, 300])),
        options=tuple(options.items()),
        pace=draw(st.sampled_from([0, 1, 2, 3])),
    )
