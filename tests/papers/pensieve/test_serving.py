"""Pensieve's figures of latency against throughput: conversations under way, outcomes, verdicts, and each figure."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from papers.figures import curve, found, outcome
from papers.figures import run as values

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.memory.tiered.profile import Profile
from minifuse.papers.equal_latency import gain
from minifuse.papers.experiment import Conditions
from minifuse.papers.pensieve import serving
from minifuse.papers.pensieve.cold import Cold
from minifuse.papers.pensieve.contenders import LRU, PENSIEVE
from minifuse.papers.pensieve.fig3_14 import at_equal_hits, verdicts
from minifuse.papers.pensieve.fig3_16 import falls
from minifuse.papers.pensieve.serving import Serving
from minifuse.papers.pensieve.sweeps import Sweep, gain_at_equal_latency
from minifuse.papers.pensieve.under_way import Costs, Crowd, Period
from minifuse.papers.verdict import Claim
from minifuse.trace.lives import Life
from minifuse.trace.running import RunningMetrics
from minifuse.workload.conversations import Asked, draw_lengths
from minifuse.workload.sharegpt import read_lengths

ASKED = Asked(0.02, 10.0)
RATE, COUNT = 20.0, 400


@pytest.fixture(scope="module")
def crowd() -> list[Request]:
    return Crowd(ASKED, 100, 1).requests(RATE, COUNT)


def turns_of(requests: list[Request]) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in requests:
        assert request.conversation is not None
        found.setdefault(request.conversation, []).append(request)
    return found


# --- conversations that are under way


def test_turns_follow_what_has_been_said(crowd: list[Request]) -> None:
    begun_before = 0
    for name, requests in turns_of(crowd).items():
        first, *others = requests
        assert first.after is None
        assert [other.after for other in others] == [request.id for request in requests[:-1]]
        if first.id == name:  # all that was said before, and nothing to be answered
            begun_before += 1
            assert first.max_new_tokens == 1
            lengths = draw_lengths(ASKED, int(name[1:]), 1)
            said = [*accumulate(map(sum, lengths))]
            number = int(others[0].id.partition(".")[2]) if others else said.index(len(first.prompt) + 1) + 1
            assert len(first.prompt) + 1 == said[number - 1]
            assert all(other.delay_s == 0 for other in others[:1])
    assert 10 < begun_before < len(turns_of(crowd))


def test_who_goes_on_after_all_that_is_served_is_remembered() -> None:
    """A long run serves turns that a short one leaves out, of conversations that both must know from the beginning."""
    short, long = (turns_of(Crowd(ASKED, 100, 1).requests(RATE, count)) for count in (COUNT // 20, 4 * COUNT))
    known = {name for name, (first, *_) in short.items() if first.id == name}
    going_on = {name for name, (first, *others) in long.items() if first.id == name and others}
    assert going_on <= known
    assert any(len(short[name]) == 1 for name in going_on)


def test_requests_arrive_at_the_rate_in_the_period() -> None:
    for seed in range(3):
        people = Crowd(ASKED, 100, seed)
        period = people.period(RATE, COUNT)
        assert period == (40.0, 60.0)
        times: dict[str, float] = {}
        for request in people.requests(RATE, COUNT):
            earliest = 0.0 if request.after is None else times[request.after] + request.delay_s
            times[request.id] = max(request.arrival_s, earliest)
        turns = [time for name, time in times.items() if "." in name]
        assert all(30.0 <= time < 60.0 for time in turns)
        assert sum(40.0 <= time < 60.0 for time in turns) == pytest.approx(COUNT, rel=0.25)
        assert sum(30.0 <= time < 40.0 for time in turns) == pytest.approx(COUNT / 2, rel=0.25)  # from the first moment


def test_what_was_said_is_sent_as_long_before_as_it_was_said(crowd: list[Request]) -> None:
    times = sorted(request.arrival_s for request in crowd if "." not in request.id)
    assert times[0] == 0.0
    assert 25 < times[-1] < 30
    assert sum(time > 15 for time in times) > sum(0 < time < 15 for time in times)  # most were answered of late


def test_a_cold_run_begins_with_new_conversations() -> None:
    """Requests arrive evenly from the beginning; replies take a reaction time at least, and begin late."""
    people = Cold(ASKED, 100, 1)
    requests = people.requests(RATE, COUNT)
    assert people.period(RATE, COUNT) == (0.0, 20.0)
    assert len(requests) == COUNT
    assert people.offered(requests, Period(0.0, 10.0)) == pytest.approx(RATE, rel=0.2)
    assert people.offered(requests, Period(10.0, 20.0)) == pytest.approx(RATE, rel=0.2)
    for first, *others in turns_of(requests).values():
        assert first.after is None
        assert [turn.after for turn in others] == [turn.id for turn in (first, *others)][:-1]
        lengths = people.lengths(int(first.id[1:].partition(".")[0]))
        assert [(len(turn.prompt), turn.max_new_tokens) for turn in (first, *others)] == lengths[: 1 + len(others)]
        assert all(turn.delay_s > 0 for turn in others)
    early, late = requests[: COUNT // 4], requests[-COUNT // 4 :]
    assert sum(turn.after is None for turn in early) > 1.3 * sum(turn.after is None for turn in late)
    assert (
        statistics.mean(turn.delay_s for turn in requests if turn.after) > 0.3 * ASKED.reaction
    )  # who reacts late goes on after the run


def test_what_is_recomputed_costs_what_its_chunks_cost() -> None:
    """Tokens [0, 64) of a history of 100 are computed again, and [90, 110): of them, 99 - 90 belong to the history."""
    counted = Costs(Profile(1.0, (32, 64), (0.5, 1.0)), 32)
    counted.lives["a"] = Life(0.0, 110, 0.0)
    counted.lives["a"].history = 99
    step = {"event": "step", "work": [("a", 0, 64), ("a", 90, 110), ("a", 110, 111)]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningMetrics, "read", lambda self, event: None)
        counted.read(step)
    assert counted.recomputing == pytest.approx(2 * 1.5 + 9 / 32 * (1.0 + 94 / 64))


def test_histories_are_those_of_long_runs() -> None:
    """Weighted by their number of turns, conversations have longer histories than at their beginning."""
    requests = Crowd(ASKED, 100, 0).at_once(3000)
    mean = statistics.mean(len(request.prompt) for request in requests)
    expected = statistics.mean(
        sum(map(sum, lengths[:i])) + lengths[i][0]
        for number in range(500)
        for lengths in [draw_lengths(ASKED, number, 0)]
        for i in range(len(lengths))
    )
    assert mean == pytest.approx(expected, rel=0.3)
    assert all(early.id != late.id for early, late in pairwise(requests))
    assert {request.arrival_s for request in requests} == {0.0}


# --- verdicts


def talked(throughput: float, p90: float, recomputed: float = 0.0, hits: float = 0.0) -> dict[str, float]:
    """The values of a run; a recomputed token costs 2 ms."""
    return values(throughput, p90, offered=throughput, recomputed=recomputed, recomputing=0.002 * recomputed, hits=hits)


def test_throughputs_are_compared_at_twice_the_lowest_latency_of_the_baseline() -> None:
    baseline = curve(0.0, {1.0: talked(1.0, 0.1), 2.0: talked(2.0, 0.3)}, "vllm")
    ours = curve(0.0, {1.0: talked(1.0, 0.05), 2.0: talked(2.0, 0.1), 3.0: talked(3.0, 0.3)}, "pensieve")
    compared = gain(ours, baseline)
    assert compared is not None
    assert compared[:3] == pytest.approx((0.2, 2.5, 1.5))
    assert str(compared) == "1.67x"
    text = gain_at_equal_latency("x", ours, baseline, Claim.about(1.7))
    assert text.startswith("x, requests/s of pensieve over vllm at equal p90: agrees: 1.67x, 2.5 against 1.5")
    assert text.endswith("(thesis: 1.70x, within 10%).")
    assert ": below: 1.67x" in gain_at_equal_latency("x", ours, baseline, Claim.about(2.0))
    assert ": above: 1.67x" in gain_at_equal_latency("x", ours, baseline, Claim.about(1.25))
    assert ": agrees: 1.67x" in gain_at_equal_latency("x", ours, baseline)
    slow = curve(0.0, {1.0: talked(1.0, 0.5)}, "pensieve")
    assert gain(slow, baseline) is None
    assert ": below: never that low; peaks" in gain_at_equal_latency("x", slow, baseline, Claim.about(1.7))


def test_what_never_reaches_the_latency_has_at_least_its_last_throughput() -> None:
    baseline = curve(0.0, {1.0: talked(1.0, 0.1), 2.0: talked(1.2, 0.5)}, "vllm")
    ours = curve(0.0, {1.0: talked(1.0, 0.05), 2.0: talked(2.0, 0.1)}, "pensieve")
    assert ": above: at least 1.90x" in gain_at_equal_latency("x", ours, baseline, Claim.about(1.5))
    assert ": undecided: at least 1.90x" in gain_at_equal_latency("x", ours, baseline, Claim.about(1.9))
    assert ": undecided: at least 1.90x" in gain_at_equal_latency("x", ours, baseline, Claim.about(4.0))
    assert ": agrees: at least 1.90x" in gain_at_equal_latency("x", ours, baseline)  # the claim is "more"
    flat = curve(0.0, {1.0: talked(1.0, 0.1), 2.0: talked(2.0, 0.15)}, "vllm")
    slower = curve(0.0, {1.0: talked(1.0, 0.1), 2.0: talked(2.0, 0.3)}, "pensieve")
    assert ": undecided: at most 0.75x" in gain_at_equal_latency("x", slower, flat, Claim.about(0.7))
    assert ": below: at most 0.75x" in gain_at_equal_latency("x", slower, flat, Claim.about(2.0))
    assert ": undecided: not known, as neither" in gain_at_equal_latency("x", ours, flat, Claim.about(1.0))


def test_a_gain_of_the_thesis_is_marked_where_it_would_lie() -> None:
    """vllm has 1.5 requests/s at 0.2 s, twice its lowest p90; 1.5 times as many are 2.25."""
    vllm = curve(0.0, {1.0: talked(1.0, 0.1), 2.0: talked(2.0, 0.3)}, "vllm")
    (mark,) = Sweep("x", 1.0, {"vllm": vllm}).marks(1.5)
    assert (mark.x, mark.y, mark.label) == (pytest.approx(2.25), pytest.approx(200.0), "thesis: 1.5 times vllm")
    flat = curve(0.0, {1.0: talked(1.0, 0.1), 2.0: talked(2.0, 0.15)}, "vllm")
    assert not Sweep("x", 1.0, {"vllm": flat}).marks(1.5)
    assert not Sweep("x", 1.0, {"vllm": vllm}, paired=True).marks(1.5)


def test_recomputed_tokens_are_set_against_those_of_lru() -> None:
    ours = curve(0.0, {1.0: talked(1, 1, 90, 0.5), 2.0: talked(2, 2, 80, 0.45)}, "pensieve")
    lru = curve(0.0, {1.0: talked(1, 1, 100, 0.48), 2.0: talked(2, 2, 100, 0.4)}, "lru")
    fewer, cheaper, hits, faster, equal = verdicts(Sweep("x", 1.0, {"pensieve": ours, "lru": lru}), "pensieve")
    assert ": above: 20.0% at most; by requests/s 10.0% at 1, 20.0% at 2 (thesis: up to 14.6%, within 10%)" in fewer
    assert ": agrees at 1, 10.0%; agrees at 2, 20.0% (ours: lower, without a number)" in cheaper
    told = "5.0 points at most; by requests/s 2.0 points at 1, 5.0 points at 2"
    assert f": above: {told} (thesis: up to 4.4 points, within 10%)" in hits
    assert ": undecided: not reached in every round" in equal
    assert ": below at 1, 0.0%; below at 2, 0.0%" in faster  # equal is not lower
    nothing = curve(0.0, {1.0: talked(1, 1)}, "lru")
    fewer, *_ = verdicts(Sweep("x", 1.0, {"pensieve": curve(0.0, {1.0: talked(1, 1)}), "lru": nothing}), "pensieve")
    assert ": undecided: no rate tells" in fewer  # nothing was dropped
    seldom = {1.0: talked(1, 1, 100, 0.95), 2.0: talked(2, 2, 100, 0.4)}
    fewer, *_ = verdicts(Sweep("x", 1.0, {"pensieve": ours, "lru": curve(0.0, seldom, "lru")}), "pensieve")
    assert "by requests/s 20.0% at 2 (" in fewer  # at 1, nearly everything is found


def test_policies_are_compared_where_their_hit_rates_are_equal() -> None:
    """Of ours 20% miss at 3 requests/s, where 90 tokens are computed again; of LRU's at 2, where 60 are."""
    ours = curve(0.0, {1.0: talked(1, 1, 10, 1.0), 5.0: talked(5, 3, 170, 0.6)}, "pensieve")
    lru = curve(0.0, {1.0: talked(1, 1, 20, 0.9), 3.0: talked(3, 3, 100, 0.7)}, "LRU")
    text = at_equal_hits(ours, lru)
    assert text.startswith("requests/s at a hit rate of 80%, pensieve over LRU: agrees: 1.50x; there, as multiples")
    assert "recomputed tokens 1.50x, their cost 1.50x, p90 1.00x" in text


def test_a_point_has_what_each_round_came_to_beside_the_medians() -> None:
    rounds = outcome(talked(3.0, 0.3), talked(1.0, 0.2), talked(2.0, 0.1))
    one = curve(0.0, {}, "x")
    one.points[1.0] = rounds
    (point,) = Sweep("x", 1.0, {"x": one}).panel().points
    assert (point.measured["x_throughput"], point.measured["x_p90_ms"]) == (2.0, 200.0)
    assert point.measured["x_throughput_rounds"] == point.measured["x_offered_rounds"] == (3.0, 1.0, 2.0)
    assert point.measured["x_p90_ms_rounds"] == pytest.approx((300, 200, 100))


def test_the_gain_of_each_round_stands_beside_that_of_the_medians() -> None:
    """Ours serves 2 and 3 requests/s at the latency at which the baseline serves 1: medians 2.5 and 1."""
    low, high = talked(1.0, 0.1), talked(9.0, 0.9)
    baseline, ours = curve(0.0, {}, "vllm"), curve(0.0, {}, "p")
    baseline.points |= {1.0: outcome(low, low), 9.0: outcome(talked(1.0, 0.3), talked(1.0, 0.3))}
    ours.points |= {1.0: outcome(talked(2.0, 0.2), talked(3.0, 0.2)), 9.0: outcome(high, high)}
    text = gain_at_equal_latency("x", ours, baseline, Claim.about(2.0))
    assert ": undecided: 2.50x (by round 2.00x, 3.00x), 2.5 against 1 requests/s at 200 ms" in text


def test_loads_by_reaction_time_must_fall_in_every_round() -> None:
    vllm = curve(0.0, {1.0: talked(1.0, 0.1)}, "vllm")

    def curves(*loads: float) -> dict[str, Any]:
        found = zip((30, 60, 120), loads, strict=True)
        return {f"pensieve_{s}": curve(0.0, {n: talked(n, 0.2)}, "p") for s, n in found} | {"vllm": vllm}

    text = falls(curves(3.0, 2.0, 1.5), paired=False)
    assert text.startswith(
        "Load at twice vllm's lowest p90, by mean reaction time: agrees: 3, 2, 1.5 requests/s with 30,"
    )
    assert ": undecided: 3, 2, 2.5" in falls(curves(3.0, 2.0, 2.5), paired=False)
    assert ": above: 1, 2, 3" in falls(curves(1.0, 2.0, 3.0), paired=False)
    found = curves(3.0, 2.0, 1.5)
    found["pensieve_60"].points[2.0] = outcome(talked(2.0, 0.1))  # serves two at least
    assert ": undecided: 3, 2, 1.5" in falls(found, paired=False)


# --- the figures


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale in virtual time that takes a moment, with memory so small that it drops some."""
    scale = serving._Scale(0.02, {"opt": 0.5, "llama": 0.5}, 2e-4, 10, (0.5, 1.5), serving.SMALL)
    monkeypatch.setitem(serving.SCALES, "paper", scale)


def of(name: str, **conditions: Any) -> Any:
    return found(f"pensieve-fig{name}", scale="paper", **conditions)


@pytest.mark.usefixtures("toy")
def test_latency_against_throughput() -> None:
    finding = of("3.12", rates=(0.5,))
    titles = [panel.title for panel in finding.panels]
    assert titles[:2] == ["Fig. 3.12a: small-opt", "Fig. 3.12a: small-opt, cold"]
    assert titles[2:4] == [
        "Fig. 3.12a: small-opt, a100-80g-profiled",
        "Fig. 3.12a: small-opt, a100-80g-profiled, cold",
    ]
    assert titles[4] == "Fig. 3.12a: small-opt, correlated lengths"
    assert titles[5].startswith("Fig. 3.12a: small-opt, not in the thesis: the host's size at ")
    assert titles[6:] == ["Fig. 3.12b: small", "Fig. 3.12b: small, cold"]
    stationary, cold, profiled, _, correlated, hosts = finding.panels[:6]
    assert correlated.points[0].measured["vllm_p90_ms"] != stationary.points[0].measured["vllm_p90_ms"]
    assert profiled.points[0].measured["vllm_p90_ms"] > stationary.points[0].measured["vllm_p90_ms"]  # type: ignore[operator]
    assert {key.partition("_")[0] for key in cold.points[0].measured} == {"pensieve", "vllm"}
    assert [point.at["host_gb"] for point in hosts.points] == [0.0, 55.0, 110.0, 220.0]
    assert hosts.points[0].measured["host_host_hits"] == 0
    recomputed = [point.measured["host_recomputed"] for point in hosts.points]
    assert recomputed[0] > recomputed[-1]  # type: ignore[operator]
    for panel in (stationary, finding.panels[6]):
        assert [round(float(point.at["share"]), 3) for point in panel.points][:1] == [0.5]  # type: ignore[arg-type]
        measured = panel.points[0].measured
        assert {f"{key}_p90_ms" for key in ("pensieve", "device", "stateless", "vllm")} < set(measured)
        assert measured["stateless_device_hits"] == measured["vllm_host_hits"] == 0
        assert measured["pensieve_recomputed"] < measured["stateless_recomputed"]
        assert measured["device_host_hits"] == 0 < measured["pensieve_device_hits"]
    assert sum("(thesis: " in note for note in finding.notes) == 13
    assert sum("requests/s of pensieve 55 GB over vllm at equal p90" in note for note in finding.notes) == 2
    assert sum("(abstract of EuroSys 2025: 1.14x to 3.0x)" in note for note in finding.notes) == 2
    assert finding.facts["models"][0]["device_tokens"] * 4 == pytest.approx(
        finding.facts["models"][1]["device_tokens"], rel=0.01
    )


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("name", "contenders", "verdict"),
    [
        ("3.16", ("pensieve_30", "pensieve_60", "pensieve_120", "vllm"), "Load at twice vllm's lowest p90, by mean"),
        ("3.18", ("pensieve", "separate"), "Fig. 3.18: small, p90 of pensieve over that of not unified"),
    ],
)
def test_other_figures(name: str, contenders: tuple[str, ...], verdict: str) -> None:
    finding = of(name, rates=(0.7,))
    (point,) = finding.panels[0].points
    assert {key.removesuffix("_throughput") for key in point.measured if key.count("_throughput")} >= set(contenders)
    assert any(note.startswith(verdict) for note in finding.notes)


@pytest.mark.usefixtures("toy")
def test_the_cost_that_the_policy_assumes_is_varied() -> None:
    """On the machine of the toy's own profile, on that of ASSUMED, and on 4 and 16 times its attention."""
    finding = of("3.14", rates=(0.5,), rounds=2, requests=100)
    (point,) = finding.panels[0].points
    heads = {key.removesuffix("_throughput") for key in point.measured if key.count("_throughput")}
    assert heads >= {"pensieve", "assuming", "lru"}
    assert any(note.startswith("fewer recomputed tokens, pensieve against LRU") for note in finding.notes)
    panel = finding.panels[4]
    times = [point.at["times"] for point in panel.points]
    assert len(times) == 4
    assert {1.0, 4.0, 16.0} < {*times}
    assert all(len(point.measured["p90_rounds"]) == 2 for point in panel.points)  # type: ignore[arg-type]


# --- conversations of a file


def _written(path: Path, *turns: int) -> str:
    """Write a conversation for each number of turns; of turn i the prompt has 4 (i + 1) characters, the answer 400."""
    told = [
        {
            "conversations": [
                {"from": sender, "value": "x" * count}
                for i in range(number)
                for sender, count in (("human", 4 * (i + 1)), ("gpt", 400))
            ]
        }
        for number in turns
    ]
    path.write_text(json.dumps(told))
    return str(path)


def test_conversations_may_come_from_a_file(tmp_path: Path) -> None:
    path = _written(tmp_path / "x.json", 1, 3, 6)
    lengths = read_lengths(path)
    assert lengths == [[(i + 1, 100) for i in range(number)] for number in (1, 3, 6)]
    people = Crowd(ASKED, 100, 1, found=lengths)
    assert {len(people.lengths(number)) for number in range(30)} == {1, 3, 6}
    assert {turn.max_new_tokens for turn in people.requests(RATE, 40) if "." in turn.id} == {100}


@pytest.mark.usefixtures("toy")
def test_a_figure_takes_a_file(tmp_path: Path) -> None:
    finding = of("3.18", rates=(0.7,), conversations=_written(tmp_path / "x.json", 1, 3, 6))
    (note,) = (note for note in finding.notes if note.startswith("Conversations of "))
    assert "x.json with 4 characters to a token (in the mean 3." in note
    assert "lengths are multiplied by 0.02" in note
    (drawn,) = (note for note in of("3.18", rates=(0.7,)).notes if note.startswith("Conversations with ShareGPT"))
    assert "drawn independently of each other" in drawn


def test_a_file_must_have_conversations_of_enough_turns(tmp_path: Path) -> None:
    path = _written(tmp_path / "x.json", 1, 3)
    with pytest.raises(
        UsageError, match=r"x\.json holds no conversation of 5 turns: give another file as --conversations"
    ):
        of("3.15", conversations=path)
    with pytest.raises(UsageError, match=r"none\.json cannot be read \(No such file or directory\): give a JSON file"):
        of("3.12", conversations=str(tmp_path / "none.json"))


# --- what stays the same


def test_contenders_have_the_same_memory_and_the_thesis_sizes() -> None:
    small = Serving(Conditions(scale="paper"), "opt-13b-16k")
    assert (small.device_tokens, small.host_tokens) == (48828, 268554)  # 40 and 220 GB of 819,200 bytes
    large = Serving(Conditions(scale="paper"), "llama-2-70b-16k")
    assert (large.device_tokens, large.host_tokens) == (488281, 2685546)
    assert large.described()["hardware"] == "4 x a100-80g"
    assert "four of them as one machine" in large.note()
    assert PENSIEVE.options == {}
    assert LRU.options == {"memory.eviction": "lru"}


def test_shares_may_exceed_those_that_an_option_can_give(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(serving.SCALES, "paper", replace(serving.SCALES["paper"], shares=(0.5, 3.0)))
    (panel,) = of("3.18").panels
    assert [point.at["share"] for point in panel.points] == pytest.approx([0.5, 3.0])


@pytest.mark.usefixtures("toy")
def test_each_round_has_requests_of_its_own() -> None:
    (panel,) = of("3.18", rates=(0.7,), rounds=2).panels
    measured = panel.points[0].measured
    assert len(measured["pensieve_p90_ms_rounds"]) > 1  # type: ignore[union-attr]
    first, second = (of("3.18", rates=(0.7,), seed=seed).panels[0].points[0].measured for seed in (0, 1))
    assert first["pensieve_p90_ms"] != second["pensieve_p90_ms"]


@pytest.mark.usefixtures("toy")
def test_rates_grow_until_latency_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(serving.SCALES, "paper", replace(serving.SCALES["paper"], shares=(0.5,), more=4))
    (panel,) = of("3.18").panels
    shares = [point.at["share"] for point in panel.points]
    assert shares == pytest.approx([0.5 * 1.4**i for i in range(len(shares))])
    assert 2 <= len(shares) <= 5


def test_a_curve_ends_above_every_latency_that_is_compared() -> None:
    quick, slow = curve(0.0, {1.0: talked(1.0, 0.1)}, "a"), curve(0.0, {1.0: talked(1.0, 0.2)}, "b")
    sweep = Sweep("x", 1.0, {"a": quick, "b": slow})
    quick.points[2.0] = outcome(talked(2.0, 0.39))
    assert not sweep.ends(quick)
    quick.points[3.0] = outcome(talked(3.0, 0.41))
    assert sweep.ends(quick)
    assert not sweep.ends(slow)
    slow.points[2.0] = outcome(talked(1.0, 0.3))
    assert sweep.ends(slow)  # its throughput has stopped to grow


def test_a_curve_goes_on_while_a_round_is_below_that_latency() -> None:
    one, two = talked(1.0, 0.1), talked(2.0, 0.19)
    slow = curve(0.0, {}, "a")
    slow.points |= {1.0: outcome(one, one), 2.0: outcome(two, talked(2.0, 0.9))}
    sweep = Sweep("x", 1.0, {"a": slow, "new": curve(0.0, {}, "b")})
    assert not sweep.ends(slow)
    slow.points[2.0] = outcome(talked(2.0, 0.21), talked(2.0, 0.9))
    assert sweep.ends(slow)
    slower = curve(0.0, {}, "c")
    slower.points[1.0] = outcome(talked(1.0, 0.15), talked(1.0, 0.15))
    assert not replace(sweep, beside=(slower,)).ends(slow)  # it is compared at 0.3 s
    assert not sweep.ends(sweep.curves["new"])


def test_an_empty_period_is_refused(toy: None) -> None:
    with pytest.raises(UsageError, match="No request arrived in the measured period: give more --requests"):
        of("3.18", rates=(0.001,), requests=1)
