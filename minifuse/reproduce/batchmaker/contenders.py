"""The contenders of BatchMaker's figures: cellular batching, padded batches of chains, merged graphs of trees."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.curve import Contender
from minifuse.reproduce.load import Load


def padded(key: str, head: str, pad: str, width: int = paper.BUCKET_WIDTH, **options: object) -> Contender:
    """A baseline that pads the chains of a bucket, to the bucket's end or to the longest of the batch."""
    batching = {f"batching.{name}": value for name, value in {"pad": pad, "bucket_width": width, **options}.items()}
    return Contender(key, head, "graph-padded", batching)


def merged(key: str, head: str, per: str) -> Contender:
    """A baseline that merges the graphs of a set, operator by operator or cell by cell."""
    return Contender(key, head, "graph-merged", {"batching.per": per, "batching.overlap": True})


CELLULAR = Contender("cellular", "cellular", "cellular")
BASELINES = ("longest", "bucket")
PADDED = (CELLULAR, *(padded(pad, pad, pad) for pad in BASELINES))
ABOUT_PADDED = (
    "longest and bucket are graph-padded, buckets of width 10 in turn: padded to the longest request of a batch, and "
    "to the bucket's end as the thesis' baselines are. Gains are over the better of the two."
)
MERGED = (CELLULAR, merged("dynet", "per operator", "operator"), merged("fold", "per cell", "cell"))
ABOUT_MERGED = (
    "per operator and per cell are graph-merged: sets of input trees merged operator by operator as DyNet does, and "
    "cell by cell as TensorFlow Fold does. Both merge the next set while one runs, which the thesis' DyNet did not."
)


def batch_sizes(load: Load) -> str:
    """What the largest batch of a sweep over `MERGED` bounds: nodes of a task, or trees of a set."""
    sizes = ", ".join(
        f"{curve.contender.head} {curve.points[max(curve.points)].mean_batch:.1f}" for curve in load.curves.values()
    )
    return (
        f"{paper.TREE_BATCH} bounds the nodes of a cellular task, and the trees of a merged set, whose batches of "
        f"nodes may be larger, as in the thesis. Mean rows of a batch at the highest rate of each: {sizes}."
    )
