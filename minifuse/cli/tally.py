"""Counts how far `minifuse check` has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minifuse.contracts.fault import is_own
from minifuse.io.parsing import number
from minifuse.options import describe_options
from minifuse.stages import stage

if TYPE_CHECKING:
    from minifuse.testing.hits import Hits


@dataclass
class Tally:
    """Counts the scenarios, mixes and laws tried, and what no scenario tested."""

    mixes: int = 0
    laws: dict[str, int] = field(default_factory=dict)  # law -> the number of mixes that it applies to
    left_out: dict[str, str] = field(default_factory=dict)  # law that applies to no mix -> what the stages lack
    uncut: list[str] = field(default_factory=list)  # policies that always have a budget, and do not declare `cuts`
    unclaimed: list[str] = field(default_factory=list)  # properties about which the policy claims nothing
    tried: dict[str, int] = field(default_factory=dict)  # mix -> scenarios tried
    unread: list[str] = field(default_factory=list)  # options that a stage of a plugin never read
    hits: dict[str, list[Hits]] = field(default_factory=dict)  # memory -> the hits of each mix with it

    @property
    def unfound(self) -> list[str]:
        """Return plugins' memories that kept KV, but never let a new request find any."""
        own = self._of_plugins().items()
        return [name for name, hits in own if any(one.kept for one in hits) and not any(one.found for one in hits)]

    @property
    def uncompared(self) -> dict[str, tuple[int, int]]:
        """Count, per memory, the runs that the law second life left out, and all runs.

        Only plugins' memories without an option `keep` are counted: if there is one, the law turns it off.
        """
        told = {}
        for name, hits in self._of_plugins().items():
            left, runs = sum(one.left for one in hits), sum(one.runs for one in hits)
            if left and all(option["name"] != "keep" for option in describe_options(stage("memory", name).Options)):
                told[name] = left, runs
        return told

    def leave_out_uncompared(self) -> None:
        """List the law second life as left out if it compared no run."""
        told = self.uncompared
        if told and told.keys() == self.hits.keys() and all(left == runs for left, runs in told.values()):
            self.laws.pop("second life", None)
            self.left_out["second life"] = "a run at whose end memory keeps no KV"

    def _of_plugins(self) -> dict[str, list[Hits]]:
        return {name: hits for name, hits in self.hits.items() if not is_own(stage("memory", name))}

    @property
    def scenarios(self) -> int:
        return sum(self.tried.values())

    @property
    def untried(self) -> int:
        """Count the mixes on which no scenario was tried."""
        return self.mixes - sum(number > 0 for number in self.tried.values())

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        names = ("left_out", "unclaimed", "uncut", "unread", "unfound", "uncompared", "scenarios")
        counts = {name: getattr(self, name) for name in names}
        return {"laws": [*self.laws], "in_mixes": self.laws, "mixes": self.tried, **counts}

    def __str__(self) -> str:
        return f"{number(self.scenarios, 'scenario')} in {self.mixes - self.untried} of {self.mixes} mixes"
