"""Newcomers that join together, and what sequences miss."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from minifuse.core.plan import Reason, Room, Span
from minifuse.core.request import Sequence
from minifuse.parsing import number

__all__ = ["admit_together", "fill", "num_missing", "prompts_of_first"]


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


def fill(waiting: Iterable[Sequence], room: Room, most: int) -> tuple[list[Sequence], list[Reason]]:
    """The first `most` waiting sequences that fit, and why the next does not join."""
    batch: list[Sequence] = []
    for sequence in waiting:
        if len(batch) == most:
            return batch, [Reason("batch-full", sequence.id, f"not batched: the batch has {number(most, 'request')}")]
        if full := room.admit(sequence):
            return batch, [full]
        batch.append(sequence)
    return batch, []


def num_missing(spans: tuple[Span, ...]) -> int:
    """Tokens of these spans."""
    if len(spans) == 1:  # as of most sequences
        return spans[0].stop - spans[0].start
    return sum([stop - start for start, stop in spans])
