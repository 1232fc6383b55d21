"""The messages to followers: enough to compute every plan, and no token twice."""

from __future__ import annotations

import pickle

import pytest
from helpers import asks, make_engine

from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Plan, Reason, Work
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.parallel.order import Known, Ledger


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
    ledger, known = Ledger(), Known()
    sequences = {"a": Sequence(asks("a")), "b": Sequence(asks("b"))}
    known.plan(ledger.order(plan("a", "b"), sequences))
    assert set(known.sequences) == {"a", "b"}
    del sequences["a"]
    known.plan(ledger.order(plan("b"), sequences))
    assert set(known.sequences) == {"b"}
    known.plan(ledger.order(plan("b"), sequences))


def test_a_sequence_of_the_same_name_in_another_run_is_another_sequence() -> None:
    ledger, known = Ledger(), Known()
    known.plan(ledger.order(plan("a"), {"a": Sequence(asks("a", (1, 2, 3)))}))
    namesake = Sequence(asks("a", (4, 5)))
    namesake.tokens.append(6)
    known.plan(ledger.order(plan("a"), {"a": namesake}))
    assert known.sequences["a"].tokens == [4, 5, 6]


def test_reasons_are_not_sent() -> None:
    sent = Ledger().order(plan("a"), {"a": Sequence(asks("a"))}).plan
    assert (sent.reasons, sent.admitted) == ((), ("a",))
    assert sent.work == plan("a").work


@pytest.mark.parametrize(
    ("technique", "settings", "workers"),
    [
        ("fusion", {"memory.slots": 3, "batching.preprocessors": 2}, 3),
        ("vllm", {"memory.block_size": 2}, 1),
        ("pensieve", {"memory.chunk": 4}, 1),
    ],
)
def test_followers_have_every_token_and_place_of_a_plan(technique: str, settings: dict[str, int], workers: int) -> None:
    """A whole run, in which each worker has a ledger and a follower of its own, and every order is pickled."""
    ledgers: dict[int, Ledger] = {}
    followers: dict[int, Known] = {}
    checked = 0

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        nonlocal checked
        order = ledgers.setdefault(plan.worker, Ledger()).order(plan, sequences)
        known = followers.setdefault(plan.worker, Known())
        received = known.plan(pickle.loads(pickle.dumps(order)))
        assert (received.work, received.places, received.moves) == (plan.work, plan.places, plan.moves)
        for work in plan.work:
            assert known.sequences[work.sequence].tokens == sequences[work.sequence].tokens
            assert known.sequences[work.sequence] is not sequences[work.sequence]
            checked += 1
        ends = [w.sequence for w in plan.work if w.stop == len(sequences[w.sequence].tokens)]
        return Ran({name: (11 * len(sequences[name].tokens) % 29,) for name in ends})

    engine = make_engine(technique, capacity=40, settings=settings, run=run)
    for i in range(9):
        engine.submit(asks(f"r{i}", 1 + 2 * i % 9, 2 + i % 4, at=i // 3))
    list(engine.run())
    assert len(followers) == workers
    assert checked > 20
    assert all(len(known.sequences) <= 9 for known in followers.values())


def test_of_a_block_table_only_what_is_new_is_sent() -> None:
    """However long a text is, an order has the size of the work."""
    ledger, known = Ledger(), Known()
    sequence = Sequence(asks("a", 1))
    sizes = []
    for count in range(1, 4001):
        blocks = tuple(range(count))
        step = Plan(count, 0, (Work("a", 0, 1),), (Pages(blocks, 16),), ("a",))
        order = ledger.order(step, {"a": sequence})
        sizes.append(len(pickle.dumps(order)))
        assert known.plan(order).places == (Pages(blocks, 16),)
    assert sizes[-1] < sizes[1] + 20
