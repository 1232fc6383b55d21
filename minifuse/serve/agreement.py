"""Compares the answers of two techniques."""

from __future__ import annotations

from minifuse.core.request import FinishReason
from minifuse.serve.run import Answer, Served

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}  # between results of cells


def differing(first: Served, other: Served, dtype: str) -> tuple[str, ...]:
    """Find comparable answers that differ in tokens, finish reason, or results of cells.

    Both runs served the same requests in the same order. An answer is comparable if it is complete, or ended at logits
    that are not finite.

    Returns:
        The ids of the requests.
    """
    pairs = [(a, b) for a, b in zip(first.answers, other.answers, strict=True) if _comparable(a) and _comparable(b)]
    return tuple(
        a.request.id
        for a, b in pairs
        if (a.token_ids, a.finish_reason) != (b.token_ids, b.finish_reason) or not _alike(a, b, TOLERANCE[dtype])
    )


def _comparable(answer: Answer) -> bool:
    return answer.complete or answer.finish_reason is FinishReason.NAN


def _alike(a: Answer, b: Answer, tolerance: float) -> bool:
    """Return whether results of cells agree, up to rounding that varies with batch size.

    Results are compared in the order of their nodes: the nodes' numbers differ if a model is split by operator.
    """
    mine, other = ([outputs for _, outputs in sorted(answer.results.items())] for answer in (a, b))
    return len(mine) == len(other) and all(
        one.shape == two.shape and one.allclose(two, tolerance, tolerance)
        for outputs, others in zip(mine, other, strict=True)
        for one, two in zip(outputs, others, strict=True)
    )
