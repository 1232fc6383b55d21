"""The loop and its seams: schedules by hand, several workers, two waves, waiting, refusing, giving up."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from helpers import asks, make_engine, run_all, schedule, sentence

from minifuse.attention.batch import AttentionBackend, Batch
from minifuse.attention.layouts import PerSequenceLayout
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.batching import Iteration
from minifuse.batching.policy import Stepwise
from minifuse.clock import RealClock
from minifuse.engine import Engine
from minifuse.errors import LawBroken, RequestRefused
from minifuse.execute import RealExecutor
from minifuse.execute.texts import torch_runner
from minifuse.layout import Rectangle
from minifuse.memory import Contiguous
from minifuse.plan import Placement, Plan, Proposal, Reason
from minifuse.report import Completion, KVUsage, Ran
from minifuse.request import FinishReason, Phase, Request, Sequence, TextReader
from minifuse.stages import Memory
from minifuse.testing.texts.models import CONTEXT, VOCAB, expected_answer, small_model
from minifuse.trace import decisions
from minifuse.work import Span, Work

LLAMA = "llama"


def _finish_times(steps: list[Any]) -> dict[str, float]:
    return {name: step.ended_s for step in steps for name in step.finished}


# --- golden schedules: every iteration takes one second


FOUR = [asks("a", 2, 3), asks("b", 3, 1), asks("d", 1, 2), asks("c", 2, 2, at=0.5)]


def test_static_by_hand() -> None:
    """a and b start together and a goes on beside b's finished row; d and c wait for the whole batch."""
    steps = run_all(make_engine("static", settings={"batching.max_batch": 2}), FOUR)
    assert schedule(steps) == [
        "0: a[0:2) b[0:3)",
        "1: a[2:3)",
        "2: a[3:4)",
        "3: d[0:1) c[0:2)",
        "4: d[1:2) c[2:3)",
    ]
    assert [step.plan.num_idle for step in steps] == [1, 1, 1, 1, 0]
    assert [step.plan.shape for step in steps] == [
        Rectangle(0, 2, 5, 0, 3),
        Rectangle(0, 2, 5, 3, 4),
        Rectangle(0, 2, 5, 4, 5),
        Rectangle(0, 2, 3, 0, 2),
        Rectangle(0, 2, 3, 2, 3),
    ]
    assert _finish_times(steps) == {"b": 1, "a": 3, "d": 5, "c": 5}
    assert [step.plan.admitted for step in steps] == [("a", "b"), (), (), ("d", "c"), ()]
    assert [[(r.code, r.sequence) for r in step.plan.reasons] for step in steps] == [
        [("batch-full", "d")], [("batch-running", "d")], [("batch-running", "d")], [], [],
    ]  # fmt: skip
    # Rows times columns computed, of rows times columns set aside: a finished row's KV grows with the others.
    assert [step.usage for step in steps] == [
        KVUsage(6, 10, 400), KVUsage(8, 10, 400), KVUsage(10, 10, 400), KVUsage(4, 6, 400), KVUsage(6, 6, 400),
    ]  # fmt: skip


def test_orca_by_hand() -> None:
    """b leaves after one iteration and d takes its place; c joins when a and d have left."""
    steps = run_all(make_engine("orca", settings={"batching.max_batch": 2}), FOUR)
    assert schedule(steps) == [
        "0: a[0:2) b[0:3)",
        "1: a[2:3) d[0:1)",
        "2: a[3:4) d[1:2)",
        "3: c[0:2)",
        "4: c[2:3)",
    ]
    assert [step.plan.num_idle for step in steps] == [0] * 5
    assert _finish_times(steps) == {"b": 1, "a": 3, "d": 3, "c": 5}
    assert [[str(r) for r in step.plan.reasons] for step in steps] == [
        ["d not admitted: the batch has 2 requests"],
        ["c not admitted: the batch has 2 requests"],
        ["c not admitted: the batch has 2 requests"],
        [],
        [],
    ]
    assert [step.usage for step in steps][:2] == [KVUsage(5, 7, 400), KVUsage(4, 6, 400)]


def test_serial_by_hand() -> None:
    steps = run_all(make_engine("serial"), FOUR)
    assert schedule(steps) == [
        "0: a[0:2)", "1: a[2:3)", "2: a[3:4)", "3: b[0:3)", "4: d[0:1)", "5: d[1:2)", "6: c[0:2)", "7: c[2:3)",
    ]  # fmt: skip


def test_naive_by_hand() -> None:
    """Everything again for every token."""
    steps = run_all(make_engine("naive"), FOUR[:2])
    assert schedule(steps) == ["0: a[0:2)", "1: a[0:3)", "2: a[0:4)", "3: b[0:3)"]


def test_a_token_budget_cuts_a_long_prompt() -> None:
    engine = make_engine("orca", settings={"batching.token_budget": 4})
    steps = run_all(engine, [asks("long", 6, 2), asks("short", 2, 2)])
    assert schedule(steps) == ["0: long[0:4)", "1: long[4:6) short[0:2)", "2: long[6:7) short[2:3)"]
    assert [step.tokens for step in steps] == [{}, {"long": -1, "short": -1}, {"long": -1, "short": -1}]
    assert [r.code for r in steps[0].plan.reasons] == ["budget-spent"]


def test_dynamic_by_hand() -> None:
    """The oldest request's arrival opens the window; a full batch starts at once; waiting behind a batch counts."""
    engine = make_engine("dynamic", settings={"batching.window": "2s", "batching.max_batch": 3})
    requests = [
        asks("a", 2, 2, at=0.5),
        asks("b", 2, 2, at=1.0),
        asks("c", 2, 3, at=5.0),
        asks("d", 2, 3, at=5.5),
        asks("e", 2, 3, at=6.0),
        asks("f", 2, 1, at=6.5),
        asks("g", 2, 1, at=8.75),
    ]
    steps = run_all(engine, requests)
    assert schedule(steps) == [
        "2.5: a[0:2) b[0:2)",
        "3.5: a[2:3) b[2:3)",
        "6: c[0:2) d[0:2) e[0:2)",
        "7: c[2:3) d[2:3) e[2:3)",
        "8: c[3:4) d[3:4) e[3:4)",
        "9: f[0:2) g[0:2)",
    ]
    waits = [event for event in engine.trace.events() if event["event"] == "wait"]
    spans = [(event["wall"]["start_s"], event["wall"]["end_s"]) for event in waits]
    assert spans == [(0.5, 1.0), (1.0, 2.5), (5.0, 5.5), (5.5, 6.0)]
    assert waits[1]["reasons"] == [
        ["window-open", "a", "not admitted: 2 wait and the window of 2 s closes at 2.500 s"],
    ]


def test_a_window_of_zero_is_static() -> None:
    with_window = make_engine("dynamic", settings={"batching.window": "0s", "batching.max_batch": 2})
    assert schedule(run_all(with_window, FOUR)) == schedule(
        run_all(make_engine("static", settings={"batching.max_batch": 2}), FOUR)
    )


def test_memory_holds_newcomers_back_in_order() -> None:
    """b needs 9 slots and c only 2, but nobody is overtaken."""
    engine = make_engine("orca", capacity=10)
    steps = run_all(engine, [asks("a", 4, 2), asks("b", 8, 2), asks("c", 1, 2)])
    assert schedule(steps)[:3] == ["0: a[0:4)", "1: a[4:5)", "2: b[0:8)"]
    assert [str(r) for r in steps[0].plan.reasons] == [
        "b not admitted: needs 9 KV tokens in a row, the longest free run has 5"
    ]
    assert _finish_times(steps) == {"a": 2, "b": 4, "c": 6}


# --- arrivals and waiting


def test_an_arrival_during_an_iteration_joins_the_next() -> None:
    steps = run_all(make_engine(), [asks("a", 2, 4), asks("b", 2, 1, at=1.5), asks("c", 2, 1, at=2.0)])
    assert schedule(steps) == [
        "0: a[0:2)",
        "1: a[2:3)",
        "2: a[3:4) b[0:2) c[0:2)",
        "3: a[4:5)",
    ]


def test_a_gap_between_arrivals_is_skipped_and_is_no_wait() -> None:
    engine = make_engine()
    steps = run_all(engine, [asks("a", 2, 1, at=3.25), asks("b", 2, 1, at=100)])
    assert schedule(steps) == ["3.25: a[0:2)", "100: b[0:2)"]
    assert [event["event"] for event in engine.trace.events()] == ["run", "request", "request", "step", "step", "end"]


def test_arrival_order_and_submission_order_on_a_tie() -> None:
    requests = [asks("late", 1, 1, at=2), asks("x", 1, 1, at=1), asks("y", 1, 1, at=1), asks("first", 1, 1)]
    steps = run_all(make_engine("serial"), requests)
    assert [step.plan.work[0].sequence for step in steps] == ["first", "x", "y", "late"]


def test_requests_may_be_submitted_while_it_runs() -> None:
    engine = make_engine()
    engine.submit(asks("a", 2, 3))
    steps = []
    for step in engine.run():
        steps.append(step)
        if step.plan.step == 0:
            engine.submit(asks("b", 2, 1))
    assert schedule(steps) == ["0: a[0:2)", "1: a[2:3) b[0:2)", "2: a[3:4)"]


def test_nothing_asked_nothing_done() -> None:
    engine = make_engine()
    assert list(engine.run()) == []
    assert [event["event"] for event in engine.trace.events()] == ["run", "end"]


class _Never(Iteration):
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return Reason("stubborn", sequence.id, "not admitted: I never do")


def test_deadlock_is_named() -> None:
    engine = make_engine(batching=_Never())
    with pytest.raises(LawBroken, match="a not admitted: I never do") as error:
        run_all(engine, [asks("a"), asks("b")])
    assert error.value.law == "progress"


def test_deadlock_without_a_reason_is_named_too() -> None:
    class Silent(Iteration):
        def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
            return Proposal()

    with pytest.raises(LawBroken, match="gave no reason") as error:
        run_all(make_engine(batching=Silent()), [asks("a")])
    assert error.value.law == "progress"


# --- stopping


def test_phases_and_why_an_answer_ends() -> None:
    tokens = iter([7, 3, 3, 3, 3])
    engine = make_engine("serial", run=lambda plan, sequences: Ran({plan.work[0].sequence: next(tokens)}))
    requests = [
        asks("stops", 2, 5, stop_ids=(9, 3)),
        asks("stops at its limit", 2, 1, stop_ids=(3,)),
        asks("ignores", 2, 2, stop_ids=(3,), ignore_eos=True),
    ]
    for request in requests:
        engine.submit(request)
    running = [dict(engine.sequences) for _ in engine.run()]
    assert {name: (s.answer, s.finish_reason) for name, s in engine.finished.items()} == {
        "stops": ([7, 3], FinishReason.STOP),
        "stops at its limit": ([3], FinishReason.STOP),
        "ignores": ([3, 3], FinishReason.LENGTH),
    }
    assert all(s.phase is Phase.FINISHED for s in engine.finished.values())
    assert list(running[1]) == ["stops at its limit", "ignores"]


def test_phase_while_it_runs() -> None:
    engine = make_engine("serial")
    for request in (asks("a", 2, 3), asks("b", 2, 3)):
        engine.submit(request)
    next(engine.run())
    assert (engine.sequences["a"].phase, engine.sequences["b"].phase) == (Phase.RUNNING, Phase.RECEIVED)


# --- several workers


class Pinned(Stepwise):
    """Each sequence belongs to one worker, which serves its own as Orca would."""

    name, Options = "pinned", object

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.waiting: list[dict[str, Sequence]] = [{} for _ in range(workers)]
        self.running: list[dict[str, Sequence]] = [{} for _ in range(workers)]
        self.received = 0

    def receive(self, sequence: Sequence) -> None:
        self.waiting[self.received % len(self.waiting)][sequence.id] = sequence
        self.received += 1

    def release(self, sequence: Sequence) -> None:
        for held in (*self.waiting, *self.running):
            held.pop(sequence.id, None)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        admit, room = [], memory.room()
        for sequence in list(self.waiting[worker].values()):
            if room.admit(sequence) is not None:
                break
            admit.append(sequence)
            self.running[worker][sequence.id] = self.waiting[worker].pop(sequence.id)
        work = [Work(s.id, *span) for s in self.running[worker].values() for span in memory.missing(s)]
        return Proposal(tuple(work), tuple(admit))


CROWD = [asks(f"r{i}", 1 + 3 * i % 7, 2 + i % 5, at=0.3 * (i // 3)) for i in range(9)]


def _answers(engine: Engine) -> dict[str, list[int]]:
    return {name: sequence.answer for name, sequence in engine.finished.items()}


def _expected(requests: list[Request]) -> dict[str, list[int]]:
    return {request.id: list(expected_answer(LLAMA, request)) for request in requests}


def test_two_workers_in_virtual_time() -> None:
    """Worker 1 is faster; completions come in the order in which they end, and each worker keeps to its own."""
    seconds = [1.0, 0.4]
    engine = make_engine(model=LLAMA, batching=Pinned(2), cost=lambda plan: seconds[plan.worker])
    steps = run_all(engine, CROWD)
    assert _answers(engine) == _expected(CROWD)
    assert [step.ended_s for step in steps] == sorted(step.ended_s for step in steps)
    owner = {w.sequence: step.plan.worker for step in steps for w in step.plan.work}
    assert owner == {request.id: i % 2 for i, request in enumerate(CROWD)}
    assert all(owner[w.sequence] == step.plan.worker for step in steps for w in step.plan.work)
    assert all(step.ended_s - step.started_s == pytest.approx(seconds[step.plan.worker]) for step in steps)
    assert engine.memory.usage().reserved == 0


def test_completion_order_by_hand() -> None:
    seconds = [1.0, 0.375]
    engine = make_engine(batching=Pinned(2), cost=lambda plan: seconds[plan.worker])
    steps = run_all(engine, [asks("slow", 1, 2), asks("quick", 1, 4)])
    assert [(step.plan.step, step.plan.worker, step.started_s, step.ended_s) for step in steps] == [
        (1, 1, 0.0, 0.375),
        (2, 1, 0.375, 0.75),
        (0, 0, 0.0, 1.0),
        (3, 1, 0.75, 1.125),
        (5, 1, 1.125, 1.5),
        (4, 0, 1.0, 2.0),
    ]


def test_plans_that_end_together_are_committed_by_step() -> None:
    engine = make_engine(batching=Pinned(3))
    steps = run_all(engine, [asks(name, 1, 2) for name in "abc"])
    assert [step.plan.step for step in steps] == [0, 1, 2, 3, 4, 5]
    assert [step.started_s for step in steps] == [0, 0, 0, 1, 1, 1]


def test_an_idle_worker_takes_what_arrives_while_the_other_works() -> None:
    engine = make_engine(batching=Pinned(2), cost=lambda plan: 4.0)
    steps = run_all(engine, [asks("a", 1, 1), asks("b", 1, 1, at=1.5)])
    assert [(step.plan.worker, step.started_s, step.ended_s) for step in steps] == [(0, 0.0, 4.0), (1, 1.5, 5.5)]
    assert "wait" not in [event["event"] for event in engine.trace.events()]


class _Alarm(Pinned):
    """Worker 0 starts nothing before its alarm; worker 1 has nothing to do and no wish."""

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if worker == 0 and now < 3:
            return Proposal(wake_at=3.0, reasons=(Reason("asleep", "a", "not admitted: the alarm is set"),))
        return super().propose(worker, now, memory)


def test_every_idle_workers_wish_to_be_asked_again_counts() -> None:
    engine = make_engine(batching=_Alarm(2))
    steps = run_all(engine, [asks("a", 1, 1)])
    assert [(step.plan.worker, step.started_s) for step in steps] == [(0, 3.0)]


def _threaded(run: Any, workers: int = 2) -> Engine:
    memory, attention, clock = Contiguous(400), PerSequenceLayout(), RealClock()
    run = run or torch_runner(small_model(LLAMA), memory, attention)
    executor = RealExecutor(run, clock, workers)
    return Engine(Pinned(workers), memory, attention, executor, clock, reader=TextReader(VOCAB, CONTEXT))


def test_two_workers_in_threads() -> None:
    """The first two plans meet at a barrier: they really run at the same time."""
    engine = _threaded(None)
    barrier = threading.Barrier(2)
    compute = engine.executor._run  # type: ignore[attr-defined]

    def meet(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.step < 2:
            barrier.wait(timeout=60)
        return compute(plan, sequences)

    engine.executor._run = meet  # type: ignore[attr-defined]
    requests = [replace(request, arrival_s=0.0) for request in CROWD]
    try:
        steps = run_all(engine, requests)
    finally:
        engine.executor.close()
    assert _answers(engine) == _expected(requests)
    assert {step.plan.worker for step in steps} == {0, 1}
    assert engine.memory.usage().reserved == 0


def test_an_error_in_a_workers_thread_surfaces() -> None:
    def broken(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.worker == 1:
            raise ValueError("the kernel broke")
        return Ran({work.sequence: 1 for work in plan.work})

    engine = _threaded(broken)
    try:
        with pytest.raises(ValueError, match="the kernel broke"):
            run_all(engine, [asks("a", 1, 3), asks("b", 1, 3)])
    finally:
        engine.executor.close()


class _CountingClock(RealClock):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def now(self) -> float:
        self.reads += 1
        return super().now()


def test_a_real_clock_runs_before_the_first_iteration_does() -> None:
    """It starts when first read: read only afterwards, the first iteration would seem to have taken no time."""
    clock, reads = _CountingClock(), []

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        reads.append(clock.reads)
        return Ran({"a": 1})

    engine = _threaded(run)
    engine.clock, engine.executor = clock, RealExecutor(run, clock)
    run_all(engine, [asks("a", 2, 2)])
    assert reads[0] >= 1


# --- requests of several prompts


def test_prompts_of_one_request_are_submitted_as_one() -> None:
    engine = make_engine()
    engine.submit(asks("g/0", 2, 1, group="g"), asks("g/1", 3, 1, group="g"))
    assert [step.plan.num_tokens for step in engine.run()] == [5]


@pytest.mark.parametrize(
    ("prompts", "parts"),
    [
        ([asks("a", group="g"), asks("b", group="h")], ["'a' and 'b'", "group or arrival"]),
        ([asks("a", group="g"), asks("b", at=1.0, group="g")], ["'a' and 'b'", "group or arrival"]),
        ([asks("a", group="g"), asks("a", group="g")], ["'a' was submitted twice"]),
        ([asks("a"), asks("b")], ["'a' to 'b'", "no group"]),
        ([asks("a", group="g"), asks("b", 300, 101, group="g")], ["'b'", "context"]),
        ([asks("a", 20, 21, group="g"), asks("b", 20, 21, group="g")], ["'g' with its 2 prompts", "80 tokens", "70"]),
    ],
)
def test_prompts_that_do_not_go_together(prompts: list[Request], parts: list[str]) -> None:
    engine = make_engine(capacity=70)
    with pytest.raises(RequestRefused) as error:
        engine.submit(*prompts)
    sentence(error.value, *parts)
    assert not engine.unfinished
    engine.submit(asks("b"))  # nothing of it was kept


def test_a_group_is_submitted_once() -> None:
    """Otherwise two requests would stand in the queue as one, which might never fit."""
    engine = make_engine("fusion", settings={"memory.slots": 2})
    engine.submit(asks("a", group="g"), asks("b", group="g"))
    for again in ((asks("c", group="g"), asks("d", group="g")), (asks("e", group="g"),)):
        with pytest.raises(RequestRefused) as error:
            engine.submit(*again)
        sentence(error.value, "group 'g'", "before")
    assert len(list(engine.run())) > 0
    assert set(engine.finished) == {"a", "b"}


# --- two waves


class _TwoWaves(PerSequenceLayout):
    """FluidInfer's seam in the small: the second half of the work is attended after the first."""

    def layout(self, work: tuple[Work, ...], placement: Placement) -> tuple[Rectangle | None, tuple[Span, ...]]:
        half = (len(work) + 1) // 2
        return None, (Span(0, half), Span(half, len(work))) if len(work) > 1 else (Span(0, 1),)

    def backend(self, *where: str) -> AttentionBackend:
        return self

    def __init__(self) -> None:
        self.tensors = PerSequenceAttention()
        self.operators = self.tensors.operators
        self.waves: list[int] = []

    def batch(self, plan: Plan, sequences: Any, cache: Any) -> Batch:
        batch = self.tensors.batch(plan, sequences, cache)
        self.waves.append(len(batch.waves))
        return batch

    def attend(self, *args: Any) -> Any:
        return self.tensors.attend(*args)


def test_two_waves_through_the_whole_engine() -> None:
    layout = _TwoWaves()
    engine = make_engine(model=LLAMA, attention=layout)
    steps = run_all(engine, CROWD)
    assert _answers(engine) == _expected(CROWD)
    assert max(layout.waves) == 2
    assert [len(step.plan.waves) for step in steps] == layout.waves
    assert all([w for a, b in step.plan.waves for w in range(a, b)] == [*range(len(step.plan.work))] for step in steps)


# --- refusals


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (asks("bad", ()), ["empty prompt", "at least one token"]),
        (asks("bad", 2, 0), ["0 new tokens", "at least 1"]),
        (asks("bad", 2, -5), ["-5 new tokens"]),
        (asks("bad", (1, VOCAB)), [f"token id {VOCAB}", f"0 to {VOCAB - 1}", "tokenizer"]),
        (asks("bad", (1, -1)), ["token id -1"]),
        (asks("bad", CONTEXT - 3, 4), [f"{CONTEXT - 3} prompt tokens", "4 more", f"context is {CONTEXT}"]),
        (asks("bad", 20, 12), ["31 tokens", "holds 30", "--kv-memory"]),
        (asks("good"), ["submitted twice", "id of its own"]),
    ],
    ids=["empty", "zero", "negative", "vocabulary", "negative id", "context", "memory", "twice"],
)
def test_refusals(request_: Request, parts: list[str]) -> None:
    engine = make_engine(capacity=30)
    engine.submit(asks("good", 3, 4))
    with pytest.raises(RequestRefused) as error:
        engine.submit(request_)
    sentence(error.value, repr(request_.id), *parts)
    refused = [event for event in engine.trace.events() if event["event"] == "refused"]
    assert refused == [{"event": "refused", "id": request_.id, "why": str(error.value)}]
    # Nothing is lost by it: the same iterations as without.
    alone = make_engine(capacity=30)
    assert [step.decisions() for step in engine.run()] == [
        step.decisions() for step in run_all(alone, [asks("good", 3, 4)])
    ]
    assert list(engine.finished) == ["good"]


def test_a_refused_id_may_be_used_again() -> None:
    engine = make_engine(capacity=30)
    with pytest.raises(RequestRefused):
        engine.submit(asks("a", ()))
    assert list(run_all(engine, [asks("a", 2, 1)])[0].finished) == ["a"]
    with pytest.raises(RequestRefused, match="twice"):
        engine.submit(asks("a", 2, 1))  # also after it has finished


def test_what_just_fits_is_served() -> None:
    engine = make_engine(capacity=CONTEXT - 1)
    steps = run_all(engine, [asks("a", CONTEXT - 4, 4), asks("b", (VOCAB - 1, 0), 1)])
    assert steps[-1].ended_s == 5
    assert len(engine.finished["a"]) == CONTEXT


# --- giving up


def test_interrupt_keeps_what_is_finished() -> None:
    engine = make_engine("orca", settings={"batching.max_batch": 2})
    requests = [asks("done", 2, 1), asks("half", 2, 9), asks("waiting", 2, 3), asks("to come", 2, 3, at=50.0)]
    requests.insert(2, asks("second", 2, 9))
    for request in requests:
        engine.submit(request)
    steps = engine.run()
    for _ in range(3):
        next(steps)
    assert engine.interrupt() == ["half", "second", "waiting", "to come"]
    assert {name: (s.finish_reason, s.num_new) for name, s in engine.finished.items()} == {
        "done": (FinishReason.LENGTH, 1),
        "half": (FinishReason.INTERRUPTED, 3),
        "second": (FinishReason.INTERRUPTED, 2),
        "waiting": (FinishReason.INTERRUPTED, 0),
        "to come": (FinishReason.INTERRUPTED, 0),
    }
    assert not engine.unfinished
    assert engine.memory.usage() == KVUsage(0, 0, 400)
    engine.memory.check_integrity()
    assert (engine.batching.running, engine.batching.waiting) == ({}, {})  # type: ignore[attr-defined]
    (end,) = (event for event in engine.trace.events() if event["event"] == "end")
    assert end["unfinished"] == ["half", "second", "waiting", "to come"]
    assert end["wall"]["end_s"] == 3.0


# --- the trace of a run


def test_events_of_a_run_in_order() -> None:
    engine = make_engine("dynamic", settings={"batching.window": "2s"})
    run_all(engine, [asks("a", 2, 2, at=0.5, priority=3, conversation="c")])
    events = list(engine.trace.events())
    assert [event["event"] for event in events] == ["run", "request", "wait", "step", "step", "end"]
    assert events[1] == {
        "event": "request", "id": "a", "arrival_s": 0.5, "prompt_tokens": 2, "max_new_tokens": 2, "priority": 3,
        "conversation": "c", "group": None,
    }  # fmt: skip
    assert events[-1] == {"event": "end", "unfinished": [], "wall": {"end_s": 4.5}}


def test_decisions_do_not_depend_on_durations() -> None:
    """All at once, so no arrival can fall elsewhere: only "wall" differs."""
    logs = []
    for seconds in (1.0, 0.01):
        engine = make_engine("orca", cost=lambda plan, seconds=seconds: seconds)
        run_all(engine, FOUR[:3])
        logs.append(list(engine.trace.events()))
    assert logs[0] != logs[1]
    assert decisions(logs[0]) == decisions(logs[1])


def test_commit_reports_what_the_executor_said() -> None:
    engine = make_engine("serial")
    engine.submit(asks("a", 2, 2))
    engine.receive()
    engine.dispatch()
    (completion,) = engine.executor.wait(None)
    report = engine.commit(Completion(completion.plan, Ran({"a": 11}), 0.25))
    assert (report.started_s, report.ended_s, report.tokens, report.finished) == (0.0, 0.25, {"a": 11}, {})
    assert engine.sequences["a"].answer == [11]
    assert report.usage == KVUsage(2, 3, 400)
