"""Executors run plans, in real or in virtual time."""

from minifuse.execute.real import RealExecutor
from minifuse.execute.run_ahead import RunAhead
from minifuse.execute.virtual import VirtualExecutor

__all__ = ["RealExecutor", "RunAhead", "VirtualExecutor"]
