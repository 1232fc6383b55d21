"""Plans which steps of cells are timed, and makes tables of their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import CellType
from minifuse.simulate.grid import Grid
from minifuse.simulate.tables import Runs, Taken, timer

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class CellTables:
    """Times a step of each type of cell of one model."""

    shape: Mapping[str, CellType]  # by name

    def runs(self, model: CellModel) -> Runs:
        """Prepare a step of each type with each number of rows."""

        def step(kind: CellType, rows: int) -> Callable[[], object]:
            inputs = [torch.zeros(rows, *spec.shape, dtype=spec.dtype, device=model.device) for spec in kind.inputs]
            return lambda: model.run(kind.name, *inputs)

        device = model.device.type
        return {
            ("step", kind.name, rows): timer(step(kind, rows), device) for kind in self.shape.values() for rows in ROWS
        }

    def steps(self, taken: Taken) -> dict[str, Grid]:
        """Return the seconds of a step of each type, by the number of rows."""
        return {name: Grid.of({"rows": ROWS}, lambda rows, name=name: taken["step", name, rows]) for name in self.shape}
