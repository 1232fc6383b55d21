"""Draws scenarios, and options of a plugin's stages; records which options are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from minifuse.contracts.fault import is_own
from minifuse.core.errors import UsageError
from minifuse.options import Declared, declared_options
from minifuse.stages import stage
from minifuse.techniques import Technique
from minifuse.testing.subject import Case, Subject


def try_each(
    drawn: st.SearchStrategy[Any],
    attempt: Callable[[Any], object],
    examples: int,
    *,
    seed: int | None = None,
    derandomize: bool = False,
) -> None:
    """Call `attempt` with `examples` random values; calls that return False do not count.

    With `seed` or `derandomize`, the values are the same every time. An error of `attempt` ends the search: hypothesis
    does not shrink the value.
    """

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @given(drawn)
    def one(value: Any) -> None:
        if attempt(value) is False:
            reject()

    (one if seed is None else seeded(seed)(one))()


def draw_options(draw: st.DrawFn, options: Mapping[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Draw a value of each option."""
    return {name: draw(values) for name, values in options.items()}


@st.composite
def cases(draw: st.DrawFn, subject: Subject, row: Technique) -> Case | UsageError:
    """Draw a case of a technique, or return the error of making its stages.

    The options of a user's stages get random values from `values_of`, unless the scenario has a value that the stage
    accepts. If the stages refuse this combination of values, the defaults are used.
    """
    scenario = draw(subject.scenarios(row))
    if not row.options and all(is_own(stage(kind, name)) for kind, name in row.stages.items()):
        return subject.case(row, scenario)
    own = {name: declared for name, declared in own_options(row).items() if name not in row.options}
    known = dict(scenario.options)
    taken = {name for name, declared in own.items() if name in known and declared.accepts(known[name])}
    drawn = {name: draw(st.sampled_from(values_of(declared))) for name, declared in own.items() if name not in taken}
    defaults = {name: declared.default for name, declared in own.items()}
    for options in (known | drawn, known | defaults):
        case = subject.case(row, replace(scenario, options=tuple(options.items())))
        try:
            case.stages()
        except UsageError as error:
            refused = error
            continue
        if row.options.items() <= case.settings.items():
            return case
        refused = UsageError(f"{', '.join(row.options)} cannot be tried in this mix: give other values, or none.")
    return refused


def own_options(row: Technique) -> dict[str, Declared]:
    """Return the options that a user's stages in `row` declare, by `stage.option`."""
    found: dict[str, Declared] = {}
    for kind, name in row.stages.items():
        options = stage(kind, name).Options
        for option, declared in declared_options(options).items():
            owner = next(base for base in options.__mro__ if option in vars(base).get("__annotations__", {}))
            if not is_own(owner):
                found[f"{kind}.{option}"] = declared
    return found


def values_of(declared: Declared) -> list[Any]:
    """Return values of an option to try: its default, then values near its limits.

    None is among them if the option may be None. Without a declared range, numbers from the default upwards are
    tried. A text without declared choices is tried only with its default.
    """
    kind, default, how = declared.kind, declared.default, declared.how
    least = default if how["minimum"] is None else how["minimum"]
    ends = [end for end in (least, how["maximum"]) if end is not None]
    values: list[Any] = [default, *how["choices"]]
    if kind is bool:
        values += [False, True]
    elif kind in (int, float):
        values += [least + step for step in (0, 1, 2, 4) if least is not None and kind is int]
        values += [*ends, sum(ends) / 2] if kind is float and ends else ends
        values += [default * 2] if default else []
    values.append(None)
    return list(dict.fromkeys(value for value in values if declared.accepts(value)))


@contextmanager
def recorded(options: set[type[Any]]) -> Iterator[set[tuple[type[Any], str]]]:
    """Record which options the block reads, each with its class.

    Reading all options through `vars` does not count.
    """
    read: set[tuple[type[Any], str]] = set()

    def recording(cls: Any) -> Callable[[Any, str], Any]:
        names, get = {field.name for field in fields(cls)}, cls.__getattribute__

        def getattribute(self: Any, name: str) -> Any:
            if name in names:
                read.add((cls, name))
            return get(self, name)

        return getattribute

    with ExitStack() as stack:
        for cls in options:
            stack.enter_context(patch.object(cls, "__getattribute__", recording(cls)))
        yield read
