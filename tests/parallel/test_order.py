"""The messages to followers: enough to compute every plan, and no token twice."""

from __future__ import annotations

import pickle

from helpers import asks, make_engine

from minifuse.core.plan import Extent, Plan, Reason, Work
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.parallel.order import Ledger, Order, update_sequences


def plan(*names: str, step: int = 0) -> Plan:
    work = tuple(Work(name, 0, 1) for name in names)
    return Plan(step, 0, work, (Extent(0, 9),) * len(names), names, reasons=(Reason("x", names[0], "is late"),))


def test_a_request_is_sent_once_and_then_only_new_tokens() -> None:
    ledger, sequences = Ledger(), {"a": Sequence(asks("a", (5, 6))), "b": Sequence(asks("b", (7,)))}
    first = ledger.order(plan("a"), sequences)
    assert first.updates == (("a", sequences["a"].request, ()),)
    sequences["a"].tokens.append(8)
    assert ledger.order(plan("a", "b"), sequences).updates == (("a", None, (8,)), ("b", sequences["b"].request, ()))
    sequences["a"].tokens += [9, 10]
    assert ledger.order(plan("b"), sequences).updates == (("b", None, ()),)
    assert ledger.order(plan("a"), sequences).updates == (("a", None, (9, 10)),)


def test_a_finished_sequence_is_dropped_by_ledger_and_follower() -> None:
    ledger, known = Ledger(), {}
    sequences = {"a": Sequence(asks("a")), "b": Sequence(asks("b"))}
    update_sequences(ledger.order(plan("a", "b"), sequences), known)
    assert set(known) == {"a", "b"}
    del sequences["a"]
    update_sequences(ledger.order(plan("b"), sequences), known)
    assert set(known) == {"b"}
    update_sequences(ledger.order(plan("b"), sequences), known)


def test_a_sequence_of_the_same_name_in_another_run_is_another_sequence() -> None:
    ledger, known = Ledger(), {}
    update_sequences(ledger.order(plan("a"), {"a": Sequence(asks("a", (1, 2, 3)))}), known)
    namesake = Sequence(asks("a", (4, 5)))
    namesake.tokens.append(6)
    update_sequences(ledger.order(plan("a"), {"a": namesake}), known)
    assert known["a"].tokens == [4, 5, 6]


def test_reasons_are_not_sent() -> None:
    sent = Ledger().order(plan("a"), {"a": Sequence(asks("a"))}).plan
    assert (sent.reasons, sent.admitted) == ((), ("a",))
    assert sent.work == plan("a").work


def test_followers_have_every_token_that_a_plan_reads() -> None:
    """A whole run, in which each worker has a ledger and a follower of its own, and every order is pickled."""
    ledgers: dict[int, Ledger] = {}
    followers: dict[int, dict[str, Sequence]] = {}
    checked = 0

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        nonlocal checked
        order = ledgers.setdefault(plan.worker, Ledger()).order(plan, sequences)
        known = followers.setdefault(plan.worker, {})
        received: Order = pickle.loads(pickle.dumps(order))
        update_sequences(received, known)
        assert received.plan.work == plan.work
        for work in plan.work:
            assert known[work.sequence].tokens == sequences[work.sequence].tokens
            assert known[work.sequence] is not sequences[work.sequence]
            checked += 1
        ends = [w.sequence for w in plan.work if w.stop == len(sequences[w.sequence].tokens)]
        return Ran({name: (11 * len(sequences[name].tokens) % 29,) for name in ends})

    engine = make_engine("fusion", settings={"memory.slots": 3, "batching.preprocessors": 2}, run=run)
    for i in range(9):
        engine.submit(asks(f"r{i}", 1 + 2 * i, 2 + i % 4, at=i // 3))
    list(engine.run())
    assert len(followers) == 3
    assert checked > 30
    assert all(len(known) <= 4 for known in followers.values())
