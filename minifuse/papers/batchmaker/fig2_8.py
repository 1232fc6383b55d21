"""BatchMaker's Figure 2.8: LSTM, padded batching with buckets of several widths."""

from __future__ import annotations

from collections.abc import Sequence

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import Load, num_reports, padded, sweep
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
        judged=_judged(setting, load, "Buckets in turns", [f"w{width}" for width in widths]),
        fullest=_judged(setting, load, "The fullest bucket first (ours)", [one.key for one in fullest])
        if setting.virtual
        else (),
    )


def _judged(setting: Setting, load: Load, turn: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Judge how the width of buckets decides peak and latency.

    Args:
        turn: which bucket starts a batch.
        keys: the contenders, from the narrowest buckets to the widest.
    """
    curves = [load.curves[key] for key in keys]
    narrow, wide = curves[0], curves[-1]
    middle = next(curve for curve in curves if curve.contender.key.endswith(str(paper.BUCKET_WIDTH)))
    lowest = min(narrow.points)
    narrow_s, wide_s = (curve.points[lowest].each("p90") for curve in (narrow, wide))
    rounds = range(setting.rounds)
    return notes(
        "batchmaker/widths",
        turn=turn,
        widths=COMPARED,
        best=max(curves, key=lambda curve: curve.peak),
        lowest=lowest,
        latencies=[curve.points[lowest]["p90"] for curve in (narrow, middle, wide)],
        peaks=[curve.peak for curve in (narrow, middle, wide)],
        narrow_is_best=[
            narrow.peaks[number] >= (1 - ALIKE) * max(curve.peaks[number] for curve in curves) for number in rounds
        ],
        wide_is_lower=[
            wide_s[number] < narrow_s[number] and wide.peaks[number] < narrow.peaks[number] for number in rounds
        ],
    )
