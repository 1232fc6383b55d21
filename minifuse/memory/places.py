"""Where each admitted sequence lies, and which of its leading tokens are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Span, Work
from minifuse.core.request import Request, Sequence

__all__ = ["Places", "check_held", "whole_request"]

P = TypeVar("P", bound=Extent | Runs)


class Places(Generic[P]):
    """The books of a memory in which a sequence has one place.

    >>> books = Places[Extent]()
    >>> books.places |= {"a": Extent(0, 8), "b": Extent(8, 4)}
    >>> books.wrote([Work("a", 0, 5), Work("b", 0, 2)])
    >>> books.wrote([Work("a", 5, 6)])
    >>> books.cached, books.num_written
    ({'a': 6, 'b': 2}, 8)
    >>> books.of([Work("b", 2, 3)])
    (Extent(offset=8, capacity=4),)
    """

    def __init__(self) -> None:
        self.places: dict[str, P] = {}
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is written
        self.num_written = 0  # the sum of `cached`

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """The tokens behind those that are written."""
        return (Span(self.cached.get(sequence.request.id, 0), len(sequence.tokens)),)

    def of(self, work: Iterable[Work]) -> tuple[P, ...]:
        """The place of each piece of work."""
        places = self.places
        return tuple([places[item.sequence] for item in work])

    def wrote(self, work: Iterable[Work]) -> None:
        """A plan has written the KV of its work."""
        cached = self.cached
        for name, _, stop, _ in work:
            self.num_written += stop - cached.get(name, 0)
            cached[name] = stop

    def forget(self, name: str) -> None:
        """Drop what is written of a sequence, if anything is."""
        self.num_written -= self.cached.pop(name, 0)

    def release(self, name: str) -> P | None:
        """Drop a sequence. Returns the place that is free now; None if it has none."""
        self.forget(name)
        return self.places.pop(name, None)

    def check(self) -> None:
        """Raise `LawBroken` unless the sum is that of the books."""
        if self.num_written != sum(self.cached.values()):
            raise LawBroken("conservation", f"{self.num_written} tokens are counted as written, not {self.cached}")


def whole_request(prompts: tuple[Request, ...]) -> str:
    """Name the request that these prompts make up."""
    return f"{prompts[0].group!r} with its {len(prompts)} prompts" if len(prompts) > 1 else repr(prompts[0].id)


def check_held(prompts: tuple[Request, ...], needed: int, capacity: int) -> None:
    """Raise `RequestRefused` if the KV that these prompts of one request need exceeds memory."""
    if needed > capacity:
        raise RequestRefused(
            f"Request {whole_request(prompts)} may need KV for {needed} tokens and memory holds {capacity}: "
            "shorten the prompt, lower max_new_tokens, or raise --kv-memory."
        )
