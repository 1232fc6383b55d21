"""Right stages that are odd keep the laws, and what is wrong with them is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from helpers import breach
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.right_stages import Lingers, Radix, StallFree

from minifuse.cli.tally import Tally
from minifuse.cli.verdict import held_text
from minifuse.core.errors import UsageError
from minifuse.core.report import KVUsage
from minifuse.core.request import Request
from minifuse.core.stages import option
from minifuse.options import declared_options
from minifuse.serve.assembly import choose
from minifuse.stages import register
from minifuse.techniques import Technique, mix, technique
from minifuse.testing import TEXTS, check_laws, observe, put_through
from minifuse.testing.drawn import cases, own_options, values_of
from minifuse.testing.laws import of_one_run, second_life
from minifuse.testing.mixes import can_be_computed, mixes_of, unclaimed_cuts, with_options
from minifuse.testing.search import Limit, Search, compared_laws
from minifuse.testing.texts import TextScenario

pytestmark = pytest.mark.usefixtures("own_register")
AS_FOUND = Limit(math.inf, -math.inf)  # no time to make it smaller
many = pytest.mark.parametrize("examples", [5, pytest.param(150, marks=pytest.mark.long)])


def _row(stage: Any, base: str = "vllm") -> Technique:
    return mix(technique(base), **{stage.kind: register(stage).name})


@many
@pytest.mark.parametrize(
    ("stage", "base"),
    [(StallFree, "vllm"), (StallFree, "pensieve"), (Lingers, "vllm"), (Radix, "vllm"), (Radix, "pensieve")],
)
def test_they_keep_the_laws(stage: Any, base: str, examples: int) -> None:
    Search(TEXTS, _row(stage, base), compared_laws(TEXTS), first=1).run(examples, derandomize=True)


def _twice(memory: Any) -> KVUsage:
    usage = Radix.usage(memory)
    return usage._replace(kept=min(2 * usage.kept, usage.capacity - usage.reserved))


@pytest.mark.parametrize(
    ("stage", "wrong", "law"),
    [
        (Lingers, {"patience": property(lambda self: 9 * self.options.linger)}, "progress"),
        (Radix, {"usage": _twice}, "conservation"),
        (Radix, {"usage": lambda self: Radix.usage(self)._replace(kept=0), "remembers": True}, "conservation"),
    ],
)
def test_what_is_wrong_with_them_is_told(stage: Any, wrong: dict[str, Any], law: str) -> None:
    with breach(law):
        Search(TEXTS, _row(type(stage.__name__, (stage,), wrong)), (), limit=AS_FOUND).run(60, seed=2)


def test_what_is_kept_and_not_counted_shows_in_a_second_life() -> None:
    forgetful = type("Forgetful", (Radix,), {"usage": lambda self: Radix.usage(self)._replace(kept=0)})
    with breach("second life"):
        Search(TEXTS, _row(forgetful), [second_life], limit=AS_FOUND).run(20, derandomize=True)


def test_a_cache_that_never_hits_is_told() -> None:
    blind = type("Blind", (Radix,), {"name": "blind-radix", "found": lambda self, sequence: []})
    tally = Tally(1)
    for memory in (Radix, blind):
        tried = Search(TEXTS, _row(memory), ())
        tried.run(12, derandomize=True)
        tally.hits[memory.name] = [tried.hits]
    assert tally.unfound == ["blind-radix"]
    assert tally.uncompared.keys() == {"radix", "blind-radix"}
    left, runs = tally.uncompared["radix"]
    assert 2 < left < runs == 12
    shown = " ".join(held_text("radix", tally, False, quick=False).split())
    assert f"radix kept KV at the end of {left} of 12 runs, which second life does not compare." in shown


@dataclass(frozen=True)
class Optional:
    most: int | None = option(8, "prompts in one iteration, at most", minimum=1)


def test_an_option_that_may_be_none_is_tried_without() -> None:
    assert values_of(declared_options(Optional)["most"]) == [8, 1, 2, 3, 5, 16, None]


def test_options_are_drawn_as_a_stage_declares_them() -> None:
    """Also those that the kit knows by name, where it would draw what the stage does not take."""
    own = own_options(mix(_row(Lingers), memory=register(Radix).name))
    assert set(own) == {"batching.linger", "batching.token_budget", "memory.page", "memory.eviction"}
    assert {name: values_of(declared) for name, declared in own.items()} == {
        "batching.linger": [0.5, 0.0, 1.0],
        "batching.token_budget": [512, 1, 2, 3, 5, 1024],
        "memory.page": [16, 1, 2, 3, 5, 32],
        "memory.eviction": ["lru", "fifo"],
    }


@settings(max_examples=30, derandomize=True, database=None)
@given(st.data())
def test_what_the_stages_refuse_together_is_not_tried(data: st.DataObject) -> None:
    """Memory has 12 tokens or more, and a block 16 if it is not drawn."""
    register(Radix)
    case = data.draw(cases(TEXTS, mix(technique("vllm"), memory="radix")))
    if not isinstance(case, UsageError):
        assert case.settings["memory.page"] <= case.capacity
        choose(case.row, case.settings).stages(case.capacity)


@dataclass(frozen=True)
class _TooLarge:
    page: int = option(10**6, "tokens in a block", minimum=10**6)
    eviction: str = option("lru", "whose block is taken")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"missing": lambda self: ()}, "is called as missing"),
        ({"Options": _TooLarge}, "memory.page is 1000000, and memory holds"),
    ],
)
def test_stages_that_can_never_be_made_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        put_through(TEXTS, _row(type("Radix", (Radix,), wrong)), 3, derandomize=True)


def test_a_policy_with_a_budget_is_mixed_with_no_attention_that_computes_whole_rectangles() -> None:
    register(StallFree)
    assert unclaimed_cuts(mixes_of("stall-free")) == ["stall-free"]
    computed = {row.attention for _, row in mixes_of("stall-free") if can_be_computed(row)}
    assert computed == {"per_sequence", "paged", "packed"}
    with pytest.raises(UsageError, match=r"'stall-free' bounds the tokens .* no token_budget .* declares cuts = True"):
        choose(mix(technique("static"), batching="stall-free")).stages(64)
    assert "+padded." not in check_laws(1, batching="stall-free", memory="padded")


def test_options_that_are_given_are_tried_alone() -> None:
    register(Radix)
    mixes = with_options(mixes_of("radix"), {"memory.page": "2", "batching.token_budget": "3"})
    assert {row.batching for _, row in mixes} >= {"iteration", "fluid"}
    assert all(row.options["memory.page"] == 2 and row.options["batching.token_budget"] == 3 for _, row in mixes)
    subject, row = mixes[0]
    tried: list[Any] = []
    Search(subject, row, [lambda case, seen: tried.append(case.settings)]).run(4, derandomize=True)
    assert {(one["memory.page"], one["batching.token_budget"]) for one in tried} == {(2, 3)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"memory.pages": "2"}, 'did you mean "memory.page"'),
        ({"memory.page": "0"}, "from 1 to 32"),
        ({"batching.unify": "on", "batching.window": "1s"}, "No mix has all of"),
    ],
)
def test_options_that_cannot_be_given(given: dict[str, str], words: str) -> None:
    register(Radix)
    with pytest.raises(UsageError, match=words):
        with_options(mixes_of("radix"), given)


SAME = (27, 12, 24, 28, 13, 1, 0, 1, 2, 3)
TURNS = (
    Request("c0", SAME, 2, conversation="c", arrival_s=0.03),
    Request("c1", (7,), 1, conversation="c", after="c0", delay_s=0.02),
    Request("d0", SAME, 2, conversation="d"),
    Request("d1", (7,), 2, conversation="d", after="d0", delay_s=0.02),
)


def test_what_is_kept_may_lie_in_promised_slots() -> None:
    """A turn is promised 14 slots and takes 13: the last token of the other conversation survives, uncounted."""
    options = {"memory.chunk": 1, "memory.ahead": 0.0, "memory.reserve": 0.0, "batching.max_batch": 1}
    options |= {"memory.keep": True, "memory.eviction": "cost", "memory.transfer": "blocking"}
    scenario = TextScenario(requests=TURNS, options=tuple(options.items()), model="gptj", capacity=24)
    case = TEXTS.case(mix(technique("vllm"), batching="iteration", memory="tiered"), scenario)
    seen = observe(case)
    of_one_run(case, seen)
    assert any(step.usage.kept == 10 and step.usage.reserved == 14 for step in seen.steps)
