"""The books and the shadow cache follow a plan in the order in which it runs: moves and waves in turn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import asks, breach

from minifuse.attention.stage import PerSequenceStage
from minifuse.core.measured import Measured
from minifuse.core.plan import Extent, Layout, Move, Plan, Span, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import Sequence
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.testing.texts.books import TextBooks
from minifuse.testing.texts.ghost import GhostRunner
from minifuse.testing.texts.models import small_model

# The device holds five tokens: room for one of two sequences of three tokens. Both have their KV on the host.
SLOTS = 5
A, B = Work("a", 3, 4), Work("b", 3, 4)
UP_A = Move("swap_in", 0, 0, 3, "host", moment="before")
OFF_A = Move("swap_out", 0, 0, 4, target_tier="host", moment="after")
UP_B = Move("swap_in", 4, 0, 3, "host", moment="before", wave=1)
OFF_B = Move("swap_out", 0, 4, 4, target_tier="host", moment="after", wave=1)
IN_TURN = (UP_A, OFF_A, UP_B, OFF_B)


def plan(*moves: Move, step: int = 2) -> Plan:
    waves = Layout((Span(0, 1), Span(1, 2)))
    return Plan(step, 0, (A, B), (Extent(0, SLOTS), Extent(0, SLOTS)), layout=waves, moves=moves)


def sequences() -> dict[str, Sequence]:
    return {"a": Sequence(asks("a", (1, 2, 3, 4), 5)), "b": Sequence(asks("b", (9, 8, 7, 6), 5))}


def prompts() -> list[Plan]:
    """Each prompt but its last token is computed in the same slots, and offloaded."""
    return [
        Plan(step, 0, (Work(name, 0, 3),), (Extent(0, SLOTS),), moves=(OFF_A._replace(target=4 * step, num_tokens=3),))
        for step, name in enumerate("ab")
    ]


def report(done: Plan, host: int) -> StepReport:
    out = sum(move.num_tokens for move in done.moves if move.target_tier == "host")
    into = sum(move.num_tokens for move in done.moves if move.target_tier == "device")
    carried = Measured(to_host_bytes=out, to_device_bytes=into)
    return StepReport(done, 0.0, 1.0, {}, {}, KVUsage(0, 0, SLOTS, host), measured=carried)


def books_before() -> TextBooks:
    memory = SimpleNamespace(
        capacity=SLOTS, host_capacity=8, shared_capacity=0, offers={"extents"}, reclaims=False, apart=False
    )
    books = TextBooks(memory, None, 1)  # type: ignore[arg-type]
    for number, prompt in enumerate(prompts()):
        books.begin(prompt, sequences())
        books.complete(report(prompt, 3 * (number + 1)), {"a", "b"})
    return books


def test_a_wave_may_reuse_the_slots_of_an_earlier_one() -> None:
    books = books_before()
    books.begin(plan(*IN_TURN), sequences())
    books.complete(report(plan(*IN_TURN), 8), {"a", "b"})
    assert books.slots == {"a": [("host", slot) for slot in range(4)], "b": [("device", slot) for slot in range(4)]}
    assert books.twins == {("device", slot): [("host", 4 + slot)] for slot in range(4)}  # b's is on both tiers


@pytest.mark.parametrize(
    "moves",
    [
        (UP_A, OFF_A, UP_B._replace(wave=0), OFF_B),  # over a's, which have not been attended to
        (UP_A, OFF_A, UP_B._replace(moment="after"), OFF_B),  # after the wave that reads it
        (UP_A, OFF_A._replace(wave=1), UP_B, OFF_B),  # b's KV goes where a's was to go
        (UP_A, UP_B, OFF_B),  # a's KV is overwritten, never offloaded
        (UP_A, OFF_A, OFF_B),
    ],
)
def test_out_of_turn_breaks_conservation(moves: tuple[Move, ...]) -> None:
    books = books_before()

    def run() -> None:
        books.begin(plan(*moves), sequences())
        books.complete(report(plan(*moves), 8), {"a", "b"})

    with breach("conservation"):
        run()


def _runner() -> GhostRunner:
    model = small_model("llama")
    cache = TieredStorage(model.config, SLOTS, model.dtype, model.device, 8)
    return GhostRunner(model, cache, PerSequenceStage().backend(dtype="float64"))


def _answers(*plans: Plan) -> dict[str, tuple[int, ...]]:
    runner, found = _runner(), {}
    for each in plans:
        found = dict(runner(each, sequences()).tokens)
    runner.transfers.close()
    return found


def test_the_shadow_follows_the_waves_and_so_do_the_tokens() -> None:
    alone = {}
    for work in (A, B):
        whole = Work(work.sequence, 0, 4)
        alone |= _answers(Plan(0, 0, (whole,), (Extent(0, SLOTS),)))
    assert _answers(*prompts(), plan(*IN_TURN)) == alone


@pytest.mark.parametrize("missing", [UP_A, UP_B])
def test_the_shadow_sees_what_is_not_there(missing: Move) -> None:
    moves = tuple(move for move in IN_TURN if move != missing)
    with breach("ghost"):
        _answers(*prompts(), plan(*moves))


@pytest.mark.parametrize("wrong", [{"ended_s": 0.5}, {"measured": Measured(to_host_bytes=6, to_device_bytes=8)}])
def test_bytes_and_seconds_are_those_of_the_moves(wrong: dict[str, Any]) -> None:
    books, told = books_before(), plan(*IN_TURN)
    books.begin(told, sequences())
    right = report(told, 8)
    measured = Measured(to_host_bytes=8, to_host_s=0.5, to_device_bytes=6, to_device_s=0.25, exposed_s=0.25)
    timed = replace(right, measured=measured)
    with breach("counting"):
        books.complete(replace(timed, **wrong), {"a", "b"})
