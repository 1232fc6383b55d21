"""Paged memory by hand: blocks that prompts share, what is copied, when it may be read, and what was promised."""

from __future__ import annotations

from helpers import asks, make_engine, run_all

from minifuse.memory import Paged
from minifuse.plan import Placement, Plan, Proposal, Work
from minifuse.request import Request, Sequence
from minifuse.techniques import Stages, mix, technique
from minifuse.testing import Scenario, observe
from minifuse.testing.models import expected_answer

SIZE = 4


class Slots:
    """What lies in the slots of the device: the text up to each token. A plan's moves and work are done by `run`."""

    def __init__(self) -> None:
        self.texts: dict[int, tuple[int, ...]] = {}

    def run(self, placement: Placement, work: Work, sequence: Sequence) -> None:
        for move in placement.moves:
            for i in range(move.num_tokens):
                self.texts[move.target + i] = self.texts.get(move.source + i, ())
        for t, slot in enumerate(placement.places[0].slots(0, work.stop)):
            own = tuple(sequence.tokens[: t + 1])
            if t >= work.start:
                self.texts[slot] = own
            assert self.texts.get(slot) == own, f"{sequence.id} reads token {t} from slot {slot}: not its own text"


# --- several workers: plans end in any order


def test_a_copy_that_has_not_been_made_is_not_copied_from() -> None:
    """b, on another worker, is to copy what it shares of a's last block; a leaves, and b alone has its beginning.

    c begins like both, and its plan may run before b's: it must not read from the block that b has not filled yet.
    """
    memory, slots = Paged(10 * SIZE, Paged.Options(SIZE, share=True)), Slots()
    endings: dict[str, tuple[int, ...]] = {"a": (), "b": (7,), "c": (8,)}
    a, b, c = (Sequence(asks(name, (1, 2, 3, 4, 5, 6, *ending), 1)) for name, ending in endings.items())

    def plan(sequence: Sequence) -> tuple[Placement, Work]:
        work = Work(sequence.id, *memory.missing(sequence)[0])
        return memory.place(Proposal((work,), (sequence,))), work

    def complete(placement: Placement, work: Work, sequence: Sequence) -> None:
        slots.run(placement, work, sequence)
        memory.commit(Plan(0, 0, (work,), placement.places, moves=placement.moves), {sequence.id})
        memory.release(sequence)
        memory.check_integrity()

    first = plan(a)
    slots.run(*first, a)
    memory.commit(Plan(0, 0, (first[1],), first[0].places), {"a"})
    of_b = plan(b)
    memory.release(a)
    of_c = plan(c)
    memory.check_integrity()
    complete(*of_c, c)
    complete(*of_b, b)
    assert memory.usage().reserved == 0


def test_answers_of_prompts_that_begin_alike_on_several_workers() -> None:
    """The same through the engine, with a model: c's plan is quicker than b's, and its answer is its own."""
    settings = {"memory.block_size": SIZE, "memory.share": True, "batching.instances": 3}
    stages = Stages.of(mix(technique("instances"), memory="paged", attention="paged"), 40, settings)
    beginning = (1, 2, 3, 4, 5, 6)
    requests: list[Request] = [
        asks("a", beginning, 2), asks("b", (*beginning, 7), 1, at=1.5), asks("c", (*beginning, 8), 1, at=2.0)
    ]  # fmt: skip

    def seconds(plan: Plan) -> float:
        return 4.0 if plan.work[0].sequence == "b" else 1.0

    engine = make_engine(
        "instances", model="llama", batching=stages.batching, memory=stages.memory, attention=stages.attention,
        cost=seconds,
    )  # fmt: skip
    run_all(engine, requests)
    answers = {name: tuple(sequence.answer) for name, sequence in engine.finished.items()}
    assert answers == {request.id: expected_answer("llama", request) for request in requests}


def test_sharing_with_one_at_work_whose_own_source_has_left_is_no_false_alarm() -> None:
    """b, at work, shares the whole of a's block; a leaves, and c shares it with b: it was written long ago."""
    row = mix(technique("instances"), memory="paged", attention="paged")
    beginning = (1, 2, 3, 4)
    requests = (
        asks("a", beginning, 2), asks("b", (*beginning, 7), 1, at=0.015), asks("c", (*beginning, 8), 1, at=0.02)
    )  # fmt: skip
    options = (("batching.instances", 3), ("memory.block_size", SIZE), ("memory.share", True))
    seen = observe(row, Scenario("llama", requests, 40, options))
    assert [(work.sequence, work.start) for step in seen.steps for work in step.plan.work][2:] == [("b", 4), ("c", 4)]


# --- promises


def test_a_newcomer_without_work_does_not_cost_another_what_it_was_promised() -> None:
    """g/0 shares all that its pre-processing would compute: it is admitted beside g/1's work, and has none.

    So a is the first to write in the block that both hold. Everyone's blocks were set aside, 3 + 1 + 1 of 5; a must get
    its third.
    """
    stages = Stages.of(
        mix(technique("fusion"), memory="paged", attention="paged"),
        5 * SIZE,
        {"memory.block_size": SIZE, "memory.share": True},
    )
    engine = make_engine("fusion", batching=stages.batching, memory=stages.memory, attention=stages.attention)
    beginning = (1, 2, 3, 4, 5, 6)
    run_all(
        engine,
        [
            asks("a", beginning, 4),
            asks("g/0", beginning, 3, at=1.5, group="g"),
            asks("g/1", (9, 10, 11), 2, at=1.5, group="g"),
        ],
    )
    assert set(engine.finished) == {"a", "g/0", "g/1"}
