"""Runs a figure, and makes outcomes and curves by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from minifuse.model.text.presets import PRESETS
from minifuse.papers import EXPERIMENTS
from minifuse.papers.curve import Contender, Curve, Outcome
from minifuse.papers.experiment import Conditions, Finding, Say
from minifuse.papers.simulator import landscape


def found(name: str, **conditions: Any) -> Finding:
    return EXPERIMENTS[name].prepare(Conditions(**{"rounds": 1, **conditions}))(Say())


def quickly(patch: pytest.MonkeyPatch) -> None:
    """Shrink the small model, which takes most of the time of a real run, and the workloads of the landscape."""
    smaller = {"vocab_size": 512, "hidden_size": 128, "num_layers": 2, "head_dim": 16, "intermediate_size": 344}
    rotary = replace(PRESETS["small"].rotary, dim=16)
    patch.setitem(PRESETS, "small", replace(PRESETS["small"], **smaller, rotary=rotary))
    patch.setattr(landscape, "WORKLOADS", landscape.WORKLOADS[1:2])


def run(throughput: float, p90: float = 1.0, **more: float) -> dict[str, float]:
    """The outcome of one run."""
    return {"throughput": throughput, "p90": p90, "mean_batch": 0.0, **more}


def outcome(*runs: Mapping[str, float]) -> Outcome:
    return Outcome(runs)


def curve(capacity: float, points: Mapping[float, Mapping[str, float]], key: str = "cellular") -> Curve:
    """A contender's curve, of one run at each rate."""
    outcomes = {rate: Outcome((one,)) for rate, one in points.items()}
    return Curve(Contender(key, key, "cellular"), 64, capacity, outcomes, (capacity,))
