"""Tests of the laws for models of cells: defects of the kinds people really make, each caught by the law it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from minifuse.batching.cellular import CellType, Cellular
from minifuse.batching.graph_merged import GraphMerged
from minifuse.batching.graph_padded import GraphPadded
from minifuse.batching.subgraphs import RequestProcessor, Subgraph
from minifuse.engine import Engine
from minifuse.errors import LawBroken
from minifuse.execute.cells import CellRunner, Issued
from minifuse.layout import Rectangle
from minifuse.memory import states
from minifuse.memory.rows import Rows
from minifuse.memory.state_storage import StateStorage
from minifuse.memory.states import States
from minifuse.plan import Placement, Proposal
from minifuse.request import FinishReason, Sequence
from minifuse.testing.cell_laws import CELL_LAWS
from minifuse.testing.cell_scenario import CellScenario, cell_mixes, cell_scenarios
from minifuse.work import Span, Work

Patch = pytest.MonkeyPatch

MIXES = {row.name: row for row in cell_mixes()}


@dataclass(frozen=True)
class Defect:
    """Something put wrong (`seed`), the technique that then misbehaves, and the law that says so."""

    technique: str
    law: str  # the name LawBroken carries
    seed: Callable[[Patch], None]
    check: str = "of_one_run"  # the function of CELL_LAWS that finds it
    kinds: tuple[str, ...] = ()  # of the graphs; none: any


# --- the scheduler of cells


def ready_too_early(patch: Patch) -> None:
    """A node is ready as soon as the first of those it reads has been submitted."""
    init = Subgraph.__init__

    def hasty(self: Subgraph, *given: Any) -> None:
        init(self, *given)
        self.missing = {node: min(count, 1) for node, count in self.missing.items()}

    patch.setattr(Subgraph, "__init__", hasty)


def passed_on_too_early(patch: Patch) -> None:
    """A subgraph is scheduled when some of what it reads outside has been computed."""
    computed = RequestProcessor.computed

    def hasty(self: RequestProcessor, sequence: Sequence, nodes: list[int]) -> None:
        for subgraph in self.held.get(sequence.id, ()):
            if not subgraph.outside.isdisjoint(nodes):
                subgraph.outside.clear()
        computed(self, sequence, nodes)

    patch.setattr(RequestProcessor, "computed", hasty)


def passed_on_when_submitted(patch: Patch) -> None:
    """What was submitted counts as computed, whoever computes it."""
    submit = Cellular.submit

    def hasty(self: Cellular, batch: Any, worker: int) -> None:
        submit(self, batch, worker)
        for subgraph, nodes in batch.nodes.items():
            self.processor.computed(subgraph.sequence, nodes)

    patch.setattr(Cellular, "submit", hasty)


def unpinned_too_early(patch: Patch) -> None:
    """With the first of its tasks that completes, however many still run."""
    completed = CellType.completed

    def hasty(self: CellType, subgraph: Subgraph) -> None:
        subgraph.num_running = 1
        completed(self, subgraph)

    patch.setattr(CellType, "completed", hasty)


def never_pinned(patch: Patch) -> None:
    submit = CellType.submit

    def careless(self: CellType, subgraph: Subgraph, nodes: list[int], worker: int) -> None:
        submit(self, subgraph, nodes, worker)
        self._num_ready[worker] -= len(subgraph.ready)
        self._num_ready[None] += len(subgraph.ready)
        subgraph.pinned = None

    patch.setattr(CellType, "submit", careless)


def never_unpinned(patch: Patch) -> None:
    """For ever its worker's, which may be busy while others idle."""
    completed = CellType.completed

    def keeping(self: CellType, subgraph: Subgraph) -> None:
        subgraph.num_running += 1
        completed(self, subgraph)

    patch.setattr(CellType, "completed", keeping)


def subgraph_dropped(patch: Patch) -> None:
    """Of several that depend on nothing, the last is forgotten."""
    receive = RequestProcessor.receive

    def forgetful(self: RequestProcessor, sequence: Sequence) -> None:
        free: list[Subgraph] = []
        schedule, self.schedule = self.schedule, free.append
        receive(self, sequence)
        self.schedule = schedule
        for subgraph in free[: max(1, len(free) - 1)]:
            schedule(subgraph)

    patch.setattr(RequestProcessor, "receive", forgetful)


def batch_too_large(patch: Patch) -> None:
    init = CellType.__init__
    patch.setattr(CellType, "__init__", lambda self, name, least, most: init(self, name, least, most + 1))


def computed_twice(patch: Patch) -> None:
    """A node is left among the ready ones when it is submitted."""
    submit = Subgraph.submit

    def keeping(self: Subgraph, node: int) -> None:
        submit(self, node)
        if self.outside or len(self.missing) == 1:
            self.ready.append(node)

    patch.setattr(Subgraph, "submit", keeping)


def types_mixed(patch: Patch) -> None:
    """One queue for all types."""
    enqueue = Cellular.enqueue

    def careless(self: Cellular, subgraph: Subgraph) -> None:
        cell, subgraph.cell = subgraph.cell, "any"
        enqueue(self, subgraph)
        subgraph.cell = cell
        self.types[cell] = self.types["any"]

    patch.setattr(Cellular, "enqueue", careless)
    patch.setattr(Cellular, "release", lambda self, sequence: self.admitted(sequence))


def worker_left_idle(patch: Patch) -> None:
    propose = Cellular.propose

    def lazy(self: Cellular, worker: int, now: float, memory: Any) -> Proposal:
        return Proposal() if worker else propose(self, worker, now, memory)

    patch.setattr(Cellular, "propose", lazy)


def queue_in_order_of_hash(patch: Patch) -> None:
    add = CellType.add

    def shuffled(self: CellType, subgraph: Subgraph, started: bool) -> None:
        add(self, subgraph, started)
        self.newcomers = dict.fromkeys(sorted(self.newcomers, key=lambda other: hash((other.sequence.id, "salt"))))

    patch.setattr(CellType, "add", shuffled)


def decides_by_chance(patch: Patch) -> None:
    counter = iter(range(10**9))
    form = Cellular.form_batched_task

    def fickle(self: Cellular, ct: CellType, worker: int, room: Any) -> Any:
        most, ct.max_batch = ct.max_batch, 1 if next(counter) % 3 == 0 else ct.max_batch
        try:
            return form(self, ct, worker, room)
        finally:
            ct.max_batch = most

    patch.setattr(Cellular, "form_batched_task", fickle)


def propose_touches_memory(patch: Patch) -> None:
    propose = Cellular.propose

    def meddling(self: Cellular, worker: int, now: float, memory: Any) -> Proposal:
        proposal = propose(self, worker, now, memory)
        memory.num_promised += len(proposal.admit)  # "it will be needed anyway"
        return proposal

    patch.setattr(Cellular, "propose", meddling)


def waits_for_whom_it_cannot_know(patch: Patch) -> None:
    """A policy that got hold of the list of arrivals, and lets nobody in before the next one."""
    submit, form = Engine.submit, Cellular.form_batched_task
    future: list[float] = []

    def leaking(self: Engine, *prompts: Any) -> None:
        future.append(prompts[0].arrival_s)
        submit(self, *prompts)

    def saving(self: Cellular, ct: CellType, worker: int, room: Any) -> Any:
        task = form(self, ct, worker, room)
        if any(arrival > 0.1 for arrival in future):
            task.nodes = dict([*task.nodes.items()][:1])  # one subgraph, and the others must wait
            named = {subgraph.sequence for subgraph in task.nodes}
            task.admit[:] = [sequence for sequence in task.admit if sequence in named]
        return task

    observe = CELL_LAWS["blind"].__globals__["observe_cells"]

    def fresh(*given: Any, **options: Any) -> Any:
        future.clear()
        return observe(*given, **options)

    patch.setattr(Engine, "submit", leaking)
    patch.setattr(Cellular, "form_batched_task", saving)
    patch.setitem(CELL_LAWS["blind"].__globals__, "observe_cells", fresh)


# --- the engine


def kept_a_step_too_long(patch: Patch) -> None:
    """What has finished is only told of with the next plan that completes."""
    commit = Engine.commit
    held: dict[int, Any] = {}

    def holding(self: Engine, completion: Any) -> Any:
        report = commit(self, completion)
        late = held.pop(id(self), {})
        held[id(self)] = dict(report.finished)
        return replace(report, finished=late)

    patch.setattr(Engine, "commit", holding)


def stop_noticed_late(patch: Patch) -> None:
    """The stop token is looked for one token too late."""
    why = Sequence.why_finished

    def late(self: Sequence) -> Any:
        reason = why(self)
        if reason is FinishReason.STOP and self.num_new < self.request.max_new_tokens:
            return FinishReason.STOP if self.num_new > 1 and self.tokens[-2] in self.request.stop_ids else None
        return reason

    patch.setattr(Sequence, "why_finished", late)


def discarded_not_counted(patch: Patch) -> None:
    commit = Engine.commit
    patch.setattr(Engine, "commit", lambda self, completion: replace(commit(self, completion), discarded=0))


# --- memory


def _placed(patch: Patch, wrong: Callable[[Placement], Placement]) -> None:
    place = States.place
    patch.setattr(States, "place", lambda self, proposal: wrong(place(self, proposal)))


def reads_in_wrong_order(patch: Patch) -> None:
    def wrong(placement: Placement) -> Placement:
        return replace(placement, places=tuple(p._replace(reads=p.reads[::-1]) for p in placement.places))

    _placed(patch, wrong)


def reads_of_a_neighbour(patch: Patch) -> None:
    """The first two nodes of a batch read each other's states."""

    def wrong(placement: Placement) -> Placement:
        first, *rest = placement.places
        if rest and len(first.reads) == len(rest[0].reads):
            first, rest[0] = first._replace(reads=rest[0].reads), rest[0]._replace(reads=first.reads)
        return replace(placement, places=(first, *rest))

    _placed(patch, wrong)


def written_over_a_neighbour(patch: Patch) -> None:
    """All of a batch go where the first goes."""

    def wrong(placement: Placement) -> Placement:
        return replace(placement, places=tuple(p._replace(slot=placement.places[0].slot) for p in placement.places))

    _placed(patch, wrong)


def freed_when_planned(patch: Patch) -> None:
    """A state counts as read when the plan that reads it has been made."""
    place, commit = States.place, States.commit

    def hasty(self: States, proposal: Proposal) -> Placement:
        placement = place(self, proposal)
        if len(proposal.waves) <= 1:
            commit(self, proposal, ())  # type: ignore[arg-type]  # it has work and waves
        return placement

    patch.setattr(States, "place", hasty)
    patch.setattr(States, "commit", lambda self, plan, sampled: None)


def never_freed(patch: Patch) -> None:
    patch.setattr(States, "_free", lambda self, slots: None)


def room_is_optimistic(patch: Patch) -> None:
    patch.setattr(states._Room, "extend", lambda self, sequence: None)


def usage_is_fiction(patch: Patch) -> None:
    usage = States.usage
    patch.setattr(States, "usage", lambda self: usage(self)._replace(used=0))


def refuses_too_much(patch: Patch) -> None:
    check = States.check_graph

    def strict(self: States, name: str, graph: Any) -> None:
        self.capacity -= 1
        try:
            check(self, name, graph)
        finally:
            self.capacity += 1

    patch.setattr(States, "check_graph", strict)


def never_refuses(patch: Patch) -> None:
    """Whoever can never be held waits for ever."""
    patch.setattr(States, "check_graph", lambda self, name, graph: None)


# --- what computes


def zero_slot_written(patch: Patch) -> None:
    """The slot that constants of zero are read from is used as a place to write to."""
    write = StateStorage.write

    def spilling(self: StateStorage, field: int, slots: tuple[int, ...], what: Any) -> None:
        write(self, field, slots, what)
        self.fields[field][self.zero] = what[0]

    patch.setattr(StateStorage, "write", spilling)


def gathered_in_order_of_slots(patch: Patch) -> None:
    read = StateStorage.read
    patch.setattr(StateStorage, "read", lambda self, field, slots: read(self, field, tuple(sorted(slots))))


def constants_in_wrong_rows(patch: Patch) -> None:
    constants = CellRunner._constants
    patch.setattr(CellRunner, "_constants", lambda self, kind, at, values: constants(self, kind, at, values[::-1]))


def results_of_another(patch: Patch) -> None:
    result = Issued.result
    patch.setattr(Issued, "result", lambda self, work, outputs: result(self, work[::-1], outputs))


def results_forgotten(patch: Patch) -> None:
    """Of several results only the last is kept."""
    ran = Issued.ran

    def forgetful(self: Issued) -> Any:
        done = ran(self)
        return done._replace(results={name: dict([*found.items()][:1]) for name, found in done.results.items()})

    patch.setattr(Issued, "ran", forgetful)


def said_by_another(patch: Patch) -> None:
    say = Issued.say
    patch.setattr(Issued, "say", lambda self, work, rows, tokens: say(self, work, rows, tokens.flip(0)))


# --- graph batching


def _proposed(patch: Patch, policy: type, wrong: Callable[[Proposal], Proposal]) -> None:
    propose = policy.propose  # type: ignore[attr-defined]
    patch.setattr(policy, "propose", lambda self, *given: wrong(propose(self, *given)))


def _with_waves(proposal: Proposal, waves: list[tuple[Work, ...]]) -> Proposal:
    ends = [0, *accumulate(map(len, waves))]
    spans = tuple(Span(start, stop) for start, stop in pairwise(ends))
    return replace(proposal, work=tuple(chain.from_iterable(waves)), waves=spans)


def _waves(proposal: Proposal) -> list[tuple[Work, ...]]:
    return [proposal.work[start:stop] for start, stop in proposal.waves]


def wave_too_early(patch: Patch) -> None:
    """The last of a merged graph is computed before those that it reads."""
    _proposed(patch, GraphMerged, lambda p: _with_waves(p, [*_waves(p)[-1:], *_waves(p)[:-1]]))


def types_merged(patch: Patch) -> None:
    """Nodes of one depth are a batch, whatever their types."""

    def careless(proposal: Proposal) -> Proposal:
        waves = _waves(proposal)
        for i, (one, two) in enumerate(pairwise(waves)):
            if one[0].cell != two[0].cell:
                return _with_waves(proposal, [*waves[:i], one + two, *waves[i + 2 :]])
        return proposal

    _proposed(patch, GraphMerged, careless)


def last_wave_forgotten(patch: Patch) -> None:
    _proposed(patch, GraphMerged, lambda p: _with_waves(p, _waves(p)[: max(1, len(p.waves) - 1)]))


def set_without_limit(patch: Patch) -> None:
    init = GraphMerged.__init__
    patch.setattr(GraphMerged, "__init__", lambda self, options: init(self, replace(options, max_batch=99)))


def waits_for_a_full_set(patch: Patch) -> None:
    propose = GraphMerged.propose

    def patient(self: Any, worker: int, now: float, memory: Any) -> Proposal:
        if len(self.waiting) < self.options.max_batch:
            return Proposal()
        return propose(self, worker, now, memory)

    patch.setattr(GraphMerged, "propose", patient)


def read_in_the_wave_that_writes(patch: Patch) -> None:
    """A merged graph's wave may write over what another of its nodes is yet to read."""
    take = States._take

    def grasping(self: States, count: int, passing: list[int]) -> list[int]:
        slots = take(self, count, passing)
        passing += slots  # "free for the next wave"
        return slots

    patch.setattr(States, "_take", grasping)


def steps_in_the_wrong_order(patch: Patch) -> None:
    """The last steps of the longer chains come first."""
    _proposed(patch, GraphPadded, lambda p: _with_waves(p, _waves(p)[::-1]))


def padding_not_counted(patch: Patch) -> None:
    patch.setattr(
        Rectangle, "num_tokens", property(lambda self: (self.rows - (self.rows > 1)) * (self.stop - self.start))
    )


def rows_exchanged(patch: Patch) -> None:
    place = Rows.place

    def wrong(self: Rows, proposal: Proposal) -> Placement:
        placement = place(self, proposal)
        return replace(placement, places=placement.places[::-1])

    patch.setattr(Rows, "place", wrong)


def constants_of_another_row(patch: Patch) -> None:
    """What a node of a padded step is given goes to the rows in another order."""
    padded = CellRunner._padded

    def turned(self: CellRunner, kind: Any, work: Any, places: Any, *given: Any) -> None:
        padded(self, kind, work, sorted(places, key=lambda place: -place.slot), *given)

    patch.setattr(CellRunner, "_padded", turned)


DEFECTS = {
    "ready too early": Defect("cellular", "order", ready_too_early),
    "passed on too early": Defect("cellular", "order", passed_on_too_early),
    "passed on when submitted": Defect("cellular", "order", passed_on_when_submitted),
    "unpinned too early": Defect("cellular", "pinned", unpinned_too_early),
    "never pinned": Defect("cellular", "pinned", never_pinned),
    "never unpinned": Defect("cellular", "progress", never_unpinned),
    "a subgraph dropped": Defect("cellular", "progress", subgraph_dropped),
    "batch too large": Defect("cellular", "budget", batch_too_large),
    "a node computed twice": Defect("cellular", "conservation", computed_twice),
    "types mixed": Defect("cellular", "layout", types_mixed),
    "a worker left idle": Defect("cellular", "progress", worker_left_idle),
    "queue in order of a hash": Defect("cellular", "pure", queue_in_order_of_hash, "reproducible"),
    "decides by chance": Defect("cellular", "same in simulation", decides_by_chance, "same_in_simulation"),
    "propose touches memory": Defect("cellular", "pure", propose_touches_memory),
    "waits for whom it cannot know": Defect("cellular", "blind", waits_for_whom_it_cannot_know, "blind"),
    "kept a step too long": Defect("cellular", "progress", kept_a_step_too_long),
    "stop noticed late": Defect("cellular", "exact", stop_noticed_late, kinds=("seq2seq",)),
    "discarded not counted": Defect("cellular", "counting", discarded_not_counted, kinds=("seq2seq",)),
    "reads in wrong order": Defect("cellular", "ghost", reads_in_wrong_order),
    "reads of a neighbour": Defect("cellular", "ghost", reads_of_a_neighbour),
    "written over a neighbour": Defect("cellular", "conservation", written_over_a_neighbour),
    "freed when planned": Defect("cellular", "conservation", freed_when_planned),
    "never freed": Defect("cellular", "conservation", never_freed),
    "room is optimistic": Defect("cellular", "budget", room_is_optimistic),
    "usage is fiction": Defect("cellular", "conservation", usage_is_fiction),
    "refuses too much": Defect("cellular", "refuse early", refuses_too_much),
    "never refuses": Defect("cellular", "progress", never_refuses),
    "zero slot written": Defect("cellular", "exact", zero_slot_written),
    "gathered in order of slots": Defect("cellular", "exact", gathered_in_order_of_slots),
    "constants in wrong rows": Defect("cellular", "exact", constants_in_wrong_rows),
    "results of another": Defect("cellular", "exact", results_of_another),
    "results forgotten": Defect("cellular", "exact", results_forgotten),
    "said by another": Defect("cellular", "exact", said_by_another, kinds=("seq2seq",)),
    "a wave too early": Defect("graph-merged", "order", wave_too_early),
    "types merged": Defect("graph-merged", "layout", types_merged),
    "last wave forgotten": Defect("graph-merged", "counting", last_wave_forgotten),
    "set without limit": Defect("graph-merged", "budget", set_without_limit),
    "waits for a full set": Defect("graph-merged", "progress", waits_for_a_full_set),
    "read in the wave that writes": Defect("graph-merged", "conservation", read_in_the_wave_that_writes),
    "steps in the wrong order": Defect("graph-padded", "order", steps_in_the_wrong_order),
    "padding not counted": Defect("graph-padded", "counting", padding_not_counted),
    "rows exchanged": Defect("graph-padded", "ghost", rows_exchanged),
    "constants of another row": Defect("graph-padded", "exact", constants_of_another_row),
}


class _Caught(BaseException):
    """Ends hypothesis's search at once: no other scenario is drawn, and nothing is shrunk."""

    def __init__(self, broken: LawBroken) -> None:
        super().__init__(broken)
        self.broken = broken


def _caught(defect: Defect) -> LawBroken | None:
    """What the law says of the first scenario of up to 300 that breaks it."""
    row = MIXES[defect.technique]

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cell_scenarios(row, kinds=defect.kinds))
    def attempt(scenario: CellScenario) -> None:
        try:
            CELL_LAWS[defect.check](row, scenario)
        except LawBroken as broken:
            raise _Caught(broken) from None

    try:
        attempt()
    except _Caught as caught:
        return caught.broken
    return None


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.seed(monkeypatch)
    caught = _caught(defect)
    assert caught is not None, "the defect went unnoticed"
    assert caught.law == defect.law, str(caught)
