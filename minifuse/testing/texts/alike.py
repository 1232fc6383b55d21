"""Law "alike": a newcomer does not compute a prefix that another text has in memory."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan, Work
from minifuse.testing.applies import lacks
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case


def check_alike(case: Case, seen: Observation) -> None:
    """Check that a newcomer computes no whole chunk that a running sequence has in memory.

    Only memories with the options `share` and `chunk` are checked. If the device has room for all that the run
    computes, chunks kept for conversations count, too.

    The last token of a text is always computed, and so is its chunk. A chunk that two sequences computed at once is
    left out: it lies in memory twice, and only one copy is found. Runs with a token budget are left out, and so are
    runs with several workers or plans in flight, whose events have no single order.

    >>> # chunks of 4: a has computed 1 2 3 4 5 6; b with 1 2 3 4 9 computes only 9; b with 1 2 3 4 computes all
    """
    options: dict[str, Any] = vars(case.options["memory"])
    policy = case.choices.policy
    if lacks("alike", case.row) or not options["share"] or (policy.workers, policy.depth) != (1, 1):
        return
    if policy.token_budget is not None:
        return
    size = options["chunk"]
    texts = {name: tuple(sequence.tokens) for name, sequence in seen.answers.items()}
    keeping = _nothing_is_reclaimed(case, seen, options)
    computed: dict[str, int] = {}  # tokens of each running sequence
    kept: dict[str, int] = {}  # tokens of each ended sequence whose KV is kept
    times: Counter[tuple[int, ...]] = Counter()  # how often a chunk was computed, by the text up to its end
    for now, event in seen.happened:
        if not isinstance(event, Plan):
            for work in event.plan.work:
                if work.sequence in computed:
                    computed[work.sequence] = max(computed[work.sequence], work.stop)
            continue
        gone = {*event.evicted, *(name for name in computed if seen.ended_s.get(name, math.inf) <= now)}  # or aborted
        kept |= {name: computed[name] for name in gone & keeping & computed.keys()}
        computed = {name: count for name, count in computed.items() if name not in gone}
        for work in event.work:
            if work.sequence not in texts:
                continue
            text = texts[work.sequence]
            last = max(other.stop for other in event.work if other.sequence == work.sequence) - 1
            for end in _ends(work, size):
                again = work.sequence in event.admitted and work.start <= end - size and end <= last
                holder = _holder(text[:end], computed | kept, texts) if again and times[text[:end]] == 1 else None
                if holder is not None:
                    found = f"step {event.step} computes [{end - size}, {end}) of {work.sequence}"
                    raise LawBroken("alike", f"{found}, which {holder} has")
        for work in event.work:
            for end in _ends(work, size):
                times[texts.get(work.sequence, ())[:end]] += 1
        computed |= {work.sequence: computed.get(work.sequence, 0) for work in event.work}


def _nothing_is_reclaimed(case: Case, seen: Observation, options: dict[str, Any]) -> set[str]:
    """Return the sequences whose KV surely stays after their end.

    There are none if memory may run full.
    """
    size, owners = options["chunk"], {request.id: request.conversation for request in case.requests}
    longest: Counter[str] = Counter()
    for name, sequence in seen.answers.items():
        owner = owners[name] or name
        longest[owner] = max(longest[owner], len(sequence.tokens))
    if (
        case.scenario.aborts
        or not options["keep"]
        or sum(-(-n // size) for n in longest.values()) > case.capacity // size
    ):
        return set()
    return {name for name, conversation in owners.items() if conversation is not None}


def _ends(work: Work, size: int) -> range:
    """Return the ends of the chunks that work completes.

    >>> list(_ends(Work("a", 3, 9), 4))
    [4, 8]
    """
    return range(size * (work.start // size + 1), work.stop + 1, size)


def _holder(beginning: tuple[int, ...], computed: dict[str, int], texts: dict[str, tuple[int, ...]]) -> str | None:
    """Return a sequence that has computed a text with this beginning, or None."""
    length = len(beginning)
    return next(
        (name for name, count in computed.items() if count >= length and texts.get(name, ())[:length] == beginning),
        None,
    )
