"""Pensieve's Figure 3.12 (section 3.6.2): normalized latency against throughput on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minifuse.reproduce.experiment import Panel, Say
from minifuse.reproduce.pensieve.serving import DEVICE, PENSIEVE, STATELESS, VLLM, Serving, experiment
from minifuse.reproduce.pensieve.sweeps import curves_panel, verdict

CONTENDERS = (PENSIEVE, DEVICE, STATELESS, VLLM)
IN_REAL_TIME = (PENSIEVE, DEVICE, STATELESS)  # vllm is as the stateless one: fewer runs, nearer to each other in time
GAINS = {"opt-13b-16k": 1.25, "llama-2-13b-gqa-16k": 1.52}


def draw(
    servings: Sequence[Serving],
    say: Say,
    figure: str,
    gains: dict[str, float],
    min_turns: int = 1,
    aims: dict[str, float] | None = None,
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Latency against throughput of all contenders, a panel for each model.

    Args:
        gains: the thesis' gains in throughput over its baselines, by its models.
        aims: the project's own, where there are any.
    """
    say.expect(sum(serving.num_reports() for serving in servings))
    panels, verdicts = [], []
    for part, serving in zip("abcd", servings, strict=False):
        title = f"Fig. {figure}{part}: {serving.source.name.removeprefix('random:')}"
        contenders = CONTENDERS if serving.virtual else IN_REAL_TIME
        sweep = serving.sweep(say, title, contenders, min_turns=min_turns)
        panels.append(curves_panel(sweep))
        wanted = (aims or {}).get(serving.published)
        verdicts += [
            verdict(sweep, "pensieve", name, gains[serving.published], wanted)
            for name in ("stateless", "vllm", "device")
            if name in sweep.curves
        ]
    return tuple(panels), tuple(verdicts)


EXPERIMENT = experiment(
    "3.12",
    "latency against throughput: conversations on two tiers, on the device alone, and stateless",
    tuple(GAINS),
    partial(draw, figure="3.12", gains=GAINS),
)
