"""Checks a stage written in a notebook: by the laws, and beside the technique's own stage."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from minifuse.contracts.fault import Hung
from minifuse.core.errors import LawBroken, UsageError
from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.show.notebook.played import Played, play
from minifuse.show.observed import brief, told_case, told_run
from minifuse.techniques import mix_for, technique
from minifuse.testing import GRAPHS, TEXTS
from minifuse.testing.alarm import alarm
from minifuse.testing.search import Search

DECISIONS = ("work", "admitted", "moves", "shape", "waves", "lanes")  # of a step's line in the trace
WIDTH = 100  # characters of the picture of a run
SCENARIOS = 10  # random ones, for the laws: a second or two
LONGEST = 400  # characters of a law's message: an error may show whole tensors
MOST = 4  # parts of a decision that a difference shows
PATIENCE_S = 20.0  # of processor time


@dataclass(frozen=True)
class Verdict:
    """What a check has found; a notebook shows it as one coloured line."""

    passed: bool
    text: str

    def __repr__(self) -> str:
        return f"{'passed' if self.passed else 'not yet'}: {self.text}"

    def _repr_html_(self) -> str:
        colour = "#009e73" if self.passed else "#d55e00"
        look = f"border-left: 4px solid {colour}; padding-left: 8px; white-space: pre-wrap; font-family: monospace"
        return f'<div style="{look}">{html.escape(repr(self))}</div>'


def check(
    name: str,
    requests: Iterable[Request] = (),
    *,
    scenarios: int = SCENARIOS,
    batching: str | None = None,
    memory: str | None = None,
    attention: str | None = None,
    model: str = "tiny",
    **how: Any,
) -> Verdict:
    """Check your own stage by the laws, and beside the technique's own stage.

        check("orca", asks("sort 7 2 5", "count from 3 to 9"), batching="mine", max_batch=1)

    The laws of one run are tried on random scenarios. Then `requests` are served with your stage and with the
    technique's own, and both must decide the same in every iteration.

    Args:
        scenarios: how many are tried.
        batching, memory, attention: the name of your stage, which is registered.
        how: options of both runs, as for `play`.

    Raises:
        UsageError: no stage is named, there is no such technique, stage or option, or the mix is impossible.
    """
    own: dict[str, Any] = {"batching": batching, "memory": memory, "attention": attention}
    named = [given for given in own.values() if given is not None]
    if not named:
        raise UsageError("check was given no stage of yours: give its name, such as batching='mine'.")
    subject = GRAPHS if resolve(model).kind == "cells" else TEXTS
    row = mix_for(technique(name), subject.kind, **own)
    asked = [*requests]
    try:
        with alarm(PATIENCE_S):
            Search(subject, row, ()).run(scenarios, seed=0)
            told = f"no law is broken on {scenarios} scenarios"
            if not asked:
                return Verdict(True, f"{told}.")
            mine = play(name, asked, model=model, **own, **how)
    except LawBroken as broken:
        return Verdict(False, _in_words(broken))
    except Hung:
        return Verdict(False, f"it has not ended after {PATIENCE_S:g} s: does a loop of {named[0]!r} end?")
    right = play(name, asked, model=model, **how)
    difference = next(_differences(mine, right), None)
    if difference is not None:
        return Verdict(False, f"{told}, but {difference}")
    return Verdict(True, f"{told}, and all {len(right.steps)} iterations are those of {name}.")


def _in_words(broken: LawBroken) -> str:
    """Say which law is broken, and draw the run that shows it; or say what is not written yet."""
    cause: BaseException | None = broken
    while cause is not None:
        if isinstance(cause, NotImplementedError):
            return f"to be written: {cause}"
        cause = cause.__cause__
    lines = [f"the law {broken.law!r} is broken: {shorten(brief(broken.what), LONGEST)}"]
    if broken.seen is not None:
        lines += [told_case(broken.seen), *told_run(broken.seen, broken.what, WIDTH, places=True)]
    return "\n".join(lines)


def _differences(mine: Played, right: Played) -> Iterator[str]:
    """Yield the differences between two runs, iteration by iteration."""
    for own, other in zip(mine.history.iterations, right.history.iterations, strict=False):
        for what in DECISIONS:
            found, wanted = _decided(own.event, what), _decided(other.event, what)
            if found != wanted:
                here, there = _told(found, wanted), _told(wanted, found)
                yield f"iteration {own.step} differs in {what}: {here}, and {right.name} has {there}."
    if len(mine.steps) != len(right.steps):
        yield f"your run has {len(mine.steps)} iterations, and {right.name}'s {len(right.steps)}."


def _decided(event: Mapping[str, Any], what: str) -> Any:
    """Return a decision of a step's line; work as its sequences and spans."""
    found = event.get(what)
    return [f"{name} [{start}, {stop})" for name, start, stop, *_ in found or ()] if what == "work" else found


def _told(found: Any, other: Any) -> str:
    """Write a decision; a long list from where it differs from the other."""
    if not (isinstance(found, list) and isinstance(other, list)) or len(found) <= MOST:
        return str(found)
    same = next((number for number, (one, two) in enumerate(zip(found, other, strict=False)) if one != two), len(other))
    shown = found[same : same + MOST]
    return f"{'..., ' if same else ''}{str(shown)[1:-1] or 'no more'}{', ...' if same + MOST < len(found) else ''}"
