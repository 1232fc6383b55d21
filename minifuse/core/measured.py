"""What was measured of a plan beside its computing."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.report import Ran, StepReport


class Measured(NamedTuple):
    """What a plan cost beside its computing: bytes, and seconds."""

    moving_s: float = 0.0  # for which the plan's moves held the computation up, those within the device included
    num_messages: int = 0  # collective calls between the ranks of a tensor parallel run
    message_bytes: int = 0  # that each rank contributed to them
    num_gathers: int = 0  # inputs of batched cells that had to be copied together first
    gathered_rows: int = 0
    gathering_s: float = 0.0
    to_host_bytes: int = 0
    to_host_s: float = 0.0
    to_device_bytes: int = 0
    to_device_s: float = 0.0
    exposed_s: float = 0.0  # for which the computing waited for transfers, its own or others that were under way

    @property
    def hidden_s(self) -> float:
        """Seconds of transfers beside computing."""
        return max(0.0, self.to_host_s + self.to_device_s - self.exposed_s)


NOTHING_MEASURED = Measured()


def measured_of(one: Ran | StepReport) -> Measured:
    """What was measured of a plan that has run; zeros where nothing was."""
    measured: Measured | None = one.measured
    return NOTHING_MEASURED if measured is None else measured
