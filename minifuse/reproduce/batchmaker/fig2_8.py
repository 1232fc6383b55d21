"""BatchMaker's Figure 2.8: LSTM, padded batching with buckets of several widths."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import padded
from minifuse.reproduce.batchmaker.setting import BY_FIG_3, Setting, experiment
from minifuse.reproduce.experiment import Finding, Say
from minifuse.reproduce.load import curve_panel, num_reports, peak_panel, sweep
from minifuse.reproduce.verdict import aim, shown, sweep_notes


def draw(setting: Setting, say: Say) -> Finding:
    """Padding with buckets of several widths, to the bucket's end."""
    setting.start(say)
    quick = setting.conditions.scale == "quick"
    widths = (1, paper.BUCKET_WIDTH, 40) if quick else paper.WIDTHS_8
    contenders = [padded(f"w{width}", f"width {width}", "bucket", width) for width in widths]
    say.expect(num_reports(setting, setting.sizes[-3:]))
    load = sweep(setting, say, contenders, "wmt15", setting.sizes[-3:])
    narrow, middle, wide = (load.curves[f"w{width}"] for width in (1, paper.BUCKET_WIDTH, 40))
    lowest = min(narrow.points)
    latencies = [curve.points[lowest].p90 * 1e3 for curve in (narrow, middle, wide)]
    best = max(load.curves.values(), key=lambda curve: curve.peak)
    notes = (
        *setting.notes(),
        *sweep_notes(load, BY_FIG_3),
        aim(
            "width 1 has the best peak",
            f"{shown(narrow.peak)} requests/s, and the best is {best.contender.head} with {shown(best.peak)}",
            "width 1",
            narrow.peak >= 0.98 * best.peak,
        ),
        aim(
            "wider buckets have the lower latency at low load, and the lower peak",
            f"90th percentiles at {shown(lowest)} requests/s of widths 1, {paper.BUCKET_WIDTH} and 40: "
            f"{', '.join(f'{ms:.3g}' for ms in latencies)} ms; peaks {shown(narrow.peak)}, {shown(middle.peak)} and "
            f"{shown(wide.peak)} requests/s",
            "the same order, without numbers",
            latencies[2] < latencies[0] and wide.peak < narrow.peak,
        ),
    )
    panels = (curve_panel("Fig. 2.8: bucket widths", load), peak_panel("Fig. 2.8: peaks", load))
    return Finding(setting.facts(), panels, notes)


EXPERIMENT = experiment("2.8", "LSTM: padded batching with buckets of several widths", "lstm", draw)
