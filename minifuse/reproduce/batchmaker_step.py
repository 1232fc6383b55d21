"""BatchMaker's Figure 2.3: one step of an LSTM at growing batch sizes, on this machine and on the fitted V100."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from statistics import median

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.reproduce.batchmaker_load import best_size
from minifuse.reproduce.batchmaker_machine import how_fitted
from minifuse.reproduce.batchmaker_notes import aim
from minifuse.reproduce.batchmaker_setting import STEADY, Setting, setting
from minifuse.reproduce.experiment import Column, Conditions, Finding, Panel, Point, Say, Value

__all__ = ["fig3"]

BATCHES = tuple(2**power for power in range(12))
STEEP = 1.8  # doubling the batch multiplies time by at least this: "approximately doubles"


def fig3(own: Setting, say: Say) -> Finding:
    """Time of a step and throughput at batches of 1 to 2048."""
    taken = {} if own.virtual else _measured(own, say)
    v100 = _v100(say)
    panels = []
    if taken:
        panels.append(_panel("Fig. 2.3, top: this machine's CPU", taken, {}))
    told = dict(paper.STEP_US)
    panels.append(_panel(f"Fig. 2.3, bottom: a V100, fitted, hidden {paper.HIDDEN}", v100, told))
    rounds = max(STEADY, own.rounds)
    here = f"{own.source.name} in {own.settings.dtype}, real time, medians of {rounds} rounds that go through all sizes"
    notes = [
        how_fitted(),
        f"The V100's time grows without bound as a straight line, so its best batch is the largest; the thesis' is "
        f"{paper.BEST_BATCH}, beyond which time doubles with the batch. The text gives no numbers of the thesis' CPU.",
    ]
    if taken:
        rates = {batch: batch / seconds for batch, seconds in taken.items()}
        steep = [b for (a, s), (b, t) in pairwise(taken.items()) if t >= STEEP * s]
        gain = max(rates.values()) / rates[1]
        notes = [
            f"{here}. Here {gain:.3g} times as many rows/s are computed at the best batch as one by one, and "
            f"{best_size(rates)} is the smallest batch that is as good as the best. Doubling multiplies time by "
            f"{STEEP} or more at the batches {', '.join(map(str, steep)) or '(none)'}.",
            aim(
                "batching improves throughput on a CPU",
                f"{gain:.3g} times",
                "equally important as on the GPU",
                gain > 1,
            ),
            *notes,
        ]
    return Finding(own.facts(), tuple(panels), tuple(notes))


def _measured(own: Setting, say: Say) -> dict[int, float]:
    """Seconds of a step at each size: in each round all of them, so that none has the machine at its best."""
    inputs = {batch: (own.words(batch), own.zeros(batch), own.zeros(batch)) for batch in BATCHES}
    seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for number in range(max(STEADY, own.rounds)):
        say(f"round {number + 1}")
        for batch in BATCHES:
            seconds[batch].append(own.timed(partial(own.model.run, "lstm", *inputs[batch])))
    return {batch: median(found) for batch, found in seconds.items()}


def _v100(say: Say) -> dict[int, float]:
    virtual = setting(Conditions(scale="paper"), "lstm")
    virtual.start(say)
    return {batch: virtual.cost_s("lstm", batch) for batch in BATCHES}


def _panel(title: str, seconds: dict[int, float], told: dict[int, float]) -> Panel:
    points = []
    for batch, second in seconds.items():
        us = told.get(batch)
        measured: dict[str, Value] = {"us": second * 1e6, "rows_per_s": batch / second}
        paper_says: dict[str, Value] = {} if us is None else {"us": us, "rows_per_s": batch / us * 1e6}
        points.append(Point({"batch": batch}, measured, paper_says))
    columns = [
        Column("\nbatch", "at", "batch", "{:,}"),
        Column("us\npaper", "paper", "us"),
        Column("us\nhere", "measured", "us"),
        Column("rows/s\npaper", "paper", "rows_per_s"),
        Column("rows/s\nhere", "measured", "rows_per_s"),
    ]
    return Panel(title, tuple(column for column in columns if told or column.part != "paper"), tuple(points))
