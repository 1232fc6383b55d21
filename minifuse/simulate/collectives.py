"""Looks up how long ranks take for a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minifuse.core.errors import UsageError
from minifuse.simulate.look_up import LookUp

if TYPE_CHECKING:
    from minifuse.simulate.machine_profile import MachineProfile


class MeasuredCollectives:
    """Looks up how long collectives take among some number of ranks.

    Raises:
        UsageError: they were not measured, or not among so many ranks.
    """

    def __init__(self, profile: MachineProfile, ranks: int) -> None:
        tables, points = profile.messages, () if profile.messages is None else profile.messages.sums.axes["ranks"]
        if tables is None or not points[0] <= ranks <= points[-1]:
            among = f"among {ranks} ranks"
            if points:
                several = f" to {points[-1]:.0f}" if len(points) > 1 else ""
                among += f", only among {points[0]:.0f}{several}"
            raise UsageError(
                f"The profile of {profile.machine} does not tell what messages cost {among}: measure them with "
                f"minifuse calibrate --ranks {ranks}, or give another --hardware."
            )
        self._look_up, self._sums, self._gathers = LookUp(profile.slow), tables.sums.at(ranks), tables.gathers.at(ranks)

    def sum_s(self, num_bytes: float) -> float:
        return self._look_up.seconds(self._sums, num_bytes)

    def gather_s(self, num_bytes: float) -> float:
        return self._look_up.seconds(self._gathers, num_bytes)
