"""Makes many short requests from a few: a long queue, a long run, many texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from minifuse.core.request import GREEDY, Request
from minifuse.testing.subject import Case
from minifuse.testing.texts.models import VOCAB

NUM_ABORTS = 3
NUM_TEXTS, PROMPT, ANSWER = 1000, 36, 12  # lengths in tokens; every context has room for both


def crowd_of(case: Case) -> Case:
    """Make forty requests within a quarter of a second: most of them wait."""
    return _repeated(case, 40, seconds=0.25, longest=4)


def long_run_of(case: Case) -> Case:
    """Make three hundred requests in a row, for about a thousand iterations or more."""
    return _repeated(case, 300, seconds=12.0, longest=12)


def many_texts_of(case: Case) -> Case:
    """Make a thousand different texts, half of them in memory at once.

    The texts may share blocks. If the keys of blocks had only 16 bits, two texts would most likely have the same key.
    """
    rng = Random(repr(case.scenario))
    texts = [tuple(rng.choices(range(VOCAB), k=PROMPT)) for _ in range(NUM_TEXTS)]
    arrivals_s = [i / 2000 + (i > NUM_TEXTS / 2) for i in range(NUM_TEXTS)]  # the second half comes a second later
    requests = tuple(
        Request(f"r{i}", text, ANSWER, ignore_eos=True, arrival_s=now)
        for i, (text, now) in enumerate(zip(texts, arrivals_s, strict=True))
    )
    options: dict[str, Any] = dict.fromkeys(case.row.batch_sizes, NUM_TEXTS)
    if "memory.share" in case.row.option_names:
        options["memory.share"] = True
    scenario = replace(
        case.scenario,
        requests=requests,
        aborts=(),
        replayed=True,
        options=tuple(options.items()),
        capacity=(PROMPT + ANSWER) * NUM_TEXTS,
    )
    return type(case)(case.row, scenario)


def _repeated(case: Case, count: int, seconds: float, longest: int) -> Case:
    """Repeat a case's requests, cut short, at random moments within `seconds`."""
    rng = Random(repr(case.scenario))
    requests: list[Request] = []
    while len(requests) < count:
        requests += _shifted(case.requests, rng.uniform(0, seconds), len(requests), longest)
    aborts = tuple((rng.randint(1, count), rng.choice(requests).id) for _ in range(NUM_ABORTS))
    crowd = case.with_requests(tuple(requests), aborts)
    return type(case)(case.row, replace(crowd.scenario, replayed=True))


def _shifted(requests: tuple[Request, ...], later_s: float, number: int, longest: int) -> Iterator[Request]:
    """Copy requests, `later_s` later, with new names, groups and conversations."""
    names = {request.id: f"r{number + i}" for i, request in enumerate(requests)}
    for request in requests:
        yield replace(
            request,
            id=names[request.id],
            prompt=request.prompt[: 2 * longest],
            max_new_tokens=min(request.max_new_tokens, longest),
            stop_ids=(),
            sampling=GREEDY,
            arrival_s=request.arrival_s + later_s * (request.after is None),
            after=names[request.after] if request.after else None,
            group=request.group and f"{request.group}{number}",
            conversation=request.conversation and f"{request.conversation}{number}",
        )
