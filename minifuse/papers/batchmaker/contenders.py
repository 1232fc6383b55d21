"""The contenders of BatchMaker's figures: cellular batching, padding, merging."""

from __future__ import annotations

from dataclasses import dataclass

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.curve import Contender

CELLULAR = Contender("cellular", "cellular", "cellular")


@dataclass(frozen=True, slots=True)
class HostBound(Contender):
    """A contender whose host builds and merges graphs, fitted to its peak in the thesis."""

    peak: float = 0.0  # requests per second


def padded(key: str, head: str, pad: str, width: int = paper.BUCKET_WIDTH, **options: object) -> Contender:
    """Return a contender that pads to the bucket's end, or to the batch's longest."""
    batching = {f"batching.{name}": value for name, value in {"pad": pad, "bucket_width": width, **options}.items()}
    return Contender(key, head, "graph-padded", batching)


def fullest(workers: int = 1) -> Contender:
    """Return a contender of ours, whose buckets do not take turns: the fullest goes first."""
    return padded("fullest", "fullest", "longest", turn="fullest", workers=workers)


def merged(key: str, head: str, per: str) -> Contender:
    """Return a contender that merges the graphs of a set, per operator or per cell."""
    return Contender(key, head, "graph-merged", {"batching.per": per, "batching.overlap": True})


BASELINES = ("longest", "bucket")
PADDED = (CELLULAR, *(padded(pad, pad, pad) for pad in BASELINES))
FULLEST = fullest()
MERGED = (merged("operator", "per operator", "operator"), merged("cell", "per cell", "cell"))
WIDE_ROWS = 1024  # 64 complete trees of 16 leaves have as many leaves: the largest batch of a merged set
WIDE_CELLULAR = Contender(
    "wide",
    f"cell. {WIDE_ROWS:,}",
    "cellular",
    {"batching.max_batches": f"leaf={WIDE_ROWS},internal2={WIDE_ROWS}"},
)
EQUAL = (WIDE_CELLULAR, *MERGED)  # batches of as many rows, and nothing to pay for merging
RIVALS = (
    HostBound(
        "dynet",
        "DyNet",
        "graph-merged",
        {"batching.per": "operator", "batching.overlap": False},
        peak=paper.DYNET_PEAK_14,
    ),
    HostBound(
        "fold",
        "Fold",
        "graph-merged",
        {"batching.per": "cell", "batching.overlap": True},
        peak=paper.PEAK_14 / paper.TIMES_FOLD_14,
    ),
)


def padded_contenders(virtual: bool) -> tuple[Contender, ...]:
    """Return cellular and padded batching; in virtual time, also of the fullest bucket first."""
    return (*PADDED, FULLEST) if virtual else PADDED


def tree_contenders(virtual: bool) -> tuple[Contender, ...]:
    """Return cellular batching and its rivals, which pay for their host in virtual time only."""
    return (CELLULAR, *(RIVALS if virtual else MERGED))
