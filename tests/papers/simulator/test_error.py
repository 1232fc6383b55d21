"""The simulator's error: what is compared, how it is corrected, and what it needs."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, cast

import pytest
from helpers import refusal
from machines import profile
from papers.figures import found

from minifuse.core.errors import UsageError
from minifuse.core.plan import Plan, Work
from minifuse.model.text.presets import preset
from minifuse.papers import EXPERIMENTS
from minifuse.papers.experiment import Conditions
from minifuse.papers.simulator.error import METRICS, Compared
from minifuse.papers.simulator.setting import Run
from minifuse.simulate.look_up import BeyondProfile
from minifuse.simulate.machine_profile import Host
from minifuse.simulate.profiles import KeptProfile
from minifuse.simulate.shapes import resized, shapes
from minifuse.techniques import TECHNIQUES

NAME = "simulator-error"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptProfile:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return KeptProfile(None, "float32", "cpu")


def test_real_runs_beside_simulated_ones(kept: KeptProfile) -> None:
    shape = resized(preset("small"), 128, 2)
    hosts = {TECHNIQUES[name].mix: Host(seconds={}) for name in ("orca", "vllm")}
    machine = profile(shape, wide=16.0, second=1e-11, models={shapes()[0].name: 1}, host={"llama": hosts})
    kept.write(machine.model_dump_json())
    with pytest.warns(BeyondProfile, match="up to 64 tokens"):
        finding = found(NAME, scale="quick")
    summary, by_model, runs = finding.panels
    (of_model,) = by_model.points
    sizes = [abs(point.measured["ttft_p50"]) for point in runs.points]
    assert of_model.measured["ttft_p50"] == pytest.approx(median(sizes))
    assert [point.at["technique"] for point in runs.points] == ["orca", "orca", "vllm", "vllm"]
    assert [point.at["load"] for point in runs.points] == ["all at once", "50% of the peak"] * 2
    for point in runs.points:
        assert {*point.measured} == {"iteration", *METRICS}
        assert all(type(error) is float for error in point.measured.values())
    first = [column.cell(runs.points[0]) for column in runs.filled[:4]]
    assert first == ["llama 3x192", "orca", "5", "all at once"]
    assert [column.cell(summary.points[0]) for column in summary.filled[:2]] == [
        "iteration",
        "the machine's beside the run",
    ]
    assert len(summary.points) == 1 + 2 * len(METRICS)
    assert finding.facts["profile"]["machine"] == "toy"
    assert any("2 of 2 simulated runs plan the same iterations" in note for note in finding.notes)
    assert any("Kept by: none. Missed by: iteration; throughput;" in note for note in finding.notes)


class _Case:
    """A token takes two seconds by the profile."""

    def cost(self) -> Any:
        return lambda plan: 2.0 * plan.num_tokens

    def simulated(self, slow: float = 1.0) -> Run:
        return _run(6 * slow, slow)


def _run(seconds: float, slow: float, tokens: int = 3) -> Run:
    plan = Plan(0, 0, (Work("r", 0, tokens),), ())
    return Run({"requests_per_s": 1 / seconds, "ttft_p50": seconds}, {0: (plan, seconds)}, slow)


def test_a_machine_that_is_slow_beside_a_run_explains_its_time() -> None:
    """By the profile 6 s; the runs took 8, 12 and 24 s, on a machine 1, 2 and 4 times as slow."""
    compared = Compared.of(cast(Any, _Case()), [_run(8, 1), _run(12, 2), _run(24, 4)])
    assert compared.all_errors == {"iteration": 0.0, "requests_per_s": 0.0, "ttft_p50": 0.0}
    assert compared.plain_errors == {"requests_per_s": pytest.approx(1.0), "ttft_p50": pytest.approx(-0.5)}
    assert compared.apart == {
        "iteration": pytest.approx(2 / 6),  # 8, 6 and 6 s at the profile's speed
        "requests_per_s": pytest.approx(1.0),
        "ttft_p50": pytest.approx(16 / 12),
    }
    assert compared.alike
    nothing = Run({"requests_per_s": 1.0, "ttft_p50": 0.0}, {})
    assert Compared.of(cast(Any, _Case()), [nothing]).errors([_run(6, 1)]) == {"requests_per_s": pytest.approx(-5 / 6)}
    differs = Compared(cast(Any, _Case()), [_run(6, 1), _run(6, 1, tokens=4)], _run(6, 1, tokens=5), [])
    assert differs.iteration_error() is None
    assert differs.apart["iteration"] is None
    assert not differs.alike


def test_it_needs_a_profile_of_every_technique(kept: KeptProfile) -> None:
    kept.write(profile(host={"llama": {TECHNIQUES["orca"].mix: Host(seconds={})}}).model_dump_json())
    with refusal(UsageError, "the stages of vllm cost", "minifuse calibrate --dtype float32"):
        EXPERIMENTS[NAME].prepare(Conditions(scale="quick"))


def test_what_it_needs() -> None:
    with refusal(UsageError, "no profile in float32", "minifuse calibrate --dtype float32"):
        EXPERIMENTS[NAME].prepare(Conditions())
    with refusal(UsageError, "--scale cpu"):
        EXPERIMENTS[NAME].prepare(Conditions(scale="paper"))
