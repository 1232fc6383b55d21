"""Feedback queues by hand: levels, quanta, skip-join, preemption, starvation, and the oracle beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from helpers import asks, breach, make_engine, run_all, schedule

from minifuse.batching import Mlfq
from minifuse.batching.reranking import rerank
from minifuse.core.plan import Plan, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Request, Sequence
from minifuse.serve.engine import ServingEngine
from minifuse.techniques import TECHNIQUES
from minifuse.testing import TEXTS, observe
from minifuse.testing.laws import of_one_run
from minifuse.testing.texts import TextScenario

PROMOTE = Mlfq._promote


def _engine(name: str = "fastserve", **more: Any) -> ServingEngine:
    settings = {"batching.max_batch": 1, "memory.chunk": 2, "memory.reserve": 0.0, **more.pop("settings", {})}
    if name == "fastserve":
        settings.setdefault("batching.starve", 1000.0)
    return make_engine(name, settings=settings, **more)


def _seconds_of_tokens(plan: Plan) -> float:
    return float(plan.num_tokens)


def test_demoted_when_its_quantum_is_used_up() -> None:
    """Quantum 2 s, a second an iteration: after two of them a gives way to b, which is new, and goes on behind it."""
    engine = _engine(settings={"batching.quantum": 2.0})
    steps = run_all(engine, [asks("a", 1, 6), asks("b", 1, 2, at=2.5)])
    assert schedule(steps) == [
        "0: a[0:1)",
        "1: a[1:2)",
        "2: a[2:3)",
        "3: b[0:1)",
        "4: b[1:2)",
        "5: a[3:4)",  # what it had computed has been kept
        "6: a[4:5)",
        "7: a[5:6)",
    ]
    assert steps[3].plan.evicted == ("a",)


def test_the_first_in_the_same_level_goes_on() -> None:
    """b arrives while a is in its quantum: it waits, and takes the place when that is used up."""
    engine = _engine(settings={"batching.quantum": 3.0})
    steps = run_all(engine, [asks("a", 1, 5), asks("b", 1, 1, at=0.5)])
    assert [line.split("[")[0] for line in schedule(steps)] == ["0: a", "1: a", "2: a", "3: b", "4: a", "5: a"]


def test_a_quantum_doubles_with_each_level() -> None:
    """2 s, then 4, then 8: long requests in turn run ever longer; the last level is taken in turns of its quantum."""
    engine = _engine(settings={"batching.quantum": 2.0, "batching.levels": 2})
    steps = run_all(engine, [asks("a", 1, 12), asks("b", 1, 12)])
    order = "".join(step.plan.sequences[0] for step in steps)
    assert order == "aabb" + "aaaa" + "bbbb" + "aaaa" + "bbbb" + "aabb"


def test_a_long_prompt_skips_levels() -> None:
    """A token of a prompt takes a second. One of 7 is not worth beginning in levels of 2 and 4 s: it joins the third,
    behind b, which is short and arrives later, and behind x, which is in the second by then."""
    engine = _engine(cost=_seconds_of_tokens, settings={"batching.quantum": 2.0})
    requests = [asks("first", 2, 1), asks("x", 1, 3, at=2.0), asks("long", 7, 2, at=2.2), asks("b", 1, 2, at=2.5)]
    assert schedule(run_all(engine, requests)) == [
        "0: first[0:2)",
        "2: x[0:1)",
        "3: x[1:2)",
        "4: b[0:1)",
        "5: b[1:2)",
        "6: x[2:3)",
        "7: long[0:7)",
        "14: long[7:8)",
    ]


def _stream(count: int) -> list[Request]:
    return [asks("long", 1, 4), *(asks(f"s{i}", 1, 1, at=0.5 + i) for i in range(count))]


@pytest.mark.parametrize(("starve", "resumed_s"), [(1000.0, 21.0), (4.0, 6.0)])
def test_starvation_is_bounded(starve: float, resumed_s: float) -> None:
    """A new request arrives every second and takes one. Without a limit the long one waits for all of them; with 4 s it
    goes on before all that arrive 4 s after it was evicted, at 1 s."""
    engine = _engine(settings={"batching.quantum": 1.0, "batching.starve": starve})
    steps = run_all(engine, _stream(20))
    again = [step.started_s for step in steps if step.plan.sequences == ["long"]]
    assert again[:2] == [0.0, resumed_s]
    assert len(steps) == 24


def _never(self: Mlfq, now: float) -> None:
    """What starves is not promoted."""


def _late(self: Mlfq, now: float) -> None:
    """It is promoted behind all that have come since."""
    waits = {name: turn.level for name, turn in self.turns.items()}
    PROMOTE(self, now)
    for name, level in waits.items():
        turn = self.turns[name]
        if turn.level < level and name in self.waiting:
            turn.entered_s = now + 10.0
            rerank(self.waiting, name, self.rank)


@pytest.mark.parametrize("defect", [_never, _late])
def test_the_law_names_a_queue_that_lets_a_request_starve(defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"batching.max_batch": 1, "batching.quantum": 1.0, "batching.starve": 4.0, "memory.chunk": 2}
    scenario = TextScenario(
        requests=tuple(_stream(12)), options=tuple(options.items()), model="llama", capacity=60, seconds_per_step=1.0
    )
    case = TEXTS.case(TECHNIQUES["fastserve"], scenario)
    of_one_run(case, observe(case))
    monkeypatch.setattr(Mlfq, "_promote", defect)
    with breach("overtaking", r"long had waited 4\.0 s when s\d arrived"):
        of_one_run(case, observe(case))


def test_no_prompt_begins_while_the_host_is_full() -> None:
    """Those that have run before go on meanwhile: they are what fills the host."""
    settings = {"batching.max_batch": 2, "batching.quantum": 1.0, "memory.host": 4, "memory.ahead": 1.0}
    requests = [asks(f"r{i}", 4, 6, at=1.1 * i) for i in range(8)]
    held, free = (
        run_all(_engine(capacity=20, settings={**settings, "batching.host_reserve": part}, model="llama"), requests)
        for part in (0.9, 0.0)
    )
    began: set[str] = set()
    resumed = 0
    for step in held:
        full = any(reason.code == "host-full" for reason in step.plan.reasons)
        resumed += full and bool(began.intersection(step.plan.admitted))
        assert not (full and set(step.plan.admitted) - began)
        began.update(step.plan.admitted)
    assert resumed
    assert any(reason.code == "host-full" for step in held for reason in step.plan.reasons)
    assert not any(reason.code == "host-full" for step in free for reason in step.plan.reasons)


def test_the_oracle_runs_the_shortest_rest() -> None:
    """b needs 2 more iterations when a needs 4: it goes first; so does c, which needs one when a needs 2."""
    engine = _engine("srpt")
    steps = run_all(engine, [asks("a", 1, 6), asks("b", 1, 2, at=1.5), asks("c", 1, 1, at=5.5)])
    assert "".join(step.plan.sequences[0] for step in steps) == "aabbaacaa"


def test_the_oracle_counts_a_prompt_by_the_time_that_it_takes() -> None:
    """A prompt of 12 takes one iteration, an answer of 9 nine: the prompt goes first, though it has more tokens."""
    engine = _engine("srpt", cost=lambda plan: 1.0 + 0.01 * plan.num_tokens)
    requests = [asks("first", 4, 3), asks("answer", 1, 9, at=1.0), asks("prompt", 12, 1, at=1.5)]
    steps = run_all(engine, requests)
    order = list(dict.fromkeys(name for step in steps for name in step.plan.admitted))
    assert order == ["first", "prompt", "answer"]


def test_the_oracle_bounds_the_feedback_queue() -> None:
    """On average, answers are complete no later than with a queue that knows no length."""
    requests = [asks(f"r{i}", 1 + i % 3, 1 + (7 * i) % 13, at=0.9 * i) for i in range(20)]
    means = {}
    for name in ("srpt", "fastserve"):
        engine = _engine(name, settings={"batching.quantum": 2.0} if name == "fastserve" else {})
        run_all(engine, requests)
        means[name] = sum(s.ended_s - s.request.arrival_s for s in engine.finished.values()) / len(requests)
    assert means["srpt"] <= means["fastserve"]


def test_a_full_host_is_told_also_when_the_last_evicted_returns() -> None:
    room = SimpleNamespace(admit=lambda sequence, growing=False: None)
    memory = SimpleNamespace(
        host_capacity=100,
        usage=lambda: KVUsage(0, 0, 100, host=95),
        missing=lambda sequence: (Span(0, len(sequence)),),
        room=lambda: room,
        evicts=True,
    )
    policy = Mlfq(Mlfq.Options(host_reserve=0.2))
    evicted, new = Sequence(asks("evicted", 4, 6)), Sequence(asks("new", 4, 6))
    for sequence in (evicted, new):
        policy.receive(sequence)
    evicted.phase = Phase.SUSPENDED
    policy.evicted.add(policy.waiting.remove("evicted"))
    proposal = policy.propose(0, 1.0, memory)
    assert proposal.admit == (evicted,)
    assert [(reason.code, reason.sequence) for reason in proposal.reasons] == [("host-full", "new")]
