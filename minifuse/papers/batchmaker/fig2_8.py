"""BatchMaker's Figure 2.8: LSTM, padded batching with buckets of several widths."""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import num_reports, padded, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import ALIKE
from minifuse.papers.experiment import Say
from minifuse.papers.page import Drawn


@experiment(
    "2.8",
    "LSTM: padded batching with buckets of several widths",
    "lstm",
    other={"paper": {"requests": paper.REQUESTS}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure buckets of several widths; chains are padded to the end of their bucket."""
    quick = setting.conditions.scale == "quick"
    widths = (1, paper.BUCKET_WIDTH, 40) if quick else paper.WIDTHS_8
    contenders = [padded(f"w{width}", f"width {width}", "bucket", width) for width in widths]
    say.expect(num_reports(setting, setting.sizes[-3:]))
    load = sweep(setting, say, contenders, "wmt15", setting.sizes[-3:])
    narrow, middle, wide = (load.curves[f"w{width}"] for width in (1, paper.BUCKET_WIDTH, 40))
    lowest = min(narrow.points)
    latencies = [curve.points[lowest]["p90"] for curve in (narrow, middle, wide)]
    best = max(load.curves.values(), key=lambda curve: curve.peak)
    rounds = range(setting.rounds)
    peaks = [[curve.peaks[number] for curve in load.curves.values()] for number in rounds]
    narrow_s, wide_s = (curve.points[lowest].each("p90") for curve in (narrow, wide))
    return Drawn(
        load.panels("Fig. 2.8", "bucket widths"),
        sweep=load.notes(),
        load=load,
        best=best,
        lowest=lowest,
        latencies=latencies,
        narrow_is_best=[narrow.peaks[number] >= (1 - ALIKE) * max(peaks[number]) for number in rounds],
        wide_is_lower=[
            wide_s[number] < narrow_s[number] and wide.peaks[number] < narrow.peaks[number] for number in rounds
        ],
    )
