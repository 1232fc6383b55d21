"""The table of techniques, mixes of its stages, the register, and the errors of a wrong name or mix."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from helpers import refusal, sentence

from minifuse.batching import Iteration
from minifuse.core.errors import UsageError
from minifuse.memory import Contiguous, Padded, Recompute
from minifuse.serve.assembly import choose
from minifuse.stages import register, stage, stages
from minifuse.techniques import TECHNIQUES, mix, technique

# --- the table


@pytest.mark.parametrize("name", TECHNIQUES)
def test_every_row_can_be_built(name: str) -> None:
    row = technique(name)
    assert row.name == name
    assert mix(row) is row  # its stages exist and fit
    built = choose(row).stages(50)
    assert built.memory.capacity == 50
    assert [built.batching.name, built.memory.name, built.attention.name] == list(row.stages.values())
    assert row.summary
    assert row.serves


def test_unknown_technique() -> None:
    with refusal(UsageError, "'orka'", "did you mean", "orca", *TECHNIQUES):
        technique("orka")
    with pytest.raises(UsageError) as error:
        technique("zzz")
    sentence(error.value, "'zzz'", *TECHNIQUES)
    assert "did you mean" not in str(error.value)


# --- mixing


def test_a_mix_exchanges_only_what_is_named() -> None:
    mixed = mix(technique("orca"), batching="static", memory=None)
    assert tuple(mixed.stages.values()) == ("static", "contiguous", "per_sequence")
    assert mixed.name == "static+contiguous+per_sequence"
    assert (mixed.paper, mixed.section) == ("-", "-")
    assert technique("orca").batching == "iteration"


def test_a_mix_that_changes_nothing_is_the_row() -> None:
    row = technique("orca")
    assert mix(row, batching="iteration", memory="contiguous", attention=None) is row


@pytest.mark.parametrize(
    ("memory", "attention", "fits"),
    [
        ("contiguous", "per_sequence", True),
        ("recompute", "per_sequence", True),
        ("padded", "per_sequence", True),
        ("padded", "padded", True),
        ("contiguous", "padded", False),
        ("recompute", "padded", False),
    ],
)
def test_which_memory_fits_which_attention(memory: str, attention: str, fits: bool) -> None:
    for batching in ("serial", "static", "dynamic", "iteration"):
        if fits:
            row = mix(technique("orca"), batching=batching, memory=memory, attention=attention)
            assert isinstance(
                choose(row).stages(9).memory, {"padded": Padded, "recompute": Recompute}.get(memory, Contiguous)
            )
        else:
            with refusal(UsageError, "'padded'", f"{memory!r}", "rectangle", "choose the memory 'padded' or 'shaped'"):
                mix(technique("orca"), batching=batching, memory=memory, attention=attention)


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [("batching", "iterations", "iteration"), ("memory", "contigous", "contiguous"), ("attention", "pad", "padded")],
)
def test_unknown_stage(kind: Any, name: str, near: str) -> None:
    with refusal(UsageError, f"{kind} stage", repr(name), near, *stages(kind)):
        mix(technique("orca"), **{kind: name})


# --- settings


def test_settings_reach_their_stage() -> None:
    built = choose(technique("dynamic"), {"batching.window": "20ms", "batching.max_batch": 3}).stages(50)
    options = built.batching.options  # type: ignore[attr-defined]
    assert (options.window, options.max_batch) == (0.02, 3)
    untouched = choose(technique("dynamic")).stages(50).batching.options  # type: ignore[attr-defined]
    assert (untouched.window, untouched.max_batch) == (0.5, 8)


def test_the_options_of_a_row_may_be_overridden() -> None:
    from dataclasses import replace

    row = replace(technique("orca"), options={"batching.max_batch": 2, "batching.token_budget": 7})
    options = choose(row, {"batching.max_batch": "5"}).stages(50).batching.options  # type: ignore[attr-defined]
    assert (options.max_batch, options.token_budget) == (5, 7)


@pytest.mark.parametrize("name", ["window", "batching", "", "executor.x", ".window", "Batching.max_batch"])
def test_settings_that_name_no_stage(name: str) -> None:
    with refusal(UsageError, repr(name), "stage.option=value", "batching or memory or attention"):
        choose(technique("dynamic"), {name: "1"}).stages(50)


def test_settings_that_a_stage_does_not_have() -> None:
    with refusal(UsageError, "'max_bach'", "'dynamic'", "max_batch", "window"):
        choose(technique("dynamic"), {"batching.max_bach": "1"}).stages(50)
    with refusal(UsageError, "'blocks'", "'padded'", "none"):
        choose(technique("dynamic"), {"memory.blocks": "1"}).stages(50)


@pytest.mark.parametrize(("memory", "attention"), [("padded", "padded"), ("slots", "slots")])
def test_what_is_computed_whole_cannot_keep_a_budget(memory: str, attention: str) -> None:
    with refusal(UsageError, "no token_budget", "iteration", repr(attention)):
        choose(mix(technique("orca"), memory=memory, attention=attention), {"batching.token_budget": 4}).stages(50)


# --- the register


def test_a_name_is_registered_once(own_register: None) -> None:
    class Mine(Iteration):
        """Another iteration."""

        name: ClassVar[str] = "mine"

    assert register(Mine) is Mine
    assert register(Mine) is Mine  # again the same class: a module imported twice
    assert stage("batching", "mine") is Mine
    assert mix(technique("orca"), batching="mine").name == "mine+contiguous+per_sequence"

    class Other(Iteration):
        """Yet another."""

        name: ClassVar[str] = "mine"

    with refusal(UsageError, "batching", "'mine'", "Mine", "another name"):
        register(Other)
    assert stage("batching", "mine") is Mine


def test_stages_of_different_kinds_may_share_a_name(own_register: None) -> None:
    class Shared(Contiguous):
        """A memory called like a batching policy."""

        name: ClassVar[str] = "iteration"

    register(Shared)
    assert stage("memory", "iteration") is Shared
    assert stage("batching", "iteration") is Iteration


def test_stages_returns_a_copy() -> None:
    stages("memory").clear()
    assert "contiguous" in stages("memory")
