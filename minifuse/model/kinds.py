"""Describes the requests that each kind of model serves."""

from __future__ import annotations

from typing import NamedTuple


class RequestKind(NamedTuple):
    """Describes what a kind of model reads and produces; defaults suit plugins' cells."""

    of_cells: bool = True  # nothing is sampled, and a request has one prompt
    reads_sentences: bool = True
    reads_trees: bool = True
    produces_tokens: bool = True
    workload: str | None = "wmt15"  # the default synthetic workload; None: random tokens
    extra_tokens: int | None = None  # by default, how many more tokens an answer has than its prompt


_KINDS = {
    "transformer": RequestKind(of_cells=False, reads_trees=False, workload=None),
    "lstm": RequestKind(reads_trees=False, produces_tokens=False),
    # "the input sequence length plus a fixed threshold" (BatchMaker, 2.7.4)
    "seq2seq": RequestKind(reads_trees=False, extra_tokens=20),
    "treelstm": RequestKind(reads_sentences=False, produces_tokens=False, workload="treebank"),
}


def request_kind(kind: str) -> RequestKind:
    """Describe the requests to `transformer`, `lstm`, ... or a plugin's kind."""
    return _KINDS.get(kind, RequestKind())
