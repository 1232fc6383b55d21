"""Tells how slow this machine is now, against its profile.

Shared machines change their speed from second to second.
"""

from __future__ import annotations

from statistics import median

from minifuse.attention.layouts import PagedStage
from minifuse.core.errors import UsageError
from minifuse.model.text.load import TextSource
from minifuse.simulate.machine_profile import MachineProfile
from minifuse.simulate.measured import MeasuredCost
from minifuse.simulate.operators import TokenWise
from minifuse.simulate.shapes import shapes
from minifuse.simulate.tables import timer

COUNTS, TIMES = (1, 8, 64), 5  # tokens of what is timed, and how often


class Speed:
    """Times the layers of a small model that the profile has measured.

    Raises:
        UsageError: the profile has measured none of the models that are measured by default.
    """

    def __init__(self, profile: MachineProfile) -> None:
        source = next((one for one in shapes() if one.name in profile.models and isinstance(one, TextSource)), None)
        if not isinstance(source, TextSource):
            raise UsageError("The profile is of another model than those measured by default: run minifuse calibrate.")
        model, operators = source.load(profile.dtype), PagedStage().backend("cpu", profile.dtype).operators
        token_wise, cost = TokenWise(model, operators), MeasuredCost(source.config, profile, "paged")
        self._runs = [(timer(token_wise.layers(count), "cpu"), cost.layers_s(count)) for count in COUNTS]

    def slowness(self) -> float:
        """Return how many times as long as in the profile the layers take now."""
        return median(seconds(0) / expected for seconds, expected in self._runs for _ in range(TIMES))
