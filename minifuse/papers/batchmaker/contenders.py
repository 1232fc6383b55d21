"""The contenders of BatchMaker's figures: cellular batching, padded batches of chains, merged graphs of trees."""

from __future__ import annotations

from collections.abc import Mapping

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.curve import Contender, Curve


def padded(key: str, head: str, pad: str, width: int = paper.BUCKET_WIDTH, **options: object) -> Contender:
    """Pads chains to their bucket's end, or to the longest of the batch."""
    batching = {f"batching.{name}": value for name, value in {"pad": pad, "bucket_width": width, **options}.items()}
    return Contender(key, head, "graph-padded", batching)


def merged(key: str, head: str, per: str) -> Contender:
    """Merges the graphs of a set, per operator or per cell."""
    return Contender(key, head, "graph-merged", {"batching.per": per, "batching.overlap": True})


CELLULAR = Contender("cellular", "cellular", "cellular")
BASELINES = ("longest", "bucket")
PADDED = (CELLULAR, *(padded(pad, pad, pad) for pad in BASELINES))
MERGED = (CELLULAR, merged("dynet", "per operator", "operator"), merged("fold", "per cell", "cell"))


def batch_sizes(curves: Mapping[str, Curve]) -> list[str]:
    """Mean rows of a batch at the highest rate of each contender."""
    return [f"{curve.contender.head} {curve.last['mean_batch']:.1f}" for curve in curves.values()]
