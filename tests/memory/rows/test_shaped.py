"""A rectangle whose rows change hands while it runs, and whose window of columns moves (Baton, 4.1 and 4.2)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from helpers import asks, make_engine
from hypothesis import Phase as Steps
from hypothesis import given, settings

from minifuse.attention import backend
from minifuse.attention.rectangle import slots_to_clear
from minifuse.batching import Decoupled, Iteration
from minifuse.core.errors import LawBroken, UsageError
from minifuse.core.measured import measured_of
from minifuse.core.plan import Extent, Plan, Proposal, Work
from minifuse.core.report import Ran
from minifuse.core.request import Phase, Request, Sequence
from minifuse.core.shapes import Rectangle
from minifuse.memory import Embedded, Shaped
from minifuse.memory.rows.fetched import Fetched
from minifuse.memory.rows.host_runs import HostRuns
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing import TEXTS, laws_of, observe
from minifuse.testing.laws import of_one_run
from minifuse.testing.observation import Observation
from minifuse.testing.texts import TextScenario
from minifuse.testing.texts.ghost import GhostRunner
from minifuse.testing.texts.models import expected_answer


def row_of(insert: str) -> Technique:
    """Orca's policy over this memory, which then admits a newcomer only if every answer has room to its end."""
    options = {"memory.insert": insert, "batching.max_batch": 9}
    return replace(TECHNIQUES["static"], name=insert, batching="iteration", memory="shaped", options=options)


# --- by hand


def _run(insert: str, capacity: int, *requests: Request) -> list[Plan]:
    memory = Shaped(capacity, Shaped.Options(rows=2, insert=insert))
    engine = make_engine("static", batching=Iteration(), memory=memory)
    for request in requests:
        engine.submit(request)
    return [step.plan for step in engine.run()]


def _slots(plan: Plan) -> dict[str, list[int]]:
    """Where each sequence of a plan lies."""
    return {w.sequence: list(place.slots(0, w.stop)) for w, place in zip(plan.work, plan.places, strict=True)}


def test_released_columns_are_free_and_are_used_again() -> None:
    """b and c hand on to each other; what a had is released when c comes in, and c's text wraps around."""
    plans = _run("shape", 16, asks("a", 4, 2), asks("b", 1, 4), asks("c", 2, 3))
    assert [plan.shape for plan in plans] == [
        Rectangle(0, 2, 8, 0, 4),
        Rectangle(0, 2, 8, 4, 5),
        Rectangle(0, 2, 8, 5, 7, begin=3),
        Rectangle(0, 2, 8, 7, 8, begin=3),
        Rectangle(0, 1, 8, 8, 9, begin=5),
    ]
    assert _slots(plans[4]) == {"c": [5, 6, 7, 0]}


def test_what_needs_a_longer_row_waits_until_the_slots_are_divided_anew() -> None:
    """a and c have rows of ten; b may need one of sixteen, and c is behind b."""
    plans = _run("shape", 20, asks("a", 2, 3), asks("b", 8, 9), asks("c", 2, 2))
    strides = {tuple(plan.sequences): plan.shape.stride for plan in plans if isinstance(plan.shape, Rectangle)}
    assert strides == {("a",): 10, ("b",): 20, ("c",): 10}


def test_a_newcomer_waits_until_a_gap_leaves_room_for_every_answer() -> None:
    """a may have eight tokens in its row of eight: there is no room for a gap."""
    memory = Shaped(16, Shaped.Options(rows=2))
    a, b = Sequence(asks("a", 3, 6)), Sequence(asks("b", 3, 3))
    memory.place(Proposal((Work("a", 0, 3),), (a,)), 0.0)
    reason = memory.room().admit(b)
    assert reason is not None
    assert reason.code == "memory-full"
    with pytest.raises(LawBroken, match="grow to 10 columns of 8"):
        memory.place(Proposal((Work("a", 3, 4), Work("b", 0, 3)), (b,)), 0.0)
    assert memory.window.rows == {"a": 0}


def test_prompts_wait_on_the_host_when_others_need_their_place() -> None:
    """4.2: room for eight tokens apart. b leaves for c and joins from the host."""
    memory = Embedded(28, Embedded.Options(rows=1, prefill=0.3))
    policy = Decoupled(Decoupled.Options(max_batch=3, padding=0.0))
    engine = make_engine("static", model="llama", batching=policy, memory=memory)
    for name, prompt in (("a", 2), ("b", 5), ("c", 4)):
        engine.submit(asks(name, prompt, 5, ignore_eos=True))
    plans = [step.plan for step in engine.run()]
    moves = {plan.step: [(m.kind, m.num_tokens) for m in plan.moves] for plan in plans if plan.moves}
    assert list(moves.values()) == [[("swap_out", 5)], [("embed", 2)], [("swap_in", 5)], [("embed", 4)]]
    assert all(tuple(s.answer) == expected_answer("llama", s.request) for s in engine.finished.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"prefill": 0.6, "prefetch": 0.4},
            "prefill is 0.6 and memory.prefetch 0.4, and together they leave no memory",
        ),
        ({"prefetch": 0.1, "host": 0}, "prefetch is 0.1 and memory.host 0, which leaves nothing to fetch from"),
        ({"prefill": 0.9}, "leaves no row a single one: give more --kv-memory"),
        ({"prefill": 0.5, "threshold": 0.1}, "leaves no row a single one: give a higher threshold, or more"),
    ],
)
def test_parts_of_memory_that_leave_none_for_rows_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Embedded(9, Embedded.Options(**options))


def _with_fetches(seconds_per_transfer: float, *requests: Request, **options: Any) -> Observation:
    """Serve under all laws, where prompts wait on the host and are fetched to a part for six tokens."""
    scenario = TextScenario(
        requests=requests,
        options=(
            *(("batching.max_batch", 3), ("batching.padding", 0.0)),
            *(("memory.rows", 1), ("memory.prefill", 0.25), ("memory.prefetch", 0.2), *options.items()),
        ),
        model="llama",
        capacity=32,
        seconds_per_step=1.0,
        seconds_to_prepare=1.0,
        seconds_per_transfer=seconds_per_transfer,
    )
    case = TEXTS.case(TECHNIQUES["baton-pd"], scenario)
    seen = observe(case)
    for law in laws_of(TEXTS).values():
        law(case, seen)
    return seen


def _moves(seen: Observation) -> list[tuple[str, str, int]]:
    return [(move.kind, move.moment, move.num_tokens) for step in seen.steps for move in step.plan.moves]


AWAY = [asks(name, prompt, 5, ignore_eos=True) for name, prompt in (("a", 2), ("b", 5), ("c", 4))]  # b leaves for c


def test_a_prompt_on_the_host_is_fetched_before_it_joins() -> None:
    """4.2, "prefetchable": b is copied while a runs, and no iteration waits for the link."""
    seen = _with_fetches(0.1, *AWAY)
    assert _moves(seen) == [
        ("swap_out", "first", 5),
        ("swap_in", "behind", 5),
        ("embed", "first", 2),
        ("embed", "first", 5),
        ("embed", "first", 4),
    ]
    exposed = [measured_of(step).exposed_s for step in seen.steps if step.plan.phase is not Phase.PREPROCESSING]
    assert max(exposed) == 0


def test_a_prompt_whose_fetch_is_in_flight_joins_from_the_host_as_without_fetches() -> None:
    """The link takes 15 s for b's five tokens, and a's answer is complete before. The late copy is dropped."""
    seen, without = (_with_fetches(3.0, *AWAY, **{"memory.prefetch": part}) for part in (0.2, 0.0))
    (landed,) = [step for step in seen.steps if not step.plan.work]
    joined = next(step for step in seen.steps if step.plan.phase is Phase.RUNNING and "b" in step.plan.sequences)
    assert joined.started_s < landed.ended_s
    assert [(move.kind, move.moment) for move in joined.plan.moves] == [("swap_in", "first")]
    order, other = ([step.plan.sequences for step in one.steps if step.plan.work] for one in (seen, without))
    assert order == other


def test_slots_of_a_fetch_are_free_when_it_has_landed_even_if_its_sequence_has_ended() -> None:
    """Another sequence of the same name, which comes meanwhile, gets other slots, and what lands is not its KV."""
    host = HostRuns(10)
    fetched = Fetched(20, 6, host)
    host.ran(host.swap_out("a", Extent(0, 5), 5) or ())
    moves = fetched.fetch(["a"])
    assert (fetched.num_used, fetched.num_arriving) == (5, 5)
    host.drop("a")
    assert (fetched.num_used, host.num_used) == (0, 0)
    assert host.swap_out("a", Extent(0, 5), 6) is None
    (move,) = host.swap_out("a", Extent(0, 5), 5) or ()
    assert move.target == 5
    assert fetched.fetch(["a"]) == ()  # one at a time
    for store in (host, fetched):
        store.check()
    fetched.land(moves)
    assert "a" not in fetched
    assert (host.free.num_free, fetched.free.num_free) == (5, 6)


def test_where_the_host_is_full_prompts_wait_for_one_to_join() -> None:
    memory = Embedded(28, Embedded.Options(rows=1, prefill=0.3, host=4))
    a, b = Sequence(asks("a", 5, 3)), Sequence(asks("b", 4, 3))
    memory.place(Proposal((Work("a", 0, 5),), (a,), phase=Phase.PREPROCESSING), 0.0)
    memory.books.cached["a"] = 5
    reason = memory.room().admit(b)
    assert reason is not None
    assert "no room to compute 1 prompt of 4 tokens" in reason.text


@pytest.mark.parametrize("technique", ["baton", "baton-pd"])
def test_an_insertion_copies_its_own_tokens_and_writes_no_more_than_its_row(technique: str) -> None:
    """However many rows there are, and however wide they have become."""
    requests = [asks(f"r{i}", 2 + i % 3, 3 + 4 * (i % 2), ignore_eos=True) for i in range(9)]
    engine = make_engine(technique, capacity=96, settings={"batching.max_batch": 4, "memory.rows": 4})
    for request in requests:
        engine.submit(request)
    inserted = 0
    for plan in [step.plan for step in engine.run()]:
        shape = plan.shape
        assert isinstance(shape, Rectangle)
        if plan.phase is Phase.PREPROCESSING:
            continue
        joining = {*plan.admitted} | {move.target // shape.stride for move in plan.moves}
        copied = sum(move.num_tokens for move in plan.moves)
        cleared = sum(stop - start for start, stop in slots_to_clear(plan, plan.waves[0]))
        assert copied + cleared <= len(joining) * shape.stride
        inserted += len(joining)
        if technique == "baton":
            assert copied == 0
        else:  # the prompts of those whose first new token is computed
            prompts = [(work.start, len(requests[int(work.sequence[1:])].prompt)) for work in plan.work]
            assert copied == sum(length for start, length in prompts if start == length)
    assert inserted >= len(requests)


# --- what a mask leaves out cannot do harm


class _Spoiling(GhostRunner):
    """Puts NaN into every slot before the first plan, and into a row when its sequence has ended."""

    rows: ClassVar[dict[str, range]] = {}

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.step == 0:
            self.rows = {}
            self._spoil(range(self.cache.keys.shape[1]))
        if plan.phase is Phase.PREPROCESSING or not plan.work:  # without work: prompts that are fetched ahead of time
            return super().__call__(plan, sequences)
        shape = plan.shape
        assert isinstance(shape, Rectangle)
        gone = self.rows.keys() - {work.sequence for work in plan.work}
        for name in gone - {*plan.evicted}:
            self._spoil(self.rows.pop(name))
        for work, place in zip(plan.work, plan.places, strict=True):
            row, _ = shape.locate(place.slots(0, 1)[0])
            self.rows[work.sequence] = range(row * shape.stride, (row + 1) * shape.stride)
        ran = super().__call__(plan, sequences)
        for name in plan.evicted:
            left = self.rows.pop(name)
            if left not in self.rows.values():
                self._spoil(left)
        return ran

    def _spoil(self, slots: range) -> None:
        for cache in (self.cache, self.ghost):
            cache.keys[:, slots] = cache.values[:, slots] = math.nan


def _run_spoiled(row: Technique, numerics: str) -> None:
    @settings(
        max_examples=7,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Steps.generate],
    )
    @given(TEXTS.scenarios(row))
    def attempt(scenario: Any) -> None:
        _observe_spoiled(TEXTS.case(row, scenario), numerics)

    attempt()


def _observe_spoiled(case: Any, numerics: str = "fast") -> Observation:
    runner = case.runner(numerics)
    seen = observe(case, run=_Spoiling(runner.model, runner.cache, runner.attention, cleared=True))
    of_one_run(case, seen)
    return seen


@pytest.mark.parametrize("name", ["shape", "embed", "static", "baton", "baton-pd"])
@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_nan_in_what_is_masked_changes_nothing(name: str, numerics: str) -> None:
    """Padding, gaps, columns that come into the window, and what the sequence before has left in a row."""
    _run_spoiled(TECHNIQUES[name] if name in TECHNIQUES else row_of(name), numerics)


LONGER_THAN_THE_WINDOW = TextScenario(  # b takes the row of short
    requests=(asks("a", 3, 9, ignore_eos=True), asks("short", 3, 2), asks("b", 7, 3, ignore_eos=True)),
    options=(("batching.max_batch", 2), ("memory.rows", 2), ("memory.prefill", 0.3)),
    model="llama",
    capacity=80,
)


def test_columns_that_are_added_on_the_left_are_cleared_in_every_row() -> None:
    """b takes two columns before the window, and a has a row where NaN lies in them."""
    seen = _observe_spoiled(TEXTS.case(TECHNIQUES["baton-pd"], LONGER_THAN_THE_WINDOW))
    begins = [step.plan.shape.begin for step in seen.steps if isinstance(step.plan.shape, Rectangle)]
    assert min(begins) < 0


@pytest.mark.parametrize("name", ["baton", "baton-pd"])
def test_a_row_that_is_not_cleared_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of the tests before fail without what they are about: a NaN behind the mask comes through."""
    monkeypatch.setattr(backend, "slots_to_clear", lambda plan, span: [])
    with pytest.raises(LawBroken) as broken:
        _observe_spoiled(TEXTS.case(TECHNIQUES[name], LONGER_THAN_THE_WINDOW))
    assert broken.value.law in ("exact", "ghost")
