"""The registers that plugins and tests add to, and how to leave them as they were."""

from __future__ import annotations

import sys

import pytest

from minifuse import stages
from minifuse.model.cells import config
from minifuse.testing import capacity


def forget_labs() -> None:
    """Let the modules of labs be imported again, which registers their stages."""
    for name in [name for name in sys.modules if name.startswith("minifuse_lab_") or name == "stage"]:
        del sys.modules[name]


def keep_registers(patch: pytest.MonkeyPatch) -> None:
    """Have copies of the registers, until the patch is undone."""
    patch.setattr(stages, "_STAGES", {kind: dict(stages.stages(kind)) for kind in stages.KINDS})
    patch.setattr(capacity, "_COUNTS", dict(capacity._COUNTS))
    patch.setattr(config, "_REGISTERED", dict(config._REGISTERED))
    config._describe.cache_clear()
    patch.setattr(sys, "path", [*sys.path])
