"""The queue of waiting sequences, against a plain sorted list."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from helpers import asks, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import QueueOptions, Ranked, Ticket
from minifuse.batching.reranking import first_of, last_of, rerank
from minifuse.core.errors import UsageError
from minifuse.core.plan import Reason
from minifuse.core.request import Sequence
from minifuse.core.stages import option
from minifuse.options import parse_options
from minifuse.stages import register


def _ticket(number: int, rank: float = 0) -> Ticket:
    return rank, number, Sequence(asks(f"r{number}"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=120))
def test_it_is_a_sorted_list(actions: list[tuple[int, int]]) -> None:
    """Arrivals of ranks 0 to 3, removals from anywhere, and returns to the same place."""
    ranked, plain, gone = Ranked(), list[Ticket](), list[Ticket]()
    for number, (rank, which) in enumerate(actions):
        if plain and which % 3 == 0:
            gone.append(plain.pop(which % len(plain)))
            assert ranked.remove(gone[-1][2].id) is gone[-1]
        elif gone and which % 3 == 1:
            plain.append(gone.pop())
            ranked.add(plain[-1])
        else:
            plain.append(_ticket(number, rank))
            ranked.add(plain[-1])
        plain.sort(key=lambda ticket: ticket[:2])
        sequences = [ticket[2] for ticket in plain]
        assert list(ranked) == sequences
        assert (first_of(ranked), last_of(ranked)) == ((sequences[0], sequences[-1]) if sequences else (None, None))
        assert len(ranked) == len(plain)
        assert all(ticket[2].id in ranked for ticket in plain)


def test_what_is_not_there() -> None:
    ranked = Ranked()
    ranked.discard("a")
    with pytest.raises(KeyError):
        ranked.remove("a")
    assert not ranked
    assert list(ranked) == []


def test_a_rank_that_has_changed() -> None:
    """The sequence moves to where it stands now; of equal ranks, the first to arrive still goes first."""
    ranked = Ranked()
    for number in range(3):
        ranked.add(_ticket(number))
    rerank(ranked, "r0", lambda sequence: 1)
    assert [sequence.id for sequence in ranked] == ["r1", "r2", "r0"]
    rerank(ranked, "r0", lambda sequence: 0)
    assert [sequence.id for sequence in ranked] == ["r0", "r1", "r2"]


# --- options


def test_rank() -> None:
    low, high = asks("low", at=4.0, priority=-1), asks("high", at=10.0, priority=3)
    assert [QueueOptions().rank(request) for request in (low, high)] == [0, 0]
    assert [QueueOptions("priority").rank(request) for request in (low, high)] == [1, -3]
    assert [QueueOptions("priority", 2.0).rank(request) for request in (low, high)] == [6.0, 4.0]
    assert [QueueOptions("priority", 1.0).rank(request) for request in (low, high)] == [5.0, 7.0]


def test_ageing_without_priorities_is_refused() -> None:
    with refusal(UsageError, "batching.ageing is 2 s", "give batching.order=priority", "not fcfs"):
        parse_options("batching 'iteration'", Iteration.Options, {"ageing": "2s"})
    options = parse_options("batching 'iteration'", Iteration.Options, {"ageing": "2s", "order": "priority"})
    assert (options.order, options.ageing, options.max_batch) == ("priority", 2.0, 8)
    for wrong in ("0s", "-1s"):
        with pytest.raises(UsageError, match=r"at least 0\.001"):
            parse_options("batching 'iteration'", Iteration.Options, {"ageing": wrong, "order": "priority"})


def test_a_policy_has_an_order_or_a_rank(own_register: None) -> None:
    @dataclass(frozen=True)
    class Own:
        max_batch: int = option(8, "requests")

    def admission(self: QueuePolicy, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return None

    members = {"Options": Own, "admission": admission}
    with refusal(UsageError, "Orderless", "QueueOptions", "a rank of its own"):
        register(type("Orderless", (QueuePolicy,), {"name": "orderless", **members}))
    ranking = {"name": "ranking", "rank": lambda self, sequence: 0, **members}
    assert register(type("Ranking", (QueuePolicy,), ranking)).overtaken_at_most is None
    assert (
        register(
            type("Claiming", (QueuePolicy,), {**ranking, "name": "claiming", "overtaken_at_most": 2})
        ).overtaken_at_most
        == 2
    )
