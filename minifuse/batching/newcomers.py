"""Newcomers that join together, and what sequences miss."""

from collections.abc import Iterable
from itertools import takewhile

from minifuse.core.plan import Reason, Room, Span
from minifuse.core.request import Sequence


def prompts_of_first(waiting: Iterable[Sequence]) -> tuple[Sequence, ...]:
    """The prompts of the first request in a queue: they stand side by side."""
    queue = iter(waiting)
    first = next(queue)
    group = first.request.group
    if group is None:
        return (first,)
    return (first, *takewhile(lambda sequence: sequence.request.group == group, queue))


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need, or return the reason of a refusal."""
    return next((reason for prompt in prompts if (reason := room.admit(prompt))), None)


def num_missing(spans: tuple[Span, ...]) -> int:
    """Tokens of these spans."""
    if len(spans) == 1:  # as of most sequences
        return spans[0].stop - spans[0].start
    return sum([stop - start for start, stop in spans])
