"""Pensieve's Figure 3.16 (section 3.6.5): how long users take to reply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from minifuse.papers.curve import BOUND, Curve
from minifuse.papers.experiment import Say
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.contenders import PENSIEVE, VLLM
from minifuse.papers.pensieve.serving import Servings, experiment
from minifuse.papers.pensieve.sweeps import gain_at_equal_latency
from minifuse.papers.verdict import MORE, Claim, verdict

REACTIONS = (30, 60, 120)  # seconds, in the mean
GAINS = {60: 1.52, 120: 1.4}  # the thesis has no number for 30 s


@experiment("3.16", "mean reaction times of 30, 60 and 120 seconds", ("llama-2-13b-gqa-16k",))
def figure(servings: Servings, say: Say) -> Drawn:
    """Measure latency against throughput with three mean reaction times.

    vllm is measured with only one of them: it keeps no KV between turns, so they make no difference.
    """
    (serving,) = servings
    say.expect(serving.num_reports() + 2 * serving.num_reports(capacity=False))
    title = f"Fig. 3.16: {serving.title}"
    sweep = serving.sweep(say, f"{title}, 60 s", (replace(PENSIEVE, head="60 s"), VLLM))
    found = {60: sweep.curves["pensieve"]}
    for reaction in (30, 120):
        contenders = (replace(PENSIEVE, head=f"{reaction} s"),)
        name, beside = f"{title}, {reaction} s", (sweep.curves["vllm"],)
        other = serving.sweep(say, name, contenders, reaction, capacity=sweep.capacity, beside=beside)
        found[reaction] = other.curves["pensieve"]
    curves = {f"pensieve_{reaction}": found[reaction] for reaction in REACTIONS} | {"vllm": sweep.curves["vllm"]}
    whole = replace(sweep, title=title, curves=curves)
    if whole.paired:  # vllm was measured with the requests of 60 s
        verdicts = [whole.verdict("pensieve_60", "vllm")]
    else:
        claims = {reaction: Claim.about(GAINS[reaction]) if reaction in GAINS else MORE for reaction in REACTIONS}
        verdicts = [
            gain_at_equal_latency(
                f"{title}, reaction time {reaction} s", curves[f"pensieve_{reaction}"], curves["vllm"], claim
            )
            for reaction, claim in claims.items()
        ]
    verdicts.append(falls(curves, paired=whole.paired))
    thesis = [mark for reaction, gain in GAINS.items() for mark in whole.marks(gain, f", {reaction} s")]
    return Drawn([whole.panel(marks=thesis)], verdicts=verdicts)


def falls(curves: Mapping[str, Curve], *, paired: bool) -> str:
    """Judge, in every round, whether fewer requests are served the longer users take.

    Args:
        paired: whether the highest throughputs are compared; otherwise the loads at twice vllm's lowest p90.
    """
    rounds = range(len(curves["vllm"].last.rounds))

    def load(reaction: int, number: int) -> tuple[float, float]:
        """Return the least and the most that a round's load may be."""
        curve = curves[f"pensieve_{reaction}"].of_round(number)
        if paired:
            return curve.peak, curve.peak
        level_s = BOUND * curves["vllm"].of_round(number).lowest()
        found = curve.load_at(level_s, "offered")
        if found is None:
            return 0.0, min(outcome["offered"] for outcome in curve.points.values())
        return found, math.inf if curve.last["p90"] < level_s else found

    loads = [[load(reaction, number) for reaction in REACTIONS] for number in rounds]
    what = "highest throughput" if paired else "load at twice vllm's lowest p90"
    found = ", ".join(told([each[i][0] for each in loads], "{:.3g}") for i in range(len(REACTIONS)))
    steps = [(early, late) for each in loads for early, late in pairwise(each)]
    least = [late[0] / early[1] for early, late in steps]
    most = [late[1] / early[0] if early[0] else math.inf for early, late in steps]
    text = f"{found} requests/s with {', '.join(map(str, REACTIONS))} s"
    what = f"{what}, by mean reaction time".capitalize()
    return verdict(what, least, Claim("it falls", 0.0, 1.0), text, upper=most)
