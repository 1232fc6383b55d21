"""Times iterations of a transformer by their parts, and operators by themselves."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import chain, cycle, islice
from statistics import median

import torch

from minifuse.attention.batch import AttentionBackend, joined
from minifuse.attention.stage import AttentionStage
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import MachineError
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Place, Placement, Plan, Shape, Work
from minifuse.core.request import GREEDY, Request, Sequence
from minifuse.core.shapes import Rectangle, Region
from minifuse.execute.sampling import sample
from minifuse.model.operators import Operators
from minifuse.model.text.transformer import Transformer

BLOCK = 16  # slots of a block
MOST_KV = 2**31  # bytes; if the KV of all layers is larger, several layers share theirs
MOST_WEIGHTS = 2**26  # bytes; the other layers of a larger model are left out, as no cache holds so much
SINGLE = ((1, BLOCK),) * 4
OF_LAYER = "layer", "attend"  # parts whose seconds are those of one layer
MOST_TIMES, BRIEF_S = 5, 0.05  # an iteration is timed so often in a round, or until it has taken so long
Pieces = tuple[tuple[int, int], ...]  # of each piece of work: queries, and tokens of context
Parts = Mapping[str, float]  # seconds of index, embed, layer (one, without attention), attend (in one) and head


def token_wise(model: Transformer, ops: Operators, count: int) -> Callable[[], object]:
    """Return a function that computes `count` tokens in all layers, except for attention."""
    config = model.config
    tokens = torch.arange(count, device=model.device)
    token_ids, positions = tokens % config.vocab_size, tokens % config.max_context
    attended = torch.zeros((count, config.q_size), dtype=model.dtype, device=model.device)

    def compute() -> None:
        x = model.embed(token_ids, positions)
        model.rotary(positions)
        for layer in model.layers:
            layer.pre_attention(x, ops)
            x = layer.post_attention(x, attended, ops)

    return compute


class Attending:
    """Prepares the attention of one stage for timing, on a model's heads.

    Args:
        cache: KV for the largest pieces (`kv_for`).
    """

    def __init__(self, model: Transformer, stage: AttentionStage, cache: KVStorage) -> None:
        self.model, self.stage, self.cache = model, stage, cache
        dtype = str(model.dtype).removeprefix("torch.")
        self.backend: AttentionBackend = stage.backend(model.device.type, dtype)

    def attend(self, pieces: Pieces, layers: int = 1) -> Callable[[], object]:
        """Attend these pieces in the next so many layers, writing of KV included."""
        config, cache = self.model.config, self.cache
        batch = self.backend.batch(*self._plan(pieces), cache)
        rotary = self.model.rotary(batch.positions)
        shape = (len(batch.token_ids), config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        heads = torch.ones(shape, dtype=self.model.dtype, device=self.model.device)

        turn = cycle(range(len(cache.keys)))

        def compute() -> None:
            for layer in islice(turn, layers):
                for wave in batch.waves:
                    self.backend.attend(heads, rotary, cache, layer, wave)

        return compute

    def _plan(self, pieces: Pieces) -> tuple[Plan, dict[str, Sequence]]:
        """Return a plan of these pieces, as the stage lays it out, and its sequences."""
        names = [f"s{i}" for i in range(len(pieces))]
        work = tuple(Work(name, context - count, context) for name, (count, context) in zip(names, pieces, strict=True))
        places, shape = _places(self.stage, pieces)
        layout = self.stage.layout(work, Placement(places, shape))
        sequences = {name: Sequence(Request(name, (0,) * item.stop)) for name, item in zip(names, work, strict=True)}
        return Plan(0, 0, work, places, layout=layout), sequences


class Iterating(Attending):
    """Computes iterations of one stage as `minifuse.execute.texts.forward` does, and times their parts.

    An operator that is repeated by itself takes as little as half the time that it takes in an iteration: it finds its
    weights, its KV, its memory and the interpreter's code in the processor's cache.
    """

    def __init__(self, model: Transformer, stage: AttentionStage, cache: KVStorage) -> None:
        super().__init__(model, stage, cache)
        self.layers = model.layers[: num_iterated(model)]
        self._compiled: set[tuple[int, int]] = set()

    def iteration(self, pieces: Pieces) -> Callable[[int], Parts]:
        """Prepare an iteration that computes these pieces; the argument is the number of the round.

        An iteration of single queries is timed after another like it, one with a prompt after an iteration of single
        queries. Each part is the median of several timings (`typical`). A context may be longer than the model's, so
        that a table has all combinations; positions are then cut.
        """
        prepared = self._plan(pieces)
        self._compile(prepared[0].num_computed, len(pieces))
        single = None if all(queries == 1 for queries, _ in pieces) else self._plan(SINGLE)

        def once() -> Parts:
            if single is not None:
                self._timed(*single)
            return self._timed(*prepared)

        def run(number: int) -> Parts:
            if single is None:
                self._timed(*prepared)
            return typical(once)

        return run

    @torch.inference_mode()
    def _compile(self, count: int, rows: int) -> None:
        """Compute products of these sizes once: on a CPU, oneDNN compiles each size when it first occurs."""
        model, layer, ops, config = self.model, self.layers[0], self.backend.operators, self.model.config
        if (count, rows) not in self._compiled:
            self._compiled.add((count, rows))
            x, attended = (
                torch.zeros((count, size), dtype=model.dtype, device=model.device)
                for size in (config.hidden_size, config.q_size)
            )
            layer.pre_attention(x, ops)
            model.head(layer.post_attention(x, attended, ops)[:rows], ops)

    @torch.inference_mode()
    def _timed(self, plan: Plan, sequences: dict[str, Sequence]) -> Parts:
        model, backend, cache = self.model, self.backend, self.cache
        ops, lap = backend.operators, Laps(model.device.type)
        batch = backend.batch(plan, sequences, cache)
        lap("index")
        positions = batch.positions.clamp(max=model.config.max_context - 1)
        lap("cut")
        x = model.embed(batch.token_ids, positions)
        rotary = model.rotary(positions)
        lap("embed")
        for index, layer in enumerate(self.layers):
            heads = layer.pre_attention(x, ops)
            lap("layer")
            stored = index % len(cache.keys)
            attended = [backend.attend(heads, rotary, cache, stored, wave) for wave in batch.waves]
            lap("attend")
            x = layer.post_attention(x, joined(attended), ops)
            lap("layer")
        sample(model.head(x[batch.last_tokens], ops), [GREEDY] * len(plan.work), [0] * len(plan.work), ops)
        lap("head")
        return {name: seconds / (len(self.layers) if name in OF_LAYER else 1) for name, seconds in lap.seconds.items()}


def typical(timed: Callable[[], Parts]) -> Parts:
    """Return the median of each part, over several timings if these are brief.

    A single timing of a short iteration may be wrong by a fifth.

    >>> later = iter((3.0, 9.0, 4.0, 5.0, 4.5))
    >>> typical(lambda: {"layer": next(later)})
    {'layer': 4.5}
    """
    until_s = time.perf_counter() + BRIEF_S
    found = [timed()]
    while len(found) < MOST_TIMES and time.perf_counter() < until_s:
        found.append(timed())
    return medians(found)


def medians(found: Seq[Parts]) -> Parts:
    """Return the median seconds of each part."""
    return {part: median(one[part] for one in found) for part in found[0]}


class Laps:
    """Adds up the seconds between calls, by name."""

    def __init__(self, device: str) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._on_gpu = device == "cuda"
        self._last_s = time.perf_counter()

    def __call__(self, name: str) -> None:
        """Count the seconds since the last call under this name."""
        if self._on_gpu:
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[name] += now - self._last_s
        self._last_s = now


def num_iterated(model: Transformer) -> int:
    """Return the layers of a timed iteration: all, or as many as have `MOST_WEIGHTS` bytes."""
    of_layer = max(1, sum(weight.numel() * weight.itemsize for weight in model.layers[0].parameters()))
    return max(1, min(len(model.layers), MOST_WEIGHTS // of_layer))


def kv_for(model: Transformer, all_pieces: Iterable[Pieces], layers: int) -> KVStorage:
    """Allocate KV for so many layers, or as many as `MOST_KV` allows, and touch every page.

    Raises:
        MachineError: the KV of the largest pieces does not fit the device.
    """
    config, num_slots = model.config, max(map(_slots_of, chain(all_pieces, [SINGLE])))
    of_layer = num_slots * 2 * config.kv_size * model.dtype.itemsize
    layers = max(1, min(layers, MOST_KV // of_layer))
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


def _slots_of(pieces: Pieces) -> int:
    """Return the slots of these pieces, each in blocks for the longest context."""
    return len(pieces) * -(-max(context for _, context in pieces) // BLOCK) * BLOCK


def _places(stage: AttentionStage, pieces: Pieces) -> tuple[tuple[Place, ...], Shape | None]:
    """Return the pieces' places, in a form that the stage reads, and their shape."""
    count, longest = len(pieces), max(context for _, context in pieces)
    if "pages" in stage.reads:
        per_piece = -(-longest // BLOCK)
        blocks = random.Random("blocks").sample(range(count * per_piece), count * per_piece)
        tables = (tuple(blocks[i * per_piece : (i + 1) * per_piece]) for i in range(count))
        return tuple(Pages(table, BLOCK) for table in tables), None
    if "rectangle" in stage.reads:
        computed = max(queries for queries, _ in pieces)
        # Rows end together, so a shorter context begins later in its row.
        places = tuple(Extent((i + 1) * longest - context, context) for i, (_, context) in enumerate(pieces))
        return places, Rectangle(0, count, longest, longest - computed, longest)
    shape = Region(0, count, longest) if "slots" in stage.reads else None
    return tuple(Extent(i * longest, longest) for i in range(count)), shape
