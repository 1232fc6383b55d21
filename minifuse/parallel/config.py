"""Makes a shard's shape if the model can be split (Flover, V-D). Imports no torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from minifuse.core.errors import UsageError
from minifuse.io.parsing import one_of
from minifuse.model.text.shape import TextShape

Shape = TypeVar("Shape", bound=TextShape)


def shard_config(config: Shape, size: int) -> Shape:
    """Return a shard's shape: its part of the heads, KV heads and feed-forward layer.

    Embeddings and norms are whole on every rank. Uneven parts of the head are padded (see `minifuse.parallel.shard`),
    so that any vocabulary can be split.

    Raises:
        UsageError: `size` is below 1, or does not divide the heads or the feed-forward layer.
    """
    if size < 1:
        raise UsageError(f"A tensor parallel size of {size} was given: give at least 1.")
    parts = {
        "attention heads": config.num_heads,
        "KV heads": config.num_kv_heads,
        "intermediate features": config.intermediate_size,
    }
    whole = math.gcd(*parts.values())
    for name, count in parts.items():
        if count % size:
            sizes = [str(divisor) for divisor in range(1, whole + 1) if whole % divisor == 0]
            raise UsageError(
                f"The model's {count} {name} cannot be shared evenly by {size} ranks: choose a tensor parallel size "
                f"of {one_of(sizes)}."
            )
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=config.num_kv_heads // size,
        intermediate_size=config.intermediate_size // size,
    )


def computed_share(config: Shape, size: int) -> Shape:
    """Return the shape that a rank computes: its shard, with its part of the head."""
    return replace(shard_config(config, size), vocab_size=-(-config.vocab_size // size))


def counts_to(ranks: int) -> tuple[int, ...]:
    """Return the numbers of ranks that are measured: powers of two, and the last.

    >>> counts_to(6)
    (2, 4, 6)
    """
    return (*[1 << n for n in range(1, ranks.bit_length()) if 1 << n < ranks], ranks)
