"""Pensieve's Figure 3.16 (section 3.6.5): how long users take to reply."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from minifuse.papers.curve import Curve
from minifuse.papers.experiment import Say
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.serving import PENSIEVE, VLLM, Servings, experiment
from minifuse.papers.pensieve.sweeps import gain_at_equal_latency

REACTIONS = (30, 60, 120)  # seconds, in the mean
GAINS = {60: 1.52, 120: 1.4}  # the thesis gives none for 30


@experiment("3.16", "mean reaction times of 30, 60 and 120 seconds", ("llama-2-13b-gqa-16k",), page="pensieve/fig3_16")
def figure(servings: Servings, say: Say) -> Drawn:
    """Measure latency against throughput with three mean reaction times.

    vllm is measured with only one of them: it keeps no KV between turns, so they make no difference.
    """
    (serving,) = servings
    say.expect(serving.num_reports() + 2 * serving.num_reports(capacity=False))
    title = f"Fig. 3.16: {serving.title}"
    curves: dict[str, Curve] = {}
    capacity = None
    for reaction in REACTIONS:
        contenders = (replace(PENSIEVE, head=f"{reaction} s"), *((VLLM,) if reaction == 60 else ()))
        sweep = serving.sweep(say, f"{title}, {reaction} s", contenders, reaction, capacity=capacity)
        capacity = sweep.capacity
        curves |= {f"{key}_{reaction}" if key == "pensieve" else key: curve for key, curve in sweep.curves.items()}
    whole = replace(sweep, title=title, curves=curves)
    if whole.paired:  # vllm was measured with the requests of 60 s
        verdicts = [whole.verdict("pensieve_60", "vllm", None)]
    else:
        verdicts = [
            gain_at_equal_latency(
                f"{title}, reaction time {reaction} s", curves[f"pensieve_{reaction}"], curves["vllm"], gain
            )
            for reaction, gain in GAINS.items()
        ]
    peaks = [curves[f"pensieve_{reaction}"].peak for reaction in REACTIONS]
    falls = all(late <= early for early, late in pairwise(peaks))
    return Drawn([whole.panel()], verdicts=verdicts, reactions=REACTIONS, peaks=peaks, falls=falls)
