"""Measures the cost of recomputing a chunk of KV (Pensieve, 3.4.3.1; Figure 3.4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from minifuse.attention.layouts import PagedStage
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Plan, Work
from minifuse.core.request import Request, Sequence
from minifuse.execute.timing import time_in_turns
from minifuse.memory.tiered.profile import Profile, powers_of_two
from minifuse.model.text.transformer import Transformer
from minifuse.simulate.cost import saturating
from minifuse.simulate.profiles import CHUNK

COUNTS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)  # tokens of an iteration, to find how many saturate the machine
MOST_KV = 2**30  # bytes; if the KV of all layers is larger, several layers share theirs
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

    Attention is that of `minifuse.attention.layouts.PagedStage` on the model's device, over blocks of `chunk` slots in
    random order. Its time includes rotating the chunk's heads and writing the chunk's KV. Everything else is the parts
    of every layer before and after attention. The head is left out, because a recomputed chunk samples no token.

    Args:
        counts: also time everything else for these numbers of tokens, to find how many tokens saturate the machine
            (FluidInfer, 4.1).

    Raises:
        MachineError: the KV of a context does not fit the device.
    """
    attention = PagedStage().backend(model.device.type, str(model.dtype).removeprefix("torch."))
    ops = attention.operators
    num_blocks = -(-max(contexts) // chunk)
    cache = _cache(model, num_blocks * chunk)
    blocks = random.Random("chunks").sample(range(num_blocks), num_blocks)
    sequences = {"chunk": Sequence(Request("chunk", (0,) * max(contexts)))}

    def attend(context: int) -> Callable[[], None]:
        work = (Work("chunk", context - chunk, context),)
        place = Pages(tuple(blocks[: -(-context // chunk)]), chunk)
        batch = attention.batch(Plan(0, 0, work, (place,)), sequences, cache)
        rotary = model.rotary(batch.positions)

        def every_layer() -> None:
            for index in range(len(model.layers)):
                attention.attend(heads, rotary, cache, index % len(cache.keys), batch.waves[0])

        return every_layer

    def embedded(count: int) -> Tensor:
        tokens = torch.arange(count, device=model.device)
        return model.embed(tokens % model.config.vocab_size, tokens % model.config.max_context)

    def others(count: int) -> Callable[[], None]:
        begin = embedded(count)
        attended = torch.zeros((count, model.config.q_size), dtype=model.dtype, device=model.device)

        def every_layer() -> None:
            x = begin
            for layer in model.layers:
                layer.pre_attention(x, ops)
                x = layer.post_attention(x, attended, ops)

        return every_layer

    heads = next(iter(model.layers)).pre_attention(embedded(chunk), ops)
    runs = {OTHER: others(chunk), **{str(context): attend(context) for context in contexts}}
    runs |= {f"{count} tokens": others(count) for count in counts}
    with ops.lock:
        taken = time_in_turns(runs, rounds, model.device.type)
    return Measured(
        {context: taken[str(context)] for context in contexts},
        taken[OTHER],
        {count: taken[f"{count} tokens"] for count in counts},
    )


def _cache(model: Transformer, num_slots: int) -> KVStorage:
    """Allocate KV for as many layers as MOST_KV allows, and touch every page."""
    config = model.config
    of_layer = num_slots * 2 * config.kv_size * model.dtype.itemsize
    layers = max(1, min(config.num_layers, MOST_KV // of_layer))
    try:
        cache = KVStorage(replace(config, num_layers=layers), num_slots, model.dtype, model.device)
        cache.keys.fill_(1.0)
        cache.values.fill_(1.0)
    except (RuntimeError, MemoryError):
        raise MachineError(
            f"KV of {num_slots} tokens, {of_layer / 2**20:.0f} MiB in one layer, could not be allocated on "
            f"{model.device}: free memory, or choose a model of a shorter context."
        ) from None
    return cache
