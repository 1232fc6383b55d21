"""The words of a picture: none may stand over others, or outside."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from minifuse.show.notebook.picture import Picture

__all__ = ["assert_no_words_overlap"]

TOUCH = 1.0  # points, by which boxes of letters may run into each other


def assert_no_words_overlap(picture: Picture, least: int) -> None:
    """Raise AssertionError unless all words, and so many at least, have a place of their own in the picture."""
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    renderer = canvas.get_renderer()
    shown = [(one.get_text(), one.get_window_extent(renderer).padded(-TOUCH)) for one in _texts(picture)]
    assert len(shown) >= least, f"only {shown}"
    over = [(a, b) for i, (a, one) in enumerate(shown) for b, other in shown[:i] if one.overlaps(other)]
    assert not over, f"words over others: {over}"
    outside = [a for a, one in shown if not (picture.bbox.x0 <= one.x0 and one.x1 <= picture.bbox.x1)]
    assert not outside, f"words outside the picture: {outside}"


def _texts(picture: Picture) -> Iterator[Text]:
    """All words that are shown."""
    for legend in picture.legends:
        yield from legend.get_texts()
    for axes in picture.axes:
        named = [axes.title, axes._left_title, *axes.texts]  # type: ignore[attr-defined]
        for axis, side in ((axes.xaxis, "labelbottom"), (axes.yaxis, "labelleft")):
            low, high = sorted(axis.get_view_interval())
            if axes.axison:
                named.append(axis.label)
                if axis.get_tick_params().get(side, True):
                    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
                    named += [label for at, label in ticks if low <= at <= high]
        yield from (one for one in named if one.get_visible() and one.get_text().strip())
