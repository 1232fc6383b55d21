"""BatchMaker's Figure 2.8: LSTM, padded batching with buckets of several widths."""

from __future__ import annotations

from collections.abc import Mapping

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import padded
from minifuse.papers.batchmaker.load import Load, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import ALIKE
from minifuse.papers.experiment import Say
from minifuse.papers.page import Drawn, notes

NARROW, WIDE = 1, 40
COMPARED = (NARROW, paper.BUCKET_WIDTH, WIDE)


@experiment(
    "2.8",
    "LSTM: padded batching with buckets of several widths",
    "lstm",
    other={"paper": {"requests": paper.REQUESTS}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure buckets of several widths; chains are padded to the end of their bucket."""
    quick = setting.conditions.scale == "quick"
    widths = COMPARED if quick else paper.WIDTHS_8
    contenders = [padded(f"w{width}", f"width {width}", "bucket", width) for width in widths]
    fullest = [padded(f"f{width}", f"fullest {width}", "bucket", width, turn="fullest") for width in COMPARED]
    say.expect(num_reports(setting, setting.sizes[-3:]))
    load = sweep(setting, say, [*contenders, *fullest] if setting.virtual else contenders, "wmt15", setting.sizes[-3:])
    return Drawn(
        load.panels("Fig. 2.8", "bucket widths"),
        sweep=load.notes(),
        judged=_judged(setting, load, "Buckets in turns", {width: f"w{width}" for width in widths}),
        fullest=_judged(setting, load, "The fullest bucket first (ours)", {width: f"f{width}" for width in COMPARED})
        if setting.virtual
        else (),
    )


def _judged(setting: Setting, load: Load, turn: str, keys: Mapping[int, str]) -> tuple[str, ...]:
    """Judge how the width of buckets decides peak and latency.

    Args:
        turn: which bucket starts a batch.
        keys: the contenders by width, from the narrowest buckets to the widest.
    """
    curves = [load.curves[key] for key in keys.values()]
    compared = [load.curves[keys[width]] for width in COMPARED]
    narrow, wide = compared[0], compared[-1]
    lowest = min(narrow.points)
    narrow_s, wide_s = (curve.points[lowest].each("p90") for curve in (narrow, wide))
    rounds = range(setting.rounds)
    return notes(
        "batchmaker/widths",
        turn=turn,
        widths=COMPARED,
        best=max(curves, key=lambda curve: curve.peak),
        lowest=lowest,
        latencies=[curve.points[lowest]["p90"] for curve in compared],
        peaks=[curve.peak for curve in compared],
        narrow_is_best=[
            narrow.peaks[number] >= (1 - ALIKE) * max(curve.peaks[number] for curve in curves) for number in rounds
        ],
        wide_is_lower=[
            wide_s[number] < narrow_s[number] and wide.peaks[number] < narrow.peaks[number] for number in rounds
        ],
    )
