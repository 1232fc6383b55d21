"""Plans which operators of a model are timed, and makes tables of their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch

from minifuse.attention.stage import AttentionStage
from minifuse.model.operators import Operators
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.transformer import Transformer
from minifuse.simulate.grid import Grid
from minifuse.simulate.machine_profile import AttentionTables
from minifuse.simulate.operators import Attending, Pieces, TokenWise, slots_of

# Every number up to 16: libraries choose other kernels for the smallest products.
TOKENS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224)
TOKENS += (256, 320, 384, 448, 512, 768, 1024, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (1, 32, 128, 256, 512, 1024, 2048, 4096)
QUERIES = (2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
UNEQUAL = 16  # sequences whose contexts rise evenly up to the longest
SHORT, SEVERAL = 16, 8  # tokens of a short prompt, and how many such prompts are attended together
FEW = 2  # layers between whose halves attention is timed
REPEATS, SHORT_S, LONG_S = 3, 0.02, 0.1  # repeated up to so often and so long; not at all if once takes LONG_S

Key = tuple[object, ...]  # names a computation
Runs = dict[Key, Callable[[int], float]]  # each returns its seconds; the argument is the number of the round
Taken = Mapping[Key, float]  # seconds


@dataclass(frozen=True)
class ModelTables:
    """Times the operators of one model; `max_context` and `max_tokens` bound what is timed."""

    shape: ModelConfig
    stages: Mapping[str, AttentionStage]
    max_context: int
    max_tokens: int

    @cached_property
    def axes(self) -> dict[str, tuple[int, ...]]:
        """Return the points of each axis."""
        return {
            "tokens": _within(TOKENS, self.max_tokens),
            "rows": ROWS,
            "context": _within(CONTEXTS, self.max_context),
            "queries": _within(QUERIES, self.max_context),
        }

    @cached_property
    def _single(self) -> list[Pieces]:
        return [((1, context),) * rows for rows in self.axes["rows"] for context in self.axes["context"]]

    @cached_property
    def _prompts(self) -> list[Pieces]:
        queries = self.axes["queries"]
        return [((count, max(count, context)),) for count in queries for context in queries]

    @cached_property
    def _several(self) -> tuple[Pieces, Pieces]:
        """Return a short prompt, and several of its length."""
        prompt = (min(SHORT, self.max_context),) * 2
        return (prompt,), (prompt,) * SEVERAL

    @cached_property
    def _ragged(self) -> tuple[Pieces, Pieces, Pieces]:
        """Return single queries of unequal, then of mean, then of longest contexts."""
        longest = self.max_context
        unequal = tuple((1, max(1, longest * (i + 1) // UNEQUAL)) for i in range(UNEQUAL))
        mean = round(sum(context for _, context in unequal) / UNEQUAL)
        return unequal, ((1, mean),) * UNEQUAL, ((1, longest),) * UNEQUAL

    def runs(self, model: Transformer, operators: Operators) -> Runs:
        """Prepare every computation.

        Everything but layers is timed as in an iteration: attention between the halves of a layer, which compute one
        token, and the head after them. They then find the layer's weights in the processor's cache.

        Raises:
            MachineError: KV for the largest of them does not fit the device.
        """
        token_wise, device = TokenWise(model, operators), model.device.type
        runs: Runs = {}
        with torch.inference_mode():
            halves = [token_wise.halves(number) for number in range(min(FEW, self.shape.num_layers))]
            after_layer = [(lambda: [half() for half in halves[0]], _nothing)]
            for count in self.axes["tokens"]:
                runs["layers", count] = timer(token_wise.layers(count), device)
            for rows in self.axes["rows"]:
                runs["head", rows] = timer(token_wise.head(rows), device, after_layer)
            pieces_of = list(dict.fromkeys([*self._single, *self._prompts, *self._ragged, *self._several]))
            for name, stage in self.stages.items():
                attending = Attending(model, stage, max(map(slots_of, pieces_of)))
                for pieces in pieces_of:
                    runs[name, "attend", pieces] = timer(attending.attend(pieces), device, halves)
                    runs[name, "index", pieces] = timer(attending.index(pieces), device, after_layer)
        return runs

    def layers(self, taken: Taken) -> Grid:
        """Return the seconds of one layer, by the number of tokens."""
        num_layers = self.shape.num_layers
        return Grid.of({"tokens": self.axes["tokens"]}, lambda count: taken["layers", count] / num_layers)

    def head(self, taken: Taken) -> Grid:
        """Return the seconds of sampling, by the number of rows."""
        return Grid.of({"rows": self.axes["rows"]}, lambda rows: taken["head", rows])

    def attention(self, name: str, taken: Taken) -> AttentionTables:
        """Return the tables of one attention stage, without their first axis."""
        axes = self.axes
        single = {"rows": axes["rows"], "context": axes["context"]}
        prompts = {"queries": axes["queries"], "context": axes["queries"]}

        def seconds(what: str, pieces: Pieces) -> float:
            return taken[name, what, pieces]

        def tables(axes: dict[str, tuple[int, ...]], what: str, all_pieces: Sequence[Pieces]) -> Grid:
            return Grid(axes=axes, seconds=tuple(seconds(what, pieces) for pieces in all_pieces))

        def shared(what: str) -> float:
            one, several = (seconds(what, pieces) for pieces in self._several)
            return max(0.0, (SEVERAL * one - several) / (SEVERAL - 1))

        unequal, mean, longest = (seconds("attend", pieces) for pieces in self._ragged)
        return AttentionTables(
            decode=tables(single, "attend", self._single),
            prefill=tables(prompts, "attend", self._prompts),
            index_decode=tables(single, "index", self._single),
            index_prefill=tables(prompts, "index", self._prompts),
            shared_s=shared("attend"),
            index_shared_s=shared("index"),
            ragged=max(0.0, (unequal - mean) / (longest - mean)) if longest > mean else 0.0,
        )


def _nothing() -> None:
    """Compute nothing."""


def timer(
    run: Callable[[], object],
    device: str,
    around: Sequence[tuple[Callable[[], object], Callable[[], object]]] = ((_nothing, _nothing),),
) -> Callable[[int], float]:
    """Return a function that times a computation.

    Its seconds are the median of a few times, after once for warmth.

    Args:
        around: what is computed before and after, and not timed. With several pairs, the mean of as many times counts.
    """

    @torch.inference_mode()
    def once() -> float:
        seconds = 0.0
        for before, after in around:
            before()
            _synchronize(device)
            start = time.perf_counter()
            run()
            _synchronize(device)
            seconds += time.perf_counter() - start
            after()
        return seconds / len(around)

    def seconds(number: int) -> float:
        first = once()
        if first >= LONG_S:
            return first
        taken = [once()]
        while len(taken) < REPEATS and sum(taken) < SHORT_S:
            taken.append(once())
        return median(taken)

    return seconds


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _within(points: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the points below `most`, and `most` itself."""
    return (*[point for point in points if point < most], most)
