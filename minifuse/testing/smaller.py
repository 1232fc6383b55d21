"""Makes a scenario that breaks a law smaller: fewer requests, options and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from minifuse.core.request import GREEDY, Request
from minifuse.testing.subject import Case

MOST_DRAWN, MANY = 8, 50  # requests: the most in a random scenario; scenarios with more than MANY run long
Way = Callable[[Case], Case | None]


def smallest(case: Case, breaks: Callable[[Case], bool]) -> Case:
    """Return the smallest case found that still breaks the law."""
    before = None
    while before is not case:
        before = case
        for simplify in _ways(case):
            simpler = simplify(case)
            if simpler is not None and breaks(simpler):
                case = simpler
    return case


def _ways(case: Case) -> Iterator[Way]:
    """Yield ways to simplify a case; a way returns None if it changes nothing."""
    names = [request.id for request in reversed(case.requests)]
    few = 1 if len(names) <= MANY else len(names) // 8  # one by one would take long
    for size in (len(names) // 2, len(names) // 4, few) if len(names) > MOST_DRAWN else (1,):
        yield from (partial(_without, frozenset(names[i : i + size])) for i in range(0, len(names), size))
    if len(names) > MANY:
        return
    yield from (partial(_without_abort, abort) for abort in case.scenario.aborts)
    defaults = {option["name"]: option["default"] for option in case.row.described_options()}
    yield from (partial(_at_default, name, defaults[name]) for name, _ in case.scenario.options if name in defaults)
    yield from (partial(_changed, name, change) for name in names for change in CHANGES)


def _without(names: frozenset[str], case: Case) -> Case | None:
    """Leave out some requests, and those that follow them."""
    left: dict[str | None, Request] = {}
    for request in case.requests:
        if request.id not in names and (request.after is None or request.after in left):
            left[request.id] = request
    if not left or len(left) == len(case.requests):
        return None
    aborts = tuple(abort for abort in case.scenario.aborts if abort[1] in left)
    return case.with_requests(tuple(left.values()), aborts)


def _without_abort(abort: tuple[int, str], case: Case) -> Case | None:
    left = tuple(other for other in case.scenario.aborts if other != abort)
    return case.with_requests(case.requests, left) if left != case.scenario.aborts else None


def _at_default(name: str, default: object, case: Case) -> Case | None:
    options = tuple((other, default if other == name else value) for other, value in case.scenario.options)
    return type(case)(case.row, replace(case.scenario, options=options)) if options != case.scenario.options else None


def _changed(name: str, change: Callable[[Request], Request], case: Case) -> Case | None:
    requests = tuple(change(request) if request.id == name else request for request in case.requests)
    return case.with_requests(requests, case.scenario.aborts) if requests != case.requests else None


def _plain(request: Request) -> Request:
    return replace(request, sampling=GREEDY, stop_ids=(), priority=0, user=None)


def _at_once(request: Request) -> Request:
    return replace(request, arrival_s=0.0, delay_s=0.0)


def _half_the_prompt(request: Request) -> Request:
    return replace(request, prompt=request.prompt[: (len(request.prompt) + 1) // 2])


def _a_token_less_of_the_prompt(request: Request) -> Request:
    return replace(request, prompt=request.prompt[:1] + request.prompt[1:-1])


def _half_the_answer(request: Request) -> Request:
    return replace(request, max_new_tokens=(request.max_new_tokens + 1) // 2)


def _a_token_less(request: Request) -> Request:
    return replace(request, max_new_tokens=max(1, request.max_new_tokens - 1))


def _smaller_graph(request: Request) -> Request:
    graph = request.structure
    return request if graph is None else replace(request, structure=graph._replace(size=max(1, graph.size - 1)))


CHANGES = (
    _plain,
    _at_once,
    _half_the_prompt,
    _a_token_less_of_the_prompt,
    _half_the_answer,
    _a_token_less,
    _smaller_graph,
)
