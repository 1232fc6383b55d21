"""Requests that are aborted while the engine runs, and requests and aborts that come from another thread."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import pytest
from helpers import asks, make_engine, make_real_engine, refusal, run_all, schedule

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import KVUsage, Ran, StepReport
from minifuse.core.request import FinishReason, Phase, Sequence
from minifuse.execute.virtual import placeholder_tokens
from minifuse.memory.contiguous import Contiguous
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import Answer, serve
from minifuse.trace.metrics import compute_metrics

ABORTED = FinishReason.ABORTED


def run_aborting(engine: ServingEngine, aborts: dict[int, str]) -> list[StepReport]:
    """Serve, aborting after the steps that `aborts` names."""
    steps = []
    for step in engine.run():
        steps.append(step)
        if step.plan.step in aborts:
            assert engine.abort(aborts[step.plan.step])
    return steps


def test_a_running_request_ends_with_the_tokens_that_it_has() -> None:
    engine = make_engine()
    engine.submit(asks("a", 2, 9))
    engine.submit(asks("b", 2, 3))
    steps = run_aborting(engine, {1: "a"})
    assert schedule(steps) == ["0: a[0:2) b[0:2)", "1: a[2:3) b[2:3)", "2: b[3:4)"]
    sequence = engine.finished["a"]
    assert (sequence.answer, sequence.finish_reason, sequence.ended_s) == ([-1, -1], ABORTED, 2.0)
    assert engine.memory.usage().reserved == 0
    assert [one.id for one in engine.requests.ended] == ["a", "b"]
    assert {"event": "aborted", "id": "a", "wall": {"end_s": 2.0}} in list(engine.trace.events())


def test_a_request_that_has_not_arrived_is_aborted_with_those_behind_it() -> None:
    engine = make_engine()
    for request in (asks("a", 1, 2), asks("z", 1, 1, at=1e9), asks("y", 1, 1, after="z"), asks("x", 1, 1, after="y")):
        engine.submit(request)
    assert schedule(run_aborting(engine, {0: "z"})) == ["0: a[0:1)", "1: a[1:2)"]
    assert [engine.finished[name].finish_reason for name in "zyx"] == [ABORTED] * 3
    assert compute_metrics(engine.trace.events())["requests"]["aborted"] == 3


def test_a_turn_may_follow_one_that_was_aborted_and_sees_what_it_has_said() -> None:
    engine = make_engine()
    engine.submit(asks("a", (4, 5), 9))
    engine.submit(asks("b", (6,), 1, after="a"))
    run_aborting(engine, {1: "a"})
    assert engine.finished["b"].request.prompt == (4, 5, -1, -1, 6)


def test_all_prompts_of_a_group_are_aborted_together_or_one_by_one() -> None:
    engine = make_engine()
    for group in ("g", "h"):
        engine.submit(asks(f"{group}/0", 1, 9, group=group), asks(f"{group}/1", 1, 3, group=group))
    run_aborting(engine, {0: "g", 1: "h/0"})
    reasons = {name: sequence.finish_reason for name, sequence in engine.finished.items()}
    assert reasons == {"g/0": ABORTED, "g/1": ABORTED, "h/0": ABORTED, "h/1": FinishReason.LENGTH}


def test_aborting_what_has_ended_or_never_was() -> None:
    engine = make_engine()
    run_all(engine, [asks("a", 1, 1)])
    assert not engine.abort("a")
    with refusal(UsageError, "no request 'b'", "submitted"):
        engine.abort("b")


def test_a_prompt_without_work_may_be_aborted_while_its_group_is_pre_processed() -> None:
    """b has one token, and so no context: it is admitted with the plan of a's, and has memory in it."""
    engine = make_engine("fusion", cost=lambda plan: 5.0 if plan.phase is Phase.PREPROCESSING else 1.0)
    engine.submit(asks("m", 1, 20))
    engine.submit(asks("a", 5, 3, at=1.0, group="g"), asks("b", 1, 3, at=1.0, group="g"))
    for step in engine.run():
        if step.ended_s == 3.0:
            assert engine.sequences["b"].phase is Phase.PREPROCESSING
            assert engine.abort("b")
            assert "b" in engine.in_flight.leaving
    assert {name: s.finish_reason for name, s in engine.finished.items()} == {
        "m": FinishReason.LENGTH,
        "a": FinishReason.LENGTH,
        "b": ABORTED,
    }
    assert engine.memory.usage().reserved == 0


def test_the_next_prompts_run_when_those_that_ran_last_are_all_aborted() -> None:
    engine = make_engine("fusion", settings={"batching.preprocess": "inline"})
    for request in (asks("a", 5, 3), asks("b", 5, 3, at=0.5)):
        engine.submit(request)
    run_aborting(engine, {0: "a"})
    assert engine.finished["b"].finish_reason is FinishReason.LENGTH


def test_serve_answers_what_its_callbacks_submit_and_abort() -> None:
    engine = make_engine()

    def on_step(report: StepReport) -> None:
        if report.plan.step == 0:
            engine.submit(asks("later", 2, 1))
            engine.abort("b")

    served = serve(engine, [asks("a", 1, 3), asks("b", 1, 9)], on_step=on_step)
    found = [(answer.request.id, answer.finish_reason, len(answer.token_ids)) for answer in served.answers]
    assert found == [("a", FinishReason.LENGTH, 3), ("b", ABORTED, 1), ("later", FinishReason.LENGTH, 1)]
    assert [answer.finish_s for answer in served.answers] == [3.0, 1.0, 2.0]


# --- every request has an answer, whichever callback submits or aborts


def test_what_is_aborted_before_the_first_turn_is_answered_and_so_are_its_followers() -> None:
    engine = make_engine()
    told: list[str] = []

    def on_answer(answer: Answer) -> None:
        told.append(answer.request.id)
        if answer.request.id == "refused":
            engine.abort("a")
            engine.abort("g")

    requests = [
        *(asks("a", 2, 4), asks("b", 1, 2, after="a"), asks("c", 1, 2, after="b")),
        *(asks("g/0", 1, 2, group="g"), asks("g/1", 1, 2, group="g")),
        asks("refused", (), 4),
    ]
    served = serve(engine, requests, on_answer)
    reasons = {answer.request.id: answer.finish_reason for answer in served.answers}
    assert reasons == dict.fromkeys(["a", "b", "c", "g/0", "g/1"], ABORTED) | {"refused": FinishReason.REFUSED}
    assert told == ["refused", "a", "b", "c", "g/0", "g/1"]
    assert [answer.finish_s for answer in served.answers] == [0.0] * 5 + [None]


@pytest.mark.parametrize("when", ["refused", "a", "far", "last", "late"])
def test_what_the_callback_of_an_answer_submits_and_aborts_is_answered(when: str) -> None:
    """Whichever answer it is: of a refused request, an aborted one, the last of the list, one submitted meanwhile."""
    engine = make_engine()
    told: list[str] = []

    def on_answer(answer: Answer) -> None:
        told.append(answer.request.id)
        if answer.request.id == "refused":
            engine.abort("far")
        if answer.request.id == "last":
            engine.submit(asks("late", 1, 1))
        if answer.request.id == when:
            engine.submit(asks("new", 1, 2))
            engine.submit(asks("gone", 1, 2, at=50.0))
            engine.submit(asks("follows", 1, 2, after="gone"))
            engine.abort("gone")

    requests = [asks("refused", ()), asks("far", 1, 1, at=90.0), asks("a", 1, 1), asks("last", 1, 3)]
    requests = [*requests[1:], requests[0]]
    served = serve(engine, requests, on_answer)
    reasons = {answer.request.id: answer.finish_reason for answer in served.answers}
    gone = dict.fromkeys(["far", "gone", "follows"], ABORTED)
    answered = dict.fromkeys(["a", "last", "late", "new"], FinishReason.LENGTH)
    assert reasons == answered | gone | {"refused": FinishReason.REFUSED}
    assert sorted(told) == sorted(answer.request.id for answer in served.answers) == sorted(reasons)
    assert sum(event["event"] == "end" for event in served.trace.events()) == 1


def test_an_aborted_request_has_the_time_of_its_first_token_whichever_plan_is_told_first() -> None:
    """Two plans end together; the callback of the first aborts what the second has given its first token."""
    engine = make_engine("instances", settings={"batching.instances": 2})

    def on_answer(answer: Answer) -> None:
        if answer.request.id == "a":
            engine.abort("b")

    a, b = serve(engine, [asks("a", 1, 1), asks("b", 1, 9)], on_answer).answers
    assert (b.finish_reason, len(b.token_ids), b.first_token_s) == (ABORTED, 1, a.first_token_s)


def test_an_interrupt_loses_no_answer_to_what_a_callback_has_submitted() -> None:
    """Both end with one plan, and Ctrl-C comes between; what is submitted and aborted after that is answered, too."""
    engine = make_engine()

    def on_answer(answer: Answer) -> None:
        if answer.request.id == "refused":
            engine.submit(asks("new", 1, 2))
        if answer.request.id == "a":
            raise KeyboardInterrupt
        if answer.request.id == "new":
            engine.submit(asks("newer", 1, 2))
            engine.submit(asks("gone", 1, 2))
            engine.abort("gone")

    served = serve(engine, [asks("a", 1, 2), asks("refused", ())], on_answer)
    assert {answer.request.id: answer.finish_reason for answer in served.answers} == {
        "a": FinishReason.LENGTH,
        "refused": FinishReason.REFUSED,
        "new": FinishReason.LENGTH,
        "newer": FinishReason.INTERRUPTED,
        "gone": ABORTED,
    }


def test_after_a_stage_has_failed_a_callback_may_submit_still() -> None:
    """Memory is asked whether it could hold what is submitted, and told of no end: what it holds means nothing."""

    class Failing(Contiguous):
        def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
            raise RuntimeError("broken")

        def release(self, sequence: Sequence, now: float) -> None:
            raise AssertionError("it was told of an end")

    engine, failures = make_engine(memory=Failing(100)), list[BaseException]()

    def on_answer(answer: Answer) -> None:
        if answer.request.id == "a":
            engine.submit(asks("b", 1, 1))
            with pytest.raises(RequestRefused, match="the context is"):
                engine.submit(asks("too long", 30, 99))

    served = serve(engine, [asks("a", 1, 2)], on_answer, on_failure=failures.append)
    assert {answer.request.id: answer.finish_reason for answer in served.answers} == dict.fromkeys(
        ("a", "b"), FinishReason.INTERRUPTED
    )
    assert "broken" in str(failures[0])


def test_a_run_that_has_ended_refuses_what_another_thread_submits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last answer and the end of `serve` a request would be taken, and never answered."""
    engine = make_engine()
    end, outcomes = engine.trace.ended, []

    def submit() -> None:
        try:
            engine.submit(asks("b", 1, 1))
        except UsageError as error:
            outcomes.append(str(error))

    def ending(*arguments: Any) -> None:
        other = threading.Thread(target=submit)
        other.start()
        other.join()
        end(*arguments)

    monkeypatch.setattr(engine.trace, "ended", ending)
    assert [answer.request.id for answer in serve(engine, [asks("a", 1, 2)]).answers] == ["a"]
    assert len(outcomes) == 1
    assert "closed" in outcomes[0]


# --- from another thread, in real time: a run that is not woken would sleep for eleven days


@pytest.mark.parametrize("name", ["orca", "instances"])
def test_a_sleeping_engine_is_woken(name: str) -> None:
    engine = make_real_engine(name)
    engine.submit(asks("far", 1, 1, at=1e6))

    def from_outside() -> None:
        engine.submit(asks("now", 1, 1))
        assert engine.abort("far")

    other = threading.Timer(0.05, from_outside)
    other.start()
    steps = list(engine.run())
    other.join()
    assert [step.plan.sequences for step in steps] in ([["now"]], [])
    assert engine.finished["far"].finish_reason is ABORTED
    now = engine.requests.arrivals.prompts_of("now")
    assert now == ("now",)
    list(engine.run())  # the abort may have ended the run before the other request was received
    assert engine.finished["now"].request.arrival_s > 0
    engine.executor.close()


def test_a_request_of_another_thread_waits_for_the_plan_that_runs() -> None:
    running, submitted = threading.Event(), threading.Event()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        running.set()
        assert submitted.wait(60)
        return placeholder_tokens(plan, sequences)

    engine = make_real_engine(run=run)
    engine.submit(asks("a", 2, 3))

    def from_outside() -> None:
        assert running.wait(60)
        engine.submit(asks("b", 1, 1))
        engine.abort("a")
        submitted.set()

    other = threading.Thread(target=from_outside)
    other.start()
    steps = list(engine.run())
    other.join()
    assert [(list(step.plan.sequences), step.discarded) for step in steps] == [(["a"], 2), (["b"], 0)]
    assert engine.finished["a"].answer == []
    assert 0 < engine.finished["b"].request.arrival_s <= steps[0].ended_s
    assert engine.memory.usage().reserved == 0
    engine.executor.close()


def test_many_threads_submit_at_once() -> None:
    engine = make_real_engine()
    engine.submit(asks("first", 1, 20))
    threads = [
        threading.Thread(target=lambda i=i: [engine.submit(asks(f"{i}/{j}", 1, 2)) for j in range(20)])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    list(engine.run())
    for thread in threads:
        thread.join()
    list(engine.run())
    assert len(engine.finished) == 81
    assert all(sequence.finish_reason is FinishReason.LENGTH for sequence in engine.finished.values())
    engine.executor.close()
