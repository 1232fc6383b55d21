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
from minifuse.attention import paged as paged_attention
from minifuse.attention import slots as slot_attention
from minifuse.batching.dynamic import Dynamic
from minifuse.batching.fusion import Fusion
from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.serial import Serial
from minifuse.engine import Engine
from minifuse.errors import LawBroken
from minifuse.execute import texts
from minifuse.kernels.operators import TorchOperators
from minifuse.layout import Rectangle, Region
from minifuse.memory import slots
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.blocks import BlockPool
from minifuse.memory.contiguous import Contiguous, _Room
from minifuse.memory.paged import Paged
from minifuse.memory.paged import _Room as _PagedRoom
from minifuse.memory.reserved import ReservedMemory
from minifuse.memory.slots import Slots
from minifuse.memory.storage import KVStorage
from minifuse.memory.tables import Tables
from minifuse.plan import Move, Proposal, Reason
from minifuse.request import FinishReason, Sequence, TextReader
from minifuse.request import Phase as SequencePhase
from minifuse.testing import LAWS, Scenario, mixes, scenarios
from minifuse.work import Span

Patch = pytest.MonkeyPatch

MIXES = {row.name: row for row in mixes()}


@dataclass(frozen=True)
class Defect:
    """Something put wrong (`seed`), the technique that then misbehaves, and the law that says so."""

    technique: str
    law: str  # the name LawBroken carries
    check: str  # the function of LAWS that finds it
    seed: Callable[[Patch], None]
    kind: str | None = None  # of the scenarios; None: any


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
    """Whoever can never be held waits for ever."""
    patch.setattr(ReservedMemory, "check", lambda self, *prompts: None)
    patch.setattr(TextReader, "check", lambda self, request: None)


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
    sample = texts.sample
    patch.setattr(
        texts, "sample", lambda logits, params, positions, ops: sample(logits, params, range(len(params)), ops)
    )


def padding_counts_as_position(patch: Patch) -> None:
    """A token's position is taken from its column, so left padding shifts it."""
    batch = padded.PaddedAttention.batch

    def by_column(self: Any, plan: Any, sequences: Any, cache: Any) -> Any:
        made = batch(self, plan, sequences, cache)
        made.positions.copy_(torch.arange(plan.shape.start, plan.shape.stop).repeat(plan.shape.rows))
        return made

    patch.setattr(padded.PaddedAttention, "batch", by_column)


def idle_rows_not_counted(patch: Patch) -> None:
    patch.setattr(
        Rectangle, "num_tokens", property(lambda self: (self.rows - (self.rows > 1)) * (self.stop - self.start))
    )


def room_is_optimistic(patch: Patch) -> None:
    patch.setattr(_Room, "admit", lambda self, sequence, growing=False: None)


def written_one_slot_too_far(patch: Patch) -> None:
    write = TorchOperators.rotate_and_write

    def shifted(self: Any, heads: Any, rotary: Any, keys: Any, values: Any, slots: Any, live: Any) -> Any:
        return write(self, heads, rotary, keys, values, (slots + 1).clamp_max(len(keys) - 1), live)

    patch.setattr(TorchOperators, "rotate_and_write", shifted)


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
            if hasattr(wave.attended, "mask"):
                wave.attended.mask.zero_()
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


# --- blocks, and eviction


def block_given_back_twice(patch: Patch) -> None:
    give_back = BlockPool.give_back

    def twice(self: BlockPool, block: int) -> None:
        give_back(self, block)
        give_back(self, block)

    patch.setattr(BlockPool, "give_back", twice)


def block_free_although_others_hold_it(patch: Patch) -> None:
    """Whoever leaves frees the blocks of the common beginning too."""
    give_back = BlockPool.give_back

    def whole(self: BlockPool, block: int) -> None:
        self.holders[block] = min(1, self.holders[block])
        give_back(self, block)

    patch.setattr(BlockPool, "give_back", whole)


def copy_on_write_left_out(patch: Patch) -> None:
    patch.setattr(Tables, "_is_shared", lambda self, block: False)


def shares_a_token_too_many(patch: Patch) -> None:
    """The comparison stops one token late: the first that differs is taken for the same."""
    alike = Tables._alike

    def generous(self: Tables, newcomer: Sequence) -> tuple[str, int]:
        name, same = alike(self, newcomer)
        return name, min(same + 1, self.cached[name], len(newcomer) - 1) if same else 0

    patch.setattr(Tables, "_alike", generous)


def shares_the_last_token_too(patch: Patch) -> None:
    """Nothing is left to compute, so there is nothing to sample from."""
    alike = Tables._alike

    def all_of_it(self: Tables, newcomer: Sequence) -> tuple[str, int]:
        longer = Sequence(newcomer.request, [*newcomer.tokens, -1])
        return alike(self, longer)

    patch.setattr(Tables, "_alike", all_of_it)


def swapped_a_token_short(patch: Patch) -> None:
    moves = Tables._moves

    def short(self: Tables, kind: Any, sources: Any, targets: Any, num_tokens: int) -> list[Move]:
        return moves(self, kind, sources, targets, num_tokens - 1)

    patch.setattr(Tables, "_moves", short)


def swapped_out_without_copying(patch: Patch) -> None:
    evict = Tables.evict

    def silent(self: Tables, name: str) -> list[Move]:
        evict(self, name)
        return []

    patch.setattr(Tables, "evict", silent)


def swapped_with_two_blocks_exchanged(patch: Patch) -> None:
    moves = Tables._moves

    def crossed(self: Tables, kind: Any, sources: list[int], targets: list[int], num_tokens: int) -> list[Move]:
        return moves(self, kind, [*sources[1:2], *sources[:1], *sources[2:]], targets, num_tokens)

    patch.setattr(Tables, "_moves", crossed)


def returns_with_a_token_too_many(patch: Patch) -> None:
    """Whoever is on the host claims KV for its last token too, which has never been computed: nothing is missing."""
    missing = Paged.missing

    def claiming(self: Paged, sequence: Sequence) -> tuple[Span, ...]:
        (span,) = missing(self, sequence)
        return (Span(span.start + (sequence.id in self.tables.away), span.stop),)

    patch.setattr(Paged, "missing", claiming)


def dropped_and_taken_for_kept(patch: Patch) -> None:
    """Whoever comes back with nothing goes on where it was."""
    evict, admit = Tables.evict, Tables.admit
    remembered: dict[str, int] = {}

    def noting(self: Tables, name: str) -> list[Move]:
        remembered[name] = self.cached[name]
        return evict(self, name)

    def trusting(self: Tables, sequence: Sequence, **how: Any) -> list[Move]:
        moves = admit(self, sequence, **how)
        table = self.blocks[sequence.id]
        needed = self.blocks_of(remembered.get(sequence.id, 0)) - len(table)
        if not moves and 0 < needed <= self.promised[sequence.id]:
            self.cached[sequence.id] = remembered[sequence.id]
            table += [self.device.take() for _ in range(needed)]
            self.promised[sequence.id] -= needed
        return moves

    patch.setattr(Tables, "evict", noting)
    patch.setattr(Tables, "admit", trusting)


def table_with_two_entries_exchanged(patch: Patch) -> None:
    """Only where it is read: what the books say is right."""
    tables_of = paged_attention.tables_of

    def crossed(places: Any) -> Any:
        tables, page = tables_of(places)
        return [[*table[1:2], *table[:1], *table[2:]] for table in tables], page

    patch.setattr(paged_attention, "tables_of", crossed)


def host_is_not_counted(patch: Patch) -> None:
    usage = Paged.usage
    patch.setattr(Paged, "usage", lambda self: usage(self)._replace(host=0))


def shared_blocks_counted_twice(patch: Patch) -> None:
    patch.setattr(Tables, "num_written", lambda self: sum(self.cached[name] for name in self.blocks))


def host_blocks_never_given_back(patch: Patch) -> None:
    def arrived(self: Tables, name: str) -> None:
        for block in self.copied.pop(name, ()):
            self.device.give_back(block)
        self.returned.pop(name, None)

    patch.setattr(Tables, "arrived", arrived)


def promises_forgotten(patch: Patch) -> None:
    """Blocks set aside for the rest of a life are given to newcomers."""
    patch.setattr(Tables, "num_promised", property(lambda self: 0))


def room_to_grow_is_optimistic(patch: Patch) -> None:
    patch.setattr(_PagedRoom, "extend", lambda self, sequence: None)


def oldest_evicted_first(patch: Patch) -> None:
    """It has its work for this iteration already."""

    def make_room(self: Any, sequence: Sequence, running: Any, room: Any, evict: Any) -> None:
        while sequence not in evict and room.extend(sequence) is not None:
            oldest = running.pop(0)
            room.evict(oldest)
            evict.append(oldest)

    patch.setattr(QueuePolicy, "_make_room", make_room)


def evicted_and_forgotten(patch: Patch) -> None:
    """Whoever is evicted leaves the queue for good."""
    propose = QueuePolicy._fill

    def losing(self: QueuePolicy, *given: Any) -> Proposal:
        proposal = propose(self, *given)
        for sequence in proposal.evict:
            self.waiting.pop(sequence.id)
        return proposal

    patch.setattr(QueuePolicy, "_fill", losing)


PAGED_ORCA = "iteration+paged+paged"

DEFECTS = {
    "block given back twice": Defect("vllm", "conservation", "of_one_run", block_given_back_twice),
    "block free although others hold it": Defect(
        "vllm", "conservation", "of_one_run", block_free_although_others_hold_it
    ),
    "copy on write left out": Defect("vllm", "conservation", "of_one_run", copy_on_write_left_out, "growing"),
    "shares a token too many": Defect("vllm", "conservation", "of_one_run", shares_a_token_too_many, "growing"),
    "shares the last token too": Defect(PAGED_ORCA, "progress", "of_one_run", shares_the_last_token_too),
    "swapped a token short": Defect("vllm", "conservation", "of_one_run", swapped_a_token_short, "growing"),
    "swapped a token short, by the runner": Defect("vllm", "ghost", "of_one_run", copied_one_token_short, "growing"),
    "swapped out without copying": Defect("vllm", "conservation", "of_one_run", swapped_out_without_copying, "growing"),
    "swapped with two blocks exchanged": Defect(
        "vllm", "conservation", "of_one_run", swapped_with_two_blocks_exchanged, "growing"
    ),
    "returns with a token too many": Defect("vllm", "progress", "of_one_run", returns_with_a_token_too_many, "growing"),
    "dropped and taken for kept": Defect(  # what it takes for its own is another's, or nobody has so much
        "vllm", "conservation or budget", "of_one_run", dropped_and_taken_for_kept, "growing"
    ),
    "table with two entries exchanged": Defect("vllm", "ghost", "of_one_run", table_with_two_entries_exchanged),
    "host is not counted": Defect("vllm", "conservation", "of_one_run", host_is_not_counted, "growing"),
    "shared blocks counted twice": Defect("vllm", "conservation", "of_one_run", shared_blocks_counted_twice),
    "host blocks never given back": Defect(
        "vllm", "conservation", "of_one_run", host_blocks_never_given_back, "growing"
    ),
    "promises forgotten": Defect(PAGED_ORCA, "budget", "of_one_run", promises_forgotten),
    "room to grow is optimistic": Defect("vllm", "budget", "of_one_run", room_to_grow_is_optimistic, "growing"),
    "oldest evicted first": Defect("vllm", "conservation", "of_one_run", oldest_evicted_first, "growing"),
    "evicted and forgotten": Defect("vllm", "progress", "of_one_run", evicted_and_forgotten, "growing"),
    "shuffled without copying": Defect("fusion", "conservation", "of_one_run", shuffled_without_copying),
    "copied one token short": Defect("fusion", "ghost", "of_one_run", copied_one_token_short),
    "shuffled onto the living": Defect("fusion", "conservation", "of_one_run", shuffled_onto_the_living),
    "shuffled from under a worker": Defect("fusion", "conservation", "of_one_run", shuffled_from_under_a_worker),
    "given away before it is copied": Defect("fusion", "conservation", "of_one_run", given_away_before_it_is_copied),
    "a buffer sees its neighbour's width": Defect("fusion", "ghost", "of_one_run", a_buffer_sees_its_neighbour),
    "fused before it is ready": Defect("fusion", "conservation", "of_one_run", fused_before_it_is_ready),
    "idle buffers not counted": Defect("fusion", "counting", "of_one_run", idle_buffers_not_counted),
    "a slot too many": Defect("fusion", "budget", "of_one_run", a_slot_too_many),
    "prompts counted one by one": Defect(
        "instances", "progress", "of_one_run", prompts_of_a_request_counted_one_by_one, "few"
    ),
    "prompts counted one by one, where they need not start together": Defect(
        "serial", "refuse early", "of_one_run", prompts_of_a_request_counted_one_by_one, "few"
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
    "never refuses": Defect("serial", "progress", "of_one_run", never_refuses, "few"),
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


class _Caught(BaseException):
    """Ends hypothesis's search at once: no other scenario is drawn, and nothing is shrunk."""

    def __init__(self, broken: LawBroken) -> None:
        super().__init__(broken)
        self.broken = broken


def _caught(defect: Defect) -> LawBroken | None:
    """What the law says of the first scenario of up to 300 that breaks it."""

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(kind=defect.kind))
    def attempt(scenario: Scenario) -> None:
        try:
            LAWS[defect.check](MIXES[defect.technique], scenario)
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
    assert caught.law in defect.law.split(" or "), str(caught)
