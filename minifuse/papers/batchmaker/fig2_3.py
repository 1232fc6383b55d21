"""BatchMaker's Figure 2.3: one LSTM step at growing batch sizes.

It is measured on this machine, and computed for the fitted V100.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from statistics import median

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import best_size
from minifuse.papers.batchmaker.machine import how_fitted
from minifuse.papers.batchmaker.setting import STEADY, Setting, experiment
from minifuse.papers.experiment import Conditions, Panel, Point, Say, Values
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import Claim, by_rate, verdict

BATCHES = tuple(2**power for power in range(12))
HERE = "Fig. 2.3, top: this machine's CPU"
STEEP = 1.8  # time "approximately doubles" if a doubled batch takes at least this many times as long


@experiment("2.3", "one LSTM step at batch sizes of 1 to 2048: time and throughput", "lstm", takes=("hidden",))
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure the time of a step and the throughput at batches of 1 to 2048."""
    panels = []
    values: Values = {}
    if not setting.virtual:
        rounds = max(STEADY, setting.rounds)
        taken = _measured(setting, rounds, say)
        panels.append(_panel(HERE, taken))
        rates = {batch: batch / seconds for batch, seconds in taken.items()}
        gain = max(rates.values()) / rates[1]
        values = {
            "rounds": rounds,
            "gain": gain,
            "best": best_size(rates),
            "steep_at": [after for (_, s), (after, t) in pairwise(taken.items()) if t >= STEEP * s] or "(none)",
            "improves": gain > 1,
        }
    v100 = Setting(Conditions(scale="paper"), "lstm")
    v100.start(say)
    computed = {batch: v100.cost_s("lstm", batch) for batch in BATCHES}
    panels.append(_panel(f"Fig. 2.3, bottom: a V100, fitted, hidden {paper.HIDDEN}", computed, paper.STEP_US))
    return Drawn(panels, fitted=how_fitted(), steep=STEEP, judged=_judged(computed), **values)


def _judged(seconds: Mapping[int, float]) -> list[str]:
    """Judge times that were not fitted, by what the thesis tells of them."""
    best = paper.BEST_BATCH
    gain = 2 * seconds[best // 2] / seconds[best]
    doubled = {float(batch): [seconds[batch] / seconds[batch // 2]] for batch in BATCHES if batch > best}
    return [
        verdict(f"Rows/s at batch {best} over batch {best // 2}", [gain], paper.GAIN_512),
        by_rate("Time of a batch over that of half of it", doubled, Claim.about(2.0), by="batch"),
    ]


def _measured(setting: Setting, rounds: int, say: Say) -> dict[int, float]:
    """Return the median seconds of a step at each batch size.

    Each round measures all sizes, so that a moment in which the machine is faster favours no size.
    """
    inputs = {batch: (setting.words(batch), setting.zeros(batch), setting.zeros(batch)) for batch in BATCHES}
    seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    medians: dict[int, float] = {}
    say.expect(rounds)
    for number in range(rounds):
        say(f"round {number + 1}")
        for batch in BATCHES:
            seconds[batch].append(setting.timed(partial(setting.model.run, "lstm", *inputs[batch])))
        medians = {batch: median(taken) for batch, taken in seconds.items()}
        say.keep(_panel(HERE, medians))
    return medians


def _panel(title: str, seconds: Mapping[int, float], published_us: Mapping[int, float] | None = None) -> Panel:
    """Return microseconds and rows per second by batch size, with the thesis' if given."""
    points = []
    for batch, second in seconds.items():
        us = (published_us or {}).get(batch)
        theirs: Values = {} if us is None else {"us": us, "rows_per_s": batch / us * 1e6}
        points.append(Point({"batch": batch}, {"us": second * 1e6, "rows_per_s": batch / second}, theirs))
    (columns,) = tables("batchmaker/fig2_3")
    return Panel(title, tuple(one for one in columns if published_us or one.part != "paper"), tuple(points))
