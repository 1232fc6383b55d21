"""Pensieve's Figures 3.12, 3.13 and 3.15 (3.6.2, 3.6.4): normalized latency against throughput.

Figure 3.12 has one GPU, Figure 3.13 larger models on four GPUs, Figure 3.15 conversations of five turns or more. In
virtual time Figure 3.12 also has what the thesis does not tell: runs that start cold, and for its first model a machine
whose operators are slower, lengths that depend on each other, and other sizes of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from minifuse.papers.curve import Contender
from minifuse.papers.experiment import RANGE, Column, Panel, Point, Say
from minifuse.papers.numbers import shown
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.contenders import DEVICE, PENSIEVE, STATELESS, VLLM, on_host
from minifuse.papers.pensieve.serving import HOST_BYTES, Serving, Servings, experiment
from minifuse.papers.pensieve.sweeps import Sweep
from minifuse.papers.verdict import Claim, up_to
from minifuse.simulate.cost import hardware

CONTENDERS = (PENSIEVE, DEVICE, STATELESS, VLLM)
IN_REAL_TIME = (PENSIEVE, DEVICE, STATELESS)  # not vllm: it resembles stateless, and takes time

# The thesis' gains in throughput over its baselines, by its models.
GAINS_12 = {"opt-13b-16k": 1.25, "llama-2-13b-gqa-16k": 1.52}
GAINS_13 = {"opt-66b-16k": 1.5, "llama-2-70b-16k": 1.6}
GAINS_15 = {"opt-13b-16k": 1.3, "llama-2-13b-gqa-16k": 1.7}
LEAST_TURNS_15 = 5
# By how much latency is lower than vllm's without a host cache, "before it reaches the peak" (3.6.2).
CUTS_12 = {"opt-13b-16k": 0.2, "llama-2-13b-gqa-16k": 0.4}
CORRELATION = 0.5  # of lengths within a conversation; ours
# What the later paper claims over vLLM and TensorRT-LLM, without a model or a machine for either end.
EUROSYS, EUROSYS_CLAIM = "abstract of EuroSys 2025", Claim("1.14x to 3.0x", 1.14, 3.0)

# On a CPU, the small models of Fig. 3.12 stand for those of Fig. 3.13, too, with memory for as many conversations as
# four GPUs hold. The rates stay below saturation, where runs can be compared.
OTHER_13 = {"cpu": {"shares": (0.7, 1.1)}}

VARIED = "opt-13b-16k"  # the model that Fig. 3.12 also measures under assumptions of ours
PROFILED = "a100-80g-profiled"
QUARTER = 0.25
HOSTS = (0.0, QUARTER, 0.5, 1.0)  # parts of the thesis' system memory that the host's tier has
HOST_SHARE = 1.3  # of vllm's capacity: the rate at which the host's size is varied
HOST_COLUMNS = (
    Column("host\nGB a GPU", "at", "host_gb", "{:g}", axis="x"),
    Column("p90\nms", "measured", "host_p90_ms", axis="y"),
    Column("p90\nrange", "measured", "host_p90_ms", RANGE),
    Column("hits\non device", "measured", "host_device_hits", "{:.1%}"),
    Column("hits\non host", "measured", "host_host_hits", "{:.1%}"),
    Column("recomp.\ntokens", "measured", "host_recomputed", "{:,.0f}"),
)


def draw(
    servings: Servings,
    say: Say,
    figure: str,
    gains: Mapping[str, float],
    more: bool = False,
) -> Drawn:
    """Measure latency against throughput of all contenders; draw a panel for each model.

    Args:
        more: whether cold runs follow, and those of `_under_our_assumptions` for `VARIED`, in virtual time.
    """
    more = more and servings[0].virtual
    varied = [more and serving.published == VARIED for serving in servings]
    correlated = more and not servings[0].found  # lengths of a file are as they are
    sweeps = [1 + more + (2 + correlated) * vary for vary in varied]
    reports = [num * serving.num_reports() for num, serving in zip(sweeps, servings, strict=True)]
    say.expect(sum(reports) + sum(varied))
    panels, verdicts = [], []
    for part, serving, vary in zip("abcd", servings, varied, strict=False):
        quarter = _with_host(serving, QUARTER)
        contenders = (*CONTENDERS, quarter) if serving.virtual else IN_REAL_TIME
        claim = Claim.about(gains[serving.published])
        title = f"Fig. {figure}{part}: {serving.title}"
        sweep = serving.sweep(say, title, contenders)
        panels.append(sweep.panel(marks=sweep.marks(gains[serving.published])))
        verdicts += [
            sweep.verdict("pensieve", name, claim) for name in ("stateless", "vllm", "device") if name in sweep.curves
        ]
        if serving.virtual:
            verdicts.append(sweep.verdict("pensieve", "vllm", EUROSYS_CLAIM, EUROSYS))
            verdicts.append(sweep.verdict(quarter.key, "vllm", claim, "thesis, without the size of the host's tier"))
        if more:
            verdicts.append(on_device(sweep, CUTS_12[serving.published]))
            others = [serving.sweep(say, f"{title}, cold", (PENSIEVE, VLLM), capacity=sweep.capacity, cold=True)]
            if vary:
                others += _under_our_assumptions(serving, say, title, correlated)
            panels += [other.panel(marks=other.marks(gains[serving.published])) for other in others]
            verdicts += [other.verdict("pensieve", "vllm", claim) for other in others]
            if vary:
                panels.append(by_host(serving, say, title, sweep.capacity))
    return Drawn(
        panels,
        verdicts=verdicts,
        more=more,
        cold_s=servings[0].scale.cold * servings[0].crowd().asked.reaction,
        correlation=CORRELATION if correlated else None,
        varied=VARIED.removesuffix("-16k").upper(),
        profiled=PROFILED,
        slower=hardware(PROFILED).slower,
    )


def _under_our_assumptions(serving: Serving, say: Say, title: str, correlated: bool) -> list[Sweep]:
    """Measure a machine with slower operators, and, if asked, correlated lengths."""
    profiled, pair = serving.on(PROFILED), (PENSIEVE, VLLM)
    slower = profiled.sweep(say, f"{title}, {PROFILED}", pair)
    found = [slower, profiled.sweep(say, f"{title}, {PROFILED}, cold", pair, capacity=slower.capacity, cold=True)]
    if correlated:
        found.append(serving.correlating(CORRELATION).sweep(say, f"{title}, correlated lengths", pair))
    return found


def on_device(sweep: Sweep, most: float) -> str:
    """Judge how far p90 without a host cache is below vllm's, below its capacity."""
    ours, vllm = sweep.curves["device"], sweep.curves["vllm"]
    found = {
        sweep.load(rate): [1 - mine / theirs for mine, theirs in outcome.beside(vllm.points[rate], "p90")]
        for rate, outcome in ours.points.items()
        if rate < sweep.capacity and rate in vllm.points
    }
    what = f"{sweep.title}, lower p90 of {ours.contender.head} than of vllm below its capacity"
    return up_to(what, found, most, "{:.1%}")


def _with_host(serving: Serving, part: float) -> Contender:
    """Return Pensieve with a part of the thesis' system memory as host."""
    return on_host(f"host_{part:g}", int(part * serving.host_tokens), f"pensieve {part * HOST_BYTES / 1e9:g} GB")


def by_host(serving: Serving, say: Say, title: str, capacity: float) -> Panel:
    """Measure Pensieve at one rate with parts of the thesis' system memory as host."""
    rate = HOST_SHARE * capacity
    contenders = {part: _with_host(serving, part) for part in HOSTS}
    title = f"{title}, not in the thesis: the host's size"
    sweep = serving.sweep(say, title, list(contenders.values()), capacity=capacity, rate=rate)
    points = []
    for part, contender in contenders.items():
        outcome = sweep.curves[contender.key].points[rate]
        values = outcome.values("host")
        points.append(Point({"host_gb": part * HOST_BYTES / 1e9}, values, {}))
    return Panel(f"{title} at {shown(sweep.loads(rate)[0])} requests/s", HOST_COLUMNS, tuple(points))


FIG_12 = experiment(
    "3.12",
    "latency against throughput: conversations on two tiers, on the device alone, and stateless",
    tuple(GAINS_12),
    page="pensieve/fig3_12",
)(partial(draw, figure="3.12", gains=GAINS_12, more=True))
FIG_13 = experiment(
    "3.13",
    "latency against throughput of larger models on four GPUs",
    tuple(GAINS_13),
    OTHER_13,
)(partial(draw, figure="3.13", gains=GAINS_13))
FIG_15 = experiment(
    "3.15",
    "latency against throughput where every conversation has five turns or more",
    tuple(GAINS_15),
    min_turns=LEAST_TURNS_15,
)(partial(draw, figure="3.15", gains=GAINS_15))
