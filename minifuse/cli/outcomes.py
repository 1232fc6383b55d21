"""Shows the outcomes of a lab's tests: in words, pictures and pages, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minifuse.cli.text import console
from minifuse.io.parsing import number

if TYPE_CHECKING:
    from minifuse.labs.judge import Outcome
    from minifuse.labs.lab import Lab


INDENT = 12


def as_json(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as `lab check --json` prints it."""
    test = {name: getattr(outcome.test, name) for name in ("name", "hidden", "says")}
    return {
        **test,
        **{name: getattr(outcome, name) for name in ("held", "points", "what", "steps")},
        "of": outcome.test.points,
        "picture": [*outcome.picture],
    }


def show(lab: Lab, folder: Path, outcomes: list[Outcome]) -> None:
    """Print a line per test; below a failed test, its case and reading advice."""
    from rich.padding import Padding

    out = console()
    printed = next((one.printed for one in outcomes if one.printed), "")
    told: set[str] = set()
    for one in outcomes:
        sign, style = ("holds", "green") if one.held else ("not written", "dim") if one.unwritten else ("fails", "red")
        points = f"{one.points:g} of {one.test.points:g} points"
        out.print(f"{sign:<12}{one.test.name.replace('_', ' ')} ({points})", style=style)
        lines = [one.test.says]
        if one.what in told:  # such as a syntax error in the file, which fails every test
            lines += ["As above."]
        elif not one.held:
            told.add(one.what)
            lines += [one.what, *one.picture]
            lines += [] if one.unwritten else [one.test.read_again]
            if one.events is not None and (page := _page(folder, one)) is not None:
                lines.append(f"See it: {page}, in a browser.")
        for line in lines:
            out.print(Padding(line, (0, 0, 0, INDENT)))
    if printed:
        out.print("\nYour file printed:\n" + printed.rstrip())
    got, most = sum(one.points for one in outcomes), sum(one.test.points for one in outcomes)
    rest = sum(lab.points.values()) - most
    hidden = f" The hidden tests have {rest:g} more." if rest else ""
    out.print(f"\n{got:g} of {most:g} points in {number(len(outcomes), 'test')}.{hidden}")


def _page(folder: Path, outcome: Outcome) -> Path | None:
    """Write the replay page of a failed run; None if it cannot be shown."""
    from minifuse.show.page import write_page
    from minifuse.show.traced_runs import TracedRun

    page = folder / f"{outcome.test.name}.html"
    try:
        write_page([TracedRun("solution", outcome.events or [])], page)
    except Exception:  # a stage may have decided something that no page can show
        return None
    return page
