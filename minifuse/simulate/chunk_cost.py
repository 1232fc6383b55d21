"""Measures the cost of recomputing a chunk of KV (Pensieve, 3.4.3.1; Figure 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

import torch

from minifuse.attention.layouts import PagedStage
from minifuse.core.errors import UsageError
from minifuse.execute.timing import time_in_turns
from minifuse.memory.tiered.profile import Profile, powers_of_two
from minifuse.model.text.transformer import Transformer
from minifuse.simulate.cost import saturating
from minifuse.simulate.operators import Attending, Pieces, kv_for, token_wise
from minifuse.simulate.profiles import CHUNK

COUNTS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)  # tokens of an iteration, to find how many saturate the machine
OTHER = "other"


class Measured(NamedTuple):
    """Holds the seconds that all layers take together, in every round."""

    attention_s: dict[int, tuple[float, ...]]  # by context
    other_s: tuple[float, ...]  # everything but attention
    layers_s: Mapping[int, tuple[float, ...]] = {}  # everything but attention, by number of tokens, if measured

    @property
    def profile(self) -> Profile:
        """Make a profile of the medians."""
        attention = tuple(median(seconds) for seconds in self.attention_s.values())
        return Profile(median(self.other_s), tuple(self.attention_s), attention)

    @property
    def saturating_tokens(self) -> int:
        """Find the fewest tokens per iteration that nearly reach the highest token rate."""
        return saturating({count: median(seconds) for count, seconds in self.layers_s.items()})


def contexts_of(chunk: int, max_context: int, model: str) -> tuple[int, ...]:
    """List the contexts to measure: powers of two from `chunk` to `max_context`.

    Raises:
        UsageError: there are fewer than two, too few to interpolate.
    """
    contexts = powers_of_two(chunk, max_context)
    if len(contexts) < 2:
        most = 1 << max(0, max_context.bit_length() - 2)
        raise UsageError(
            f"The chunk has {chunk} tokens, and the context of {model} is {max_context}: give a chunk of at most "
            f"{most}, so that two powers of two lie between them."
        )
    return contexts


@torch.inference_mode()
def measure(
    model: Transformer, contexts: tuple[int, ...], chunk: int = CHUNK, rounds: int = 1, counts: tuple[int, ...] = ()
) -> Measured:
    """Time, in turns, attention of the last `chunk` tokens of each context, and everything else.

    Attention is that of `minifuse.attention.layouts.PagedStage`, over blocks in random order; rotating the chunk's
    heads and writing its KV count as attention. Everything else is the parts of every layer before and after attention.
    The head is left out, because a recomputed chunk samples no token.

    Args:
        counts: also time everything else for these numbers of tokens, to find how many tokens saturate the machine
            (FluidInfer, 4.1).

    Raises:
        MachineError: the KV of a context does not fit the device.
    """
    pieces: dict[int, Pieces] = {context: ((chunk, context),) for context in contexts}
    attending = Attending(model, PagedStage(), kv_for(model, pieces.values(), len(model.layers)))
    operators = attending.backend.operators
    runs = {OTHER: token_wise(model, operators, chunk)}
    runs |= {str(context): attending.attend(one, len(model.layers)) for context, one in pieces.items()}
    runs |= {f"{count} tokens": token_wise(model, operators, count) for count in counts}
    with operators.lock:
        taken = time_in_turns(runs, rounds, model.device.type)
    return Measured(
        {context: taken[str(context)] for context in contexts},
        taken[OTHER],
        {count: taken[f"{count} tokens"] for count in counts},
    )
