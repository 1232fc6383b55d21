"""Looks times up in a profile, and warns where it does not tell them."""

from __future__ import annotations

import warnings

from minifuse.simulate.grid import Grid
from minifuse.simulate.host_terms import Terms

UNITS = {
    "tokens": "tokens",
    "rows": "rows",
    "context": "tokens of context",
    "queries": "tokens of a prompt",
    "earlier": "tokens before those of a prompt",
    "bytes": "bytes of a message",
}  # of the axes


class BeyondProfile(UserWarning):
    """A simulated iteration lies beyond what was measured."""


class LookUp:
    """Looks up times; warns once of each axis and term that goes beyond the profile.

    Args:
        slow: everything takes so many times as long as the tables tell.
    """

    def __init__(self, slow: float) -> None:
        self.slow = slow
        self._warned: set[str] = set()

    def warn(self, about: str, text: str) -> None:
        """Warn once, whatever the text."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(text, BeyondProfile, stacklevel=3)

    def seconds(self, grid: Grid, *point: float) -> float:
        """Return a table's seconds at a point."""
        if not grid.covers(*point):
            for name, at in zip(grid.axes, point, strict=True):
                if at > grid.axes[name][-1]:
                    self.warn(
                        name,
                        f"The profile was measured up to {grid.axes[name][-1]:,.0f} {UNITS[name]}, and an iteration "
                        f"has {at:,.0f}: beyond, times grow as they did between the last two.",
                    )
        return self.slow * grid(*point)

    def host_s(self, host: Terms, terms: Terms) -> float:
        """Return the host's seconds for a plan's terms; 0 if `host` is empty."""
        seconds = 0.0
        for name, count in terms.items() if host else ():
            if name in host:
                seconds += host[name] * count
            elif count:
                self.warn(
                    f"host {name}",
                    f"A simulated iteration counts {count:,} under {name!r}, and no measured one of these stages does: "
                    "this costs the host no time here.",
                )
        return self.slow * seconds
