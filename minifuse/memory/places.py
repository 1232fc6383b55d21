"""Where each admitted sequence lies, and how many of its leading tokens are written."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from minifuse.core.plan import Place, Span, Work
from minifuse.core.request import Sequence

P = TypeVar("P", bound=Place)


class Places(Generic[P]):
    """The books of a memory in which a sequence has one place."""

    def __init__(self) -> None:
        self.places: dict[str, P] = {}
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is written
        self.num_written = 0  # the sum of `cached`: a plan may change one sequence of a thousand

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """Return the tokens that are not written yet."""
        return (Span(self.cached.get(sequence.request.id, 0), len(sequence.tokens)),)

    def of(self, work: Iterable[Work]) -> tuple[P, ...]:
        """Return the place of each piece of work."""
        return tuple([self.places[item.sequence] for item in work])

    def wrote(self, work: Iterable[Work]) -> None:
        """Note that a plan has written the KV of its work."""
        for name, _, stop, _ in work:
            self.num_written += stop - self.cached.get(name, 0)
            self.cached[name] = stop

    def forget(self, name: str) -> None:
        """Forget that a sequence's KV is written. The sequence keeps its place."""
        self.num_written -= self.cached.pop(name, 0)

    def release(self, name: str) -> P | None:
        """Drop a sequence. Returns the place that it had, or None."""
        self.forget(name)
        return self.places.pop(name, None)
