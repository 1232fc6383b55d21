"""Writes the verdict of `minifuse check`, on one screen or as JSON."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from minifuse.cli.look_at import look_at, read
from minifuse.cli.tally import Tally
from minifuse.core.errors import LawBroken, shortened
from minifuse.show.observed import LONGEST, brief, told_case, told_run, wrapped
from minifuse.stages import Kind
from minifuse.testing.statements import statement
from minifuse.trace.step import step_decisions

if TYPE_CHECKING:
    from minifuse.testing.observation import Observation


NARROWEST, WIDEST = 40, 80
QUICK = "the laws that were tried on it: all that one run shows, and on each scenario one of those that compare runs"


def held_text(name: str, tally: Tally, stopped: bool, *, quick: bool) -> str:
    """Write the verdict on a stage that kept the laws.

    Args:
        stopped: whether time ran out before everything was tried.
        quick: whether each scenario was tried on only some of the laws.
    """
    laws = QUICK if quick else f"all {len(tally.laws)} laws"
    end = f"{tally}, where time ran out." if stopped else f"{tally}."
    advice = "More scenarios: --scenarios 300; others: --seed 1."
    if quick:
        advice = "Without --quick every scenario meets all laws, and long runs of many requests are tried."
    return _told(f"HOLDS{' so far' * stopped}: {name} kept {laws}, on {end}", tally, advice)


def undecided_text(name: str, tally: Tally) -> str:
    """Write the verdict on a stage that was not tried in each of its mixes."""
    verdict = f"UNDECIDED: no law was found broken, and time ran out when {name} had been tried on {tally}."
    return _told(verdict, tally, "Give more time: a longer --limit, or none.")


def _told(verdict: str, tally: Tally, advice: str) -> str:
    laws = (f"{law} (in {count} mixes)" if count < tally.mixes else law for law, count in tally.laws.items())
    left_out = (f"{law} (needs {what})" for law, what in tally.left_out.items())
    mixes = ", ".join(f"{mix} ({count})" for mix, count in tally.tried.items() if count) or "none"
    lines = [*_wrapped(verdict), "", *_wrapped(f"laws   {', '.join(laws)}", 7)]
    if tally.left_out:
        lines += _wrapped(f"not    {', '.join(left_out)}", 7)
    lines += [*_wrapped(f"mixes  {mixes}", 7), ""]
    for warning in _warnings(tally):
        lines += _wrapped(f"warning: {warning}")
    return "\n".join([*lines, *_wrapped(advice)])


def _warnings(tally: Tally) -> list[str]:
    told = []
    if tally.unclaimed:
        about = " or ".join(tally.unclaimed)
        told.append(f"the policy claims nothing about {about}, so no law checked that (docs/stages.md).")
    told += [
        f"{name} has a token_budget by default, and was mixed with no attention that computes whole rectangles: if it "
        "has one whatever its options, declare cuts = True, and it is refused with them."
        for name in tally.uncut
    ]
    told += [f"no scenario made the stage read its option {name}." for name in tally.unread]
    told += [
        f"{name} keeps or shares KV, and no newcomer found any: no law says that one must." for name in tally.unfound
    ]
    told += [
        f"{name} kept KV at the end of {left} of {runs} runs, which second life does not compare."
        for name, (left, runs) in tally.uncompared.items()
    ]
    return told


def broken_text(name: str, kinds: list[Kind], broken: LawBroken, tally: Tally, again: str) -> str:
    """Write the verdict on a stage that broke a law."""
    seen: Observation | None = broken.seen
    lines = [f'BROKEN: {name} breaks the law "{broken.law}".', ""]
    lines += _wrapped(f"the law   {statement(broken.law).says}", 10)
    lines += _wrapped(f"happened  {shortened(brief(broken.what), LONGEST)}", 10)
    if seen is not None:
        lines += [*_wrapped(f"where     {shortened(told_case(seen), 2 * LONGEST)}", 10), ""]
        lines += [*told_run(seen, broken.what, _width(), places=kinds != ["batching"]), ""]
    lines += _listed("look at", [str(place) for place in look_at(broken, kinds)])
    lines += _listed("read", read(broken.law, seen.case.row if seen is not None else None))
    lines += _wrapped(f"found     on scenario {tally.scenarios}; again with {again}", 10)
    return "\n".join(lines)


def _width() -> int:
    """Return the width of a verdict on this terminal."""
    return max(NARROWEST, min(WIDEST, get_terminal_size().columns))


def _listed(head: str, items: list[str]) -> list[str]:
    return [line for i, item in enumerate(items) for line in _wrapped(f"{head if not i else '':<10}{item}", 10)]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return wrapped(text, _width(), indent)


def broken_json(broken: LawBroken, kinds: list[Kind]) -> dict[str, Any]:
    """Return a broken law as plain values."""
    seen: Observation | None = broken.seen
    told = {
        "law": broken.law,
        "says": statement(broken.law).says,
        "message": brief(broken.what),
        "error": None if broken.__cause__ is None else type(broken.__cause__).__name__,
        "look_at": [place._asdict() for place in look_at(broken, kinds)],
        "read": read(broken.law, None),
    }
    if seen is None:
        return told
    return {
        **told,
        "mix": seen.case.row.name,
        "stages": seen.case.row.stages,
        "capacity": seen.case.capacity,
        "settings": to_jsonable_python(seen.case.settings, fallback=repr),
        "scenario": to_jsonable_python(seen.case.scenario, fallback=repr),
        "steps": [step_decisions(step) for step in seen.steps],
        "run": told_run(seen, broken.what, WIDEST, places=True),
    }
