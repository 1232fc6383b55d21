"""FluidInfer's figures: the requests, the contenders, the simulator beside the run, and the verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from papers.figures import found, quickly

from minifuse.papers import EXPERIMENTS
from minifuse.papers.curve import Curve, Outcome, crossing
from minifuse.papers.experiment import Conditions, Say
from minifuse.papers.fluidinfer import setting, short
from minifuse.papers.fluidinfer.fig11_12 import Curves, higher_load, lower_bound
from minifuse.papers.fluidinfer.setting import CONTENDERS, FLUID, ORCA, ORCA_TOLD, Server, Servers
from minifuse.papers.fluidinfer.short import Backlogs


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few short requests of the smallest model."""
    quickly(monkeypatch)
    scale = replace(setting.SCALES["paper"], models=("opt-125m",), machines=(("rtx-4090", 1),), lengths=0.05)
    monkeypatch.setitem(setting.SCALES, "paper", replace(scale, requests=6, shares=(0.5, 2.0)))
    quick = replace(setting.SCALES["quick"], requests=5, shares=(1.0,))
    monkeypatch.setitem(setting.SCALES, "quick", quick)


def test_the_papers_models_and_machines() -> None:
    """6.1: three models, each on three machines; and the largest with a link as fast as the memory."""
    titles = [server.title for server in Servers.of(Conditions(scale="paper"))]
    assert titles[0] == "opt-125m, 1 x rtx-4090"
    assert titles[8:] == ["opt-6.7b, 4 x a100-40g", "opt-6.7b, 1 x rtx-4090, link as fast as its memory"]
    assert len(titles) == 10


def test_several_gpus_are_one_machine_of_their_rates() -> None:
    one, four = (Server(Conditions(scale="paper"), "opt-6.7b", ("rtx-4090", count)) for count in (1, 4))
    machines = [server.settings.hardware for server in (one, four)]
    for name in ("bandwidth", "flops", "memory", "link", "processors"):
        assert getattr(machines[1], name) == 4 * getattr(machines[0], name)
    assert 18_000 < one.tokens < 21_000  # what 24 GB leave beside 13.3 GB of weights
    assert four.tokens > 150_000


def test_requests_are_first_rounds_that_fit_the_context() -> None:
    server = Server(Conditions(scale="paper", requests=200), "opt-1.3b", ("rtx-4090", 1))
    requests = server.requests(10.0)
    assert len(requests) == 200
    assert all(request.max_length <= 2048 and request.ignore_eos for request in requests)
    assert 15.0 < requests[-1].arrival_s < 25.0
    assert {request.arrival_s for request in server.requests(None)} == {0.0}


def test_both_figures_show_the_same_runs(few: None) -> None:
    conditions = Conditions(scale="paper", rounds=1)
    reports = []
    for name, judged in {"fluidinfer-fig11": 14, "fluidinfer-fig12": 6}.items():
        say = Say(reports.append)
        figure = EXPERIMENTS[name].prepare(conditions)(say)
        assert say.said == (6 if name == "fluidinfer-fig11" else 0)
        assert len(figure.panels) == 2
        for panel in figure.panels:
            assert [point.at["rate"] for point in panel.points] == sorted(point.at["rate"] for point in panel.points)
            for point in panel.points:
                assert all(point.measured[f"{one.key}_ms"] > 0 for one in CONTENDERS)  # type: ignore[operator]
        assert sum("(paper" in note for note in figure.notes) == judged


def test_in_real_time_the_simulator_stands_beside_the_run(few: None) -> None:
    figure = found("fluidinfer-fig11", scale="quick", rounds=2)
    run, simulated = figure.panels
    assert "sim/run" in simulated.columns[1].head
    for point in simulated.points:
        assert all(0 < point.measured[one.key] < 100 for one in CONTENDERS)  # type: ignore[operator]
    assert "fluid_ms_rounds" in run.points[0].measured
    server = Server(Conditions(scale="quick"), "small", ("cpu", 1))
    longest = max(request.max_length for request in server.requests(None))
    assert 1.5 * longest <= server.tokens < 1.5 * longest + 16
    two = Server(Conditions(scale="quick", rounds=2), "small", ("cpu", 1))
    assert two.requests(None, 1) != two.requests(None, 0) == server.requests(None)


def test_each_part_is_a_contender() -> None:
    rows = {one.key: one.row.stages for one in CONTENDERS}
    assert rows["concatenated"] == {"batching": "fluid", "memory": "paged", "attention": "paged"}
    assert rows["packed"] == {"batching": "fluid", "memory": "paged", "attention": "packed"}
    assert rows["rotate"] == rows["host"] == {"batching": "fluid", "memory": "waves", "attention": "packed"}
    assert rows["fluid"] == {"batching": "fluid", "memory": "waves", "attention": "packed"}


def _curves(normalized: dict[str, list[float]], bound: dict[str, list[float]]) -> Curves:
    def outcome(key: str, i: int) -> Outcome:
        run = {
            "normalized_s": normalized.get(key, [9.0] * 3)[i],
            "bound_s": bound.get(key, [1.0] * 3)[i],
            "throughput": 1.0,
        }
        return Outcome((run,))

    return {one.key: Curve(one, points={10.0 * (i + 1): outcome(one.key, i) for i in range(3)}) for one in CONTENDERS}


@pytest.mark.parametrize(
    ("fluid", "judged"),
    [
        ([1.0, 1.0, 1.5], "undecided: at least 2.00x, 30 against 15"),
        ([1.0, 1.0, 9.0], "below: 1.42x"),
        ([1.0, 3.0, 9.0], "below: 1.00x"),
    ],
)
def test_the_verdict_compares_loads_at_equal_latency(fluid: list[float], judged: str) -> None:
    """vllm's lowest is 1 s a token: at 2 s it serves 15 requests/s, fluid at least 30, 21.25, or 15."""
    server = Server(Conditions(scale="paper"), "opt-125m", ("rtx-4090", 1))
    over_orca, *_, ours, host = higher_load(server, _curves({"vllm": [1.0, 3.0, 9.0], FLUID.key: fluid}, {}))
    assert f": {judged}" in ours
    assert ": below: never that low; peaks" in host
    assert "fluid over orca" in over_orca
    assert ": undecided: not known" in over_orca  # orca's latency is the same at every rate
    assert crossing([(1.0, 10.0), (3.0, 20.0)], 2.0) == 15.0


def test_the_verdict_compares_latency_bounds() -> None:
    server = Server(Conditions(scale="paper"), "opt-125m", ("rtx-4090", 1))
    orca, *_, sentence = lower_bound(server, _curves({}, {"vllm": [3.0, 6.0, 8.0], FLUID.key: [1.0, 2.0, 4.0]}))
    assert "below at 10, 1.00x" in orca
    assert "agrees at 10, 3.00x; agrees at 20, 3.00x; below at 30, 2.00x (paper: 3.00x, within 25%)" in sentence


# --- a backlog where KV memory is short


@pytest.fixture
def brief(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "KV_MEMORY", (100e6,))
    monkeypatch.setattr(short.paper, "MODELS", ("opt-125m",))


def test_a_backlog_has_ten_times_what_runs_at_once() -> None:
    backlogs = Backlogs.of(Conditions(scale="paper"))
    sizes = [round(one.server.tokens * one.server.slot_bytes / 1e9, 1) for one in backlogs]
    assert sizes == [10.7, 4.0, 1.5, 28.8]
    for backlog in backlogs:
        mean = sum(prompt + answer for prompt, answer in backlog.server.lengths[0]) / backlog.server.num_requests
        assert backlog.server.num_requests >= 0.8 * 10 * backlog.server.tokens / mean
    assert backlogs[2].server.num_requests > 500  # the host attends several times what the device holds
    heads = [one.head for one in backlogs[3].contenders]
    assert heads == ["orca, 16", "vllm, 16", "vllm", "rotate", "fluid"]
    assert "as the paper assumed" in backlogs[3].title


def test_what_completes_in_a_second_is_compared_with_vllm(brief: None) -> None:
    figure = found("fluidinfer-short", scale="paper", rounds=1, requests=12)
    assert len(figure.panels) == 2
    first, assumed = figure.panels
    names = [point.at["technique"] for point in first.points]
    ours = ["rotate", "layers", "layers, int8", "fluid", "host", "host, 100 GB/s"]
    assert names == ["orca", "orca told", "fastserve", "vllm", *ours]
    by_name = {point.at["technique"]: point.measured for point in first.points}
    assert by_name["vllm"]["gain"] == 1.0
    assert by_name["fluid"]["gain"] == by_name["fluid"]["tokens"] / by_name["vllm"]["tokens"]  # type: ignore[operator]
    assert [point.at["technique"] for point in assumed.points][:2] == ["orca, 16", "vllm, 16"]
    judged = [note for note in figure.notes if "(aim: " in note]
    assert [("of fluid over" in note, "1.4x or more" in note) for note in judged] == [(True, False), (False, True)]
    assert sum("with batches of 16" in note for note in figure.notes) == 2


def test_in_real_time_seconds_of_the_processors_stand_beside() -> None:
    figure = found("fluidinfer-short", scale="quick", rounds=1, requests=6, model="random:small")
    (panel,) = figure.panels
    assert [point.at["technique"] for point in panel.points] == ["vllm", "rotate", "fluid", "host"]
    assert all(point.measured["cpu_s"] > 0 for point in panel.points)  # type: ignore[operator]


def test_orca_sets_aside_the_longest_context() -> None:
    """2,048 tokens a request: of 20,313 there is room for nine; told the lengths, it runs more at once."""
    server = Server(Conditions(scale="paper", requests=40), "opt-6.7b", ("rtx-4090", 1))
    reserved, told = (server.run(one, server.requests(None)) for one in (ORCA, ORCA_TOLD))
    assert reserved["mean_batch"] <= 9 < told["mean_batch"]
