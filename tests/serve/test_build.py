"""From requests to answers: order, times, refusals among the served, Ctrl-C, and what no engine is built from."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, make_engine, sentence

from minifuse.engine import Engine
from minifuse.errors import MachineError, UsageError
from minifuse.model.text.load import TextSource
from minifuse.plan import Plan
from minifuse.report import Ran, StepReport
from minifuse.request import FinishReason, Phase, Request, Sampling, Sequence
from minifuse.serve.build import build_engine
from minifuse.serve.run import Answer, serve
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Roofline, hardware
from minifuse.techniques import serving, technique
from minifuse.testing.texts.models import CONFIGS, expected_answer, small_model
from minifuse.trace import read_trace

LLAMA = CONFIGS["llama"]
SOURCE = TextSource("random:toy", LLAMA, None)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
REFUSED, INTERRUPTED = FinishReason.REFUSED, FinishReason.INTERRUPTED


def _told(answers: Any) -> list[tuple[str, FinishReason]]:
    return [(answer.request.id, answer.finish_reason) for answer in answers]


# --- answers


def test_answers_in_the_order_given_told_as_they_end() -> None:
    """b ends first, a last; x can never be served and is told of first."""
    requests = [asks("a", 2, 3), asks("x", (), 3), asks("late", 2, 1, at=0.5), asks("b", 2, 1)]
    told: list[Answer] = []
    served = serve(make_engine(), requests, on_answer=told.append)
    assert _told(served.answers) == [("a", LENGTH), ("x", REFUSED), ("late", LENGTH), ("b", LENGTH)]
    assert _told(told) == [("x", REFUSED), ("b", LENGTH), ("late", LENGTH), ("a", LENGTH)]
    assert sorted(map(id, told)) == sorted(map(id, served.answers))
    assert not served.interrupted


def test_times_and_tokens() -> None:
    requests = [asks("a", 2, 3), asks("x", (), 3), asks("late", 2, 2, at=0.5)]
    a, x, late = serve(make_engine(), requests).answers
    assert (a.token_ids, a.first_token_s, a.finish_s, a.why_refused) == ((-1, -1, -1), 1.0, 3.0, None)
    assert (late.token_ids, late.first_token_s, late.finish_s) == ((-1, -1), 2.0, 3.0)
    assert (x.token_ids, x.first_token_s, x.finish_s) == ((), None, None)
    assert x.why_refused is not None
    assert "empty prompt" in x.why_refused


def test_the_first_token_of_a_prompt_in_pieces_is_the_last_pieces() -> None:
    engine = make_engine(settings={"batching.token_budget": 2})
    (answer,) = serve(engine, [asks("a", 5, 2)]).answers
    assert (answer.first_token_s, answer.finish_s) == (3.0, 4.0)


def test_steps_are_told_one_by_one() -> None:
    steps: list[StepReport] = []
    serve(make_engine(), [asks("a", 2, 3), asks("b", 2, 2)], on_step=steps.append)
    assert [step.plan.step for step in steps] == [0, 1, 2]


def test_the_prompts_of_a_request_are_refused_or_served_as_one() -> None:
    bad = [asks("bad/0", 2, 2, group="bad"), asks("bad/1", (), 2, group="bad")]
    good = [asks("good/0", 2, 2, group="good"), asks("good/1", 3, 1, group="good")]
    for name in ("orca", "fusion"):
        served = serve(make_engine(name), [*bad, asks("a", 2, 1), *good])
        assert [answer.finish_reason for answer in served.answers] == [REFUSED] * 2 + [LENGTH] * 3
        assert {answer.why_refused for answer in served.answers[:2]} == {
            "Request 'bad/1' has an empty prompt: give at least one token."
        }


def test_nothing_asked() -> None:
    served = serve(make_engine(), [])
    assert served.answers == ()
    assert not served.interrupted


def test_a_duplicate_is_refused_and_the_first_is_served() -> None:
    served = serve(make_engine(), [asks("a", 2, 2), asks("a", 3, 1), asks("b", 2, 1)])
    assert _told(served.answers) == [("a", LENGTH), ("a", REFUSED), ("b", LENGTH)]
    assert len(served.answers[0].token_ids) == 2


@pytest.mark.parametrize("clock", ["real", "virtual"])
@pytest.mark.parametrize("name", serving("transformer"))
def test_every_technique_with_a_model(name: str, clock: Any) -> None:
    requests = [
        asks("a", 4, 5, stop_ids=(3,)),
        asks("b", 1, 3, sampling=Sampling(1.0, seed=5)),
        asks("c", 7, 2, at=0.001),
    ]
    settings = Settings(dtype="float64", kv_memory=2**15, clock=clock)
    served = serve(build_engine(technique(name), SOURCE, settings, small_model("llama")), requests)
    for answer in served.answers:
        assert answer.token_ids == expected_answer("llama", answer.request)
        assert answer.first_token_s is not None
        assert answer.finish_s is not None
        assert answer.request.arrival_s < answer.first_token_s <= answer.finish_s


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
    told: list[Answer] = []
    engine = make_engine(settings={"batching.max_batch": 3})
    served = serve(engine, CROWD, on_answer=told.append, on_step=_Stop(2))
    assert _told(served.answers) == [
        ("done", LENGTH),
        ("x", REFUSED),
        ("half", INTERRUPTED),
        ("last moment", LENGTH),
        ("waiting", INTERRUPTED),
        ("to come", INTERRUPTED),
    ]
    assert served.interrupted
    assert len(told) == 6
    assert [len(answer.token_ids) for answer in served.answers] == [1, 0, 2, 2, 1, 0]
    assert [answer.first_token_s for answer in served.answers] == [1.0, None, 1.0, 1.0, 2.0, None]
    assert [answer.finish_s for answer in served.answers] == [1.0, None, None, 2.0, None, None]
    (end,) = (event for event in served.trace.events() if event["event"] == "end")
    assert end["unfinished"] == ["half", "waiting", "to come"]


def test_ctrl_c_while_an_answer_is_told() -> None:
    """Both answers of the iteration that was cut short are there, and none is told twice."""
    stop, told = _Stop(1), []

    def tell(answer: Answer) -> None:
        told.append(answer)
        stop(answer)

    served = serve(make_engine(), [asks("a", 2, 1), asks("b", 2, 1), asks("c", 2, 2)], on_answer=tell)
    assert _told(served.answers) == [("a", LENGTH), ("b", LENGTH), ("c", INTERRUPTED)]
    assert sorted(answer.request.id for answer in told) == ["a", "b", "c"]


def test_ctrl_c_with_a_refused_twin_of_an_answer_not_yet_told() -> None:
    """The twin's refusal must not pass for the answer of the one that was served under the same id."""
    stop = _Stop(2)  # the refusal is the first answer told
    requests = [asks("a", 2, 1), asks("b", 2, 1), asks("b", 3, 1)]
    served = serve(make_engine(), requests, on_answer=stop)
    assert _told(served.answers) == [("a", LENGTH), ("b", LENGTH), ("b", REFUSED)]


def test_ctrl_c_before_everything_is_submitted() -> None:
    served = serve(make_engine(), [asks("a", 2, 1), asks("x", (), 1), asks("b", 2, 1)], on_answer=_Stop(1))
    assert _told(served.answers) == [("a", INTERRUPTED), ("x", REFUSED), ("b", INTERRUPTED)]


def test_ctrl_c_while_a_plan_is_computed() -> None:
    calls = _Stop(3)

    def run(plan: Any, sequences: Any) -> Ran:
        calls(plan)
        return Ran({work.sequence: 5 for work in plan.work})

    served = serve(make_engine("orca", run=run), [asks("a", 2, 2), asks("b", 2, 9)])
    assert [(a.token_ids, a.finish_reason) for a in served.answers] == [((5, 5), LENGTH), ((5, 5), INTERRUPTED)]


@pytest.mark.parametrize("prompts", [1, 2])
def test_ctrl_c_while_a_worker_pre_processes(prompts: int) -> None:
    """Both the main stream and a pre-processing worker are busy: no thread is left behind, no slot is lost."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = build_engine(technique("fusion"), SOURCE, Settings(dtype="float64"), small_model("llama"))
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


def test_an_error_closes_the_trace_and_goes_on_to_the_caller(tmp_path: Path) -> None:
    def broken(plan: Any, sequences: Any) -> Ran:
        raise ValueError("broken")

    engine = build_engine(technique("orca"), SOURCE, Settings(clock="virtual"), trace_path=tmp_path / "t.jsonl")
    engine.executor._run = broken  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="broken"):
        serve(engine, [asks("a")])
    assert [event["event"] for event in read_trace(tmp_path / "t.jsonl")] == ["run", "request"]


# --- building an engine


def _build(name: str = "orca", **settings: Any) -> Engine:
    return build_engine(technique(name), SOURCE, Settings(clock="virtual", **settings))


def test_kv_memory_is_a_number_of_tokens() -> None:
    # 2 layers, a key and a value, 2 KV heads of 4: 32 numbers a token
    assert LLAMA.kv_elements_per_token == 32
    assert _build(kv_memory=1000, dtype="float32").memory.capacity == 7  # of 128 bytes
    assert _build(kv_memory=1000, dtype="float64").memory.capacity == 3
    assert _build(kv_memory=1000, dtype="bfloat16").memory.capacity == 15
    assert _build(kv_memory=64, dtype="float16").memory.capacity == 1


def test_kv_memory_of_less_than_a_token() -> None:
    with pytest.raises(UsageError) as error:
        _build(kv_memory=63, dtype="float16")
    sentence(error.value, "63 bytes", "64 bytes", "random:toy", "float16", "--kv-memory")


@pytest.mark.parametrize("problem", [RuntimeError("out of memory"), MemoryError()])
def test_kv_memory_that_does_not_fit_the_machine(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(sys.modules["minifuse.serve.build"], "torch_runner", refuse)
    with pytest.raises(MachineError) as error:
        build_engine(technique("orca"), SOURCE, Settings(dtype="float64"), small_model("llama"))
    sentence(error.value, "64 MiB", "cpu", "--kv-memory")


def test_stage_options_reach_the_stages() -> None:
    engine = _build("dynamic", stage_options={"batching.window": "250ms", "batching.max_batch": "3"})
    options = engine.batching.options  # type: ignore[attr-defined]
    assert (options.window, options.max_batch) == (0.25, 3)
    with pytest.raises(UsageError) as error:
        _build("orca", stage_options={"batching.window": "250ms"})
    sentence(error.value, "'window'", "max_batch", "token_budget")


def test_unknown_hardware() -> None:
    with pytest.raises(UsageError) as error:
        _build(hardware="h100")
    sentence(error.value, "'h100'", "h200", "a100-40g")


def test_virtual_time_is_the_rooflines() -> None:
    requests = [asks("a", 4, 2), asks("b", 2, 2)]
    steps: list[StepReport] = []
    served = serve(_build(hardware="h200", dtype="float16"), requests, on_step=steps.append)
    cost = Roofline(LLAMA, "float16", hardware("h200"))
    assert [step.ended_s - step.started_s for step in steps] == [pytest.approx(cost(step.plan)) for step in steps]
    assert served.answers[0].token_ids == (-1, -1)  # no model: placeholders


def test_the_traces_header() -> None:
    engine = _build("dynamic", kv_memory=1000, seed=9, stage_options={"batching.max_batch": 4})
    (header,) = engine.trace.events()
    assert header == {
        "event": "run",
        "schema": "minifuse.trace/3",
        "technique": "dynamic",
        "stages": {"batching": "dynamic", "memory": "padded", "attention": "padded"},
        "model": "random:toy",
        "dtype": "float32",
        "clock": "virtual",
        "numerics": "fast",
        "seed": 9,
        "options": {"batching.max_batch": "4"},
        "kv_bytes_per_token": 128,
        "kv_capacity_tokens": 7,
    }


def test_limits_are_the_models() -> None:
    served = serve(_build(), [asks("ok", 40, 8), asks("long", 40, 9), Request("token", (LLAMA.vocab_size,), 1)])
    assert _told(served.answers) == [("ok", LENGTH), ("long", REFUSED), ("token", REFUSED)]
