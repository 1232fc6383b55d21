"""Stages are shallow: at most two classes of minifuse's own below the protocol."""

from __future__ import annotations

import pytest

from minifuse.contracts.fault import is_own
from minifuse.core import stages as core
from minifuse.stages import KINDS, PROTOCOLS, Kind, stages

STAGES = [(kind, name) for kind in KINDS for name, cls in stages(kind).items() if is_own(cls)]


@pytest.mark.parametrize(("kind", "name"), STAGES)
def test_at_most_two_levels_below_the_protocol(kind: Kind, name: str) -> None:
    cls = stages(kind)[name]
    between = [base.__name__ for base in cls.__mro__ if is_own(base) and not getattr(base, "_is_protocol", False)]
    assert len(between) <= 2, between
    assert any(base in cls.__mro__ for base in PROTOCOLS[kind].__mro__ if base.__module__ == core.__name__)
