"""How a profile is measured: models in turns, rounds within the minutes, and hosts where they are asked for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from machines import TOY

from minifuse.model.source import Source, resolve
from minifuse.model.text.load import TextSource
from minifuse.parallel.timing import SIZES
from minifuse.serve import calibrate, host_runs
from minifuse.serve.calibrate import Calibration
from minifuse.simulate.machine_profile import MachineProfile, Rates
from minifuse.simulate.measured import layer_weights
from minifuse.techniques import TECHNIQUES

SOURCES: list[Source] = [TextSource("toy", TOY, None), resolve("lstm:hidden=8")]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(calibrate, "BATCHES", (1,))
    monkeypatch.setattr(calibrate, "rates", lambda dtype, device: Rates(bandwidth=1.0, flops=1.0, memory=1.0))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _measured(
    rounds: int, minutes: float | None = None, hosts: list[Source] | None = SOURCES[:1]
) -> tuple[MachineProfile, list[str]]:
    said: list[str] = []
    rows = [TECHNIQUES["orca"], TECHNIQUES["cellular"]]
    made = Calibration(SOURCES, rows, rounds=rounds, minutes=minutes, max_context=16, say=said.append, hosts=hosts)
    return made.measure("here"), said


def test_every_round_measures_every_model() -> None:
    torch.set_num_threads(2)
    profile, said = _measured(rounds=2)
    assert said == [f"round {n} of 2: {source.name}" for n in (1, 2) for source in SOURCES]
    assert profile.rounds == 2
    assert profile.spread > 0
    assert profile.models == {"toy": 1, "lstm:hidden=8": 1}, "models that small compute in one thread"
    assert torch.get_num_threads() == 2, "and leave the others to the next"
    assert profile.cells
    mixes = {"iteration+contiguous+per_sequence", "cellular+contiguous+per_sequence"}
    assert {kind: {*hosts} for kind, hosts in profile.host.items()} == {"llama": mixes}


def test_each_kind_of_model_has_a_host_of_its_own() -> None:
    profile, _ = _measured(rounds=1, hosts=None)
    assert {*profile.host} == {"llama", "lstm"}
    assert {*profile.host["lstm"]} == {"cellular+states+cells"}
    assert profile.host["lstm"]["cellular+states+cells"].seconds.keys() >= {"iteration", "sequence", "input byte"}


def test_several_workers_are_timed_by_the_size_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "BATCHES", (3,))
    toys: list[Source] = [TextSource(f"toy {size}", replace(TOY, intermediate_size=size), None) for size in (10, 20)]
    made = Calibration(toys, [TECHNIQUES["orca"], TECHNIQUES["instances"]], rounds=1, max_context=16)
    hosts = made.measure("here").host["llama"]
    together = hosts[TECHNIQUES["instances"].mix].together
    assert together is not None
    assert together.axes == {"weights": tuple(float(layer_weights(toy.config)) for toy in toys)}
    assert hosts[TECHNIQUES["orca"].mix].together is None


def test_messages_are_measured_among_powers_of_two_and_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    of_size = [float(n) for n in range(1, len(SIZES) + 1)]

    def timed(ranks: int, device: str) -> dict[str, list[float]]:
        return {"sum": [ranks * seconds for seconds in of_size], "gather": of_size}

    monkeypatch.setattr(calibrate, "time_collectives", timed)
    said: list[str] = []
    messages = Calibration((), (), ranks=6, say=said.append)._messages()
    assert said == [f"messages among {ranks} processes" for ranks in (2, 4, 6)]
    assert messages.sums(6, SIZES[0]) == pytest.approx(6.0)
    assert messages.gathers(4, SIZES[-1]) == pytest.approx(of_size[-1])


def test_ctrl_c_while_the_host_is_measured_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_runs._Iterations, "completed", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        _measured(rounds=1)


def test_no_round_begins_after_the_minutes_but_the_first() -> None:
    profile, said = _measured(rounds=3, minutes=0.0)
    assert len(said) == len(SOURCES)
    assert (profile.rounds, profile.spread) == (1, 0.0)
