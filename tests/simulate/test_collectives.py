"""Messages between ranks, as a profile tells them."""

from __future__ import annotations

import pytest
from helpers import refusal
from machines import profile

from minifuse.core.errors import UsageError
from minifuse.simulate.collectives import MeasuredCollectives
from minifuse.simulate.grid import Grid
from minifuse.simulate.look_up import BeyondProfile
from minifuse.simulate.machine_profile import MessageTables

AXES = {"ranks": (2, 4), "bytes": (100, 1000)}
TABLES = MessageTables(sums=Grid(axes=AXES, seconds=(1, 10, 2, 20)), gathers=Grid(axes=AXES, seconds=(3, 30, 9, 90)))


def test_messages_are_looked_up_by_ranks_and_bytes() -> None:
    """A machine that is twice as slow takes twice as long for messages, too."""
    measured = profile().model_copy(update={"messages": TABLES, "slow": 2.0})
    two, four = (MeasuredCollectives(measured, ranks) for ranks in (2, 4))
    assert (two.sum_s(100), four.sum_s(1000), two.gather_s(1000)) == pytest.approx((2.0, 40.0, 60.0))
    with pytest.warns(BeyondProfile, match="up to 1,000 bytes of a message"):
        assert four.gather_s(2000) == pytest.approx(360.0)


def test_messages_that_were_not_measured() -> None:
    with refusal(UsageError, "what messages cost among 2 ranks", "calibrate --ranks 2"):
        MeasuredCollectives(profile(), 2)
    with refusal(UsageError, "among 8 ranks, only among 2 to 4", "calibrate --ranks 8"):
        MeasuredCollectives(profile().model_copy(update={"messages": TABLES}), 8)
