"""Counts what the host does for a plan, and fits the seconds of each."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np

from minifuse.core.places import Pages
from minifuse.core.plan import Plan

Terms = Mapping[str, float]


def host_terms(plan: Plan, num_layers: int = 0) -> dict[str, float]:
    """Count what in a plan costs the host time.

    Args:
        num_layers: layers of the model; 0 if it computes cells.
    """
    work = plan.work
    return {
        "iteration": 1.0,
        "layer": num_layers,
        "sequence": len(work),
        "newcomer": len(plan.admitted),
        "token": sum([stop - start for _, start, stop, _ in work if stop - start > 1]),
        "block": sum([len(place.blocks) for place in plan.places if isinstance(place, Pages)]),
        "copy": len(plan.moves),
        "copied token": sum([move.num_tokens for move in plan.moves]),
        "wave": len(plan.waves) - 1,
        "lane": len(plan.layout.lanes),
        "idle": plan.num_idle,
    }


def fit(counted: Seq[Terms], seconds: Seq[float], scale: Seq[float]) -> dict[str, float]:
    """Fit non-negative seconds of each term, by least squares of `(sum - seconds) / scale`.

    A term whose best value is negative takes no time, the most negative first, and the others are fitted again. Terms
    that nothing counts are left out.

    >>> {name: round(value, 3) for name, value in fit([{"a": 1, "b": 2}, {"a": 1, "b": 5}], [5, 11], [1, 1]).items()}
    {'a': 1.0, 'b': 2.0}
    """
    names = [name for name in counted[0] if any(terms[name] for terms in counted)]
    found = dict.fromkeys(names, 0.0)
    weights = 1.0 / np.asarray(scale)
    wanted = np.asarray(seconds) * weights
    while names:
        matrix = np.array([[terms[name] for name in names] for terms in counted]) * weights[:, None]
        size = np.abs(matrix).max(0)
        values = np.linalg.lstsq(matrix / size, wanted, rcond=1e-9)[0]
        if values.min() >= 0:
            return found | {name: float(value) for name, value in zip(names, values / size, strict=True)}
        del names[int(values.argmin())]
    return found
