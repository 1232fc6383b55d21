"""Plans which steps of cells are timed, and makes tables of their times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import CellType
from minifuse.simulate.grid import Grid
from minifuse.simulate.operators import Laps, Parts, typical
from minifuse.simulate.tables import Run, Runs, Taken

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class CellTables:
    """Times a step of each type of cell of one model."""

    shape: Mapping[str, CellType]  # by name

    def runs(self, model: CellModel) -> Runs:
        """Prepare a step of each type with each number of rows, in random order."""
        runs = [(("step", kind.name, rows), _step(model, kind, rows)) for kind in self.shape.values() for rows in ROWS]
        random.Random("order").shuffle(runs)
        return dict(runs)

    def steps(self, taken: Taken) -> dict[str, Grid]:
        """Return the seconds of a step of each type, by the number of rows."""
        return {
            name: Grid.of({"rows": ROWS}, lambda rows, name=name: taken["step", name, rows]["step"])
            for name in self.shape
        }


def _step(model: CellModel, kind: CellType, rows: int) -> Run:
    """Prepare one step of a type of cell, timed after others like it."""
    device = model.device
    inputs = [torch.zeros(rows, *spec.shape, dtype=spec.dtype, device=device) for spec in kind.inputs]

    def once() -> Parts:
        lap = Laps(device.type)
        model.run(kind.name, *inputs)
        lap("step")
        return lap.seconds

    @torch.inference_mode()
    def run(number: int) -> Parts:
        model.run(kind.name, *inputs)
        return typical(once)

    return run
