"""Serving requests to their end: answers in order, times, refusals among them, and Ctrl-C."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, make_engine, make_real_engine, refusal, run_all

from minifuse.core.errors import UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import FinishReason, Phase, Sampling, Sequence
from minifuse.execute import transfers
from minifuse.model.text.load import TextSource
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import Answer, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import serving, technique
from minifuse.testing.texts.models import CONFIGS, expected_answer, small_model
from minifuse.trace.log import Trace, read_trace

SOURCE = TextSource("random:toy", CONFIGS["llama"], None)
LENGTH = FinishReason.LENGTH
REFUSED, INTERRUPTED = FinishReason.REFUSED, FinishReason.INTERRUPTED


def _reasons(answers: Any) -> list[tuple[str, FinishReason]]:
    return [(answer.request.id, answer.finish_reason) for answer in answers]


# --- answers


def test_answers_in_the_order_given_and_callbacks_in_the_order_of_their_ends() -> None:
    """b ends first, a last; x can never be served and is refused before anything runs."""
    requests = [asks("a", 2, 3), asks("x", (), 3), asks("late", 2, 1, at=0.5), asks("b", 2, 1)]
    ended: list[Answer] = []
    served = serve(make_engine(), requests, on_answer=ended.append)
    assert _reasons(served.answers) == [("a", LENGTH), ("x", REFUSED), ("late", LENGTH), ("b", LENGTH)]
    assert _reasons(ended) == [("x", REFUSED), ("b", LENGTH), ("late", LENGTH), ("a", LENGTH)]
    assert sorted(map(id, ended)) == sorted(map(id, served.answers))
    assert not served.interrupted


class _Broken(Exception):
    """What a stage raises."""


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((method, _Broken) for method in ("propose", "place", "commit", "release", "layout", "run")),
        ("run", SystemExit),
    ],
)
def test_a_stage_that_raises_costs_no_answer(method: str, kind: type[BaseException], tmp_path: Path) -> None:
    """The first request has been answered; whatever fails then, the others are interrupted, and the trace ends."""
    path = tmp_path / "t.jsonl"
    engine = make_engine(trace=Trace(path))
    ended: list[Answer] = []

    def fail(*arguments: Any, **named: Any) -> Any:
        raise kind(method)

    def answered(answer: Answer) -> None:
        ended.append(answer)
        if answer.request.id == "a":
            stages = {"propose": engine.batching, "layout": engine.attention, "run": engine.executor}
            setattr(stages.get(method, engine.memory), {"run": "_run"}.get(method, method), fail)

    requests = [asks("a", 2, 1), asks("b", 2, 9), asks("late", 2, 1, at=50.0), asks("x", ())]
    failures: list[BaseException] = []
    served = serve(engine, requests, answered, on_failure=failures.append)
    assert [(type(error), str(error)) for error in failures] == [(kind, method)]
    reason = LENGTH if method == "release" else INTERRUPTED  # of b, which has all of its answer when it is released
    assert _reasons(served.answers) == [("a", LENGTH), ("b", reason), ("late", INTERRUPTED), ("x", REFUSED)]
    assert sorted(map(id, ended)) == sorted(map(id, served.answers))
    assert sorted(read_trace(path)[-1]["unfinished"]) == ["b"] * (reason is INTERRUPTED) + ["late"]


def test_without_a_callback_the_failure_is_raised_when_all_is_answered() -> None:
    engine = make_engine()
    ended: list[Answer] = []

    def fail(*arguments: Any) -> Any:
        raise _Broken

    engine.attention.layout = fail  # type: ignore[method-assign]
    with pytest.raises(_Broken):
        serve(engine, [asks("a"), asks("b")], ended.append)
    assert _reasons(ended) == [("a", INTERRUPTED), ("b", INTERRUPTED)]


def test_an_engine_that_was_run_by_hand_before_answers_what_it_is_given_then() -> None:
    engine = make_engine()
    run_all(engine, [asks("a")])
    assert _reasons(serve(engine, [asks("b")]).answers) == [("b", LENGTH)]


def test_times_and_tokens() -> None:
    requests = [asks("a", 2, 3), asks("x", (), 3), asks("late", 2, 2, at=0.5)]
    a, x, late = serve(make_engine(), requests).answers
    assert (a.token_ids, a.first_token_s, a.finish_s, a.why_refused) == ((-1, -1, -1), 1.0, 3.0, None)
    assert (late.token_ids, late.first_token_s, late.finish_s) == ((-1, -1), 2.0, 3.0)
    assert (x.token_ids, x.first_token_s, x.finish_s) == ((), None, None)
    assert x.why_refused is not None
    assert "empty prompt" in x.why_refused


def test_a_prompt_in_pieces_has_its_first_token_after_the_last_piece() -> None:
    engine = make_engine(settings={"batching.token_budget": 2})
    (answer,) = serve(engine, [asks("a", 5, 2)]).answers
    assert (answer.first_token_s, answer.finish_s) == (3.0, 4.0)


def test_the_prompts_of_a_request_are_refused_or_served_as_one() -> None:
    bad = [asks("bad/0", 2, 2, group="bad"), asks("bad/1", (), 2, group="bad")]
    good = [asks("good/0", 2, 2, group="good"), asks("good/1", 3, 1, group="good")]
    for name in ("orca", "fusion"):
        served = serve(make_engine(name), [*bad, asks("a", 2, 1), *good])
        assert [answer.finish_reason for answer in served.answers] == [REFUSED] * 2 + [LENGTH] * 3
        assert {answer.why_refused for answer in served.answers[:2]} == {
            "Request 'bad/1' has an empty prompt: give at least one token."
        }


def test_a_duplicate_is_refused_and_the_first_is_served() -> None:
    served = serve(make_engine(), [asks("a", 2, 2), asks("a", 3, 1), asks("b", 2, 1)])
    assert _reasons(served.answers) == [("a", LENGTH), ("a", REFUSED), ("b", LENGTH)]
    assert len(served.answers[0].token_ids) == 2


@pytest.mark.parametrize("name", serving("transformer"))
def test_every_technique_with_a_model_in_real_time(name: str) -> None:
    requests = [
        asks("a", 4, 5, stop_ids=(3,)),
        asks("b", 1, 3, sampling=Sampling(1.0, seed=5)),
        asks("c", 7, 2, at=0.001),
    ]
    settings = Settings(dtype="float64", kv_memory=2**15)
    served = serve(build_engine(resolve_run(technique(name), SOURCE, settings), small_model("llama")), requests)
    for answer in served.answers:
        assert answer.token_ids == expected_answer("llama", answer.request)
        assert answer.first_token_s is not None
        assert answer.finish_s is not None
        assert answer.request.arrival_s < answer.first_token_s <= answer.finish_s


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_no_thread_outlives_the_run(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "AT_ONCE", -1)  # else so small copies are made without a thread
    before = {*threading.enumerate()}
    rotate = {"memory.block_size": 4, "memory.overflow": "rotate"}
    settings = Settings(dtype="float64", kv_memory=2**13, clock=clock, stage_options=rotate)
    engine = build_engine(resolve_run(technique("fluid"), SOURCE, settings), small_model("llama"))
    during: set[threading.Thread] = set()
    served = serve(
        engine, [asks(name, 5, 6) for name in "abcdef"], on_step=lambda _: during.update(threading.enumerate())
    )
    assert during - before, "no KV is copied"
    assert not {*threading.enumerate()} - before
    assert len(served.answers) == 6


# --- Ctrl-C


class _Stop:
    """Raises KeyboardInterrupt at the n-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, _: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


CROWD = [
    asks("done", 2, 1),
    asks("x", (), 1),
    asks("half", 2, 5),
    asks("last moment", 2, 2),
    asks("waiting", 2, 2),
    asks("to come", 2, 2, at=70.0),
]


def test_ctrl_c_after_an_iteration() -> None:
    ended: list[Answer] = []
    engine = make_engine(settings={"batching.max_batch": 3})
    served = serve(engine, CROWD, on_answer=ended.append, on_step=_Stop(2))
    assert _reasons(served.answers) == [
        ("done", LENGTH),
        ("x", REFUSED),
        ("half", INTERRUPTED),
        ("last moment", LENGTH),
        ("waiting", INTERRUPTED),
        ("to come", INTERRUPTED),
    ]
    assert served.interrupted
    assert len(ended) == 6
    assert [len(answer.token_ids) for answer in served.answers] == [1, 0, 2, 2, 1, 0]
    assert [answer.first_token_s for answer in served.answers] == [1.0, None, 1.0, 1.0, 2.0, None]
    assert [answer.finish_s for answer in served.answers] == [1.0, None, None, 2.0, None, None]
    (end,) = (event for event in served.trace.events() if event["event"] == "end")
    assert end["unfinished"] == ["half", "waiting", "to come"]


def test_ctrl_c_in_a_callback() -> None:
    """Both answers of the interrupted iteration are there, and none is reported twice."""
    stop, ended = _Stop(1), []

    def note(answer: Answer) -> None:
        ended.append(answer)
        stop(answer)

    served = serve(make_engine(), [asks("a", 2, 1), asks("b", 2, 1), asks("c", 2, 2)], on_answer=note)
    assert _reasons(served.answers) == [("a", LENGTH), ("b", LENGTH), ("c", INTERRUPTED)]
    assert sorted(answer.request.id for answer in ended) == ["a", "b", "c"]


def test_ctrl_c_with_a_refused_duplicate_of_a_request_just_served() -> None:
    """The refusal of the duplicate must not pass for the answer of the request served under the same id."""
    stop = _Stop(2)  # the refusal is the first answer
    requests = [asks("a", 2, 1), asks("b", 2, 1), asks("b", 3, 1)]
    served = serve(make_engine(), requests, on_answer=stop)
    assert _reasons(served.answers) == [("a", LENGTH), ("b", LENGTH), ("b", REFUSED)]


def test_ctrl_c_before_everything_is_submitted() -> None:
    served = serve(make_engine(), [asks("a", 2, 1), asks("x", (), 1), asks("b", 2, 1)], on_answer=_Stop(1))
    assert _reasons(served.answers) == [("a", INTERRUPTED), ("x", REFUSED), ("b", INTERRUPTED)]


def test_ctrl_c_while_a_plan_is_computed() -> None:
    calls = _Stop(3)

    def run(plan: Any, sequences: Any) -> Ran:
        calls(plan)
        return Ran({work.sequence: (5,) for work in plan.work})

    served = serve(make_engine("orca", run=run), [asks("a", 2, 2), asks("b", 2, 9)])
    assert [(a.token_ids, a.finish_reason) for a in served.answers] == [((5, 5), LENGTH), ((5, 5), INTERRUPTED)]


@pytest.mark.parametrize("prompts", [1, 2])
def test_ctrl_c_while_a_worker_pre_processes(prompts: int) -> None:
    """The main stream and a pre-processing worker are both busy: no thread is left behind, no slot is lost."""
    gc.collect()  # engines of other tests in this process, whose threads end with them
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = build_engine(resolve_run(technique("fusion"), SOURCE, Settings(dtype="float64")), small_model("llama"))
    compute = engine.executor._run  # type: ignore[attr-defined]
    ended: list[str] = []

    def run(plan: Plan, sequences: Any) -> Ran:
        if plan.phase is Phase.PREPROCESSING and plan.work[0].sequence.startswith("late"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)
        ran: Ran = compute(plan, sequences)
        ended.extend(work.sequence for work in plan.work)
        return ran

    engine.executor._run = run  # type: ignore[attr-defined]
    late = [asks(f"late/{i}", 6, 2, at=0.02, group="late") for i in range(prompts)]
    try:
        served = serve(engine, [asks("long", 3, 40), *late, asks("to come", 3, 2, at=90.0)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert served.interrupted
    assert [answer.finish_reason for answer in served.answers[1:]] == [INTERRUPTED] * (prompts + 1)
    assert "late/0" in ended, "the worker was not waited for"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("minifuse")]
    assert engine.memory.usage().reserved == 0
    room = engine.memory.room()
    assert [room.admit(Sequence(asks(f"new {i}"))) for i in range(8)] == [None] * 8, "a slot was lost"
    assert not engine.sequences
    engine.memory.check_integrity()


def test_an_error_closes_the_trace_and_reaches_the_caller(tmp_path: Path) -> None:
    def broken(plan: Any, sequences: Any) -> Ran:
        raise ValueError("broken")

    engine = build_engine(
        resolve_run(technique("orca"), SOURCE, Settings(clock="virtual")), trace_path=tmp_path / "t.jsonl"
    )
    engine.executor._run = broken  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="broken"):
        serve(engine, [asks("a")])
    assert [event["event"] for event in read_trace(tmp_path / "t.jsonl")] == ["run", "request", "end"]


def test_an_engine_serves_one_list_of_requests() -> None:
    """What it has counted, and its clock, would go on: the second list would not be measured by itself."""
    engine = make_engine()
    first = serve(engine, [asks("a")])
    for again in (lambda: serve(engine, [asks("b")]), lambda: engine.submit(asks("b"))):
        with refusal(UsageError, "another", "with the same model"):
            again()
    assert first.metrics()["requests"]["total"] == 1


def test_serving_within_a_run_is_refused_and_costs_that_run_nothing() -> None:
    engine, refused = make_engine(), []

    def again(report: StepReport) -> None:
        with pytest.raises(UsageError) as error:
            serve(engine, [asks("b")])
        refused.append(str(error.value))

    (answer,) = serve(engine, [asks("a", 2, 3)], on_step=again).answers
    assert (answer.token_ids, len(refused)) == ((-1, -1, -1), 3)


def test_serving_from_two_threads_at_once() -> None:
    engine, outcomes = make_real_engine(), []

    def run(name: str) -> None:
        try:
            outcomes.append(len(serve(engine, [asks(f"{name}{i}", 3, 3) for i in range(20)]).answers))
        except UsageError:
            outcomes.append(0)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [0, 20]


def test_what_is_submitted_while_a_run_is_given_up_is_interrupted_too() -> None:
    engine = make_engine()

    def more(answer: Answer) -> None:
        engine.submit(asks(f"{answer.request.id}+"))

    def interrupt(report: StepReport) -> None:
        raise KeyboardInterrupt

    served = serve(engine, [asks("a"), asks("b")], more, interrupt)
    assert _reasons(served.answers) == [(name, INTERRUPTED) for name in ("a", "b", "a+", "b+")]


def test_an_engine_that_was_interrupted_takes_no_more() -> None:
    def interrupt(report: StepReport) -> None:
        raise KeyboardInterrupt

    engine = make_engine()
    assert serve(engine, [asks("a")], on_step=interrupt).interrupted
    with refusal(UsageError, "closed", "another"):
        engine.submit(asks("b"))


def test_an_engine_that_runs_is_not_run_beside_itself() -> None:
    engine, waits = make_engine(), []

    @contextmanager
    def waiting() -> Iterator[None]:
        waits.append(engine.now)
        yield

    engine.submit(asks("a"))
    turns = engine.turns(waiting)
    next(turns)
    with refusal(UsageError, "runs already"):
        next(engine.run())
    assert len([report for reports in turns for report in reports]) == 2
    assert len(waits) == 3  # in the context of the run that goes on


@pytest.mark.parametrize("given", [None, "hello", asks("a"), ["hello"], [asks("a"), 3]])
def test_what_is_served_are_requests(given: Any) -> None:
    engine = make_engine()
    with refusal(UsageError, "request"):
        serve(engine, given)
    assert not engine.requests.unfinished


def test_what_is_submitted_are_requests() -> None:
    for given in ((), ("hello",), (asks("a"), None)):
        with refusal(UsageError, "equest"):
            make_engine().submit(*given)  # type: ignore[arg-type]
