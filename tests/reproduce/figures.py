"""What the tests of several figures share: running a figure, and outcomes and curves made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from minifuse.reproduce import EXPERIMENTS
from minifuse.reproduce.curve import Contender, Curve, Outcome
from minifuse.reproduce.experiment import Conditions, Finding, Say


def found(name: str, **conditions: Any) -> Finding:
    return EXPERIMENTS[name].prepare(Conditions(**conditions))(Say())


def outcome(throughput: float, p90: float = 1.0, **more: float) -> Outcome:
    values = {field.name: more.get(field.name, 0.0) for field in fields(Outcome)}
    return Outcome(**{**values, "throughput": throughput, "p90": p90})


def curve(capacity: float, points: Mapping[float, Outcome], key: str = "cellular") -> Curve:
    return Curve(Contender(key, key, "cellular"), 64, capacity, dict(points))
