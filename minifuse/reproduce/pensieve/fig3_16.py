"""Pensieve's Figure 3.16 (section 3.6.5): how long users take to reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from minifuse.reproduce.curve import Curve
from minifuse.reproduce.experiment import Panel, Say
from minifuse.reproduce.pensieve.serving import PENSIEVE, VLLM, Serving, experiment
from minifuse.reproduce.pensieve.sweeps import Sweep, curves_panel, gain_at_equal_latency, verdict

REACTIONS = (30, 60, 120)  # seconds, in the mean
GAINS = {60: 1.52, 120: 1.4}  # the thesis gives none for 30


def draw(servings: Sequence[Serving], say: Say) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Latency against throughput with three mean reaction times, beside that of vllm, for which they do not count."""
    (serving,) = servings
    say.expect(serving.num_reports() + 2 * serving.num_reports(capacity=False))
    title = f"Fig. 3.16: {serving.source.name.removeprefix('random:')}"
    curves: dict[str, Curve] = {}
    capacity = None
    for reaction in REACTIONS:
        contenders = (replace(PENSIEVE, head=f"{reaction} s"), *((VLLM,) if reaction == 60 else ()))
        sweep = serving.sweep(say, f"{title}, {reaction} s", contenders, reaction, capacity=capacity)
        capacity = sweep.capacity
        curves |= {f"{key}_{reaction}" if key == "pensieve" else key: curve for key, curve in sweep.curves.items()}
    assert capacity is not None
    whole = Sweep(title, capacity, curves, paired=not serving.virtual)
    if whole.paired:  # vllm has had the requests of 60 s
        verdicts = [verdict(whole, "pensieve_60", "vllm", None)]
    else:
        verdicts = [
            gain_at_equal_latency(
                f"{title}, reaction time {reaction} s", curves[f"pensieve_{reaction}"], curves["vllm"], gain
            )
            for reaction, gain in GAINS.items()
        ]
    peaks = [curves[f"pensieve_{reaction}"].peak for reaction in REACTIONS]
    falls = all(late <= early for early, late in pairwise(peaks))
    verdicts.append(
        f"Peak throughput by mean reaction time, {', '.join(map(str, REACTIONS))} s: "
        f"{', '.join(f'{peak:.3g}' for peak in peaks)} requests/s: it {'falls' if falls else 'does not always fall'} "
        "as users take longer (thesis: it falls)."
    )
    return (curves_panel(whole),), tuple(verdicts)


EXPERIMENT = experiment("3.16", "mean reaction times of 30, 60 and 120 seconds", ("llama-2-13b-gqa-16k",), draw)
