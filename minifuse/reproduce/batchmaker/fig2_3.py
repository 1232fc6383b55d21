"""BatchMaker's Figure 2.3: one step of an LSTM at growing batch sizes, on this machine and on the fitted V100."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from statistics import median

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.setting import STEADY, Setting, experiment, how_fitted
from minifuse.reproduce.experiment import Column, Conditions, Finding, Panel, Point, Say, Value, beside
from minifuse.reproduce.load import best_size
from minifuse.reproduce.verdict import aim

BATCHES = tuple(2**power for power in range(12))
CPU = "Fig. 2.3, top: this machine's CPU"
STEEP = 1.8  # doubling the batch multiplies time by at least this: "approximately doubles"


def draw(setting: Setting, say: Say) -> Finding:
    """Time of a step and throughput at batches of 1 to 2048."""
    setting.start(say)
    v100 = Setting(Conditions(scale="paper"), "lstm")
    rounds = max(STEADY, setting.rounds)
    panels = []
    notes = [
        how_fitted(),
        f"The V100's time grows without bound as a straight line, so its best batch is the largest; the thesis' is "
        f"{paper.BEST_BATCH}, beyond which time doubles with the batch. The text gives no numbers of the thesis' CPU.",
    ]
    if not setting.virtual:
        taken = _measured(setting, rounds, say)
        panels.append(_panel(CPU, taken))
        rates = {batch: batch / seconds for batch, seconds in taken.items()}
        steep = [b for (a, s), (b, t) in pairwise(taken.items()) if t >= STEEP * s]
        gain = max(rates.values()) / rates[1]
        notes = [
            f"{setting.source.name} in {setting.settings.dtype}, real time, medians of {rounds} rounds that go through "
            f"all sizes. Here {gain:.3g} times as many rows/s are computed at the best batch as one by one, and "
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
    v100.start(say)
    computed = {batch: v100.cost_s("lstm", batch) for batch in BATCHES}
    panels.append(_panel(f"Fig. 2.3, bottom: a V100, fitted, hidden {paper.HIDDEN}", computed, published=True))
    return Finding(setting.facts(), tuple(panels), tuple(notes))


def _measured(setting: Setting, rounds: int, say: Say) -> dict[int, float]:
    """Seconds of a step at each size, of which every round runs all: none is measured at the machine's best alone."""
    inputs = {batch: (setting.words(batch), setting.zeros(batch), setting.zeros(batch)) for batch in BATCHES}
    seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    say.expect(rounds)
    for number in range(rounds):
        say(f"round {number + 1}")
        for batch in BATCHES:
            seconds[batch].append(setting.timed(partial(setting.model.run, "lstm", *inputs[batch])))
        say.keep(_panel(CPU, _medians(seconds)))
    return _medians(seconds)


def _medians(seconds: dict[int, list[float]]) -> dict[int, float]:
    return {batch: median(taken) for batch, taken in seconds.items()}


def _panel(title: str, seconds: dict[int, float], published: bool = False) -> Panel:
    """Microseconds and rows per second at each batch size, beside those of the thesis if `published`."""
    points = []
    for batch, second in seconds.items():
        us = paper.STEP_US.get(batch) if published else None
        theirs: dict[str, Value] = {} if us is None else {"us": us, "rows_per_s": batch / us * 1e6}
        points.append(Point({"batch": batch}, {"us": second * 1e6, "rows_per_s": batch / second}, theirs))
    columns = [Column("\nbatch", "at", "batch", "{:,}"), *beside("us", "us"), *beside("rows/s", "rows_per_s")]
    return Panel(title, tuple(column for column in columns if published or column.part != "paper"), tuple(points))


EXPERIMENT = experiment(
    "2.3", "one LSTM step at batch sizes of 1 to 2048: time and throughput", "lstm", draw, ("hidden",)
)
