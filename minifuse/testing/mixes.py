"""Finds the mixes in which a stage is tried, and the laws that apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minifuse.contracts.fault import is_own
from minifuse.core.errors import UsageError
from minifuse.io.parsing import unknown
from minifuse.serve.assembly import choose
from minifuse.stages import COMPUTED_WHOLE, kinds_of, stage
from minifuse.techniques import TECHNIQUES, Technique, for_model
from minifuse.testing.applies import lacks
from minifuse.testing.laws import SUBJECTS
from minifuse.testing.statements import OWN_LAWS, names_of
from minifuse.testing.subject import Subject

Mixes = list[tuple[Subject, Technique]]


def mixes_of(name: str) -> Mixes:
    """Return the techniques, then the mixes, that use a stage or a technique's stages.

    Args:
        name: the name of the stage or the technique.
    """
    kinds, bare = kinds_of(name), name.rpartition(".")[2]
    found: Mixes = []
    for subject in SUBJECTS:
        own = TECHNIQUES.get(name)
        alike = for_model(own, subject.kind).stages if own is not None and subject.kind in own.serves else None
        for row in subject.mixes():
            if row.stages == alike or any(row.stages[kind] == bare for kind in kinds):
                found.append((subject, row))
    return sorted(found, key=lambda mix: mix[1].name not in TECHNIQUES)


def can_be_computed(row: Technique) -> bool:
    """Return whether the attention can keep the policy's token budget, if there is one.

    An attention that computes whole rectangles cannot keep a budget.
    """
    return not stage("attention", row.attention).reads & COMPUTED_WHOLE or choose(row).policy.token_budget is None


def unclaimed_cuts(mixes: Mixes) -> list[str]:
    """Return a user's policies that have a default token budget without declaring `cuts`."""
    rows = {row.batching: row for _, row in mixes if not is_own(stage("batching", row.batching))}
    uncut = {name: row for name, row in rows.items() if not stage("batching", name).cuts}
    return [name for name, row in uncut.items() if choose(row).policy.token_budget is not None]


def with_options(mixes: Mixes, given: Mapping[str, Any]) -> Mixes:
    """Return the mixes that have all of these options, set to these values.

    Args:
        given: values, by `stage.option`.

    Raises:
        UsageError: an option is in no mix, or no mix has all of them, or a value is not allowed.
    """
    known = dict.fromkeys(name for _, row in mixes for name in sorted(row.option_names))
    for name in given:
        if name not in known:
            raise unknown("option of these stages", name, known)
    found = [(subject, _with_options(row, given)) for subject, row in mixes if row.option_names.issuperset(given)]
    if not found:
        raise UsageError(f"No mix has all of {', '.join(given)}: give those of stages that fit together.")
    return found


def _with_options(row: Technique, given: Mapping[str, Any]) -> Technique:
    options = choose(row, given).options
    typed = {name: getattr(options[kind], rest) for name in given for kind, _, rest in [name.partition(".")]}  # type: ignore[index]
    return replace(row, options={**row.options, **typed})


def applying(mixes: Mixes) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many mixes each law applies to, and what mixes lack for the others."""
    names = [*names_of(*(subject for subject, _ in mixes)), *OWN_LAWS]
    of_subject = {subject.noun: {*names_of(subject), *OWN_LAWS} for subject, _ in mixes}
    lacking = {name: [lacks(name, row) for subject, row in mixes if name in of_subject[subject.noun]] for name in names}
    counts = {name: reasons.count(None) for name, reasons in lacking.items()}
    left_out = {name: str(lacking[name][0]) for name, count in counts.items() if not count}
    return {name: count for name, count in counts.items() if count}, left_out
