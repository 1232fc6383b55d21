"""Records where each admitted sequence's KV lies, and how much of it is written."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from minifuse.core.plan import Place, Span, Work, spans_from
from minifuse.core.request import Sequence

P = TypeVar("P", bound=Place)


class Places(Generic[P]):
    """Records each sequence's single place, and how many of its tokens have KV."""

    def __init__(self) -> None:
        self.places: dict[str, P] = {}
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is written
        self.num_written = 0  # the sum of `cached`, so that no query has to visit every sequence

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        """Return the tokens whose KV is not written yet."""
        return spans_from(self.cached.get(sequence.request.id, 0), len(sequence.tokens))

    def of(self, work: Iterable[Work]) -> tuple[P, ...]:
        """Return the place of each piece of work."""
        return tuple([self.places[item.sequence] for item in work])

    def wrote(self, work: Iterable[Work]) -> None:
        """Record that a plan has written the KV of its work."""
        for name, _, stop, _ in work:
            self.num_written += stop - self.cached.get(name, 0)
            self.cached[name] = stop

    def forget(self, name: str) -> None:
        """Forget that a sequence's KV is written. The sequence keeps its place."""
        self.num_written -= self.cached.pop(name, 0)

    def release(self, name: str) -> P | None:
        """Drop a sequence. Returns its place, or None if it had none."""
        self.forget(name)
        return self.places.pop(name, None)
