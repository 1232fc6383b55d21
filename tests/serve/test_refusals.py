"""How many refusals are told in full."""

from __future__ import annotations

from helpers import asks

from minifuse.serve.refusals import IN_FULL, MAX_CAUSES, Refusals


def test_causes_beyond_the_most_count_as_one() -> None:
    requests = [asks(f"r{i}") for i in range(40)]
    refusals = Refusals(requests)
    told = [refusals.sentence(request, f"no {'x' * i}.") for i, request in enumerate(requests)]
    assert len([sentence for sentence in told if sentence is not None]) == MAX_CAUSES + IN_FULL
    assert [*refusals.rest()] == ["Also refused, for other reasons: 29 more, the last of them 'r39'."]
