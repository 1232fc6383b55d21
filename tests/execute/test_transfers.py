"""Moves as they are carried out on a CPU: beside the computing, each layer when its turn has come, and all of them.

Nothing here is measured: slow copies are copies that wait for an event of the test.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from execute.test_copies import into, out
from helpers import asks, small_model

from minifuse.attention.stage import PerSequenceStage
from minifuse.core.measured import measured_of
from minifuse.core.plan import Extent, Layout, Move, Plan, Span, Work
from minifuse.core.request import Sequence
from minifuse.execute import transfers as transfer_module
from minifuse.execute.copies import Copy
from minifuse.execute.moving import AttendingInTiers, MovingRunner
from minifuse.execute.texts import TorchRunner, forward, in_turn
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.execute.transfers import MovesOfPlan, PlanTransfers
from minifuse.kernels.operators import TORCH
from minifuse.testing.texts.models import CONFIGS

CONFIG = CONFIGS["llama"]  # 2 layers, 2 KV heads of 4
SECONDS = 30  # after which a test that hangs has failed


def storage(seed: int = 0) -> TieredStorage:
    cache = TieredStorage(CONFIG, 40, torch.float64, torch.device("cpu"), num_host_slots=40)
    generator = torch.Generator().manual_seed(seed)
    for kv in (cache.keys, cache.values, cache.tiers["host"].keys, cache.tiers["host"].values):
        kv.normal_(generator=generator)
    return cache


@pytest.fixture(autouse=True)
def _in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies are made in the thread, however small."""
    monkeypatch.setattr(transfer_module, "AT_ONCE", -1)


def test_a_small_copy_is_made_at_once_unless_another_is_left_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies into the same slots: the first is made in the thread, which is held up; so the second waits for it."""
    log, made = Log(monkeypatch), PlanTransfers(storage())
    first, second = (Copy((into(0, slot, 1),), 0, -1, 0, ()) for slot in (4, 5))
    log.held["swap_in 0"] = threading.Event()
    one = made.start(first, [])
    monkeypatch.setattr(transfer_module, "AT_ONCE", 2**20)
    two = made.start(second, [one])
    assert not two.done()  # type: ignore[union-attr]
    log.held["swap_in 0"].set()
    two.result()
    assert made.start(first, [one, two]).done()  # type: ignore[union-attr]
    made.close()


def test_what_is_copied_at_once_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing waits while a small copy is made: its seconds are exposed, not hidden."""
    monkeypatch.setattr(transfer_module, "AT_ONCE", 2**20)
    monkeypatch.setattr(PlanTransfers, "copy", lambda self, moves, layer: 2.0)
    made = PlanTransfers(storage())
    moves = MovesOfPlan(made, plan_of_a(into(0, 4, 3)._replace(moment="before")))
    measured = moves.end()
    assert measured.to_device_s == measured.exposed_s == measured.moving_s == 2.0 * CONFIG.num_layers
    made.close()


def test_no_thread_starts_before_a_copy_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "AT_ONCE", 2**20)
    before = threading.active_count()
    made = PlanTransfers(storage())
    made.start(Copy((into(0, 4, 3),), 0, -1, 0, ()), [])
    assert threading.active_count() == before
    made.close()


@pytest.fixture
def transfers() -> Iterator[PlanTransfers]:
    carrying = PlanTransfers(storage())
    yield carrying
    carrying.close()


def plan_of_a(*moves: Move, tokens: int = 4) -> Plan:
    """The last token of a, whose KV is in the slots from 0 on."""
    return Plan(0, 0, (Work("a", tokens - 1, tokens),), (Extent(0, 9),), moves=moves)


def sequences_of_a(tokens: int = 4) -> dict[str, Sequence]:
    return {"a": Sequence(asks("a", tokens, 3))}


class Log:
    """What happened, in order, from all threads; copies that wait until they are let go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.held: dict[str, threading.Event] = {}
        copy = PlanTransfers.copy

        def logging(carrying: PlanTransfers, moves: Any, layer: int) -> float:
            name = f"{moves[0].kind} {layer}"
            self.events.append(f"{name} begins")
            if name in self.held:
                assert self.held[name].wait(SECONDS)
            seconds = copy(carrying, moves, layer)
            self.events.append(f"{name} ends")
            return seconds

        patch.setattr(PlanTransfers, "copy", logging)

    def await_event(self, event: str) -> None:
        deadline = time.monotonic() + SECONDS
        while event not in self.events:
            assert time.monotonic() < deadline
            time.sleep(1e-4)

    def hold(self, name: str) -> threading.Event:
        self.held[name] = threading.Event()
        return self.held[name]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def moving(model: Any, cache: TieredStorage, attention: Any) -> MovingRunner:
    return MovingRunner(TorchRunner(model, cache, attention), PlanTransfers(cache, attention.operators))


class Attending(torch.nn.Module):
    """An attention that tells of every layer, and lets copies go."""

    def __init__(self, log: Log, releases: dict[int, threading.Event]) -> None:
        super().__init__()
        self.backend = PerSequenceStage().backend(dtype="float64")
        self.operators = self.backend.operators
        self.batch = self.backend.batch
        self.log = log
        self.releases = releases

    def attend(self, heads: Any, rotary: Any, cache: Any, layer: int, wave: Any) -> Any:
        self.log.events.append(f"attend {layer}")
        if layer in self.releases:
            self.releases[layer].set()
        return self.backend.attend(heads, rotary, cache, layer, wave)


def test_layer_0_computes_before_the_copy_of_the_last_layer_has_ended(log: Log) -> None:
    """The last layer's copy cannot end before layer 0 attends. If layer 0 waited for it, both would wait forever."""
    attention = Attending(log, {0: log.hold("swap_in 1")})
    runner = moving(small_model("llama"), storage(), attention)
    ran = runner(plan_of_a(into(5, 0, 3, moment="before")), sequences_of_a())
    order = log.events.index
    assert order("swap_in 0 ends") < order("attend 0") < order("swap_in 1 ends") < order("attend 1")
    assert measured_of(ran).to_device_bytes == 3 * runner.transfers.bytes_per_token == 3 * 8 * 2 * 2 * 8
    assert (measured_of(ran).to_host_bytes, measured_of(ran).to_host_s) == (0, 0.0)
    assert measured_of(ran).moving_s == measured_of(ran).exposed_s
    runner.transfers.close()


@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_waits_for_its_own_copy(log: Log, monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    """The copy ends only when something waits for it. A layer that did not wait would attend before that."""
    held, wait, waits = log.hold(f"swap_in {layer}"), PlanTransfers.wait, []

    def releasing(carrying: PlanTransfers, mark: Any) -> Any:
        waits.append(mark)
        if len(waits) == layer + 1:
            held.set()
        return wait(carrying, mark)

    monkeypatch.setattr(PlanTransfers, "wait", releasing)
    runner = moving(small_model("llama"), storage(), Attending(log, {}))
    runner(plan_of_a(into(5, 0, 3, moment="before")), sequences_of_a())
    order = log.events.index
    assert order(f"swap_in {layer} ends") < order(f"attend {layer}")
    assert len(waits) == 2  # once for each layer
    runner.transfers.close()


def test_what_is_copied_after_a_wave_is_there_when_the_plan_ends(log: Log) -> None:
    cache = storage()
    attention = Attending(log, {})
    runner = moving(small_model("llama"), cache, attention)
    runner(plan_of_a(out(0, 20, 4, moment="after")), sequences_of_a())
    order = log.events.index
    assert order("attend 0") < order("swap_out 0 begins")
    assert order("attend 1") < order("swap_out 1 begins")
    assert torch.equal(cache.tiers["host"].keys[:, 20:24], cache.keys[:, :4])  # what the plan has written included
    assert torch.equal(cache.tiers["host"].values[:, 20:24], cache.values[:, :4])
    runner.transfers.close()


@pytest.mark.parametrize("seed", range(40))
def test_waves_and_moves_compute_what_they_would_one_after_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waves that reuse each other's slots, uploads and offloads between them, with copies of any duration."""
    rng = random.Random(seed)
    copy = PlanTransfers.copy

    def jittery(carrying: PlanTransfers, moves: Any, layer: int) -> float:
        threading.Event().wait(rng.choice([0, 0, 1e-4, 2e-3]))
        return copy(carrying, moves, layer)

    monkeypatch.setattr(PlanTransfers, "copy", jittery)
    plan, sequences = _any_plan(rng)
    beside, alone = storage(seed), storage(seed)
    model, attention = small_model("llama"), PerSequenceStage().backend(dtype="float64")
    runner = moving(model, beside, attention)
    with torch.inference_mode():
        moves = MovesOfPlan(runner.transfers, plan)
        batch = attention.batch(plan, sequences, beside)
        logits = in_turn([forward(model, batch, beside, AttendingInTiers(attention, moves, plan, beside))])
        moves.end()
        one_by_one = AttendingInTiers(attention, OneByOne(plan, alone), plan, alone)
        wanted = in_turn([forward(model, attention.batch(plan, sequences, alone), alone, one_by_one)])
    runner.transfers.close()
    assert torch.equal(logits, wanted)
    for tier, name in itertools.product(("device", "host"), ("keys", "values")):
        assert torch.equal(getattr(beside.tiers[tier], name), getattr(alone.tiers[tier], name)), name


class OneByOne(MovesOfPlan):
    """The moves of a plan, each in its turn while everything waits."""

    def __init__(self, plan: Plan, cache: TieredStorage) -> None:
        self.plan, self.cache = plan, cache
        TORCH.move(cache, [move for move in plan.moves if move.moment == "first"])

    def _make(self, moment: str, turn: int) -> None:
        layer, wave = divmod(turn, len(self.plan.waves))
        TORCH.move(self.cache, [move for move in self.plan.moves if (move.moment, move.wave) == (moment, wave)], layer)

    def before(self, turn: int) -> None:
        self._make("before", turn)

    def after(self, turn: int) -> None:
        self._make("after", turn)


def _any_plan(rng: random.Random) -> tuple[Plan, dict[str, Sequence]]:
    """Two to four waves of one or two sequences, anywhere in few slots, and moves at any moment."""
    work, places, waves, sequences = [], [], [], {}
    for _ in range(rng.randint(2, 4)):
        start = len(work)
        offset = rng.choice([0, 0, 8, 12])
        for _ in range(rng.randint(1, 2)):
            name, length = f"s{len(work)}", rng.randint(1, 6)
            first = rng.randint(0, length - 1)
            sequences[name] = Sequence(asks(name, length, 3))
            work.append(Work(name, first, length))
            places.append(Extent(offset, 8))
            offset += 8
        waves.append(Span(start, len(work)))
    moves = []
    for _ in range(rng.randint(1, 7)):
        when = {"moment": rng.choice(["first", "before", "before", "after"]), "wave": rng.randrange(len(waves))}
        if when["moment"] == "first":
            when["wave"] = 0
        ends = rng.randrange(30), rng.randrange(30), rng.randint(1, 8)
        moves.append(rng.choice([out, into, into, lambda *e, **w: Move("embed", *e, **w)])(*ends, **when))
    return Plan(0, 0, tuple(work), tuple(places), layout=Layout(tuple(waves)), moves=tuple(moves)), sequences


def behind(*moves: Move, step: int = 1) -> Plan:
    return Plan(step, 1, (), (), moves=moves)


def test_behind_everything_lands_when_every_layer_is_there(transfers: PlanTransfers, log: Log) -> None:
    cache, held = transfers.cache, log.hold("swap_out 1")
    landed = transfers.behind(behind(out(3, 7, 5, moment="behind")))
    log.await_event("swap_out 1 begins")
    assert not landed.done()  # one of two layers is not there
    held.set()
    ran = landed.result(SECONDS)
    assert torch.equal(cache.tiers["host"].keys[:, 7:12], cache.keys[:, 3:8])
    assert torch.equal(cache.tiers["host"].values[:, 7:12], cache.values[:, 3:8])
    assert measured_of(ran).to_host_bytes == 5 * transfers.bytes_per_token
    assert measured_of(ran).to_host_s > 0
    assert (measured_of(ran).to_device_bytes, measured_of(ran).exposed_s, ran.tokens) == (0, 0.0, {})


def test_retrieval_goes_before_eviction(transfers: PlanTransfers, log: Log) -> None:
    """While one layer is copied to the host, a plan that waits and one that is behind ask for copies to the device."""
    held = log.hold("swap_out 0")
    first = transfers.behind(behind(out(3, 7, 5, moment="behind"), step=1))
    log.await_event("swap_out 0 begins")
    second = transfers.behind(behind(into(20, 30, 2, moment="behind"), step=2))
    moves = MovesOfPlan(transfers, plan_of_a(Move("embed", 9, 10, 1, moment="before"), into(5, 0, 3, moment="before")))
    held.set()
    first.result(SECONDS)
    assert second.done()
    moves.end()
    ended = [event.removesuffix(" ends") for event in log.events if event.endswith("ends")]
    assert ended[0] == "swap_out 0"  # it had begun
    assert ended[-1] == "swap_out 1"
    assert ended[1:5] == ["embed 0", "swap_in 0", "embed 1", "swap_in 1"]  # those that a plan waits for
    assert ended[5:7] == ["swap_in 0", "swap_in 1"]


def test_an_error_of_a_copy_is_raised_where_the_copy_is_waited_for(
    transfers: PlanTransfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(carrying: PlanTransfers, moves: Any, layer: int) -> float:
        raise ValueError("broken")

    monkeypatch.setattr(PlanTransfers, "copy", broken)
    moves = MovesOfPlan(transfers, plan_of_a(into(5, 0, 3, moment="before")))
    with pytest.raises(ValueError, match="broken"):
        moves.before(0)
    with pytest.raises(ValueError, match="broken"):
        transfers.behind(behind(out(3, 7, 5, moment="behind"))).result(SECONDS)


def test_moves_that_come_first_are_made_in_order_and_counted_each_way(transfers: PlanTransfers) -> None:
    cache, before = transfers.cache, storage()
    moves = MovesOfPlan(transfers, plan_of_a(out(4, 0, 2), into(10, 4, 2), Move("copy", 4, 30, 2)))
    assert torch.equal(cache.tiers["host"].keys[:, :2], before.keys[:, 4:6])
    assert torch.equal(cache.keys[:, 4:6], before.tiers["host"].keys[:, 10:12])
    assert torch.equal(cache.keys[:, 30:32], before.tiers["host"].keys[:, 10:12])
    carried = moves.end()
    assert (carried.to_host_bytes, carried.to_device_bytes) == (2 * transfers.bytes_per_token,) * 2
    assert carried.exposed_s == pytest.approx(carried.to_host_s + carried.to_device_s)
    assert carried.moving_s > carried.exposed_s  # the copy within the device is no transfer
    assert carried.hidden_s == pytest.approx(0)


def test_after_closing_nothing_more_is_copied(transfers: PlanTransfers) -> None:
    transfers.close()
    with pytest.raises(RuntimeError):
        transfers.behind(behind(out(3, 7, 5, moment="behind")))
    with pytest.raises(RuntimeError):
        MovesOfPlan(transfers, plan_of_a(into(5, 0, 3, moment="before")))
