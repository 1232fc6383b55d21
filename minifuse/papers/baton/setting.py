"""What Baton's experiments share (5.1): scales, machine, sets of queries, and contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import minifuse.papers.baton.paper as paper
from minifuse.core.errors import UsageError
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import TextSource
from minifuse.model.text.presets import preset
from minifuse.papers.baton.course import Course
from minifuse.papers.baton.queries import LONG, SHORTER, Query, first_set, requests_of, second_set
from minifuse.papers.contest import Bench, Raced, ignore, known, text_model
from minifuse.papers.experiment import Conditions, Panel, Say
from minifuse.papers.page import notes
from minifuse.simulate.cost import hardware
from minifuse.techniques import technique

EMBEDDED = "baton embed"  # embeds newcomers, but computes their prompts in their rows: between 4.1 and 4.2
TOGETHER = "pd together"  # a batch is of prompts computed together, not drawn at random
RELEASED = "pd released"  # a batch releases rows and columns that no sequence needs, before its end
PREFETCHED = "baton-pd fetch"  # prompts that wait on the host are copied to the device before they are inserted
BESIDE = "baton-pd beside"  # prompts are computed beside the batch, by a worker of their own (5.1, "asynchronous")
TO_CAP = "static to cap"  # each batch runs to the longest possible answer, not only to its own longest
VARIANTS = ("static", "pd", "baton", "baton-pd")
INSERTS = ("static", "baton", EMBEDDED, "baton-pd")  # a newcomer enters the batch of each in another way
APART = 1 / 8  # the part of memory for prompts that are computed outside the batch: enough for the longest
# The techniques and options of contenders that are not techniques themselves.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    EMBEDDED: ("baton", {"memory.insert": "embed"}),
    TOGETHER: ("pd", {"batching.compose": "together"}),
    RELEASED: ("pd", {"memory.shrink": True}),
    TO_CAP: ("static", {}),
    BESIDE: ("baton-pd", {"batching.prompts": "worker"}),
    PREFETCHED: ("baton-pd", {"memory.prefetch": APART}),
}
OTHERS = ("orca", "vllm")  # re-batch too, in this project without rectangles
BLOCK = 16  # tokens of vllm's blocks
MOST_REQUESTS = 10_000
TAKES = ("model", "requests")

Which = Literal["first", "second"]


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a scale measures; `lengths` multiplies the paper's lengths."""

    model: str
    lengths: float
    batches: tuple[int, ...]
    queries: int | None = None  # None: as many as the paper has


SCALES: dict[Which, dict[str, _Scale]] = {
    "first": {
        "quick": _Scale("small", 1 / 200, (4,), 6),
        "cpu": _Scale("small", 1 / 64, tuple(paper.TABLE_1)),
        "paper": _Scale(paper.MODEL, 1, tuple(paper.TABLE_1)),
    },
    "second": {
        "quick": _Scale("small", 1 / 16, (2,), 4),
        "cpu": _Scale("small", 1 / 2, tuple(paper.TABLE_2)),
        "paper": _Scale(paper.MODEL, 1, tuple(paper.TABLE_2)),
    },
}


Races = dict[int, dict[str, Raced[Course]]]  # by batch, then by contender


class Setting(Bench[TextSource]):
    """Serves a set of queries on a machine.

    Raises:
        UsageError: the queries are too many or too long, or they do not fit the machine.
    """

    def __init__(self, which: Which, conditions: Conditions) -> None:
        self.scale = scale = SCALES[which][conditions.scale]
        self.machine = paper.MACHINES[which]
        super().__init__(conditions, text_model(conditions, scale.model), self.machine)
        self.check_requests(MOST_REQUESTS)
        self.first = which == "first"
        # Whether to show the paper's numbers: not beside other queries, or a model that the user chose.
        self.is_papers = conditions.requests is None and conditions.model is None
        self.num_queries = conditions.requests or scale.queries or paper.SIZES[which]
        self.batches = scale.batches
        self.raced: Races | None = None  # what several figures show, when it is complete
        for batch in self.batches:
            longest = max(sum(query) for number in range(self.rounds) for query in self.queries(batch, number))
            context = self.source.config.max_context
            if longest > context:
                raise UsageError(
                    f"Queries have up to {longest:,} tokens at a batch of {batch}, and the context of "
                    f"{self.source.name} is {context:,}: give a --model with a longer context, or a smaller --scale."
                )
        self.check_memory(self.tokens, f"KV of {self.tokens:,} tokens", "a smaller --model or a shorter --dtype")

    def machines(self) -> dict[str, Setting]:
        """Return the settings to measure a table in, by their addition to its title.

        In virtual time, a second one is the machine with a framework's fixed costs.
        """
        if not self.virtual:
            return {"": self}
        other = copy(self)
        other.settings = replace(self.settings, hardware=f"{self.machine}-framework")
        return {", by the data sheet": self, ", with a framework's fixed costs": other}

    def queries(self, batch: int, number: int = 0) -> list[Query]:
        """Draw a round's queries; at a batch of 4, the first set's lengths double."""
        draw = first_set if self.first else second_set
        twice = self.first and batch == paper.DOUBLED
        return draw(self.num_queries, self.conditions.seed + number, self.scale.lengths * (1 + twice))

    @property
    def cap(self) -> int:
        """Return the longest answer that a query of this set may have, in tokens."""
        return round(self.scale.lengths * (LONG if self.first else SHORTER)[1])

    @property
    def tokens(self) -> int:
        """The KV tokens for which each contender has memory.

        At this scale, this is the memory that the weights leave free on the paper's machine.
        """
        model = preset(paper.MODEL)
        left = hardware(self.machine).memory - model.num_parameters * DTYPE_BYTES[paper.DTYPE]
        tokens = int(self.scale.lengths * left / model.kv_bytes_per_token(paper.DTYPE))
        return tokens // BLOCK * BLOCK

    def races(self, say: Say, contenders: Sequence[str], panels: Callable[[Races], Iterable[Panel]]) -> Races:
        """Run all contenders in turns on the same queries, for each batch size.

        Args:
            panels: makes the panels from the races run so far.
        """
        if not self.virtual:
            say("warming up")
            self.load()
            for name in contenders:
                batch = max(self.batches)
                self.serve_queries(name, batch, self.queries(batch)[:2])
        races: Races = {}
        for number, batch in enumerate(self.batches):
            say(f"batch of {batch}")
            runs = {name: partial(self._round, name, batch) for name in contenders}
            races[batch] = self.race(runs, lambda course: course.seconds, first=number)
            for panel in panels(races):
                say.keep(panel)
        return races

    def _round(self, name: str, batch: int, number: int) -> Course:
        return self.serve_queries(name, batch, self.queries(batch, number))

    def serve_queries(self, name: str, batch: int, queries: Sequence[Query]) -> Course:
        """Serve queries with a contender, in batches of up to `batch`."""
        course = Course()
        if name == TO_CAP:  # every row computes as many tokens as the longest answer
            queries = [query._replace(answer=self.cap) for query in queries]
        requests = requests_of(queries, self.source.config.vocab_size, self.conditions.seed)
        row, own = OPTIONS.get(name, (name, {}))
        options = {"batching.max_batch": batch, "memory.rows": batch, "memory.prefill": APART, **own}
        options = known(technique(row), options)
        self.serve(row, requests, self.tokens, options, on_step=course.read, into=ignore)
        return course

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return self.facts(
            self.machine,
            lengths=self.scale.lengths,
            queries=self.num_queries,
            kv_tokens=self.tokens,
            paper_model=paper.MODEL,
        )

    def notes(self) -> tuple[str, ...]:
        """Return notes on what is measured, and on which machine."""
        return notes("baton/setting", setting=self, apart=APART)
