"""Reports refused requests: the first few of each cause in full, others as counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from minifuse.core.request import Request

IN_FULL = 3  # refusals of each cause
MAX_CAUSES = 8  # all further causes count as one
_PARTICULAR = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|[0-9]+(?:[.,][0-9]+)*")  # names and numbers
OTHERS = "other causes"


class Refusals:
    """Decides which refusals are reported in full.

    Two refusals have the same cause if their sentences differ only in names and numbers.

    Args:
        requests: the requests of the run. Prompts of one group are refused together, in one sentence.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._sizes = Counter(request.group for request in requests)
        self._groups: set[str] = set()  # groups whose refusal has been reported
        self._refused: dict[str, list[str]] = {}  # cause -> refused requests, in order

    def sentence(self, request: Request, why: str) -> str | None:
        """Return the sentence to show; None if the refusal is only counted."""
        name = request.id
        if request.group is not None:
            if request.group in self._groups:
                return None
            self._groups.add(request.group)
            name = request.group
            why = f"All {self._sizes[name]} prompts of {name!r} are refused: {why}"
        cause = _PARTICULAR.sub("#", why)
        if cause not in self._refused and len(self._refused) >= MAX_CAUSES:
            cause = OTHERS
        names = self._refused.setdefault(cause, [])
        names.append(name)
        return why if len(names) <= IN_FULL else None

    def rest(self) -> Iterator[str]:
        """Yield a sentence for each cause that had further, only counted refusals."""
        for cause, names in self._refused.items():
            if (more := len(names) - IN_FULL) > 0:
                why = "other reasons" if cause == OTHERS else f"the same reason as {names[0]!r}"
                last = repr(names[-1])
                yield f"Also refused, for {why}: {last if more == 1 else f'{more:,} more, the last of them {last}'}."
