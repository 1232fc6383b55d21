"""The conformance kit: the laws every stage must keep, as property tests (needs the `test` extra).

A stage of your own is put through all of them by

    from minifuse.testing import check_laws
    import my_stage                                  # registers it

    def test_my_stage():
        check_laws(batching="mine")                  # with every memory and attention it fits

Each law is a function in `minifuse.testing.laws` that raises `LawBroken`; its `law` is the law's name. Stages for
models of cells have laws of their own, in `minifuse.testing.cell_laws`: `check_cell_laws(batching="mine")`.
"""

from minifuse.testing.cell_laws import CELL_LAWS, check_cell_laws
from minifuse.testing.laws import LAWS, check_laws
from minifuse.testing.observe import Observation, observe
from minifuse.testing.scenario import Scenario, mixes, scenarios

__all__ = [
    "CELL_LAWS",
    "LAWS",
    "Observation",
    "Scenario",
    "check_cell_laws",
    "check_laws",
    "mixes",
    "observe",
    "scenarios",
]
