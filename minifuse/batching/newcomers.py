"""Newcomers that join together, and what sequences miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby, islice

from minifuse.core.plan import Reason, Room, Span
from minifuse.core.request import Sequence

__all__ = ["admit_together", "first_requests", "num_missing"]

Refusal = Callable[[tuple[Sequence, ...]], Reason | None]  # why the prompts of a request do not join


def first_requests(
    waiting: Iterable[Sequence], refusal: Refusal, most: int | None = None
) -> tuple[tuple[Sequence, ...], tuple[Reason, ...]]:
    """Return the prompts of the first requests in a queue, up to the first refusal, and its reason."""
    joining: list[Sequence] = []
    groups = groupby(waiting, lambda one: (one.request.group, one.request.group is None and one.id))
    for _, prompts in islice(groups, most):
        request = tuple(prompts)
        if reason := refusal(request):
            return tuple(joining), (reason,)
        joining += request
    return tuple(joining), ()


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need, or return the reason of a refusal."""
    return next((reason for prompt in prompts if (reason := room.admit(prompt))), None)


def num_missing(spans: tuple[Span, ...]) -> int:
    """Tokens of these spans."""
    if len(spans) == 1:  # as of most sequences
        return spans[0].stop - spans[0].start
    return sum([stop - start for start, stop in spans])
