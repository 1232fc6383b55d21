"""Huge numbers for every numeric option of every command and stage: one sentence, or a run that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest

from minifuse.cli.compare import CompareOptions
from minifuse.cli.reproduce import FigureOptions
from minifuse.cli.run import RunOptions
from minifuse.core.errors import UsageError
from minifuse.io.parsing import MANY
from minifuse.options import describe_options
from minifuse.stages import KINDS, stages
from minifuse.techniques import TECHNIQUES

Cli = Callable[..., Any]

BEYOND = ("1e300", "1e30", "1" + "0" * 30, str(10**18), str(10**15), "1e300s", "1e10s", "-1e300", "1e300GiB")
LAWS = (
    "{}",
    "constant:{}",
    "poisson:{}",
    "gamma:{}:cv=2",
    "gamma:1s:cv={}",
    "uniform:1:{}",
    "lognormal:{}:1",
    "ttft:{}",
)
NUMERIC = ("int", "float", "Arrival", "Lengths")
TAKEN = ("--kv-memory",)  # the machine says how much is too much
SMALL = ("run", "--model", "random:small", "--clock", "virtual")
LENGTHS = ("--requests", 2, "--prompt-length", 3, "--output-length", 2)


def declared() -> Iterator[tuple[str, Callable[[str], Any]]]:
    """The parser of every option of a number, by its flag, of every command."""
    for options in (RunOptions, CompareOptions, FigureOptions):
        for hint in get_type_hints(options, include_extras=True).values():
            one = hint.__metadata__[0]
            if any(name in str(hint.__origin__) for name in NUMERIC):
                yield one.default, one.parser  # where typer keeps the name of an option


FLAGS = dict(declared())


def test_the_options_of_numbers_are_found() -> None:
    assert {"--requests", "--arrival", "--prompt-length", "--seed", "--rounds", "--rates", "--goodput"} <= {*FLAGS}
    assert not {"--model", "--json", "--trace"} & {*FLAGS}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_number_beyond_all_measure_is_refused(flag: str) -> None:
    for text in (law.format(number) for number in BEYOND for law in LAWS):
        if flag in TAKEN and text in BEYOND:
            continue
        with pytest.raises(UsageError) as refused:
            FLAGS[flag](text)
        assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    "typed",
    [
        ("--requests", MANY),
        ("--prompts-per-request", MANY),
        ("--requests", 1000, "--prompt-length", 1 << 20),
        ("--max-new-tokens", MANY),
        ("--tensor-parallel", MANY),
        ("--top-k", MANY),
        ("--seed", MANY),
        ("--max-batch", MANY),
        ("--kv-memory", 10**18),
        ("--kv-memory", "1e300"),
        ("--arrival", "poisson:1e5s"),
        ("--arrival", "gamma:1e5s:cv=100"),
    ],
)
def test_the_largest_number_is_served_or_refused(minifuse: Cli, typed: tuple[object, ...]) -> None:
    lengths = [] if "--requests" in typed else LENGTHS
    done = minifuse(*SMALL, *lengths, *typed)
    errors = [line for line in done.err.splitlines() if line.startswith("error:")]
    assert (done.code, len(errors)) in ((0, 0), (2, 1)), done.err


STAGE_OPTIONS = [
    (kind, name, described["name"])
    for kind in KINDS
    for name, cls in stages(kind).items()
    for described in describe_options(cls.Options)
    if "number" in described["allowed"] or "duration" in described["allowed"]
]


@pytest.mark.parametrize(("kind", "name", "option"), STAGE_OPTIONS)
def test_huge_options_of_stages(minifuse: Cli, kind: str, name: str, option: str) -> None:
    row = next(row for row in TECHNIQUES.values() if row.stages[kind] == name)
    texts = ("--model", "random:small", "--prompt-length", 3, "--output-length", 2)
    sizes = texts if "transformer" in row.serves else ("--model", "lstm:hidden=8")
    run = ("run", "--clock", "virtual", "--requests", 2, "--technique", row.name)
    for value in (10**30, MANY, "1e300s", "1e5s"):
        done = minifuse(*run, *sizes, "--set", f"{kind}.{option}={value}")
        errors = [line for line in done.err.splitlines() if line.startswith("error:")]
        assert (done.code, len(errors)) in ((0, 0), (2, 1)), done.err
        assert done.code == 2 or value in (MANY, "1e5s"), value
