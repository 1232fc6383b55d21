"""BatchMaker's experiments (thesis, chapter 2): the rows of the register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minifuse.reproduce.batchmaker_chains import fig7, fig8, fig9, fig11
from minifuse.reproduce.batchmaker_seq2seq import fig13
from minifuse.reproduce.batchmaker_setting import Setting, setting
from minifuse.reproduce.batchmaker_step import fig3
from minifuse.reproduce.batchmaker_timeline import fig5
from minifuse.reproduce.batchmaker_trees import fig14, fig15
from minifuse.reproduce.experiment import Conditions, Experiment, Finding, Run, Say

__all__ = ["EXPERIMENTS"]

# What differs from the scale where it would take too long, or a figure needs another size.
OTHER: dict[str, dict[str, dict[str, Any]]] = {
    "2.3": {"cpu": {"hidden": 1024}},
    "2.11": {"cpu": {"requests": 1000, "shares": (0.25, 0.5, 0.9, 1.2)}, "paper": {"requests": 4000}},
    "2.14": {"cpu": {"requests": 800}, "paper": {"requests": 3000}},
    "2.15": {"cpu": {"requests": 800}, "paper": {"requests": 3000}},
    "2.13": {
        "cpu": {"requests": 400, "sizes": (32, 64, 128, 256), "shares": (0.1, 0.25, 0.5, 0.8, 1.0, 1.2)},
        "paper": {"requests": 4000},
    },
}


def _experiment(
    figure: str, shows: str, kind: str, drawing: Callable[[Setting, Say], Finding], takes: tuple[str, ...]
) -> Experiment:
    def prepare(conditions: Conditions) -> Run:
        own = setting(conditions, kind, **OTHER.get(figure, {}).get(conditions.scale, {}))

        def run(say: Say) -> Finding:
            own.start(say)
            return drawing(own, say)

        return run

    return Experiment(f"batchmaker-fig{figure}", "BatchMaker", f"Fig. {figure}", shows, prepare, frozenset(takes))


def _timeline(conditions: Conditions) -> Run:
    return lambda say: fig5(conditions, say)


LOADED = ("hidden", "rates", "requests")

EXPERIMENTS: tuple[Experiment, ...] = (
    _experiment("2.3", "one LSTM step at batch sizes of 1 to 2048: time and throughput", "lstm", fig3, ("hidden",)),
    Experiment(
        "batchmaker-fig2.5",
        "BatchMaker",
        "Fig. 2.5",
        "the timeline of eight requests: when each joins and leaves, graph against cellular",
        _timeline,
        frozenset(),
    ),
    _experiment("2.7", "LSTM: latency against throughput, cellular against padded batching", "lstm", fig7, LOADED),
    _experiment("2.8", "LSTM: padded batching with buckets of several widths", "lstm", fig8, LOADED),
    _experiment(
        "2.9", "LSTM: queueing and computing time at a quarter of the peak", "lstm", fig9, ("hidden", "requests")
    ),
    _experiment("2.11", "LSTM: lengths of growing variance, and the share of the ideal", "lstm", fig11, LOADED),
    _experiment("2.13", "Seq2Seq on several workers, with one and with two largest batches", "seq2seq", fig13, LOADED),
    _experiment(
        "2.14", "TreeLSTM: cellular against merged graphs, per operator and per cell", "treelstm", fig14, LOADED
    ),
    _experiment("2.15", "TreeLSTM: identical trees, and the share of a hand-written ideal", "treelstm", fig15, LOADED),
)
