"""Costs of cells from a profile: steps by type and rows, and the host by the bytes of their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from helpers import refusal
from machines import profile

from minifuse.core.errors import UsageError
from minifuse.core.places import State
from minifuse.core.plan import Layout, Plan, Span, Work
from minifuse.core.shapes import StateRows
from minifuse.model.cells.source import CellSource
from minifuse.model.cells.types import CellType, matrix_weights
from minifuse.model.source import resolve
from minifuse.simulate.cells import MeasuredCells, kind_of_cells
from minifuse.simulate.grid import Grid
from minifuse.simulate.machine_profile import Host, MachineProfile

MIX = "cellular+states+cells"


def _types(name: str) -> Mapping[str, CellType]:
    source = resolve(name)
    assert isinstance(source, CellSource)
    return source.outline("float32").types


TREE = _types("treelstm:hidden=8")


def _profile(seconds: Mapping[str, float]) -> MachineProfile:
    """A leaf takes a second a row, every other node ten."""
    cells = {
        name: Grid(
            axes={"weights": (float(matrix_weights(kind.cell)),), "rows": (1, 100)},
            seconds=(1, 100) if name == "leaf" else (10, 1000),
        )
        for name, kind in TREE.items()
    }
    return profile(cells=cells, host={kind_of_cells(TREE): {MIX: Host(seconds=dict(seconds))}})


def _plan(*cells: str, **layout: Any) -> Plan:
    work = tuple(Work("a", node, node + 1, cell) for node, cell in enumerate(cells))
    places = tuple(State((), node) for node in range(len(cells)))
    return Plan(0, 0, work, places, layout=Layout(**layout))


def test_every_wave_is_a_step() -> None:
    """Two leaves together, then a node."""
    cost = MeasuredCells(TREE, _profile({}), MIX)
    assert cost.device_s(_plan("leaf", "leaf", "internal2", waves=(Span(0, 2), Span(2, 3)))) == pytest.approx(2 + 10)
    padded = _plan("leaf", shape=StateRows(0, 4, 1))
    assert cost.device_s(padded) == pytest.approx(4), "idle rows are computed, too"
    assert cost(padded) == cost.device_s(padded)


def test_the_host_moves_the_inputs() -> None:
    """A leaf reads a token of 8 bytes; a node two states of 8 numbers and two more, 4 bytes each."""
    cost = MeasuredCells(TREE, _profile({"iteration": 1.0, "sequence": 0.0, "input byte": 2.0}), MIX)
    assert cost.terms(_plan("leaf", "leaf", "internal2"))["input byte"] == 2 * 8 + 4 * 8 * 4
    assert cost(_plan("leaf")) == pytest.approx(1 + 1.0 + 2 * 8)


def test_hosts_of_other_kinds_are_not_used() -> None:
    with refusal(UsageError, "the cell 'lstm'", "leaf", "minifuse calibrate"):
        MeasuredCells(_types("lstm:hidden=8"), _profile({}), MIX)
    with refusal(UsageError, "models of the kind", "internal1+internal2+leaf", "minifuse calibrate"):
        MeasuredCells(TREE, _profile({}).model_copy(update={"host": {}}), MIX)
