"""Plans which operators of a model are timed, and makes tables of their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from minifuse.attention.stage import AttentionStage
from minifuse.model.operators import Operators
from minifuse.model.text.transformer import Transformer
from minifuse.simulate.grid import Grid
from minifuse.simulate.machine_profile import AttentionTables
from minifuse.simulate.operators import Attending, Pieces, TokenWise, slots_of

TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (1, 16, 64, 256, 512, 1024, 2048, 4096)
QUERIES = (2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MANY = 2048  # slots: pieces that take more are attended in FEW layers, for time
FEW = 2
UNEQUAL = 16  # sequences whose contexts rise evenly up to the longest

Key = tuple[object, ...]  # names a computation
Runs = dict[Key, Callable[[int], float]]  # each returns its seconds; the argument is the number of the round
Taken = Mapping[Key, float]  # seconds


@dataclass(frozen=True)
class ModelTables:
    """Times the operators of one model; `max_context` and `max_tokens` bound what is timed."""

    model: Transformer
    operators: Operators
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
    def _ragged(self) -> tuple[Pieces, Pieces, Pieces]:
        """Return single queries of unequal, then of mean, then of longest contexts."""
        longest = self.max_context
        unequal = tuple((1, max(1, longest * (i + 1) // UNEQUAL)) for i in range(UNEQUAL))
        mean = round(sum(context for _, context in unequal) / UNEQUAL)
        return unequal, ((1, mean),) * UNEQUAL, ((1, longest),) * UNEQUAL

    def _layers(self, pieces: Pieces) -> int:
        """Return how many layers attend these pieces."""
        num_layers = self.model.config.num_layers
        return num_layers if slots_of(pieces) <= MANY else min(FEW, num_layers)

    def runs(self) -> Runs:
        """Prepare every computation.

        Raises:
            MachineError: KV for the largest of them does not fit the device.
        """
        token_wise = TokenWise(self.model, self.operators)
        runs: Runs = {}
        with torch.inference_mode():
            for count in self.axes["tokens"]:
                runs["layers", count] = timer(token_wise.layers(count), self.model.device.type)
            for rows in self.axes["rows"]:
                runs["head", rows] = timer(token_wise.head(rows), self.model.device.type)
            pieces_of = list(dict.fromkeys([*self._single, *self._prompts, *self._ragged]))
            for name, stage in self.stages.items():
                attending = Attending(self.model, stage, max(map(slots_of, pieces_of)))
                for pieces in pieces_of:
                    runs[name, "attend", pieces] = timer(
                        attending.attend(pieces, self._layers(pieces)), self.model.device.type
                    )
                    runs[name, "index", pieces] = timer(attending.index(pieces), self.model.device.type)
        return runs

    def layers(self, taken: Taken) -> Grid:
        """Return the seconds of one layer, by the number of tokens."""
        num_layers = self.model.config.num_layers
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
            return taken[name, what, pieces] / (self._layers(pieces) if what == "attend" else 1)

        def tables(axes: dict[str, tuple[int, ...]], what: str, all_pieces: Sequence[Pieces]) -> Grid:
            return Grid(axes=axes, seconds=tuple(seconds(what, pieces) for pieces in all_pieces))

        unequal, mean, longest = (seconds("attend", pieces) for pieces in self._ragged)
        return AttentionTables(
            decode=tables(single, "attend", self._single),
            prefill=tables(prompts, "attend", self._prompts),
            index_decode=tables(single, "index", self._single),
            index_prefill=tables(prompts, "index", self._prompts),
            ragged=max(0.0, (unequal - mean) / (longest - mean)) if longest > mean else 0.0,
        )


def timer(run: Callable[[], object], device: str) -> Callable[[int], float]:
    """Return a function that times a computation, after once for warmth."""

    def seconds(number: int) -> float:
        with torch.inference_mode():
            run()
            _synchronize(device)
            start = time.perf_counter()
            run()
            _synchronize(device)
            return time.perf_counter() - start

    return seconds


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _within(points: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the points below `most`, and `most` itself."""
    return (*[point for point in points if point < most], most)
