"""Dynamic re-batching: replacing, decoupling, evicting and scaling (Baton, 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from helpers import asks, breach, make_engine, refusal, run_all

from minifuse.batching import Decoupled, Rebatch, decoupled
from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.plan import Reason
from minifuse.core.report import StepReport
from minifuse.core.request import Phase, Request
from minifuse.core.shapes import Rectangle
from minifuse.techniques import TECHNIQUES, mix
from minifuse.testing import TEXTS, laws_of, observe
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case
from minifuse.testing.texts import TextScenario
from minifuse.testing.texts.models import expected_answer

TWO_ROWS = {"batching.max_batch": 2, "memory.rows": 2}


def served(technique: str, *requests: Request, capacity: int = 96, **settings: Any) -> tuple[Any, list[StepReport]]:
    options = {**TWO_ROWS, **{name.replace("__", "."): value for name, value in settings.items()}}
    engine = make_engine(technique, model="llama", capacity=capacity, settings=options)
    steps = run_all(engine, requests)
    for sequence in engine.finished.values():
        assert tuple(sequence.answer) == expected_answer("llama", sequence.request)
    return engine, steps


def whole(name: str, prompt: int, new: int, **fields: Any) -> Request:
    return asks(name, prompt, new, ignore_eos=True, **fields)


# --- 4.1 and 4.2: what an insertion costs


@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_each_insertion_by_shaping_costs_idle_tokens_of_all_others(rows: int, length: int) -> None:
    """(B - 1)(l_q - 1): one row's request ends after the first iteration, and each newcomer replaces the one before."""
    others = [whole(f"o{i}", 1, 12) for i in range(rows - 1)]
    newcomers = [whole(f"n{i}", length, 2) for i in range(3)]
    _, steps = served(
        "baton",
        *(*others, whole("first", 1, 1), *newcomers),
        capacity=rows * 40,
        batching__max_batch=rows,
        memory__rows=rows,
    )
    inserted = [step.plan for step in steps[1:] if step.plan.admitted]
    assert len(inserted) == 3
    assert [plan.num_idle for plan in inserted] == [(rows - 1) * (length - 1)] * 3
    waiting = steps.index(next(step for step in steps if "n2" in step.plan.admitted))
    assert all(step.plan.num_idle == 0 for step in steps[:waiting] if not step.plan.admitted)


def test_decoupled_prompts_cost_the_batch_nothing() -> None:
    """Not one idle token while requests wait: prompts are computed apart, and joins take one token each."""
    requests = [whole(f"r{i}", 3 + i % 4, 2 + 3 * (i % 3)) for i in range(9)]
    _, steps = served("baton-pd", *requests, batching__padding=0.0)
    last = max(i for i, step in enumerate(steps) if step.plan.moves)  # the last that waited has joined
    assert last > max(i for i, step in enumerate(steps) if step.plan.admitted)
    assert all(step.plan.num_idle == 0 for step in steps[: last + 1])
    embedded = [move for step in steps for move in step.plan.moves]
    assert {move.kind for move in embedded} == {"embed"}
    assert sum(move.num_tokens for move in embedded) == sum(len(request.prompt) for request in requests)


def test_prompts_of_similar_length_are_computed_together() -> None:
    """With up to a fifth of it as padding, 4 and 3 go together and 9 does not; the first decides."""
    requests = [whole("a", 4, 3), whole("b", 9, 3), whole("c", 3, 3)]
    _, steps = served("baton-pd", *requests, batching__padding=0.2)
    apart = [step.plan for step in steps if step.plan.phase is Phase.PREPROCESSING]
    assert [plan.admitted for plan in apart] == [("a", "c"), ("b",)]
    assert [plan.num_idle for plan in apart] == [1, 0]


def _case(technique: str, requests: Sequence[Request], options: Mapping[str, Any], **scenario: Any) -> Case:
    given = {"requests": tuple(requests), "options": tuple(options.items()), "model": "llama", **scenario}
    return TEXTS.case(TECHNIQUES[technique], TextScenario(**given))


def _lawful(case: Case) -> Observation:
    """Observe a case, and check all laws."""
    seen = observe(case)
    for law in laws_of(TEXTS).values():
        law(case, seen)
    return seen


def _beside(prompts: str, *requests: Request) -> list[StepReport]:
    """Serve under all laws; an iteration takes 1 s, a group of prompts 2.5 s."""
    options = {**TWO_ROWS, "batching.prompts": prompts, "batching.preempt": False}
    case = _case("baton-pd", requests, options, capacity=96, seconds_per_step=1.0, seconds_to_prepare=2.5)
    return list(_lawful(case).steps)


def test_prompts_are_computed_beside_the_batch_by_a_worker_of_their_own() -> None:
    """5.1: c arrives while a and b run. Their iterations go on meanwhile, and c joins as soon as b has ended."""
    requests = [whole("a", 2, 9), whole("b", 2, 6), whole("c", 2, 3, at=3.6)]
    inline, worker = (_beside(where, *requests) for where in ("inline", "worker"))
    waits, goes_on = ([s.ended_s for s in one if "a" in s.tokens] for one in (inline, worker))
    assert goes_on[:5] == [2.5, 3.5, 4.5, 5.5, 6.5]
    assert waits[:5] == [2.5, 3.5, 4.5, 8.0, 9.0]
    apart = [step for step in worker if step.plan.phase is Phase.PREPROCESSING]
    assert [(step.plan.worker, step.started_s, step.ended_s) for step in apart] == [(1, 0.0, 2.5), (1, 3.6, 6.1)]
    (joined,) = [step for step in worker if "c" in step.plan.sequences and step.plan.moves]
    before = max(step.ended_s for step in worker if "b" in step.finished)
    assert (joined.started_s, joined.plan.worker) == (before, 0)


def _batches(steps: list[StepReport]) -> list[list[str]]:
    """The sequences of each batch that is run to completion."""
    found: list[list[str]] = []
    for step in steps:
        names = sorted(work.sequence for work in step.plan.work)
        if step.plan.phase is not Phase.PREPROCESSING and not (found and set(names) <= set(found[-1])):
            found.append(names)
    return found


def test_without_refill_the_batch_is_run_to_completion() -> None:
    requests = [whole("a", 2, 2), whole("b", 2, 5), whole("c", 2, 2), whole("d", 2, 2)]
    _, steps = served("pd", *requests, batching__compose="together")
    assert _batches(steps) == [["a", "b"], ["c", "d"]]
    assert sum(step.plan.num_idle for step in steps) == 3  # a's row, while b goes on


def test_batches_are_drawn_at_random_from_prompts_that_are_computed_together_by_length() -> None:
    """All prompts are computed first, in pairs of equal length; what is drawn depends on the prompts alone."""
    prompts = [(i, 1, *[2] * (i // 2)) for i in range(8)]
    _, steps = served("pd", *[asks(f"r{i}", prompts[i], 2, ignore_eos=True) for i in range(8)], capacity=200)
    phases = [step.plan.phase for step in steps]
    apart = [step.plan.admitted for step in steps[:4]]
    assert apart == [("r0", "r1"), ("r2", "r3"), ("r4", "r5"), ("r6", "r7")]
    assert Phase.PREPROCESSING not in phases[4:]
    batches = _batches(steps)
    assert sorted(name for batch in batches for name in batch) == [f"r{i}" for i in range(8)]
    assert [tuple(batch) for batch in batches] != apart
    renamed = [asks(f"other{i}", prompts[i], 2, ignore_eos=True) for i in range(8)]
    _, again = served("pd", *renamed, capacity=200)
    assert [[name.replace("other", "r") for name in batch] for batch in _batches(again)] == batches


def test_the_law_names_a_policy_that_draws_where_it_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [asks(f"r{i}", (i, 1), 3 + i % 3, ignore_eos=True) for i in range(8)]
    case = _case("baton-pd", requests, TWO_ROWS, capacity=96)
    observe(case)
    monkeypatch.setattr(decoupled, "Ranked", decoupled.Drawn)
    with breach("queue", "precedes it"):
        observe(case)


# --- 4.3: preemption


@pytest.mark.parametrize("technique", ["baton", "baton-pd"])
def test_a_request_of_higher_priority_takes_the_place_of_the_lowest_which_goes_on_later(technique: str) -> None:
    requests = [
        whole("low", 2, 9, priority=-1),
        whole("mid", 2, 5),
        whole("high", 3, 2, priority=5, at=2.5),
    ]
    engine, steps = served(technique, *requests, batching__order="priority")
    evicted = [step.plan for step in steps if step.plan.evicted]
    assert [plan.evicted for plan in evicted] == [("low",)]
    assert {work.sequence for work in evicted[0].work} == {"mid", "high"}
    back = next(step.plan for step in steps if step.plan.step > evicted[0].step and "low" in step.plan.sequences)
    assert back.reused[0].on_host == sum(move.num_tokens for move in evicted[0].moves if move.kind == "swap_out")
    assert back.num_idle == 0  # it is embedded
    assert engine.finished["high"].ended_s < engine.finished["low"].ended_s


def test_a_prompt_of_higher_priority_goes_before_those_that_are_computed_already() -> None:
    """low2 and low3 are ready when it arrives: it is computed at once, and takes the place of a running request."""
    requests = [whole(f"low{i}", 3, 20) for i in range(4)]
    _, steps = served("baton-pd", *requests, whole("high", 3, 2, priority=5, at=5.5), batching__order="priority")
    arrived = next(i for i, step in enumerate(steps) if step.ended_s > 5.5)
    assert "high" in steps[arrived + 1].plan.admitted
    assert "high" in steps[arrived + 2].plan.sequences
    assert steps[arrived + 2].plan.evicted == ("low1",)


OUTRANKED = [
    *(whole("short", 3, 3), whole("low0", 3, 20), whole("low1", 3, 20, at=2.5), whole("low2", 3, 20, at=2.5)),
    whole("high", 3, 2, priority=5, at=3.5),
]


@pytest.mark.parametrize("preempt", [True, False])
def test_what_is_ready_does_not_join_before_a_prompt_of_higher_priority(preempt: bool) -> None:
    """short ends at 3 s; low1 and low2 are computed apart until 4 s, and high, which comes meanwhile, gets the row."""
    settings = {"batching__order": "priority", "batching__preempt": preempt}
    _, steps = served("baton-pd", *OUTRANKED, **settings)
    batches = [step for step in steps if step.plan.phase is not Phase.PREPROCESSING]
    first = {name: next(s.started_s for s in batches if name in s.plan.sequences) for name in ("high", "low1")}
    assert first["high"] == 6.0
    assert first["low1"] > first["high"]
    (reason,) = [reason for step in steps for reason in step.plan.reasons if reason.code == "behind"]
    assert (reason.sequence, reason.text) == ("low1", "not admitted: high goes before it, with a prompt to compute")


def test_the_law_names_a_policy_that_does_not_look_at_prompts_to_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"batching.order": "priority", **TWO_ROWS}
    case = _case("baton-pd", OUTRANKED, options, capacity=96, seconds_per_step=1.0, seconds_to_prepare=1.0)
    observe(case)
    monkeypatch.setattr(Decoupled, "admission", Rebatch.admission)
    with breach("queue", r"low1 joined at 4\.0, and high has a higher priority"):
        observe(case)


def test_without_priorities_no_request_is_evicted() -> None:
    for settings in ({"batching__order": "fcfs"}, {"batching__order": "priority", "batching__preempt": False}):
        requests = [whole("low", 2, 9), whole("mid", 2, 5), whole("high", 3, 2, priority=5, at=2.5)]
        _, steps = served("baton", *requests, **settings)
        assert not any(step.plan.evicted for step in steps)


def sharing(capacity: int, max_batch: int, *requests: Request) -> list[StepReport]:
    """Serve with blocks that sequences share, evicted by priority, and check all laws."""
    options = {
        "batching.max_batch": max_batch,
        "batching.order": "priority",
        "memory.block_size": 2,
        "memory.share": True,
        "memory.preemption": "swap",
    }
    scenario = TextScenario(
        requests=requests, options=tuple(options.items()), model="llama", capacity=capacity, seconds_per_step=1.0
    )
    case = TEXTS.case(mix(TECHNIQUES["baton"], memory="paged", attention="paged"), scenario)
    seen = observe(case)
    laws_of(TEXTS)["of_one_run"](case, seen)
    return list(seen.steps)


def test_a_newcomer_does_not_displace_the_sequence_whose_blocks_it_shares() -> None:
    """Its work has been counted as if it had them: it waits until it can have them, or has its own."""
    low, high = (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 9)
    steps = sharing(40, 1, asks("low", low, 6), asks("high", high, 2, priority=5, at=1.5))
    assert "shares" in {reason.code for step in steps for reason in step.plan.reasons}


def test_only_newcomers_that_cost_an_earlier_one_its_beginning_wait() -> None:
    """j1 shares the beginning of low. j2 displaces last, which j1 does not need; j3 would displace low."""
    running = [asks("low", (1, 2, 3, 4, 5, 6), 6), asks("last", (7, 8, 9, 7, 8, 9), 6)]
    j1 = asks("j1", (1, 2, 3, 4, 5, 9), 2, priority=5, at=1.5)
    others = [asks(name, (i,) * 6, 6, priority=4, at=1.5) for i, name in enumerate(("j2", "j3"), start=10)]
    steps = sharing(80, 3, *running, j1, *others)
    plan = next(step.plan for step in steps if step.plan.evicted)
    assert (plan.evicted, plan.admitted) == (("last",), ("j1", "j2"))
    assert Reason("behind", "j3", "not admitted: if it joined, j1, which goes first, could not") in plan.reasons


def test_padding_of_prompts_that_wait_apart_is_room_for_others() -> None:
    """They leave to the host without it: memory then has room for more newcomers than it has slots free."""
    requests = [whole("a", 1, 10), *(whole(f"r{i}", 1 + i % 2, 2) for i in range(9))]
    apart = {"batching.padding": 0.5, "memory.prefill": 0.5, "memory.host": 5}
    observe(_case("pd", requests, {"batching.max_batch": 3, "memory.rows": 1, **apart}, capacity=20))


# --- 4.3: the size of the batch


def test_prompts_that_are_ready_leave_before_running_rows() -> None:
    """At the threshold, what waits for a row goes to the host, and no running request is evicted for it."""
    requests = [whole(f"r{i}", 3, 9) for i in range(6)]
    settings = {"capacity": 80, "batching__max_batch": 3, "memory__rows": 3, "memory__threshold": 0.5}
    _, steps = served("baton-pd", *requests, **settings, memory__prefill=0.3)
    assert any(move.kind == "swap_out" for step in steps for move in step.plan.moves)
    assert not any(step.plan.evicted for step in steps)
    assert max(step.usage.used for step in steps) <= 40


@pytest.mark.parametrize("technique", ["baton", "baton-pd"])
def test_rows_leave_to_the_host_above_the_threshold_and_return(technique: str) -> None:
    requests = [whole(f"r{i}", 3, 14) for i in range(3)]
    _, steps = served(
        technique,
        *requests,
        capacity=100,
        batching__max_batch=3,
        memory__rows=3,
        memory__threshold=0.4,
        **({"memory__prefill": 0.2} if technique == "baton-pd" else {}),
    )
    assert max(step.usage.used for step in steps) <= 40
    assert any(step.plan.evicted for step in steps)
    heights = [step.plan.shape.rows for step in steps if step.plan.phase is not Phase.PREPROCESSING]
    smallest = heights.index(min(heights))
    assert max(heights[:smallest]) > heights[smallest]
    assert any(kind.kind == "swap_in" for step in steps for kind in step.plan.moves)


# --- all of it in one run

CROWDED = [
    *(whole(f"low{i}", 4, 12, priority=-1, at=0.0) for i in range(2)),
    *(whole(f"mid{i}", 3 + i, 9, at=float(i)) for i in range(3)),
    *(whole(f"high{i}", 5, 3, priority=3, at=4.5 + 3 * i) for i in range(3)),
]
HAPPENS = {
    "static": set[str](),
    "pd": {"computed apart", "embed", "evicted", "swap_out", "swap_in", "released"},
    "baton": {"gap", "displaced", "evicted", "swap_out", "swap_in", "released", "closed up"},
    "baton-pd": {"computed apart", "embed", "displaced", "evicted", "swap_out", "swap_in", "released", "closed up"},
}


def _happened(steps: list[StepReport]) -> set[str]:
    """What of the paper happened in a run."""
    found: set[str] = set()
    begin = 0
    for step in steps:
        plan, shape = step.plan, step.plan.shape
        assert isinstance(shape, Rectangle)
        found |= {reason.code for reason in plan.reasons if reason.sequence in plan.evicted}
        found |= {move.kind for move in plan.moves} - {"shuffle"}
        found |= {"closed up" for move in plan.moves if move.kind == "shuffle"}
        if plan.phase is Phase.PREPROCESSING:
            found.add("computed apart")
            continue
        found |= {"released"} if begin < shape.begin and len(plan.work) > len(plan.admitted) else set()
        begin = shape.begin
        for work, place in zip(plan.work, plan.places, strict=True):
            columns = [shape.locate(slot)[1] for slot in place.slots(0, work.stop)]
            found |= {"gap"} if columns[-1] - columns[0] >= len(columns) else set()
    return found


@pytest.mark.parametrize("technique", HAPPENS)
def test_all_laws_hold_where_all_is_shaped_embedded_evicted_and_scaled_in_one_run(technique: str) -> None:
    options = {
        "batching.order": "priority",
        "batching.max_batch": 3,
        "memory.rows": 3,
        "memory.threshold": 0.5 if technique == "baton" else 0.4,  # of which prompts that wait apart take a part
        "memory.prefill": 0.2,
        "memory.host": 40,
    }
    seconds = {"seconds_per_step": 1.0, "seconds_to_prepare": 0.5, "seconds_per_transfer": 0.01}
    seen = _lawful(_case(technique, CROWDED, options, capacity=80, **seconds))
    assert len(seen.answers) == len(CROWDED)
    assert _happened(seen.steps) == HAPPENS[technique]


# --- what cannot be served


@pytest.mark.parametrize(
    ("capacity", "threshold", "words"), [(10, 1.0, "threshold 1"), (100, 0.1, "of 100, with memory.threshold 0.1")]
)
def test_a_request_that_needs_more_than_the_threshold_allows(capacity: int, threshold: float, words: str) -> None:
    engine = make_engine("baton", capacity=capacity, settings={**TWO_ROWS, "memory.threshold": threshold})
    with refusal(RequestRefused, "'a'", "row of 11", "one of 10", words, "--kv-memory"):
        engine.submit(asks("a", 8, 4))


def test_a_threshold_that_leaves_no_row() -> None:
    with refusal(UsageError, "20 KV tokens", "threshold 0.01", "--kv-memory"):
        make_engine("baton", capacity=20, settings={"memory.threshold": 0.01})


@pytest.mark.parametrize(
    ("row", "stages", "words"),
    [
        ("baton", {"batching": "cellular"}, ("'shaped'", "'cellular'", "rebatch")),
        ("baton", {"batching": "decoupled"}, ("'shaped' has no place apart", "'decoupled' computes them there")),
        ("baton-pd", {"batching": "iteration"}, ("'embedded' keeps prompts apart", "'iteration'", "decoupled")),
    ],
)
def test_stages_that_do_not_fit(row: str, stages: dict[str, str], words: tuple[str, ...]) -> None:
    with refusal(UsageError, *words):
        mix(TECHNIQUES[row], **stages)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batching.order": "priority"}, "interrupts no request: give batching.preempt=off"),
        ({"memory.threshold": 0.8}, "choose memory.threshold=1 or one worker"),
    ],
)
def test_what_evicts_has_one_worker(settings: dict[str, Any], words: str) -> None:
    with refusal(UsageError, words):
        make_engine("baton-pd", capacity=96, settings={"batching.prompts": "worker", **settings})


def test_a_prompt_that_has_no_room_apart() -> None:
    engine = make_engine("baton-pd", capacity=40, settings={**TWO_ROWS, "memory.prefill": 0.1})
    with refusal(RequestRefused, "'a'", "5 tokens", "4 apart", "memory.prefill"):
        engine.submit(asks("a", 5, 1))
