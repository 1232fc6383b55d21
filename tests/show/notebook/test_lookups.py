"""What chapters look up in a run is what the run did, counted another way."""

from __future__ import annotations

from itertools import accumulate

import pytest

from minifuse.core.errors import UsageError
from minifuse.show.notebook.lookups import block_tables, first_token_s, gaps, kv_in_use, moves, pieces, reasons
from minifuse.show.notebook.played import Played, play
from minifuse.show.notebook.prompts import asks

REQUESTS = asks((5, 4), (9, 3), (4, 12), every=0.0005)


@pytest.fixture(scope="module")
def paged() -> Played:
    return play("vllm", REQUESTS, kv_memory="36KiB", memory__block_size=4, memory__preemption="swap")


def test_pieces_are_the_whole_text_in_order(paged: Played) -> None:
    found = pieces(paged, "r1")
    assert [(one.start, one.stop) for one in found] == [(0, 9), (9, 10), (10, 11)]
    assert [one.step for one in found] == sorted(one.step for one in found)


def test_gaps_add_up_to_the_time_between_first_and_last_token(paged: Played) -> None:
    story = paged.history.stories["r2"]
    begin = story.arrival_s + first_token_s(paged, "r2")
    found = gaps(paged, "r2")
    assert [one.at_s for one in found] == pytest.approx(
        [begin + more for more in accumulate(one.seconds for one in found)]
    )
    assert len(found) == 11
    assert found[-1].at_s == story.ended_s


def test_kv_and_tables_are_those_of_the_iteration(paged: Played) -> None:
    assert len(kv_in_use(paged)) == len(paged.steps)
    assert all(one.used <= one.reserved <= one.capacity == paged.capacity for one in kv_in_use(paged))
    step = pieces(paged, "r0")[-1].step
    blocks = block_tables(paged, step)["r0"]
    assert len(blocks) == 2  # of 4 slots, for a text of 8 tokens


def test_moves_and_reasons_are_the_metrics(paged: Played) -> None:
    tokens = sum(one.tokens for step in paged.steps for one in moves(paged, step) if one.kind == "swap_in")
    assert tokens == paged.metrics["moves"]["swap_in"]["tokens"] > 0
    assert any("evicted" in one.text for one in reasons(paged))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda run: pieces(run, "r9"), "There is no request 'r9'.*give one of r0, r1, r2"),
        (lambda run: moves(run, 999), "There is no iteration 999"),
        (lambda run: block_tables(play("orca", REQUESTS), 0), "orca keeps KV in no blocks"),
    ],
)
def test_what_is_not_there_is_refused(wrong: object, words: str, paged: Played) -> None:
    with pytest.raises(UsageError, match=words):
        wrong(paged)  # type: ignore[operator]
