"""A measure of every contender against the rate of requests, and what it says: Figures 11 and 12 (6.2, 6.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import minifuse.reproduce.fluidinfer.paper as paper
from minifuse.reproduce.curve import crossing
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, Value
from minifuse.reproduce.fluidinfer.setting import (
    ABLATIONS,
    BASELINES,
    FLUID,
    IN_TURN,
    Contender,
    Outcome,
    Server,
    servers,
)
from minifuse.reproduce.load import offered
from minifuse.reproduce.verdict import aim, shown, spread
from minifuse.simulate.timing import take_turns

CONTENDERS = (*BASELINES, *ABLATIONS, FLUID, IN_TURN)
VLLM = BASELINES[-1]
BOUND = 2.0  # times the lowest normalized latency of vllm: where throughputs are compared

Runs = dict[str, dict[float, list[Outcome]]]  # by contender and rate, of every round


class Measure(NamedTuple):
    """What a figure shows of an outcome."""

    field: str
    head: str


def experiment(number: str, shows: str, measure: Measure) -> Experiment:
    """The experiment of a figure: the same runs, of which it shows one measure."""

    def prepare(conditions: Conditions) -> Run:
        return partial(_draw, servers(conditions), conditions, number, measure)

    return Experiment("FluidInfer", number, shows, prepare, frozenset({"model", "rates", "requests"}))


def _draw(found: Sequence[Server], conditions: Conditions, number: str, measure: Measure, say: Say) -> Finding:
    say.expect(sum(1 + len(conditions.rates or server.scale.shares) for server in found))
    panels, notes = [], []
    for server in found:
        runs, simulated = _sweep(server, conditions, say)
        panels.append(_panel(f"Fig. {number}: {server.title}", runs, measure))
        notes.append(_verdict(server, runs, measure))
        say.keep(panels[-1])
        if simulated:
            panels.append(_errors(f"Fig. {number}: the simulator against the run", runs, simulated, measure))
    facts = {"scale": conditions.scale, "seed": conditions.seed, "servers": [server.facts() for server in found]}
    return Finding(facts, tuple(panels), (_note(found[0]), *notes))


def _sweep(server: Server, conditions: Conditions, say: Say) -> tuple[Runs, Runs]:
    """All contenders at growing rates, and in real time the same runs simulated once."""
    say(f"{server.title}: all at once")
    server.start()
    capacity = server.serve(VLLM, server.requests(None)).throughput
    runs: Runs = {one.key: {} for one in CONTENDERS}
    simulated: Runs = {one.key: {} for one in CONTENDERS}
    given = conditions.rates
    rates = offered(given, capacity) if given else [share * capacity for share in server.scale.shares]
    for turn, rate in enumerate(rates):
        say(f"{server.title}: {shown(rate)} requests/s")
        requests = server.requests(rate)
        taken = take_turns(
            {one.key: partial(server.serve, one, requests) for one in CONTENDERS}, server.rounds, first=turn
        )
        for one in CONTENDERS:
            runs[one.key][rate] = taken[one.key]
            if not server.virtual:
                simulated[one.key][rate] = [server.serve(one, requests, simulated=True)]
    return runs, {} if server.virtual else simulated


def _of(outcomes: Sequence[Outcome], field: str) -> float:
    return float(median(getattr(one, field) for one in outcomes))


def _panel(title: str, runs: Runs, measure: Measure) -> Panel:
    """A row for each rate: the measure of each contender in ms, and of fluid what its transfers took."""
    points = []
    for rate in runs[FLUID.key]:
        measured: dict[str, Value] = {}
        for one in CONTENDERS:
            outcomes = runs[one.key][rate]
            measured |= {f"{one.key}_{name}": _of(outcomes, name) for name in Outcome._fields}
            measured[f"{one.key}_ms"] = _of(outcomes, measure.field) * 1e3
            if len(outcomes) > 1:
                measured[f"{one.key}_spread"] = spread([getattr(run, measure.field) * 1e3 for run in outcomes])
        points.append(Point({"rate": rate}, measured, {}))
    columns = [Column("offered\nreq/s", "at", "rate")]
    columns += [Column(f"{one.head}\n{measure.head}", "measured", f"{one.key}_ms") for one in CONTENDERS]
    columns += [
        Column("fluid\nwaits", "measured", "fluid_exposed", "{:.0%}"),
        Column("turns\nwaits", "measured", "in_turn_exposed", "{:.0%}"),
    ]
    if any("fluid_spread" in point.measured for point in points):
        columns += [Column(f"{key}\nspread", "measured", f"{key}_spread", "{}") for key in ("fluid", "vllm")]
    return Panel(title, tuple(columns), tuple(points))


def _errors(title: str, runs: Runs, simulated: Runs, measure: Measure) -> Panel:
    """What a simulation of the same plans' costs says, as a factor of what was measured."""
    points = []
    for rate in runs[FLUID.key]:
        factors: Mapping[str, Value] = {
            one.key: _of(simulated[one.key][rate], measure.field) / _of(runs[one.key][rate], measure.field)
            for one in CONTENDERS
        }
        points.append(Point({"rate": rate}, factors, {}))
    columns = [Column(f"{one.head}\nsim/run", "measured", one.key, "{:.2f}x") for one in CONTENDERS]
    return Panel(title, (Column("offered\nreq/s", "at", "rate"), *columns), tuple(points))


def _verdict(server: Server, runs: Runs, measure: Measure) -> str:
    return _gain(server, runs) if measure.field == "normalized_s" else _lower(server, runs)


def _load_at(runs: Runs, contender: Contender, level_s: float) -> float | None:
    """The rate at which the normalized latency reaches a level."""
    return crossing([(_of(outcomes, "normalized_s"), rate) for rate, outcomes in runs[contender.key].items()], level_s)


def _gain(server: Server, runs: Runs) -> str:
    """By how much more requests fluid, and each part of it, serves than vllm at equal normalized latency."""
    level_s = BOUND * min(_of(outcomes, "normalized_s") for outcomes in runs[VLLM.key].values())
    theirs = _load_at(runs, VLLM, level_s)
    texts = []
    gains: dict[str, float | None] = {}
    for one in (*ABLATIONS, FLUID, IN_TURN):
        ours = _load_at(runs, one, level_s)
        factor = None if ours is None or theirs is None else ours / theirs
        *_, last = runs[one.key].values()
        least = "at least " if _of(last, "normalized_s") <= level_s else ""  # it was offered no more
        texts.append(f"{one.head} {'never that low' if factor is None else f'{least}{factor:.2f}x'}")
        gains[one.key] = factor
    what = f"{server.title}, requests/s of fluid over vllm at equal normalized latency"
    met = (gains[FLUID.key] or 0.0) >= paper.GAIN
    return aim(what, f"{', '.join(texts)}, at {level_s * 1e3:.3g} ms a token", "2x to 4x", met, "paper")


def _lower(server: Server, runs: Runs) -> str:
    """By how many times the latency bound of fluid is lower than that of vllm, at each rate; the median counts."""
    factors = [
        _of(runs[VLLM.key][rate], "bound_s") / _of(outcomes, "bound_s") for rate, outcomes in runs[FLUID.key].items()
    ]
    text = ", ".join(f"{factor:.2f}x" for factor in factors)
    met = median(factors) >= paper.LOWER_BOUND
    return aim(f"{server.title}, latency bound of vllm over that of fluid, by rate", text, "about 3x", met, "paper")


def _note(server: Server) -> str:
    """What is measured, and how."""
    requests = (
        f"{server.num_requests} requests as long as ShareGPT's first rounds (minifuse.workload.conversations), times "
        f"{server.scale.lengths:g}; Poisson arrivals at shares of what vllm serves when all come at once."
    )
    machine = (
        "Virtual time by data sheets, nothing fitted; several GPUs are one machine of so many times the rates, "
        "messages between them not modelled. Memory has what the weights leave of the device, and 256 GB on the host. "
        "Attention runs in lanes, one for each KV head and streaming multiprocessor; a piece of work is never divided."
        if server.virtual
        else f"Real time on this machine, medians of {server.rounds} interleaved rounds. The device's KV memory holds "
        f"{server.tokens:,} tokens, one and a half of the longest request; device and host are separate pools. An "
        f"iteration of fluid has {server.budget} tokens at most, which were measured to saturate."
    )
    return (
        f"{requests} {machine} concat. is fluid's policy on paged memory; + swap adds waves from host memory; "
        "fluid packs attention into lanes as well; turns is fluid with layers that have the device in turn, so that "
        "waves are as much longer and no KV stays there. Waits is the part of the time for which computing waits for "
        "transfers."
    )
