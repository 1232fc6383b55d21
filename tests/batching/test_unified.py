"""Unified batches through the loop: prompts beside single tokens, suspension, conversations (thesis, 3.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers import answers_of, asks, make_engine, make_real_engine, run_all, schedule

from minifuse.attention.layouts import PagedStage
from minifuse.batching.unified import Unified
from minifuse.core.places import Reuse
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.execute.link import Link
from minifuse.memory import Tiered
from minifuse.serve.engine import ServingEngine
from minifuse.techniques import technique
from minifuse.testing import TEXTS, observe
from minifuse.testing.laws import of_one_run
from minifuse.testing.search import compared_laws
from minifuse.testing.texts import TextScenario
from minifuse.testing.texts.models import expected_answer
from minifuse.trace.metrics import compute_metrics


def _engine(chunks: int = 20, model: str | None = None, link: Link | None = None, **options: Any) -> ServingEngine:
    batching = {name: options.pop(name) for name in ("max_batch", "max_tokens", "unify") if name in options}
    memory = Tiered(chunks * 4, Tiered.Options(**{"chunk": 4, "reserve": 0.0, "ahead": 0.0, **options}))
    named: dict[str, Any] = {} if link is None else {"link": link}
    return make_engine(
        model=model, memory=memory, attention=PagedStage(), batching=Unified(Unified.Options(**batching)), **named
    )


def _turns(conversation: str, *lengths: int, new: int = 2, delay_s: float = 0.0, at: float = 0.0) -> list[Request]:
    requests: list[Request] = []
    for i, length in enumerate(lengths):
        follows = {"after": requests[-1].id, "delay_s": delay_s} if requests else {"at": at}
        requests.append(asks(f"{conversation}{i}", length, new, conversation=conversation, ignore_eos=True, **follows))
    return requests


def test_prompts_and_single_tokens_share_an_iteration() -> None:
    steps = run_all(_engine(), [asks("a", 6, 4), asks("b", 3, 2, at=1.0)])
    assert schedule(steps) == ["0: a[0:6)", "1: a[6:7) b[0:3)", "2: a[7:8) b[3:4)", "3: a[8:9)"]


def test_without_unify_newcomers_stop_running_sequences() -> None:
    """Whenever requests wait, generation pauses for their prompts (3.6.7)."""
    steps = run_all(_engine(unify=False), [asks("a", 6, 4), asks("b", 3, 2, at=1.0)])
    assert schedule(steps) == ["0: a[0:6)", "1: b[0:3)", "2: a[6:7) b[3:4)", "3: a[7:8)", "4: a[8:9)"]


def test_newcomers_join_while_the_iteration_has_fewer_tokens_than_the_threshold() -> None:
    """a and b have 10 tokens, fewer than 11, so c joins whole; then there are 16, and d waits."""
    requests = [asks(name, length, 2) for name, length in zip("abcd", (6, 4, 6, 1), strict=True)]
    steps = run_all(_engine(max_tokens=11), requests)
    assert schedule(steps)[:2] == ["0: a[0:6) b[0:4) c[0:6)", "1: a[6:7) b[4:5) c[6:7) d[0:1)"]
    assert [str(reason) for reason in steps[0].plan.reasons] == ["d not admitted: the iteration has 16 tokens"]


def test_a_prompt_longer_than_the_threshold_is_computed_whole() -> None:
    assert schedule(run_all(_engine(max_tokens=4), [asks("a", 30, 1)])) == ["0: a[0:30)"]


def test_the_newest_is_suspended_when_memory_runs_out_and_waits_again() -> None:
    """Three chunks, one each: a needs another, so c, the newest, is suspended; b needs one, and no other is left.

    Their chunks stay where they are until one is needed: then the older of two of equal worth goes to the host.
    """
    engine = _engine(3, model="llama")
    requests = [asks("a", 4, 3), asks("b", 4, 3), asks("c", 2, 2)]
    steps = run_all(engine, requests)
    assert [step.plan.evicted for step in steps[:3]] == [(), ("c", "b"), ()]
    assert answers_of(engine) == {request.id: expected_answer("llama", request) for request in requests}
    assert [one for step in steps for one in step.plan.reused] == [Reuse("b", 0, 4), Reuse("c", 2, 0)]
    assert [move.kind for step in steps for move in step.plan.moves] == ["swap_out", "swap_in"]


# Device and host are so small that all of it happens in one run.
SMALL: dict[str, Any] = {"memory.chunk": 4, "memory.host": 48, "batching.max_batch": 3}
CAPACITY = 32
TALK = [
    request
    for i, conversation in enumerate("cde")
    for request in _turns(conversation, 5, 4, 3, new=7, delay_s=2.0 + i, at=float(i))
]
FOUND = {"found on the device", "found on the host"}
ALL = {*FOUND, "two spans", "suspended", "swap_out behind", "swap_out before", "swap_in before"}
VARIANTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "pensieve": ({}, ALL),
    "lru": ({"memory.eviction": "lru"}, ALL),
    "device cache only": ({"memory.host": 0, "capacity": 40}, {"found on the device", "two spans", "suspended"}),
    "stateless": ({"memory.keep": False}, {"found on the device", "suspended", "swap_out behind"}),  # of the suspended
    "without unification": ({"batching.unify": False}, ALL),
    "blocking": ({"memory.transfer": "blocking"}, {name.replace("before", "first") for name in ALL}),
    "sharing": ({"memory.share": True, "memory.host": 24}, ALL),
}


def _happened(steps: list[StepReport]) -> set[str]:
    """What of the thesis happened in a run."""
    found: set[str] = set()
    for step in steps:
        plan = step.plan
        found |= {"two spans"} if len(plan.sequences) < len(plan.work) else set()
        found |= {"suspended"} if plan.evicted else set()
        found |= {f"{move.kind} {move.moment}" for move in plan.moves}
        found |= {"found on the host" for one in plan.reused if one.on_host}
        found |= {"found on the device" for one in plan.reused if one.on_device}
    return found


@pytest.mark.parametrize(("dealt", "variant"), list(enumerate(VARIANTS)))
def test_laws_hold_where_all_is_evicted_dropped_recovered_and_suspended_in_one_run(dealt: int, variant: str) -> None:
    """Each law that compares runs meets every other variant."""
    options, happens = VARIANTS[variant]
    scenario = TextScenario(
        requests=tuple(TALK),
        options=tuple({**SMALL, **{name: value for name, value in options.items() if name != "capacity"}}.items()),
        model="llama",
        capacity=options.get("capacity", CAPACITY),
        seconds_per_step=1.0,
        seconds_per_transfer=0.01,
    )
    case = TEXTS.case(technique("pensieve"), scenario)
    seen = observe(case)
    for law in (of_one_run, *compared_laws(TEXTS)[dealt % 2 :: 2]):
        law(case, seen)
    assert len(seen.answers) == len(TALK)
    assert _happened(seen.steps) == happens


def test_the_same_in_real_time() -> None:
    """Copies run in a thread of their own: the answers hang on none of their times."""
    memory = Tiered(32, Tiered.Options(chunk=4, host=48, ahead=0.25))
    batching = Unified(Unified.Options(max_batch=3))
    engine = make_real_engine(model="llama", memory=memory, attention=PagedStage(), batching=batching)
    steps = run_all(engine, [replace(turn, arrival_s=0.0, delay_s=turn.delay_s / 1000) for turn in TALK])
    engine.close()
    for name, sequence in engine.finished.items():
        assert tuple(sequence.answer) == expected_answer("llama", sequence.request), name
    assert _happened(steps) >= {"found on the device", "suspended", "swap_out before", "swap_in before"}


def test_metrics_tell_what_of_the_history_was_found() -> None:
    """The second request goes on from 7 tokens of KV: two chunks of 4, one of which has been dropped meanwhile."""
    engine = _engine(3, host=0)
    talk = [*_turns("c", 6, 3, delay_s=9.0), asks("x", 8, 1, at=5.0)]
    run_all(engine, talk)
    metrics = compute_metrics(engine.trace.events())
    assert metrics["history"] == {
        "tokens": 7,
        "on_device": 3,
        "on_host": 0,
        "device_hit_rate": 3 / 7,
        "host_hit_rate": 0.0,
    }
    assert (metrics["tokens"]["reused"], metrics["tokens"]["recomputed"]) == (3, 4)
