"""Serves chats, long prompts and bursts with every technique, on two simulated machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import TextSource
from minifuse.papers.contest import Bench, text_model
from minifuse.papers.curve import Contender, Curve, Served, curve_panel, load_at, never, rates_of, steady_rate
from minifuse.papers.equal_latency import equal_latency, marks
from minifuse.papers.experiment import Column, Conditions, Panel, Point, Say, Values
from minifuse.papers.numbers import shown
from minifuse.papers.page import Drawn, spec
from minifuse.papers.verdict import Claim
from minifuse.simulate.cost import hardware
from minifuse.techniques import serving
from minifuse.trace.running import RunningMetrics
from minifuse.workload.conversations import Asked, conversations
from minifuse.workload.laws import Arrival, Lognormal
from minifuse.workload.synthetic import RequestDefaults, synthetic

MODEL, PLACES = "llama-2-13b", 64  # requests at once, where a technique has a batch size
MACHINES = "a100-80g-profiled", "h100-profiled"
SHARES = (0.3, 0.6, 0.9, 1.2)  # of vllm's capacity
CONTENDERS = {name.replace("-", "_"): Contender(name.replace("-", "_"), name, name) for name in serving("transformer")}
LOADS = "throughput", "p99"  # the load and the latency at which claims are compared


class Said(NamedTuple):
    """What a paper claims of its technique, over a baseline."""

    paper: str
    ours: str
    baseline: str
    claim: Claim


CLAIMS = (
    Said("Flover", "fusion", "instances", Claim("1.3x to 16x as fast", 1.3, 16.0)),
    Said("Baton", "baton_pd", "static", Claim("1.86x to 2.49x", 1.86, 2.49)),
    Said("Pensieve", "pensieve", "vllm", Claim("1.25x to 1.52x", 1.25, 1.52)),
    Said("FluidInfer", "fluid", "vllm", Claim("2x to 4x", 2.0, 4.0)),
)


@dataclass(frozen=True)
class Workload:
    """Draws requests of one kind."""

    name: str
    count: int
    draw: Callable[[int, int, Arrival | None, int], list[Request]]  # count, size of the vocabulary, arrivals, seed
    longest: int  # tokens of a request, history included
    cv: float = 1.0  # coefficient of variation of the gaps between arrivals
    turns: float = 1.0  # requests of one arrival, on average


def _chat(count: int, vocab: int, arrival: Arrival | None, seed: int) -> list[Request]:
    asked = Asked(scale=0.25, reaction=3.0 if arrival else 0.001)
    return conversations(asked, count, vocab, asked.longest, arrival, seed)


def _single(prompts: Lognormal, answers: Lognormal) -> Callable[[int, int, Arrival | None, int], list[Request]]:
    whole = RequestDefaults(ignore_eos=True)

    def draw(count: int, vocab: int, arrival: Arrival | None, seed: int) -> list[Request]:
        return synthetic(count, prompts, answers, vocab, arrival, seed, whole)

    return draw


WORKLOADS = (
    Workload("chats", 400, _chat, 4096, turns=5.0),
    Workload("long prompts", 300, _single(Lognormal(1500, 0.5, 3500), Lognormal(60, 0.6, 256)), 3756),
    Workload("bursts", 300, _single(Lognormal(160, 1.0, 1024), Lognormal(200, 0.8, 1024)), 2048, cv=4.0),
)


class Scene(Bench[TextSource]):
    """One workload on one machine."""

    def __init__(self, conditions: Conditions, machine: str, workload: Workload, few: bool) -> None:
        super().__init__(conditions, text_model(conditions, MODEL), machine)
        count = max(8, workload.count // 20) if few else workload.count
        self.machine, self.workload = machine, replace(workload, count=conditions.requests or count)
        weights = self.source.config.num_parameters * DTYPE_BYTES[self.dtype]
        self.slots = self.settings.kv_bytes(self.slot_bytes, weights) // self.slot_bytes

    @property
    def title(self) -> str:
        return f"{self.workload.name} on one {self.machine}"

    def run(self, curve: Curve, rate: float | None, number: int) -> Served:
        """Serve the workload at a rate, or all at once."""
        workload, sizes = self.workload, curve.contender.row.batch_sizes
        # Flover's slots have equal sizes: as many as hold the longest request.
        places = min(PLACES, self.slots // workload.longest) if "memory.slots" in sizes else PLACES
        options = dict.fromkeys(sizes, places)
        arrival = None if rate is None else Arrival(workload.turns / rate, cv=workload.cv)
        requests = workload.draw(workload.count, self.source.config.vocab_size, arrival, self.conditions.seed + number)
        ended_s: list[float] = []
        counted = RunningMetrics(on_end=lambda name, life: ended_s.append(life.ended_s))
        self.serve(curve.contender.technique, requests, self.slots, options, into=counted.read)
        told = counted.result()
        latency = told["normalized_latency_s"]
        throughput = steady_rate(ended_s) or told["throughput"]["requests_per_s"]
        return {"throughput": throughput, "p99": latency["p99"], "p90": latency["p90"]}

    def curves(self, say: Say, shares: Sequence[float]) -> dict[str, Curve]:
        """Offer every technique the same rates: shares of vllm's capacity."""
        say(f"{self.title}: all at once")
        curves = {key: Curve(one) for key, one in CONTENDERS.items()}
        capacity = self.run(curves["vllm"], None, 0)["throughput"]
        rates = rates_of(self.conditions, shares, capacity)
        load_at(curves, rates, self.run, self.rounds, lambda text: say(f"{self.title}: {text}"), ended=never)
        return curves


class Setting:
    """All scenes; raises `UsageError` at a scale that is not simulated."""

    def __init__(self, conditions: Conditions) -> None:
        if conditions.scale == "cpu":
            raise UsageError("This comparison is simulated: give --scale paper, or quick for a part of it.")
        few = conditions.scale == "quick"
        simulated = replace(conditions, scale="paper")
        machines = MACHINES[:1] if few else MACHINES
        self.scenes = [Scene(simulated, machine, one, few) for machine in machines for one in WORKLOADS]
        self.shares = SHARES[1:2] if few else SHARES
        self.rounds = self.scenes[0].rounds

    def start(self, say: Say) -> None:
        """Announce how much there is to do."""
        rates = self.scenes[0].conditions.rates or self.shares
        say.expect(len(self.scenes) * (1 + len(rates)))

    def notes(self) -> tuple[str, ...]:
        return ()

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return {**self.scenes[0].facts(MACHINES[0]), "machines": [scene.title for scene in self.scenes]}


def _table(scene: Scene, curves: dict[str, Curve]) -> Panel:
    """Return a row for each technique: its throughput and p99 at each rate."""
    rates = sorted({rate for curve in curves.values() for rate in curve.points})
    columns = [Column("technique", "at", "technique")]
    for number, rate in enumerate(rates):
        columns.append(Column(f"at {shown(rate)}\nreq/s", "measured", f"{number}_throughput"))
        columns.append(Column(f"at {shown(rate)}\np99 ms", "measured", f"{number}_p99_ms"))
    points = []
    for curve in curves.values():
        measured: Values = {}
        for number, rate in enumerate(rates):
            measured |= curve.points[rate].values(str(number))
        points.append(Point({"technique": curve.contender.head}, measured, {}))
    return Panel(scene.title, tuple(columns), tuple(points))


def _drawn(scene: Scene, curves: dict[str, Curve]) -> Panel:
    """Return the picture: every technique's p99 over its throughput."""
    columns = [("req/s", "throughput", None), ("p99 ms", "p99_ms", None)]
    placed = [
        mark
        for said in CLAIMS
        for mark in marks(curves[said.baseline], (said.claim.least, said.claim.most), said.paper, *LOADS)
    ]
    panel = curve_panel(scene.title, curves, lambda rate: {"rate": rate}, columns, marks=placed)
    return replace(panel, tabled=False)


@spec(
    "Simulator",
    "landscape",
    "all techniques on three workloads",
    Setting,
    takes=("model", "rates", "requests"),
    kind="",
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Serve every workload on every machine with every technique, at growing rates."""
    panels, verdicts, best = [], [], []
    for scene in setting.scenes:
        curves = scene.curves(say, setting.shares)
        panels += [_table(scene, curves), _drawn(scene, curves)]
        say.keep(panels[-2])
        for said in CLAIMS:
            what = f"{scene.title}, {said.ours.replace('_', '-')} over {said.baseline}, load at equal p99"
            ours, theirs = curves[said.ours], curves[said.baseline]
            verdicts.append(equal_latency(what, ours, theirs, said.claim, *LOADS, source=said.paper))
        fastest = max(curves.values(), key=lambda curve: curve.peak)
        at_low = min(curves.values(), key=lambda curve: curve.points[min(curve.points)]["p99"])
        best.append(
            f"{scene.title}: the highest peak is that of {fastest.contender.head}, the lowest p99 at the lowest rate "
            f"that of {at_low.contender.head}."
        )
    model, slower = setting.scenes[0].source.name, hardware(MACHINES[0]).slower
    return Drawn(panels, verdicts=verdicts, best=best, places=PLACES, model=model, slower=slower)
