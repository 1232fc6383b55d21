"""Plans which steps of cells are timed, and makes tables of their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import CellType
from minifuse.simulate.grid import Grid
from minifuse.simulate.tables import Runs, Taken, timer

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class CellTables:
    """Times a step of each type of cell of one model."""

    model: CellModel

    def runs(self) -> Runs:
        """Prepare a step of each type with each number of rows."""
        types, device = self.model.types.values(), self.model.device.type
        return {("step", kind.name, rows): timer(self._step(kind, rows), device) for kind in types for rows in ROWS}

    def _step(self, kind: CellType, rows: int) -> Callable[[], object]:
        inputs = [torch.zeros(rows, *spec.shape, dtype=spec.dtype, device=self.model.device) for spec in kind.inputs]
        return lambda: self.model.run(kind.name, *inputs)

    def steps(self, taken: Taken) -> dict[str, Grid]:
        """Return the seconds of a step of each type, by the number of rows."""
        return {
            name: Grid.of({"rows": ROWS}, lambda rows, name=name: taken["step", name, rows])
            for name in self.model.types
        }
