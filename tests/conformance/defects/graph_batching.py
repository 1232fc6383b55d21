"""What goes wrong in graph batching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

from conformance.defects.harness import Patch, graph_defect, instead_of

from minifuse.batching.graph_merged import GraphMerged
from minifuse.batching.graph_padded import GraphPadded
from minifuse.core.plan import Placement, Proposal, Span, Work
from minifuse.core.shapes import StateRows
from minifuse.execute.cells import CellRunner
from minifuse.memory.states.chain_rows import ChainRows
from minifuse.memory.states.states import States


def _proposed(patch: Patch, policy: type, wrong: Callable[[Proposal], Proposal]) -> None:
    propose = policy.propose  # type: ignore[attr-defined]
    patch.setattr(policy, "propose", lambda self, *arguments: wrong(propose(self, *arguments)))


def _with_waves(proposal: Proposal, waves: list[tuple[Work, ...]]) -> Proposal:
    ends = [0, *accumulate(map(len, waves))]
    spans = tuple(Span(start, stop) for start, stop in pairwise(ends))
    return replace(proposal, work=tuple(chain.from_iterable(waves)), waves=spans)


def _waves(proposal: Proposal) -> list[tuple[Work, ...]]:
    return [proposal.work[start:stop] for start, stop in proposal.waves]


@graph_defect("graph-merged", "order")
def wave_too_early(patch: Patch) -> None:
    """The last of a merged graph is computed before those that it reads."""
    _proposed(patch, GraphMerged, lambda p: _with_waves(p, [*_waves(p)[-1:], *_waves(p)[:-1]]))


@graph_defect("graph-merged", "layout")
def types_merged(patch: Patch) -> None:
    """Nodes of one depth are a batch, whatever their types."""

    def careless(proposal: Proposal) -> Proposal:
        waves = _waves(proposal)
        for i, (one, two) in enumerate(pairwise(waves)):
            if one[0].cell != two[0].cell:
                return _with_waves(proposal, [*waves[:i], one + two, *waves[i + 2 :]])
        return proposal

    _proposed(patch, GraphMerged, careless)


@graph_defect("graph-merged", "counting")
def last_wave_forgotten(patch: Patch) -> None:
    _proposed(patch, GraphMerged, lambda p: _with_waves(p, _waves(p)[: max(1, len(p.waves) - 1)]))


@graph_defect("graph-merged", "budget")
def set_without_limit(patch: Patch) -> None:
    init = GraphMerged.__init__
    patch.setattr(GraphMerged, "__init__", lambda self, options: init(self, replace(options, max_batch=99)))


@graph_defect("graph-merged", "progress")
@instead_of(GraphMerged, "propose")
def waits_for_a_full_set(propose: Any, self: Any, worker: int, now: float, memory: Any) -> Proposal:
    if len(self.waiting) < self.options.max_batch:
        return Proposal()
    return propose(self, worker, now, memory)


@graph_defect("graph-merged", "conservation")
@instead_of(States, "_take")
def read_in_the_wave_that_writes(take: Any, self: States, count: int, passing: list[int]) -> list[int]:
    """A merged graph's wave may write over what another of its nodes is yet to read."""
    slots = take(self, count, passing)
    passing += slots  # "free for the next wave"
    return slots


@graph_defect("graph-padded", "order")
def steps_in_the_wrong_order(patch: Patch) -> None:
    """The last steps of the longer chains come first."""
    _proposed(patch, GraphPadded, lambda p: _with_waves(p, _waves(p)[::-1]))


@graph_defect("graph-padded", "counting")
def padding_not_counted(patch: Patch) -> None:
    patch.setattr(StateRows, "num_tokens", property(lambda self: (self.rows - (self.rows > 1)) * self.steps))


@graph_defect("graph-padded", "ghost")
@instead_of(ChainRows, "place")
def rows_exchanged(place: Any, self: ChainRows, proposal: Proposal, now: float) -> Placement:
    placement = place(self, proposal, now)
    return replace(placement, places=placement.places[::-1])


@graph_defect("graph-padded", "exact")
@instead_of(CellRunner, "_padded")
def constants_of_another_row(padded: Any, self: CellRunner, batch: Any, *arguments: Any) -> Any:
    """The inputs of a padded step go to the rows in another order."""
    return padded(self, batch._replace(places=sorted(batch.places, key=lambda place: -place.slot)), *arguments)
