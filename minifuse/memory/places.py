"""Where each admitted sequence lies, and which of its leading tokens are written."""

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

    @property
    def num_written(self) -> int:
        return sum(self.cached.values())

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """Return the tokens that are not written yet."""
        return (Span(self.cached.get(sequence.request.id, 0), len(sequence.tokens)),)

    def of(self, work: Iterable[Work]) -> tuple[P, ...]:
        """Return the place of each piece of work."""
        return tuple([self.places[item.sequence] for item in work])

    def wrote(self, work: Iterable[Work]) -> None:
        """Note that a plan has written the KV of its work."""
        for name, _, stop, _ in work:
            self.cached[name] = stop

    def release(self, name: str) -> P | None:
        """Drop a sequence. Returns the place that is free now; None if it has none."""
        self.cached.pop(name, None)
        return self.places.pop(name, None)
