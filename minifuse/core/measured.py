"""What was measured of a plan, apart from its computation."""

from __future__ import annotations

from typing import NamedTuple

from minifuse.core.report import Ran, StepReport


class Measured(NamedTuple):
    """What a plan cost apart from computation: messages, copies and transfers."""

    moving_s: float = 0.0  # how long computation waited for the plan's moves, including those within the device
    num_messages: int = 0  # collective calls between the ranks of a tensor parallel run
    message_bytes: int = 0  # what each rank contributed to these calls
    num_gathers: int = 0  # inputs of batched cells that had to be copied together first
    gathered_rows: int = 0
    gathering_s: float = 0.0
    to_host_bytes: int = 0
    to_host_s: float = 0.0
    to_device_bytes: int = 0
    to_device_s: float = 0.0
    exposed_s: float = 0.0  # how long computation waited for transfers, the plan's own or others in flight
    on_host_s: float = 0.0  # how long the host attended, beside the device
    awaited_s: float = 0.0  # how long computation waited for the host's attention

    @property
    def hidden_s(self) -> float:
        """Return the seconds of transfers that overlapped with computation."""
        return max(0.0, self.to_host_s + self.to_device_s - self.exposed_s)


NOTHING_MEASURED = Measured()


class Messages(NamedTuple):
    """The collective calls of a plan between simulated ranks."""

    num_messages: int
    message_bytes: int  # what each rank contributes to them
    seconds: float


def measured_of(one: Ran | StepReport) -> Measured:
    """Return what was measured of a completed plan; all zeros if nothing was."""
    measured: Measured | None = one.measured
    return NOTHING_MEASURED if measured is None else measured
