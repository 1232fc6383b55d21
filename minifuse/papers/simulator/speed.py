"""Tells how slow this machine is now, against its profile.

Shared machines change their speed from second to second.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from minifuse.attention.layouts import PagedStage
from minifuse.core.errors import UsageError
from minifuse.model.cells.source import CellSource
from minifuse.model.cells.types import matrix_weights
from minifuse.model.source import Source
from minifuse.simulate.cell_tables import CellTables
from minifuse.simulate.machine_profile import MachineProfile
from minifuse.simulate.measured import MeasuredCost
from minifuse.simulate.operators import Iterating, kv_for, num_iterated
from minifuse.simulate.shapes import shapes
from minifuse.simulate.tables import Run

CONTEXT = 16  # tokens
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # tokens, or rows of cells, of what is timed


class Speed:
    """Times the layers of the measured model that is most like another.

    Raises:
        UsageError: the profile has measured no model of this kind.
    """

    def __init__(self, profile: MachineProfile, source: Source) -> None:
        known = [one for one in shapes() if one.name in profile.models and _kind(one) == _kind(source)]
        if not known:
            raise UsageError(
                f"The profile has measured no model of the kind of {source.name}: run minifuse calibrate without "
                "--model."
            )
        size = source.config.num_parameters
        near = min(known, key=lambda one: abs(one.config.num_parameters / size - 1))
        self._runs = [*(_steps if isinstance(near, CellSource) else _layers)(profile, near)]

    def slowness(self) -> float:
        """Return how many times as long as in the profile the layers take now."""
        return median(run(0)[part] / expected for run, part, expected in self._runs)


Timed = tuple[Run, str, float]  # an iteration or step, the part that counts, and its seconds in the profile


def _kind(source: Source) -> str:
    config: Any = source.config
    return str(config.kind if isinstance(source, CellSource) else config.family)


def _layers(profile: MachineProfile, source: Source) -> Iterator[Timed]:
    """Yield the layers of a transformer."""
    model: Any = source.load(profile.dtype)
    cost = MeasuredCost(model.config, profile, "paged")
    pieces_of = {count: ((1, CONTEXT),) * count for count in COUNTS}
    iterating = Iterating(model, PagedStage(), kv_for(model, pieces_of.values(), num_iterated(model)))
    for count, pieces in pieces_of.items():
        yield iterating.iteration(pieces), "layer", cost.layers_s(count) / model.config.num_layers


def _steps(profile: MachineProfile, source: Source) -> Iterator[Timed]:
    """Yield the steps of cells."""
    model: Any = source.load(profile.dtype)
    runs = CellTables(model.types).runs(model)
    for name, kind in model.types.items():
        for rows in COUNTS:
            yield runs["step", name, rows], "step", profile.cells[name](matrix_weights(kind.cell), rows)
