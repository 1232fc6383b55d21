"""A run under observation: the stages at work, and everything the laws are checked against."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field

from torch import Tensor

from minifuse.assembly import Stages
from minifuse.clock import VirtualClock
from minifuse.engine import Engine
from minifuse.errors import LawBroken, RequestRefused
from minifuse.execute import RunAhead, VirtualExecutor
from minifuse.memory.storage import KVStorage
from minifuse.plan import Move, Plan, Proposal
from minifuse.report import KVUsage, StepReport
from minifuse.request import Request, Sequence, TextReader
from minifuse.stages import Batching, Memory, RunPlan
from minifuse.techniques import Technique
from minifuse.testing.ghost import GhostRunner
from minifuse.testing.models import model_config, small_model
from minifuse.testing.scenario import Scenario
from minifuse.trace import Trace

__all__ = ["Observation", "observe"]


@dataclass
class Observation:
    """What one run did. `kv_bytes` is what the KV tensors really take; None where no model ran.

    `logits` are those of every token drawn, by request and position, where a model ran.
    """

    trace: Trace
    steps: list[StepReport] = field(default_factory=list)
    answers: dict[str, Sequence] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    usage_at_end: KVUsage | None = None
    kv_bytes: int | None = None
    logits: dict[tuple[str, int], Tensor] = field(default_factory=dict)


class _Watched:
    """A batching policy whose `propose` must leave memory and sequences as they are (law "pure")."""

    def __init__(self, policy: Batching) -> None:
        self.policy = policy
        self.workers = policy.workers
        self.depth = policy.depth
        self.commit = policy.commit
        self.held: dict[str, Sequence] = {}

    def receive(self, sequence: Sequence) -> None:
        self.held[sequence.id] = sequence
        self.policy.receive(sequence)

    def release(self, sequence: Sequence) -> None:
        self.held.pop(sequence.id, None)
        self.policy.release(sequence)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        before = pickle.dumps((vars(memory), self.held))
        proposal = self.policy.propose(worker, now, memory)
        if pickle.dumps((vars(memory), self.held)) != before:
            raise LawBroken("pure", f"propose at {now} changed memory or a sequence")
        return proposal


def observe(
    row: Technique,
    scenario: Scenario,
    *,
    run: RunPlan | None = None,
    cost: Callable[[Plan], float] | None = None,
    max_steps: int = 5000,
    numerics: str = "fast",
) -> Observation:
    """Run `scenario` in virtual time under `row`, checking after every step what must hold between steps.

    Args:
        run: where tokens come from; the scenario's model on ghost KV unless given.
        cost: seconds of a plan; the scenario's unless given.

    Raises:
        LawBroken: a law was broken on the way.
    """
    config = model_config(scenario.model)
    stages = Stages.of(row, scenario.capacity, scenario.settings(row))
    kv_bytes, logits = None, {}
    if run is None:
        model = small_model(scenario.model, numerics)
        memory = stages.memory
        cache = KVStorage(config, memory.capacity, model.dtype, model.device, memory.host_capacity)
        kv_bytes = cache.keys.nbytes + cache.values.nbytes
        run = ghost = GhostRunner(model, cache, stages.attention.backend(dtype="float64", numerics=numerics))
        logits = ghost.logits
    if stages.batching.depth > 1:
        run = RunAhead(run)
    clock = VirtualClock()
    books = _Books(stages.memory.capacity, stages.memory.host_capacity)
    engine = Engine(
        _Watched(stages.batching),  # type: ignore[arg-type]  # it has what the engine calls
        stages.memory,
        stages.attention,
        _Noting(books, clock, cost or scenario.seconds, run),
        clock,
        reader=TextReader(config.vocab_size, config.max_context),
        trace=Trace(technique=row.name),
    )
    seen = Observation(engine.trace, kv_bytes=kv_bytes, logits=logits)
    for prompts in scenario.asked():
        _submit(engine, prompts, seen)
    for report in engine.run():
        seen.steps.append(report)
        engine.memory.check_integrity()
        books.check(report, engine.sequences.keys() | engine.in_flight.leaving.keys())
        if len(seen.steps) > max_steps:
            raise LawBroken("progress", f"after {max_steps} steps {len(engine.sequences)} requests are unfinished")
    seen.answers = engine.finished
    seen.usage_at_end = engine.memory.usage()
    return seen


def _submit(engine: Engine, prompts: tuple[Request, ...], seen: Observation) -> None:
    books = pickle.dumps(vars(engine.memory))
    try:
        engine.submit(*prompts)
    except RequestRefused as refusal:
        seen.refused |= dict.fromkeys((prompt.id for prompt in prompts), str(refusal))
        if pickle.dumps(vars(engine.memory)) != books:
            raise LawBroken("refuse early", f"refusing {prompts[0].id} changed memory") from None


Slot = tuple[str, int]  # on the "device" or on the "host"


class _Books:
    """What every slot holds and whose it is, kept from the plans alone: memory's own books are what is being checked.

    Plans that run at the same time may end in any order. So nothing may be read that another of them is still writing,
    nor written what another still has to copy from. Two sequences may have the same slot for the same token after the
    same text, and for nothing else.
    """

    def __init__(self, capacity: int, host_capacity: int) -> None:
        self.capacity = {"device": capacity, "host": host_capacity}
        self.texts: dict[str, tuple[int, ...]] = {}  # the tokens of each live sequence
        self.slots: dict[str, list[Slot]] = {}  # token by token, those being written included
        self.written: dict[str, int] = {}  # how many of them a completed plan has written
        self.contents: dict[Slot, tuple[int, ...]] = {}  # the text up to the token that a slot holds
        self.arriving: dict[Slot, int] = {}  # slots being written or copied to -> the step that does so
        self.leaving: dict[int, set[Slot]] = {}  # step -> slots that its moves, not yet completed, copy from
        self.running: set[str] = set()  # sequences of plans that have not completed

    def begin(self, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
        """A plan is about to run: its moves, then its work, among the plans that are running already."""
        mine = {work.sequence for work in plan.work}
        self.texts |= {name: tuple(sequences[name].tokens) for name in mine}
        away: dict[Slot, Slot] = {}
        for move in plan.moves:
            self._move(plan.step, move, mine, away)
        for name in plan.evicted:
            kept = self.slots[name][: self.written[name]]
            if all(slot in away for slot in kept):
                self.slots[name] = [away[slot] for slot in kept]
            else:
                del self.slots[name], self.written[name]  # to be computed again
        fresh: set[Slot] = set()
        for work, place in zip(plan.work, plan.places, strict=True):
            now: list[Slot] = [("device", slot) for slot in place.slots(0, work.stop)]
            text = self.texts[work.sequence]
            for i, slot in enumerate(now):
                if i >= work.start:
                    fresh.add(slot)
                    self._write(plan.step, slot, text[: i + 1])
                elif self.contents.get(slot) != text[: i + 1] or self.arriving.get(slot, plan.step) != plan.step:
                    raise LawBroken("conservation", f"{work} reads token {i} from {slot}, where it is not")
            self.slots[work.sequence] = now
        self.running |= mine
        self._check_owners(fresh)

    def _move(self, step: int, move: Move, mine: set[str], away: dict[Slot, Slot]) -> None:
        tiers = {"swap_in": ("host", "device"), "swap_out": ("device", "host")}
        source_tier, target_tier = tiers.get(move.kind, ("device", "device"))
        for i in range(move.num_tokens):
            source, target = (source_tier, move.source + i), (target_tier, move.target + i)
            owners = {name for name, slots in self.slots.items() if source in slots}
            if move.kind != "copy" and (owners & self.running) - mine:
                raise LawBroken("conservation", f"{move} takes {owners} from under another worker")
            if source not in self.contents or self.arriving.get(source, step) != step:
                raise LawBroken("conservation", f"{move} copies from {source}, where nothing is yet")
            self._write(step, target, self.contents[source])
            self.leaving.setdefault(step, set()).add(source)
            if move.kind == "swap_out":
                away[source] = target
            elif move.kind != "copy":
                for name in owners:
                    self.slots[name] = [target if slot == source else slot for slot in self.slots[name]]

    def _write(self, step: int, slot: Slot, text: tuple[int, ...]) -> None:
        if any(slot in slots for other, slots in self.leaving.items() if other != step):
            raise LawBroken("conservation", f"step {step} writes {slot}, which another step may yet copy")
        self.contents[slot] = text
        self.arriving[slot] = step

    def _check_owners(self, fresh: Set[Slot]) -> None:
        """Nobody shares a slot but for the same text, and nobody one that is being written: that takes a copy."""
        owner: dict[Slot, tuple[str, int]] = {}
        for name, slots in self.slots.items():
            for i, slot in enumerate(slots):
                other, at = owner.setdefault(slot, (name, i))
                if other != name and (
                    slot in fresh or at != i or self.texts[name][: i + 1] != self.texts[other][: i + 1]
                ):
                    raise LawBroken("conservation", f"slot {slot} belongs to {other} and to {name}")
                if not 0 <= slot[1] < self.capacity[slot[0]]:
                    raise LawBroken("budget", f"{name} uses slot {slot} of {self.capacity}")

    def check(self, report: StepReport, live: Collection[str]) -> None:
        """A plan has completed; `live` are the sequences that are still being served after it."""
        step = report.plan.step
        self.leaving.pop(step, None)
        self.arriving = {slot: other for slot, other in self.arriving.items() if other != step}
        done = [work for work in report.plan.work if work.sequence in self.slots]  # not yet gone in the same event
        self.written |= {work.sequence: work.stop for work in done}
        self.running.difference_update(work.sequence for work in report.plan.work)
        kept = {slot for name, count in self.written.items() for slot in self.slots[name][:count]}
        needed = {tier: sum(slot[0] == tier for slot in kept) for tier in self.capacity}
        usage = report.usage
        if not needed["device"] <= usage.used <= usage.reserved <= usage.capacity == self.capacity["device"]:
            raise LawBroken("conservation", f"{needed} tokens are written and needed, and memory says {usage}")
        if not needed["host"] == usage.host <= self.capacity["host"]:
            raise LawBroken("conservation", f"{needed} tokens are written and needed, and memory says {usage}")
        for books in (self.slots, self.written, self.texts):
            for name in [name for name in books if name not in live]:
                del books[name]


class _Noting(VirtualExecutor):
    """Tells the books of every plan that begins."""

    def __init__(self, books: _Books, clock: VirtualClock, cost: Callable[[Plan], float], run: RunPlan) -> None:
        super().__init__(clock, cost, run)
        self.books = books

    def start(self, plan: Plan, sequences: dict[str, Sequence]) -> None:
        self.books.begin(plan, sequences)
        super().start(plan, sequences)
