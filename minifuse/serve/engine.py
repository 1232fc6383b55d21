"""The engine that serves: the loop with a trace, requests that follow one another, and checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from minifuse.contracts.lawful import Lawful
from minifuse.core.engine import Engine
from minifuse.core.turns import Turns
from minifuse.core.watchdog import Watchdog
from minifuse.trace import Trace

__all__ = ["ServingEngine"]


@dataclass(eq=False, repr=False)
class ServingEngine(Engine):
    """An engine whose log is a `Trace`, and which no policy can keep waiting for ever."""

    arrivals: Turns = field(default_factory=Turns, kw_only=True)
    trace: Trace = field(default_factory=Trace, kw_only=True)

    def __post_init__(self) -> None:
        self.observers = (*self.observers, Lawful(), Watchdog(self.batching.name))
        super().__post_init__()
