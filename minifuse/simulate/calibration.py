"""What it costs this machine to compute a chunk of KV again, measured on the model (Pensieve, 3.4.3.1; Figure 3.4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from minifuse.attention.layouts import PagedStage
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Placement, Plan, Work
from minifuse.core.request import Request, Sequence
from minifuse.memory.profile import Profile, powers_of_two
from minifuse.memory.storage import KVStorage
from minifuse.model.text.transformer import Transformer
from minifuse.simulate.cost import saturating
from minifuse.simulate.profiles import CHUNK
from minifuse.timing import time_in_turns

COUNTS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)  # tokens of an iteration, to find how many saturate the machine
MOST_KV = 2**30  # bytes; where the KV of all layers is more, several layers read the same
OTHER = "other"


class Measured(NamedTuple):
    """Seconds of all layers together, in every round: of attention by context, of everything else, and of everything
    else by the number of tokens, if that was measured."""

    attention_s: dict[int, tuple[float, ...]]
    other_s: tuple[float, ...]
    layers_s: Mapping[int, tuple[float, ...]] = {}

    @property
    def profile(self) -> Profile:
        """The medians."""
        attention = tuple(median(seconds) for seconds in self.attention_s.values())
        return Profile(median(self.other_s), tuple(self.attention_s), attention)

    @property
    def saturating_tokens(self) -> int:
        """The tokens of an iteration beyond which more of them bring next to no more tokens per second."""
        return saturating({count: median(seconds) for count, seconds in self.layers_s.items()})


def contexts_of(chunk: int, max_context: int, model: str) -> tuple[int, ...]:
    """The contexts to measure: powers of two from the chunk up to the model's context.

    Raises:
        UsageError: fewer than two are left, and nothing could be interpolated.
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
    """Time the last `chunk` tokens of every context: their attention, and everything else, in turns; and everything
    else for each of `counts` tokens, which tell how many saturate the machine (FluidInfer, 4.1).

    Attention is what `minifuse.attention.layouts.PagedStage` uses on the model's device, over blocks of a chunk in a
    random order, rotating and writing the chunk's own KV included. Everything else are the two halves of every layer:
    a chunk that is computed again has no token to sample.

    Raises:
        MachineError: the KV of a context does not fit the device.
    """
    stage = PagedStage()
    attention = stage.backend(model.device.type, str(model.dtype).removeprefix("torch."))
    ops = attention.operators
    cache = _cache(model, -(-max(contexts) // chunk) * chunk)
    blocks = random.Random("chunks").sample(range(cache.keys.shape[1] // chunk), cache.keys.shape[1] // chunk)
    sequences = {"chunk": Sequence(Request("chunk", (0,) * max(contexts)))}

    def attend(context: int) -> Callable[[], None]:
        work = (Work("chunk", context - chunk, context),)
        placement = Placement((Pages(tuple(blocks[: -(-context // chunk)]), chunk),))
        plan = Plan(0, 0, work, placement.places, layout=stage.layout(work, placement))
        batch = attention.batch(plan, sequences, cache)
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
    """KV of as many layers as may be had at once, at least one. Written, so that every page of it is memory."""
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
