"""The search for a scenario that breaks a law: the smallest, with the run in which it shows, and an end to it all."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from minifuse.contracts.fault import Hung
from minifuse.core.errors import CheckerFailed, LawBroken, StageFailed, UsageError
from minifuse.core.request import Request
from minifuse.testing import GRAPHS, check_laws, observe, search
from minifuse.testing.alarm import alarm
from minifuse.testing.graphs import GraphScenario
from minifuse.testing.graphs.recipes import Recipe
from minifuse.testing.mixes import mixes_of
from minifuse.testing.search import Broken, Search
from minifuse.testing.subject import Case

ROW = next(row for row in GRAPHS.mixes() if row.name == "graph-padded")  # the cheapest of all

SCENARIO = GraphScenario(
    requests=tuple(Request(f"r{i}", (), structure=Recipe("chain", 2)) for i in range(4)),
    options=(("batching.max_batch", 1), ("batching.bucket_width", 1)),
    slack=0,
)


def _chains(row: Any, kinds: tuple[str, ...] = ()) -> st.SearchStrategy[GraphScenario]:
    """Two to four chains: drawn in no time."""
    requests = st.lists(st.integers(1, 6), min_size=2, max_size=4).map(
        lambda sizes: tuple(Request(f"r{i}", (), structure=Recipe("chain", size)) for i, size in enumerate(sizes))
    )
    return requests.map(lambda chosen: replace(SCENARIO, requests=chosen))


CHAINS = GRAPHS._replace(scenarios=_chains)


def _found(law: Any, **named: Any) -> LawBroken:
    with pytest.raises(LawBroken) as caught:
        Search(CHAINS, ROW, [law], **named).run(50, seed=0)
    return caught.value


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario is not run, and seen as what it is."""

    def of_one_run(case: Case, seen: Any) -> None:
        pass

    monkeypatch.setattr(
        search, "observe", lambda case: SimpleNamespace(case=case, steps=[], plans={}, usage_at_end=None)
    )
    monkeypatch.setattr(search, "of_one_run", of_one_run)


def _many_nodes(case: Case, seen: Any) -> None:
    if any(request.structure.size > 3 for request in case.requests):
        raise LawBroken("exact", "a large graph")


@pytest.mark.usefixtures("no_runs")
def test_the_smallest_scenario_is_the_one_that_is_told() -> None:
    broken = _found(_many_nodes)
    assert (broken.law, broken.what) == ("exact", "a large graph")
    (request,) = broken.seen.case.requests
    assert request.structure.size == 4
    assert "the smallest scenario found" in broken.__notes__[0]


@pytest.mark.usefixtures("no_runs")
def test_many_requests_are_left_out_in_parts() -> None:
    tried: list[int] = []

    def law(case: Case, seen: Any) -> None:
        tried.append(len(case.requests))
        if len(case.requests) > 12:
            raise LawBroken("queue", "many")

    many = tuple(Request(f"r{i}", (), structure=Recipe("chain", 1)) for i in range(300))
    case = GRAPHS.case(ROW, replace(SCENARIO, requests=many))
    broken = Search(CHAINS, ROW, [law])._smallest(Broken(case, LawBroken("queue", "many"), law))
    assert len(broken.seen.case.requests) == 13
    assert sum(count > 50 for count in tried) < 20  # each of which takes long to run


@pytest.mark.usefixtures("no_runs")
def test_another_law_that_a_smaller_scenario_breaks_is_not_told() -> None:
    def by_count(case: Case, seen: Any) -> None:
        if any(request.structure.size > 3 for request in case.requests):
            raise LawBroken("exact" if len(case.requests) >= 3 else "ghost", f"{len(case.requests)} requests")

    first = _found(by_count)
    assert first.what == ("3 requests" if first.law == "exact" else "1 requests")


@pytest.mark.usefixtures("no_runs")
def test_what_is_broken_only_now_and_then_is_told_as_it_was() -> None:
    found: list[Case] = []

    def once(case: Case, seen: Any) -> None:
        if not found:
            found.append(case)
            raise LawBroken("pure", "once")

    assert (_found(once).what, len(found)) == ("once", 1)


@pytest.mark.usefixtures("no_runs")
def test_a_law_that_fails_is_at_fault() -> None:
    def fails(case: Case, seen: Any) -> None:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(CheckerFailed, match=r"at test_search.py, line \d+, in fails \(ZeroDivisionError: division by"):
        Search(CHAINS, ROW, [fails]).run(50, seed=0)


@pytest.mark.usefixtures("no_runs")
def test_a_law_that_fails_on_a_smaller_scenario_hides_nothing() -> None:
    met: list[int] = []

    def fails_on_few(case: Case, seen: Any) -> None:
        if met and len(case.requests) < met[0]:
            raise ZeroDivisionError
        if any(request.structure.size > 3 for request in case.requests):
            met.append(len(case.requests))
            raise LawBroken("exact", "a large graph")

    assert _found(fails_on_few).what == "a large graph"
    assert met[0] > 1


def test_a_run_that_breaks_is_seen_up_to_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third proposal raises an error."""
    from minifuse.batching.graph_padded import GraphPadded

    case, propose, asked = GRAPHS.case(ROW, SCENARIO), GraphPadded.propose, []

    def third(self: Any, *arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 3:
            raise KeyError("r9")
        return propose(self, *arguments)

    monkeypatch.setattr(GraphPadded, "propose", third)
    with pytest.raises(StageFailed) as failed:
        observe(case)
    seen = failed.value.seen
    assert seen.case is case
    assert [proposed.proposal is None for proposed in seen.proposals] == [False, False, True]
    assert [plan.step for plan in seen.plans.values()] == list(range(len(seen.plans)))
    assert len(seen.plans) == sum(bool(proposed.proposal.work) for proposed in seen.proposals[:2])
    assert seen.usage_at_end is None


@pytest.mark.usefixtures("no_runs")
def test_the_same_seed_tries_the_same_scenarios() -> None:
    def tried(seed: int) -> list[str]:
        found: list[str] = []
        Search(CHAINS, ROW, [lambda case, seen: found.append(repr(case.scenario))]).run(6, seed=seed)
        return found

    assert tried(3) == tried(3) != tried(4)


@pytest.mark.usefixtures("no_runs")
def test_laws_are_dealt_out_in_turn() -> None:
    met: list[int] = []
    laws: list[Any] = [lambda case, seen, number=number: met.append(number) for number in range(3)]
    Search(CHAINS, ROW, laws, first=1).run(5, seed=0)
    assert met == [2, 0, 1, 2, 0]


def test_the_alarm_leaves_nothing_behind_and_others_alone() -> None:
    with alarm(60), alarm(0.0001):
        time.sleep(0.01)  # the inner one does nothing
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(Hung), alarm(0.0001):
        time.sleep(10)


def test_mixes_of_a_name() -> None:
    def names(name: str) -> list[str]:
        return [row.name for _, row in mixes_of(name)]

    assert names("orca") == ["orca"]
    assert names("graph-merged") == ["graph-merged", "graph-merged by operator"]
    assert names("static")[0] == "static"  # a technique, and a stage: all that have it
    assert len(names("static")) > 5
    assert set(names("memory.paged")) < set(names("paged"))
    assert {row.memory for _, row in mixes_of("memory.paged")} == {"paged"}
    assert [subject.kind for subject, _ in mixes_of("cellular")[:2]] == ["transformer", "cells"]


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ({"batching": "iteraton"}, 'did you mean "iteration"'),
        ({"batchin": "iteration"}, 'did you mean "batching"'),
        ({"batching": "serial", "attention": "cells"}, "No valid mix"),
    ],
)
def test_check_laws_says_what_it_does_not_know(only: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_laws(1, **only)
