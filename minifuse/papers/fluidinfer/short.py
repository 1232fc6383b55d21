"""Measures a backlog where KV memory is short, also as the paper assumed it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import minifuse.papers.fluidinfer.paper as paper
from minifuse.papers.curve import Contender, Outcome, run_rounds
from minifuse.papers.experiment import RANGE, Column, Conditions, Panel, Point, Say, Values
from minifuse.papers.fluidinfer.setting import FLUID, HOST, INT8, LAYERS, ORCA, ORCA_TOLD, OTHERS, ROTATE, VLLM, Server
from minifuse.papers.page import Drawn, notes, spec
from minifuse.papers.verdict import LOWER, MORE, Claim, verdict
from minifuse.serve.resolve import resolve_run
from minifuse.simulate.cost import Hardware, Host, hardware
from minifuse.workload.conversations import MEANS

KV_MEMORY = (None, 4e9, 1.5e9)  # bytes; None: what the weights leave of one RTX 4090, 10.7 GB
TIMES = 10  # as many requests as run at once where each has the mean length
SLOW = Host(100e9, 2.5e12)  # a host with half the memory channels of `EPYC_7003`
SLOW_HOST = replace(HOST, key="slow_host", head="host, 100 GB/s")
ALL = (ORCA, ORCA_TOLD, *OTHERS[1:], VLLM, ROTATE, LAYERS, INT8, FLUID, HOST)
REAL = (VLLM, ROTATE, FLUID, HOST)
OURS = (ROTATE, LAYERS, INT8, FLUID, HOST, SLOW_HOST)
SERVES_MORE = Claim("1.4x or more", 1.4)


def _limited(one: Contender) -> Contender:
    """Return a baseline with the paper's batch size (4.1)."""
    options = {**one.options, "batching.max_batch": paper.BATCH}
    return replace(one, key=f"{one.key}_limited", head=f"{one.head}, {paper.BATCH}", options=options)


@dataclass(frozen=True)
class Backlog:
    """A server that has all requests at once, and the contenders that it runs."""

    server: Server
    contenders: tuple[Contender, ...]
    assumed: bool = False  # whether the conditions are those that the paper assumes

    @property
    def title(self) -> str:
        gigabytes = f"{self.server.tokens * self.server.slot_bytes / 1e9:.3g} GB"
        said = "as the paper assumed: " if self.assumed else ""
        size = gigabytes if self.server.virtual else f"{self.server.tokens:,} tokens"
        return f"{said}{self.server.title}, {size} for KV"

    def run(self, contender: Contender, number: int) -> dict[str, float]:
        """Serve the requests of a round with one contender."""
        machine = self.server.settings.hardware
        slow = replace(machine, host=SLOW) if contender is SLOW_HOST and isinstance(machine, Hardware) else None
        return self.server.run(contender, self.server.requests(None, number), machine=slow)

    def rounds(self, say: Say) -> dict[str, Outcome]:
        """Run all contenders in turns, and return what each did."""
        say(self.title)
        self.server.start(say)
        return run_rounds({one.key: partial(self.run, one) for one in self.contenders}, self.server.rounds, 0)


class Backlogs(tuple[Backlog, ...]):
    """One model with growing shortage of KV memory; in virtual time, also the paper's assumptions."""

    @classmethod
    def of(cls, conditions: Conditions) -> Backlogs:
        if conditions.scale != "paper":
            model = "small" if conditions.scale == "quick" else "medium"
            server = Server(replace(conditions, model=conditions.model or f"random:{model}"), model, ("cpu", 1))
            return cls([Backlog(_filled(conditions, server), REAL)])
        one, several = paper.MACHINES[:2]
        model = paper.MODELS[-1]
        servers = [Server(conditions, model, one, kv_memory=kv_memory) for kv_memory in KV_MEMORY]
        found = [Backlog(_filled(conditions, server), (*ALL, SLOW_HOST)) for server in servers]
        memory = several[1] * hardware(several[0]).memory
        assumed = Server(conditions, model, several, fast_link=True, kv_memory=paper.KV_SHARE * memory)
        limited = [_limited(one) for one in (ORCA, VLLM)]
        return cls([*found, Backlog(_filled(conditions, assumed), (*limited, VLLM, ROTATE, FLUID), assumed=True)])

    @property
    def first(self) -> Server:
        return self[0].server

    def start(self, say: Say) -> None:
        """Announce the number of reports."""
        say.expect(len(self))

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        conditions = self.first.conditions
        servers = [backlog.server.described() for backlog in self]
        return {"scale": conditions.scale, "seed": conditions.seed, "servers": servers}

    def notes(self) -> tuple[str, ...]:
        """Return notes on the conditions."""
        counts = [backlog.server.num_requests for backlog in self]
        return notes(
            "fluidinfer/backlog",
            server=self.first,
            times=TIMES,
            counts=counts,
            prompts=self.first.prompt_tokens,
            slow=SLOW.bandwidth / 1e9,
        )


def _filled(conditions: Conditions, server: Server) -> Server:
    """Give a server `TIMES` as many requests as run at once, or the user's number.

    KV that the host attends counts, too.
    """
    if conditions.requests is None:
        settings = replace(server.settings, stage_options=HOST.options)
        beyond = (
            resolve_run(HOST.row, server.source, settings).choices.options["memory"].beyond if server.virtual else 0
        )
        mean = sum(MEANS[1:]) * server.scale.lengths
        # In real time memory grows with the longest of the requests.
        while server.num_requests < (needed := math.ceil(TIMES * (server.tokens + beyond) / mean)):
            server.draw(needed)
    return server


COLUMNS = (
    Column("technique", "at", "technique"),
    Column("tokens/s\ncompleted", "measured", "tokens", None),
    Column("over\nvllm", "measured", "gain", "{:.2f}x", axis="y"),
    Column("over vllm\nrange", "measured", "gain", RANGE),
    Column("ms/\ntoken", "measured", "normalized_ms", None),
    Column("bound\ns", "measured", "bound_s", "{:.2f}"),
    Column("mean\nbatch", "measured", "batch", "{:.0f}"),
    Column("waits", "measured", "exposed", "{:.0%}"),
    Column("CPU s", "measured", "cpu_s", None),
    Column("CPU s over\nvllm", "measured", "cpu_gain", "{:.2f}x"),
)


def _panel(backlog: Backlog, found: Mapping[str, Outcome]) -> Panel:
    points = []
    for one in backlog.contenders:
        outcome, gains = found[one.key], _gains(found, one.key, "steady_tokens")
        measured: Values = {
            "tokens": outcome["steady_tokens"],
            "gain": median(gains),
            "gain_rounds": tuple(gains),
            "normalized_ms": 1e3 * outcome["normalized_s"],
            "bound_s": outcome["bound_s"],
            "batch": outcome["mean_batch"],
            "exposed": outcome["exposed"],
        }
        if not backlog.server.virtual:
            measured |= {"cpu_s": outcome["cpu_s"], "cpu_gain": median(_gains(found, one.key, "cpu_s"))}
        points.append(Point({"technique": one.head}, measured, {}))
    panel = Panel(backlog.title, COLUMNS, tuple(points))
    return replace(panel, columns=panel.filled)


def _gains(found: Mapping[str, Outcome], key: str, name: str, over: str = VLLM.key) -> list[float]:
    """Divide a contender's value by that of another, in each round."""
    return [ours / theirs for ours, theirs in found[key].beside(found[over], name)]


def _judged(backlog: Backlog, found: Mapping[str, Outcome]) -> list[str]:
    """Judge completed tokens/s over those of vllm, by the paper and by our aims."""
    said = []
    over_vllm = Claim("2x to 4x", *paper.GAINS)
    for one in [one for one in backlog.contenders if one in OURS]:
        what = f"{backlog.title}, completed tokens/s of {one.head} over vllm"
        rounds = _gains(found, one.key, "steady_tokens")
        said.append(verdict(what, rounds, over_vllm, source="paper"))
        if one in (FLUID, HOST) and not backlog.assumed:
            aim = SERVES_MORE if one is HOST and backlog.server.virtual else MORE
            said.append(verdict(what, rounds, aim, source="aim"))
        if one in (FLUID, HOST) and not backlog.server.virtual:
            what = f"{backlog.title}, CPU seconds of {one.head} over vllm"
            said.append(verdict(what, _gains(found, one.key, "cpu_s"), LOWER, source="aim"))
    if backlog.assumed:
        for one in (ROTATE, FLUID):
            rounds = _gains(found, one.key, "steady_tokens", over=_limited(VLLM).key)
            what = f"{backlog.title}, completed tokens/s of {one.head} over vllm with batches of {paper.BATCH}"
            said.append(verdict(what, rounds, over_vllm, source="paper"))
    return said


@spec(
    "FluidInfer",
    "short",
    "completed tokens/s of a backlog where KV memory is short; and the paper's assumptions",
    lambda conditions: conditions.once("backlogs", Backlogs.of),
    takes=("model", "requests"),
    kind="",
)
def figure(backlogs: Backlogs, say: Say) -> Drawn:
    """Serve each backlog with every contender, in turns."""
    panels: list[Panel] = []
    judged: list[str] = []
    for backlog in backlogs:
        found = backlog.rounds(say)
        panels.append(_panel(backlog, found))
        judged += _judged(backlog, found)
        say.keep(panels[-1])
    return Drawn(panels, verdicts=judged)
