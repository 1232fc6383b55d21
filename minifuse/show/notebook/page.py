"""Shows the replay page of runs in a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import colour_numbers
from minifuse.show.notebook.picture import check_runs
from minifuse.show.notebook.played import Played
from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun


@dataclass(frozen=True)
class Page:
    """A page in a notebook. `text` is the whole document, which loads nothing else."""

    text: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        frame = f'<iframe srcdoc="{html.escape(self.text)}" style="width: 100%; height: {self.height}px; border: 0">'
        return f"<div>{frame}</iframe></div>"  # IPython warns if the text begins with an iframe


def replay(*played: Played, address: str = "", height: int = 600) -> Page:
    """Make the replay page of runs of the same requests.

        replay(play("static", requests), play("orca", requests), address="i=4&predict=admitted")

    Args:
        address: what the page shows first, as after # in its own addresses: run=, b=, i= (a column), j=, request=,
            by=, mode=, theme=, stops=, predict=. The page names parts that it does not understand.
        height: the height of the frame, in pixels.

    Raises:
        UsageError: an argument is not a run, or the runs have different requests.
    """
    check_runs(played, "replay")
    if not isinstance(height, int) or height < 1:
        raise UsageError(f"height is {height!r}: give pixels, from 1.")
    runs = [TracedRun(run.name, run.events, title=run.name) for run in played]
    return Page(assemble(record(runs, colour_numbers(played[0])), address), height)
