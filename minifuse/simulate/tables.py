"""Plans which iterations of a model are timed, and makes tables of their parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from minifuse.attention.layouts import PagedStage
from minifuse.attention.stage import AttentionStage
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.transformer import Transformer
from minifuse.simulate.grid import Grid
from minifuse.simulate.machine_profile import AttentionTables
from minifuse.simulate.operators import Iterating, Parts, Pieces, kv_for, num_iterated

# Every number up to 16: libraries choose other kernels for the smallest products.
TOKENS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224)
TOKENS += (256, 320, 384, 448, 512, 768, 1024, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (1, 32, 128, 256, 512, 1024, 2048, 4096)
QUERIES = (2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
EARLIER = (1, 64, 256, 1024, 4096)  # tokens before those of a prompt
UNEQUAL = 16  # sequences whose contexts rise evenly up to the longest
SHORT, SEVERAL = 16, 8  # tokens of a short prompt, and how many such prompts are attended together
ANY = ""  # instead of a stage, where all are alike
LEAST_S = 1e-9  # seconds are positive

Key = tuple[object, ...]  # names an iteration: the stage, and the pieces
Run = Callable[[int], Parts]  # the argument is the number of the round
Runs = dict[Key, Run]
Taken = Mapping[Key, Parts]


@dataclass(frozen=True)
class ModelTables:
    """Times iterations of one model; `max_context` and `max_tokens` bound what is timed."""

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
            "earlier": _within(EARLIER, self.max_context),
        }

    @cached_property
    def _single(self) -> list[Pieces]:
        return [((1, context),) * rows for rows in self.axes["rows"] for context in self.axes["context"]]

    @cached_property
    def _prompts(self) -> list[Pieces]:
        axes = self.axes
        return [((count, count + earlier),) for count in axes["queries"] for earlier in axes["earlier"]]

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

    def runs(self, model: Transformer) -> Runs:
        """Prepare every iteration, in random order.

        Raises:
            MachineError: KV for the largest of them does not fit the device.
        """
        of_stages = {name: [*self._single, *self._prompts, *self._ragged, *self._several] for name in self.stages}
        by_stage = {ANY: list(map(_tokens, self.axes["tokens"])), **of_stages}
        cache = kv_for(model, chain(*by_stage.values()), num_iterated(model))
        runs: list[tuple[Key, Run]] = []
        for name, pieces_of in by_stage.items():
            iterating = Iterating(model, self.stages.get(name) or PagedStage(), cache)
            runs += [((name, pieces), iterating.iteration(pieces)) for pieces in dict.fromkeys(pieces_of)]
        random.Random("order").shuffle(runs)
        return dict(runs)

    def by_tokens(self, part: str, taken: Taken) -> Grid:
        """Return the seconds of a part that is the same in all stages, by the number of tokens."""
        return Grid.of({"tokens": self.axes["tokens"]}, lambda count: taken[ANY, _tokens(count)][part])

    def head(self, taken: Taken) -> Grid:
        """Return the seconds of sampling, by the number of rows."""
        return Grid.of({"rows": self.axes["rows"]}, lambda rows: taken[ANY, _tokens(rows)]["head"])

    def attention(self, name: str, taken: Taken) -> AttentionTables:
        """Return the tables of one attention stage, without their first axis."""
        axes = self.axes
        single = {"rows": axes["rows"], "context": axes["context"]}
        prompts = {"queries": axes["queries"], "earlier": axes["earlier"]}

        def seconds(what: str, pieces: Pieces) -> float:
            return taken[name, pieces][what]

        def tables(axes: dict[str, tuple[int, ...]], what: str, all_pieces: Sequence[Pieces]) -> Grid:
            return Grid(axes=axes, seconds=tuple(seconds(what, pieces) for pieces in all_pieces))

        def shared(what: str) -> Grid:
            one, several = (seconds(what, pieces) for pieces in self._several)
            return Grid(axes={}, seconds=(max(LEAST_S, (SEVERAL * one - several) / (SEVERAL - 1)),))

        unequal, mean, longest = (seconds("attend", pieces) for pieces in self._ragged)
        return AttentionTables(
            decode=tables(single, "attend", self._single),
            prefill=tables(prompts, "attend", self._prompts),
            index_decode=tables(single, "index", self._single),
            index_prefill=tables(prompts, "index", self._prompts),
            shared=shared("attend"),
            index_shared=shared("index"),
            ragged=min(1.0, max(0.0, (unequal - mean) / (longest - mean))) if longest > mean else 0.0,
        )


def _tokens(count: int) -> Pieces:
    """Return pieces of so many tokens: single ones, or a prompt if there are many."""
    return ((1, SHORT),) * count if count <= ROWS[-1] else ((count, count),)


def _within(points: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the points below `most`, and `most` itself."""
    return (*[point for point in points if point < most], most)
