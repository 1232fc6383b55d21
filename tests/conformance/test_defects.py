"""Tests of the tests: defects of the kinds people really make, each caught by the law that forbids it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from minifuse.attention import padded, per_sequence
from minifuse.attention import slots as slot_attention
from minifuse.batching.dynamic import Dynamic
from minifuse.batching.fusion import Fusion
from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.serial import Serial
from minifuse.engine import Engine
from minifuse.errors import LawBroken
from minifuse.execute import runner
from minifuse.memory import slots
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.contiguous import Contiguous, _Room
from minifuse.memory.reserved import ReservedMemory
from minifuse.memory.slots import Slots
from minifuse.memory.storage import KVStorage
from minifuse.plan import Grid, Move, Proposal, Reason, Region
from minifuse.request import FinishReason, Sequence, TextLimits
from minifuse.request import Phase as SequencePhase
from minifuse.techniques import TECHNIQUES
from minifuse.testing import LAWS, Scenario, scenarios

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Defect:
    """Something put wrong (`seed`), the technique that then misbehaves, and the law that says so."""

    technique: str
    law: str  # the name LawBroken carries
    check: str  # the function of LAWS that finds it
    seed: Callable[[Patch], None]


def off_by_one_position(patch: Patch) -> None:
    batch = per_sequence.PerSequenceAttention.batch

    def shifted(self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
        made = batch(self, plan, sequences, cache)
        made.positions.add_((made.positions > 0).long())  # as if the prompt's last token were counted twice
        return made

    patch.setattr(per_sequence.PerSequenceAttention, "batch", shifted)


def mask_too_wide(patch: Patch) -> None:
    def causal(start: int, stop: int, device: torch.device) -> torch.Tensor | None:
        if stop - start == 1:
            return None
        return torch.ones(stop - start, stop, dtype=torch.bool, device=device).tril(start + 1)

    patch.setattr(per_sequence, "_causal", causal)


def padding_is_seen(patch: Patch) -> None:
    mask = padded._mask
    patch.setattr(padded, "_mask", lambda first, *rest: mask([max(0, f - 1) for f in first], *rest))


def slot_freed_twice(patch: Patch) -> None:
    free = Contiguous._free

    def twice(self: Contiguous, name: str, extent: Any) -> None:
        free(self, name, extent)
        free(self, name, extent)

    patch.setattr(Contiguous, "_free", twice)


def slot_never_freed(patch: Patch) -> None:
    patch.setattr(Contiguous, "_free", lambda self, name, extent: None)


def runs_overlap(patch: Patch) -> None:
    allocate = RunAllocator.allocate

    def overlapping(self: RunAllocator, size: int) -> int | None:
        offset = allocate(self, size)
        return max(0, offset - 1) if offset else offset

    patch.setattr(RunAllocator, "allocate", overlapping)


def stop_noticed_late(patch: Patch) -> None:
    """The stop token is looked for one token too late."""
    why = Sequence.why_finished

    def late(self: Sequence) -> Any:
        reason = why(self)
        if reason is FinishReason.STOP and self.num_new < self.request.max_new_tokens:
            return FinishReason.STOP if self.num_new > 1 and self.tokens[-2] in self.request.stop_ids else None
        return reason

    patch.setattr(Sequence, "why_finished", late)


def answer_held_back(patch: Patch) -> None:
    """What has finished is only let go in the next iteration that completes."""
    commit = Engine.commit
    held: dict[int, Any] = {}

    def holding(self: Engine, completion: Any) -> Any:
        report = commit(self, completion)
        late = held.pop(id(self), {})
        held[id(self)] = dict(report.finished)
        report.finished.clear()
        report.finished.update(late)
        return report

    patch.setattr(Engine, "commit", holding)


def propose_touches_memory(patch: Patch) -> None:
    propose = QueuePolicy.propose

    def meddling(self: QueuePolicy, worker: int, now: float, memory: Any) -> Proposal:
        proposal = propose(self, worker, now, memory)
        for sequence in proposal.admit:
            memory.cached[sequence.id] = 0  # "it will be needed anyway"
        return proposal

    patch.setattr(QueuePolicy, "propose", meddling)


def decides_by_chance(patch: Patch) -> None:
    """A policy that decides by something other than what it was given: each run another."""
    counter = iter(range(10**9))

    def order(self: Any, waiting: Any) -> Any:
        queue = list(waiting)
        return queue[::-1] if next(counter) % 3 == 0 else queue

    patch.setattr(QueuePolicy, "order", order)


def never_refuses(patch: Patch) -> None:
    patch.setattr(ReservedMemory, "check", lambda self, *prompts: None)
    patch.setattr(TextLimits, "check", lambda self, request: None)


def refuses_too_much(patch: Patch) -> None:
    check = ReservedMemory.check

    def strict(self: ReservedMemory, *prompts: Any) -> None:
        self.capacity -= 1
        try:
            check(self, *prompts)
        finally:
            self.capacity += 1

    patch.setattr(ReservedMemory, "check", strict)


def budget_overrun(patch: Patch) -> None:
    patch.setattr(Iteration, "token_budget", property(lambda self: (self.options.token_budget or math.inf) + 1))


def cache_too_large(patch: Patch) -> None:
    init = KVStorage.__init__
    patch.setattr(KVStorage, "__init__", lambda self, config, slots, *rest: init(self, config, slots + 1, *rest))


def last_come_first_served(patch: Patch) -> None:
    """The newest is always tried first and the oldest never let in."""

    def admission(self: Serial, sequence: Sequence, joining: int, now: float) -> Any:
        busy = self.running or joining
        return ("batch-full", sequence.id, "") if busy or sequence.id == "r0" else None

    patch.setattr(Serial, "admission", admission)


def waits_for_whom_it_cannot_know(patch: Patch) -> None:
    """A policy that got hold of the list of arrivals, and saves its place for the next one."""
    submit, admission = Engine.submit, Serial.admission

    def leaking(self: Engine, *prompts: Any) -> None:
        submit(self, *prompts)
        policy = self.batching.policy  # type: ignore[attr-defined]
        policy.future = [*getattr(policy, "future", []), prompts[0].arrival_s]

    def waiting(self: Any, sequence: Sequence, joining: int, now: float) -> Any:
        if any(now < arrival < now + 0.05 for arrival in self.future):
            return Reason("saved", sequence.id, "not admitted: somebody else is about to come")
        return admission(self, sequence, joining, now)

    patch.setattr(Engine, "submit", leaking)
    patch.setattr(Serial, "admission", waiting)


def answers_depend_on_a_hash(patch: Patch) -> None:
    """The next to run is taken from a set."""
    patch.setattr(QueuePolicy, "order", lambda self, waiting: [self.waiting[name] for name in set(self.waiting)])


def usage_is_fiction(patch: Patch) -> None:
    patch.setattr(ReservedMemory, "num_used", property(lambda self: 0))


def sleeps_before_every_batch(patch: Patch) -> None:
    admission = Dynamic._window_closes
    patch.setattr(Dynamic, "_window_closes", lambda self: admission(self) + 36000)


def two_workers_one_sequence(patch: Patch) -> None:
    """A policy for one worker, asked for two, gives both the same work."""
    patch.setattr(QueuePolicy, "workers", 2)


def noise_from_the_row(patch: Patch) -> None:
    sample = runner.sample
    patch.setattr(runner, "sample", lambda logits, params, positions: sample(logits, params, range(len(params))))


def padding_counts_as_position(patch: Patch) -> None:
    """A token's position is taken from its column, so left padding shifts it."""
    batch = padded.PaddedAttention.batch

    def by_column(self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
        made = batch(self, plan, sequences, cache)
        made.positions.copy_(torch.arange(plan.grid.start, plan.grid.stop).repeat(plan.grid.rows))
        return made

    patch.setattr(padded.PaddedAttention, "batch", by_column)


def idle_rows_not_counted(patch: Patch) -> None:
    patch.setattr(Grid, "num_tokens", property(lambda self: (self.rows - (self.rows > 1)) * (self.stop - self.start)))


def room_is_optimistic(patch: Patch) -> None:
    patch.setattr(_Room, "admit", lambda self, sequence: None)


def written_one_slot_too_far(patch: Patch) -> None:
    write = KVStorage.write
    patch.setattr(
        KVStorage,
        "write",
        lambda self, layer, slots, k, v: write(self, layer, (slots + 1).clamp_max(self.keys.shape[1] - 1), k, v),
    )


def shuffled_without_copying(patch: Patch) -> None:
    shuffled = Slots._shuffle

    def forgetful(self: Slots, proposal: Proposal) -> tuple[Any, ...]:
        shuffled(self, proposal)
        return ()

    patch.setattr(Slots, "_shuffle", forgetful)


def copied_one_token_short(patch: Patch) -> None:
    move = KVStorage.move
    patch.setattr(
        KVStorage,
        "move",
        lambda self, what, layer=None: move(self, what._replace(num_tokens=what.num_tokens - 1), layer),
    )


def shuffled_onto_the_living(patch: Patch) -> None:
    """The copies go to the last buffers of the window, whoever is there."""
    gather = slots.shuffle

    def careless(live: Any, fixed: Any, num_buffers: int) -> Any:
        found = gather(live, fixed, num_buffers)
        ends = range(found.offset + found.size - len(found.moves), found.offset + found.size)
        return found._replace(moves=tuple(zip((source for source, _ in found.moves), ends, strict=True)))

    patch.setattr(slots, "shuffle", careless)


def shuffled_from_under_a_worker(patch: Patch) -> None:
    """The main stream closes up over whoever is in memory, those that another worker is at work on included."""
    place = Slots.place

    def grasping(self: Slots, proposal: Proposal) -> Any:
        placement = place(self, proposal)
        running = {work.sequence for work in proposal.work}
        slot = min(self.slot(name) for name in running)
        other = next((name for name in self.extents if name not in running and self.cached.get(name)), None)
        if other is None or slot == 0 or (slot - 1) * self.width in {e.offset for e in self.extents.values()}:
            return placement
        move = Move("shuffle", self.extents[other].offset, (slot - 1) * self.width, self.cached[other])
        self.extents[other] = self._extent(slot - 1)
        return replace(placement, moves=(*placement.moves, move))

    patch.setattr(Slots, "place", grasping)


def given_away_before_it_is_copied(patch: Patch) -> None:
    """A slot counts as free as soon as its copy is planned: a pre-processing worker may write into it first."""
    patch.setattr(Slots, "leaving", property(lambda self: {}, lambda self, slots: None), raising=False)


def a_buffer_sees_its_neighbour(patch: Patch) -> None:
    """Every row of the region is attended as far as the longest."""
    batch = slot_attention.SlotsAttention.batch

    def unmasked(self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
        made = batch(self, plan, sequences, cache)
        for wave in made.waves:
            if hasattr(wave, "live"):
                wave.mask.zero_()
        return made

    patch.setattr(slot_attention.SlotsAttention, "batch", unmasked)


def fused_before_it_is_ready(patch: Patch) -> None:
    """Whoever has a place in memory is taken for ready."""
    iterate = Fusion._iterate

    def hasty(self: Fusion, memory: Any) -> Proposal:
        for sequence in self.admitted.values():
            sequence.phase = SequencePhase.READY
        return iterate(self, memory)

    patch.setattr(Fusion, "_iterate", hasty)
    watched = importlib.import_module("minifuse.testing.observe")._Watched
    patch.setattr(watched, "propose", lambda self, *given: self.policy.propose(*given))


def idle_buffers_not_counted(patch: Patch) -> None:
    patch.setattr(Region, "num_tokens", property(lambda self: max(1, self.size - 1)))


def a_slot_too_many(patch: Patch) -> None:
    patch.setattr(Slots, "room", lambda self: slots._Room(self.slots + 1 - len(self.extents), self.slots))


def prompts_of_a_request_counted_one_by_one(patch: Patch) -> None:
    """A request is accepted if each of its prompts would fit alone."""
    check = ReservedMemory.check

    def singly(self: ReservedMemory, *prompts: Any) -> None:
        for prompt in prompts:
            check(self, prompt)

    patch.setattr(ReservedMemory, "check", singly)


DEFECTS = {
    "shuffled without copying": Defect("fusion", "ghost", "of_one_run", shuffled_without_copying),
    "copied one token short": Defect("fusion", "ghost", "of_one_run", copied_one_token_short),
    "shuffled onto the living": Defect("fusion", "conservation", "of_one_run", shuffled_onto_the_living),
    "shuffled from under a worker": Defect("fusion", "conservation", "of_one_run", shuffled_from_under_a_worker),
    "given away before it is copied": Defect("fusion", "conservation", "of_one_run", given_away_before_it_is_copied),
    "a buffer sees its neighbour's width": Defect("fusion", "ghost", "of_one_run", a_buffer_sees_its_neighbour),
    "fused before it is ready": Defect("fusion", "conservation", "of_one_run", fused_before_it_is_ready),
    "idle buffers not counted": Defect("fusion", "counting", "of_one_run", idle_buffers_not_counted),
    "a slot too many": Defect("fusion", "budget", "of_one_run", a_slot_too_many),
    "prompts counted one by one": Defect(
        "instances", "progress", "of_one_run", prompts_of_a_request_counted_one_by_one
    ),
    "off-by-one position": Defect("orca", "exact", "of_one_run", off_by_one_position),
    "mask too wide": Defect("orca", "ghost", "of_one_run", mask_too_wide),
    "padding is seen": Defect("static", "ghost", "of_one_run", padding_is_seen),
    "written one slot too far": Defect("orca", "ghost", "of_one_run", written_one_slot_too_far),
    "padding counts as position": Defect("static", "exact", "of_one_run", padding_counts_as_position),
    "slot freed twice": Defect("orca", "conservation", "of_one_run", slot_freed_twice),
    "slot never freed": Defect("orca", "conservation", "of_one_run", slot_never_freed),
    "runs overlap": Defect("orca", "conservation", "of_one_run", runs_overlap),
    "stop noticed late": Defect("orca", "exact", "of_one_run", stop_noticed_late),
    "answer held back": Defect("static", "progress", "of_one_run", answer_held_back),
    "propose touches memory": Defect("orca", "pure", "of_one_run", propose_touches_memory),
    "decides by chance": Defect("orca", "pure", "reproducible", decides_by_chance),
    "never refuses": Defect("serial", "refuse early", "of_one_run", never_refuses),
    "refuses too much": Defect("serial", "refuse early", "of_one_run", refuses_too_much),
    "token budget overrun": Defect("orca", "budget", "of_one_run", budget_overrun),
    "cache larger than allowed": Defect("orca", "budget", "of_one_run", cache_too_large),
    "admits without room": Defect("orca", "budget", "of_one_run", room_is_optimistic),
    "one request starves": Defect("serial", "progress", "of_one_run", last_come_first_served),
    "waits for whom it cannot know": Defect("serial", "blind", "blind", waits_for_whom_it_cannot_know),
    "answers depend on a hash": Defect("orca", "pure", "reproducible", answers_depend_on_a_hash),
    "usage is fiction": Defect("orca", "conservation", "of_one_run", usage_is_fiction),
    "sleeps before every batch": Defect("dynamic", "progress", "of_one_run", sleeps_before_every_batch),
    "two workers, one sequence": Defect("orca", "conservation", "of_one_run", two_workers_one_sequence),
    "noise from the batch row": Defect("orca", "exact", "of_one_run", noise_from_the_row),
    "noise from the row, compared": Defect("orca", "batch of one", "batch_of_one", noise_from_the_row),
    "idle rows not counted": Defect("static", "counting", "of_one_run", idle_rows_not_counted),
    "decides by chance, simulated": Defect("orca", "same in simulation", "same_in_simulation", decides_by_chance),
}


def _caught(law: str, technique: str) -> LawBroken | None:
    """What `law` says of the first scenario of up to 300 that breaks it."""
    found: list[LawBroken] = []

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios())
    def attempt(scenario: Scenario) -> None:
        if found:
            return
        try:
            LAWS[law](TECHNIQUES[technique], scenario)
        except LawBroken as broken:
            found.append(broken)

    attempt()
    return found[0] if found else None


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.seed(monkeypatch)
    caught = _caught(defect.check, defect.technique)
    assert caught is not None, "the defect went unnoticed"
    assert caught.law == defect.law, str(caught)
