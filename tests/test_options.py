"""Options of a stage: parsed from texts and values, described, and refused when wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from helpers import refusal

from minifuse.core.errors import UsageError
from minifuse.core.stages import option
from minifuse.options import NoOptions, describe_options, offered, parse_options


@dataclass(frozen=True)
class Options:
    count: int = option(8, "how many", minimum=1, batch_size=True)
    limit: int | None = option(None, "how many at most", minimum=1)
    window: float = option(0.5, "how long", minimum=0.0, unit="s")
    ratio: float = option(0.25, "how much")
    eager: bool = option(False, "whether at once")
    order: str = option("first", "what comes first", choices=("first", "shortest"))
    workers: int = option(2, "threads", minimum=1, maximum=64)
    share: float = option(0.5, "part", maximum=1, of_evictions=True)


def _parse(**texts: Any) -> Options:
    return parse_options("batching 'toy'", Options, texts)


def test_defaults() -> None:
    assert _parse() == Options(8, None, 0.5, 0.25, False, "first")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "3", 3),
        ("count", 3, 3),
        ("count", "1", 1),
        ("limit", "12", 12),
        ("limit", "none", None),
        ("limit", None, None),
        ("limit", 5, 5),
        ("window", "200ms", 0.2),
        ("window", "2s", 2.0),
        ("window", "0s", 0.0),
        ("window", 1.5, 1.5),
        ("window", 2, 2.0),
        ("ratio", "-1.5", -1.5),
        ("ratio", "1e-3", 0.001),
        ("eager", "on", True),
        ("eager", "off", False),
        ("eager", True, True),
        ("order", "shortest", "shortest"),
        ("workers", "64", 64),
        ("share", "1", 1.0),
    ],
)
def test_values(name: str, text: Any, value: Any) -> None:
    parsed = getattr(_parse(**{name: text}), name)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("count", "0", "a whole number, at least 1"),
        ("count", "-3", "at least 1"),
        ("count", "3.5", "a whole number"),
        ("count", 2.5, "a whole number"),
        ("count", "three", "a whole number"),
        ("count", "", "a whole number"),
        ("count", "none", "a whole number"),
        ("count", None, "a whole number"),
        ("limit", "0", "a whole number, at least 1, or none"),
        ("limit", "many", "or none"),
        ("window", "2", "a duration such as 500ms or 2s"),
        ("window", "-1s", "a duration"),
        ("window", -1.0, "at least 0"),
        ("window", float("nan"), "at least 0"),
        ("window", "soon", "a duration"),
        ("ratio", "much", "a number"),
        ("eager", "true", "on or off"),
        ("eager", 1, "on or off"),
        ("eager", ["on"], "on or off"),
        ("order", "last", "first or shortest"),
        ("workers", "65", "a whole number from 1 to 64"),
        ("workers", "0", "a whole number from 1 to 64"),
        ("share", "1.5", "a number, at most 1"),
    ],
)
def test_wrong_values(name: str, text: Any, allowed: str) -> None:
    with refusal(UsageError, "batching 'toy'", name, repr(text), allowed):
        _parse(**{name: text})


def test_unknown_options() -> None:
    with refusal(UsageError, "batching 'toy'", "'windw'", "did you mean", "window", "count", "order"):
        _parse(windw="2s")
    with refusal(UsageError, "memory 'plain'", "'x'", "none"):
        parse_options("memory 'plain'", NoOptions, {"x": "1"})


def test_no_options() -> None:
    assert isinstance(parse_options("memory 'plain'", NoOptions, {}), NoOptions)
    assert describe_options(NoOptions) == ()


def test_description() -> None:
    described = [{**option} for option in describe_options(Options)]
    assert [option.pop("batch_size") for option in described] == [True] + [False] * 7
    assert [option.pop("of_evictions") for option in described] == [False] * 7 + [True]
    assert described == [
        {"name": "count", "default": 8, "allowed": "a whole number, at least 1", "help": "how many"},
        {
            "name": "limit",
            "default": None,
            "allowed": "a whole number, at least 1, or none",
            "help": "how many at most",
        },
        {
            "name": "window",
            "default": "0.5s",
            "allowed": "a duration such as 500ms or 2s, at least 0",
            "help": "how long",
        },
        {"name": "ratio", "default": 0.25, "allowed": "a number", "help": "how much"},
        {"name": "eager", "default": False, "allowed": "on or off", "help": "whether at once"},
        {"name": "order", "default": "first", "allowed": "first or shortest", "help": "what comes first"},
        {"name": "workers", "default": 2, "allowed": "a whole number from 1 to 64", "help": "threads"},
        {"name": "share", "default": 0.5, "allowed": "a number, at most 1", "help": "part"},
    ]


def test_options_that_a_model_may_offer() -> None:
    @dataclass(frozen=True)
    class Asking:
        size: int = option(8, "how many")
        costs: str | None = option(None, "what it costs", offered=True)
        place: str | None = option("here", "where", offered=True)

    assert offered(Asking()) == {"costs": None, "place": "here"}
    assert offered(NoOptions()) == offered(Options()) == {}
