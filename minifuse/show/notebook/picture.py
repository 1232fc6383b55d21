"""A figure that a notebook shows at the end of a cell, without pyplot."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import INK, SOFT
from minifuse.show.notebook.played import Played

DPI = 100
LETTER = 0.065  # inches: the width of a letter of eight points


class Picture(Figure):
    """A matplotlib figure outside pyplot: it is shown once, and need not be closed."""

    def __init__(self, width: float, height: float, **more: Any) -> None:
        super().__init__(figsize=(width, height), dpi=DPI, layout="constrained", **more)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture as PNG, in twice the resolution, for sharp screens."""
        written = io.BytesIO()
        self.savefig(written, format="png", dpi=2 * DPI, bbox_inches="tight", pad_inches=0.08)
        png = written.getvalue()
        width, height = struct.unpack(">II", png[16:24])
        return png, {"width": width // 2, "height": height // 2}


def check_runs(runs: Sequence[object], what: str) -> None:
    """Raise `UsageError` unless `runs` has at least one run, and only runs."""
    if not runs or (other := next((one for one in runs if not isinstance(one, Played)), None)) is not None:
        given = "nothing" if not runs else f"{other!r:.60}"
        raise UsageError(f"{what} was given {given}: give what play returned, one run or several.")


def explain(picture: Picture, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Put a legend below the picture; `looks` maps meanings to arguments of a `Patch`."""
    if looks:
        patches = [Patch(**{"edgecolor": SOFT, "linewidth": 0.5, **look}, label=means) for means, look in looks.items()]
        wide = 0.4 + LETTER * max(map(len, looks))
        columns = max(1, min(len(looks), int(picture.get_figwidth() / wide)))
        picture.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def plain(axes: Axes) -> None:
    """Remove the frame and the marks of ticks; their labels stay."""
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    axes.tick_params(axis="x", pad=7)  # away from the lowest label of the other axis
