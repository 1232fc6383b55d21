"""More KV than the device holds, attended in waves through the unchanged loop: a toy memory under all laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conformance.defects.harness import Defect, caught
from helpers import CROWD, answers_of, asks, expected_answers, make_engine, make_real_engine, run_all, schedule
from in_waves import InWaves

from minifuse.attention.layouts import PagedStage, PerSequenceStage
from minifuse.batching import Iteration
from minifuse.engine import Engine
from minifuse.execute.link import Link
from minifuse.execute.transfers import MovesOfPlan
from minifuse.metrics import compute_metrics
from minifuse.place import Extent
from minifuse.plan import Move, Placement, Proposal
from minifuse.report import KVUsage
from minifuse.stages import register
from minifuse.techniques import mix, technique
from minifuse.testing import TEXTS, put_through
from minifuse.testing.capacity import count_slots
from minifuse.work import Span

ATTENTION = {"per_sequence": PerSequenceStage, "paged": PagedStage}
THREE = [asks("a", 2, 3), asks("b", 1, 3), asks("c", 3, 2)]
# Room for one sequence in each half of the device, when all nine are on the host.
SLOTS = 2 * max(request.max_cached for request in CROWD)


@pytest.fixture(params=list(ATTENTION))
def row(request: pytest.FixtureRequest, own_register: None) -> Any:
    """The technique, while the memory is registered."""
    register(InWaves)
    count_slots("in_waves")(lambda sequences, options: 2 * max(s.request.max_cached for s in sequences))
    return mix(technique("orca"), memory="in_waves", attention=request.param)


def _engine(slots: int = 8, *, attention: str = "per_sequence", max_batch: int = 16, **more: Any) -> Engine:
    batching = Iteration(Iteration.Options(max_batch=max_batch))
    return make_engine(memory=InWaves(slots), attention=ATTENTION[attention](), batching=batching, **more)


def test_waves_take_the_halves_in_turn() -> None:
    """The example of `InWaves`, in the second iteration: 9 tokens of KV and 8 slots, of which a wave has 4."""
    steps = run_all(_engine(), THREE)
    plan = steps[1].plan
    assert schedule(steps)[1] == "1: a[2:3) b[1:2) c[3:4)"
    assert plan.waves == (Span(0, 1), Span(1, 2), Span(2, 3))
    assert plan.places == (Extent(0, 3), Extent(4, 2), Extent(0, 4))
    before, after = {"source_tier": "host", "moment": "before"}, {"target_tier": "host", "moment": "after"}
    assert plan.moves == (
        Move("upload", 0, 0, 2, **before, wave=0),
        Move("offload", 2, 2, 1, **after, wave=0),
        Move("upload", 4, 4, 1, **before, wave=1),
        Move("offload", 5, 5, 1, **after, wave=1),
        Move("upload", 7, 0, 3, **before, wave=2),
        Move("offload", 3, 10, 1, **after, wave=2),
    )
    assert steps[1].usage == KVUsage(used=6, reserved=6, capacity=8, host=3)


@pytest.mark.parametrize("attention", list(ATTENTION))
def test_no_batch_size(attention: str) -> None:
    """All nine are in one iteration, with twice the KV that the device has room for."""
    engine = _engine(SLOTS, attention=attention, model="llama")
    requests = [replace(request, arrival_s=0.0) for request in CROWD]
    steps = run_all(engine, requests)
    assert answers_of(engine) == expected_answers("llama", requests)
    assert len(steps[0].plan.sequences) == 9
    assert max(sum(place.capacity for place in step.plan.extents) for step in steps) >= 2 * SLOTS
    assert max(len(step.plan.waves) for step in steps) >= 4
    metrics = compute_metrics(engine.trace.events())
    assert {kind for kind, moved in metrics["moves"].items() if moved["tokens"]} == {"upload", "offload"}
    assert metrics["moves"]["offload"]["tokens"] == metrics["tokens"]["computed"]  # each once, when it is written


def test_uploads_run_beside_the_waves_before_them() -> None:
    """Only the first wave of the first layer waits, whatever the link has to carry beside the rest.

    One layer of the second iteration takes 0.5 s, a third of it for each wave; 6 tokens are uploaded and 3 offloaded.
    With 0.01 s a token and layer, the first layer's wave 0 waits for 2 tokens; at the end one token of the last
    wave is offloaded when all has been computed.
    """
    steps = run_all(_engine(link=Link(256, 256 / 0.02, num_layers=2)), THREE)
    carried = steps[1].transfers
    assert carried.to_device.seconds == pytest.approx(6 * 0.02)
    assert carried.to_host.seconds == pytest.approx(3 * 0.02)
    assert carried.exposed_s == pytest.approx(2 * 0.01 + 0.01)


def test_in_real_time() -> None:
    memory = InWaves(SLOTS)
    engine = make_real_engine("orca", model="llama", memory=memory)
    run_all(engine, CROWD)
    engine.executor.close()
    assert answers_of(engine) == expected_answers("llama", CROWD)
    memory.check_integrity()
    assert memory.usage() == KVUsage(0, 0, SLOTS)


def test_all_laws_hold(row: Any) -> None:
    put_through(TEXTS, row, examples=4, derandomize=True)


Patch = pytest.MonkeyPatch


def _placed(patch: Patch, change: Callable[[Placement], Placement]) -> None:
    place = InWaves.place
    patch.setattr(InWaves, "place", lambda self, proposal, now: change(place(self, proposal, now)))


def _with_moves(placement: Placement, change: Callable[[Move], Move | None]) -> Placement:
    return replace(placement, moves=tuple(move for old in placement.moves if (move := change(old)) is not None))


def all_in_one_wave(patch: Patch) -> None:
    _placed(patch, lambda p: replace(_with_moves(p, lambda move: move._replace(wave=0)), waves=()))


def all_uploaded_before_the_first_wave(patch: Patch) -> None:
    _placed(patch, lambda p: _with_moves(p, lambda move: move._replace(wave=0) if move.kind == "upload" else move))


def uploaded_a_wave_too_early(patch: Patch) -> None:
    """Into the half of a wave that has not attended yet, nor been offloaded."""
    early = {"upload": lambda move: move._replace(wave=max(0, move.wave - 2))}
    _placed(patch, lambda p: _with_moves(p, lambda move: early.get(move.kind, lambda same: same)(move)))


def the_last_wave_is_not_offloaded(patch: Patch) -> None:
    def change(placement: Placement) -> Placement:
        last = len(placement.waves) - 1
        return _with_moves(placement, lambda move: None if (move.kind, move.wave) == ("offload", last) else move)

    _placed(patch, change)


def everything_offloaded_at_the_end(patch: Patch) -> None:
    """Instead of after its wave: a later one has written over it."""

    def change(placement: Placement) -> Placement:
        last = len(placement.waves) - 1
        return _with_moves(placement, lambda move: move._replace(wave=last) if move.kind == "offload" else move)

    _placed(patch, change)


def what_is_on_the_host_is_not_counted(patch: Patch) -> None:
    usage = InWaves.usage
    patch.setattr(InWaves, "usage", lambda self: usage(self)._replace(host=0))


def cut_by_number_instead_of_by_size(patch: Patch) -> None:
    def cut(self: InWaves, work: Proposal) -> tuple[Span, ...]:
        return tuple(Span(i, min(i + 3, len(work))) for i in range(0, len(work), 3))  # type: ignore[arg-type]

    patch.setattr(InWaves, "cut", cut)


def begun_without_waiting_for_waves(patch: Patch) -> None:
    """Uploads into a half whose wave has not attended: the runner begins with all copies at once."""
    begin = MovesOfPlan._begin

    def at_once(self: MovesOfPlan, layer: int, wave: int) -> None:
        if wave < 0:
            for each in range(-1, len(self._plan.waves)):
                begin(self, layer, each)

    patch.setattr(MovesOfPlan, "_begin", at_once)


@pytest.mark.parametrize(
    ("seed", "law"),
    [
        (all_in_one_wave, "conservation"),
        (all_uploaded_before_the_first_wave, "conservation"),
        (uploaded_a_wave_too_early, "conservation"),
        (the_last_wave_is_not_offloaded, "conservation"),
        (everything_offloaded_at_the_end, "conservation"),
        (what_is_on_the_host_is_not_counted, "conservation"),
        (cut_by_number_instead_of_by_size, "layout"),
        (begun_without_waiting_for_waves, "exact"),
    ],
)
@pytest.mark.parametrize("row", ["per_sequence"], indirect=True)
def test_defect_is_caught(seed: Callable[[Patch], None], law: str, row: Any, monkeypatch: Patch) -> None:
    seed(monkeypatch)
    broken = caught(Defect(seed, TEXTS, row.name, (law,), "of_one_run", ("growing",), {}), row)
    assert broken is not None, "the defect went unnoticed"
    assert broken.law == law, str(broken)
