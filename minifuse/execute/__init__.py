"""Executors: who runs a plan, and in which time."""

from minifuse.execute.real import RealExecutor
from minifuse.execute.run_ahead import RunAhead
from minifuse.execute.virtual import VirtualExecutor

__all__ = ["RealExecutor", "RunAhead", "VirtualExecutor"]
