"""The cost of recomputing a chunk of KV, by context length (Pensieve, 3.4.3.1)."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.io.lines import read_bounded

FORMAT = "minifuse recomputation profile 1"
ADVICE = "give what Profile.text returns, or leave memory.profile out after minifuse calibrate"


class Profile(NamedTuple):
    """Gives the cost of a chunk: attention to its context, plus all `other` costs.

    Attention to `contexts[i]` tokens costs `attention[i]`. Costs may have any unit, such as seconds. Attention
    is measured at powers of two and interpolated between them. Beyond the last context, the last slope continues; below
    the first, the cost is constant. A cost measured lower than that of a shorter context is noise: the cost of the
    shorter context is used instead.

    >>> profile = Profile(2.0, (32, 64, 128), (1.0, 2.0, 4.0))
    >>> [profile.cost(n) for n in (16, 32, 96, 256)]
    [3.0, 3.0, 5.0, 10.0]
    """

    other: float
    contexts: tuple[int, ...]
    attention: tuple[float, ...]

    def cost(self, num_context: int) -> float:
        """Return Cost(l) = Cost_attention(l) + c (3.6) of a chunk that ends after `num_context` tokens."""
        attention, contexts = [*accumulate(self.attention, max)], self.contexts
        if num_context <= contexts[0]:
            return self.other + attention[0]
        i = min(bisect_left(contexts, num_context), len(contexts) - 1)
        slope = (attention[i] - attention[i - 1]) / (contexts[i] - contexts[i - 1])
        return self.other + attention[i - 1] + slope * (num_context - contexts[i - 1])

    @classmethod
    def read(cls, given: str, chunk: int | None = None) -> Profile:
        """Read a profile that `text` has written.

        Args:
            given: the path of the profile's file, or its text.
            chunk: tokens per chunk; a profile for another number is refused.

        Raises:
            UsageError: the profile cannot be read, or is refused.
        """
        inline = given.startswith("{")
        name = "The text of memory.profile" if inline else given
        try:
            raw = json.loads(given if inline else _text(Path(given)))
            attention = tuple(map(float, raw["attention_s"]))
            profile = cls(float(raw["other_s"]), tuple(raw["contexts"]), attention)
            if raw["format"] != FORMAT or not profile.is_right():
                raise ValueError
        except OSError as error:
            raise UsageError(f"{name} cannot be read ({error.strerror or error}): {ADVICE}.") from None
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise UsageError(f"{name} is no profile of recomputation costs: {ADVICE}.") from None
        if chunk is not None and raw.get("chunk", chunk) != chunk:
            raise UsageError(
                f"{name} tells what a chunk of {raw['chunk']} tokens costs, and memory.chunk is {chunk}: give one of "
                f"{chunk} tokens, or set memory.chunk to {raw['chunk']}."
            )
        return profile

    def is_right(self) -> bool:
        """Return whether contexts ascend, and costs are finite and not all 0."""
        seconds = (self.other, *self.attention)
        return (
            1 < len(self.contexts) == len(self.attention)
            and all(type(c) is int and c > b for b, c in zip((0, *self.contexts), self.contexts, strict=False))
            and all(math.isfinite(s) and s >= 0 for s in seconds)
            and any(seconds)
        )

    def text(self, **about: Any) -> str:
        """Return the profile as text for `read`, with facts `about` it for human readers."""
        found = {"format": FORMAT, "contexts": self.contexts, "attention_s": self.attention, "other_s": self.other}
        return json.dumps({**found, **about})


def _text(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        return read_bounded(file, str(path))


def powers_of_two(chunk: int, longest: int) -> tuple[int, ...]:
    """Return the contexts to profile: powers of two from the chunk size to `longest`.

    >>> powers_of_two(48, 512)
    (64, 128, 256, 512)
    """
    return tuple(1 << n for n in range((chunk - 1).bit_length(), longest.bit_length()))


# Our assumption for a model without a profile: attention to 4096 tokens costs as much as all the rest of a layer. The
# thesis gives no number for its Figure 3.4.
ASSUMED = Profile(1.0, (32, 16384), (32 / 4096, 4.0))
