"""The loop: arrivals and waiting, how answers end, giving up, and the trace of a run."""

from __future__ import annotations

from helpers import asks, breach, make_engine, run_all, schedule

from minifuse.batching import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.core.plan import Reason
from minifuse.core.report import Completion, KVUsage, Ran
from minifuse.core.request import FinishReason, Phase, Sequence
from minifuse.trace.log import decisions

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


def test_requests_are_received_by_arrival_and_then_by_submission() -> None:
    requests = [asks("late", 1, 1, at=2), asks("x", 1, 1, at=1), asks("y", 1, 1, at=1), asks("first", 1, 1)]
    steps = run_all(make_engine("serial"), requests)
    assert [step.plan.work[0].sequence for step in steps] == ["first", "x", "y", "late"]


def test_requests_may_be_submitted_during_a_run() -> None:
    engine = make_engine()
    engine.submit(asks("a", 2, 3))
    steps = []
    for step in engine.run():
        steps.append(step)
        if step.plan.step == 0:
            engine.submit(asks("b", 2, 1))
    assert schedule(steps) == ["0: a[0:2)", "1: a[2:3) b[0:2)", "2: a[3:4)"]


def test_a_run_without_requests() -> None:
    engine = make_engine()
    assert list(engine.run()) == []
    assert [event["event"] for event in engine.trace.events()] == ["run", "end"]


class _Never(Iteration):
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return Reason("stubborn", sequence.id, "not admitted: this policy admits nothing")


def test_deadlock_is_named() -> None:
    engine = make_engine(batching=_Never())
    with breach("progress", "a not admitted: this policy admits nothing"):
        run_all(engine, [asks("a"), asks("b")])


# --- stopping


def test_phases_and_finish_reasons() -> None:
    tokens = iter([7, 3, 3, 3, 3])
    engine = make_engine("serial", run=lambda plan, sequences: Ran({plan.work[0].sequence: (next(tokens),)}))
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


# --- interruption


def test_interrupt_keeps_the_tokens_so_far() -> None:
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
    assert not engine.requests.unfinished
    assert engine.memory.usage() == KVUsage(0, 0, 400)
    engine.memory.check_integrity()
    policy = engine.batching
    assert isinstance(policy, QueuePolicy)
    assert (len(policy.running), len(policy.waiting)) == (0, 0)
    (end,) = (event for event in engine.trace.events() if event["event"] == "end")
    assert end["unfinished"] == ["half", "second", "waiting", "to come"]
    assert end["wall"]["end_s"] == 3.0


# --- commit, and the trace of a run


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
    """All arrive at once, so only "wall" differs."""
    logs = []
    for seconds in (1.0, 0.01):
        engine = make_engine("orca", cost=lambda plan, seconds=seconds: seconds)
        run_all(engine, [asks("a", 2, 3), asks("b", 3, 1), asks("d", 1, 2)])
        logs.append(list(engine.trace.events()))
    assert logs[0] != logs[1]
    assert decisions(logs[0]) == decisions(logs[1])


def test_commit_reports_what_the_plan_produced() -> None:
    engine = make_engine("serial")
    engine.submit(asks("a", 2, 2))
    engine.requests.receive()
    engine.dispatch()
    (completion,) = engine.executor.wait(None)
    report = engine.commit(Completion(completion.plan, Ran({"a": (11,)}), 0.25))
    assert (report.started_s, report.ended_s, report.tokens, report.finished) == (0.0, 0.25, {"a": (11,)}, {})
    assert engine.sequences["a"].answer == [11]
    assert report.usage == KVUsage(2, 3, 400)


def test_tokens_beyond_the_end_of_an_answer_are_discarded() -> None:
    """A plan may produce several tokens for a sequence; those after its stop token are counted, and not reported."""
    engine = make_engine("serial", run=lambda plan, sequences: Ran({"a": (11, 9, 12, 13)}))
    (report,) = run_all(engine, [asks("a", 2, 8, stop_ids=(9,))])
    assert (report.tokens, report.finished) == ({"a": (11, 9)}, {"a": FinishReason.STOP})
    assert report.discarded == 2
    assert engine.finished["a"].answer == [11, 9]
