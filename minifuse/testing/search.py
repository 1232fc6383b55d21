"""The search for a scenario that breaks a law, made by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from minifuse.techniques import Technique
from minifuse.testing.laws import NAMES, SUBJECTS, Law, laws_of, of_one_run
from minifuse.testing.observe import observe
from minifuse.testing.subject import Subject

__all__ = ["check_laws", "put_through"]


def check_laws(examples: int = 25, **only: str) -> str:
    """Put every technique and mix with these stages through every law: `check_laws(batching="mine")`.

    A stage that serves transformers and models of cells is put through the laws of both.

    Returns:
        A sentence that names the laws, the techniques and mixes, and the number of scenarios.

    Raises:
        LawBroken: with the law's name, on the smallest scenario found that breaks it.
        ValueError: no valid mix has these stages.
    """
    found = {subject.noun: (subject, list(subject.mixes(**only))) for subject in SUBJECTS}
    if not any(rows for _, rows in found.values()):
        raise ValueError(f"No valid mix has {only}: is the stage registered, and is there one that it fits?")
    for subject, rows in found.values():
        for row in rows:
            put_through(subject, row, examples, derandomize=True)
    names = dict.fromkeys([*NAMES, *(name for subject, rows in found.values() if rows for name in subject.law_names)])
    held = "; ".join(f"for {noun} {', '.join(row.name for row in rows)}" for noun, (_, rows) in found.items() if rows)
    return f"The laws {', '.join(names)} held on {examples} scenarios each: {held}."


def put_through(
    subject: Subject, row: Technique, examples: int, *, dealt: int | None = None, **hypothesis_settings: Any
) -> None:
    """Check the laws on so many scenarios for a row, each observed once for all of them.

    Args:
        dealt: check only two of the laws that compare runs, the one of this number and the next, each with `examples`
            scenarios of its own.
    """
    compared = [law for law in laws_of(subject).values() if law is not of_one_run]
    some = compared if dealt is None else (compared * 2)[dealt % len(compared) :][:2]
    for laws in [compared] if dealt is None else [[law] for law in some]:
        _put_through(subject, row, examples, laws, **hypothesis_settings)


def _put_through(subject: Subject, row: Technique, examples: int, laws: list[Law], **hypothesis_settings: Any) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **hypothesis_settings,
    )
    @given(subject.scenarios(row))
    def attempt(scenario: Any) -> None:
        case = subject.case(row, scenario)
        seen = observe(case)
        for law in (of_one_run, *laws):
            law(case, seen)

    attempt()
