"""What a technique can hold and serve, counted apart from its stages: functions registered under their names.

The law "refuse early" compares what was refused with these counts. A memory of your own registers how many slots it
takes, unless that is as for the memory that it inherits from; without a count the comparison is left out, and the
verdict says so. A batching policy that cannot serve every graph registers which it can (`can_serve`).

    @count_slots("mine")
    def _in_pairs(sequences, options):
        return sum(2 * -(-sequence.request.max_cached // 2) for sequence in sequences)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minifuse.contracts.fault import is_own
from minifuse.core.request import Sequence
from minifuse.core.unfolded import unfolded
from minifuse.memory.waves.waves import HOST_TIMES
from minifuse.serve.assembly import Choices
from minifuse.stages import stage

Count = Callable[[tuple[Sequence, ...], Any], int | None]
Serves = Callable[[Sequence], bool]
_COUNTS: dict[str, Count] = {}  # by memory
_SERVES: dict[str, Serves] = {}  # by batching policy


def count_slots(memory: str) -> Callable[[Count], Count]:
    """Register how many slots the sequences of one request take of `memory` when they are held at once.

    The function is called with the sequences, as they are before anything is computed, and the memory's options. It
    returns None if no capacity is enough.
    """

    def register(count: Count) -> Count:
        _COUNTS[memory] = count
        return count

    return register


def can_serve(batching: str) -> Callable[[Serves], Serves]:
    """Register which sequences the policy `batching` can serve, for one that cannot serve them all."""

    def register(serves: Serves) -> Serves:
        _SERVES[batching] = serves
        return serves

    return register


def slots_needed(choices: Choices, sequences: tuple[Sequence, ...]) -> int | None:
    """The slots that the sequences of one request take at once; None: they cannot be served at all."""
    serves = _SERVES.get(choices.row.batching)
    if serves is not None and not all(map(serves, sequences)):
        return None
    count = _count_of(choices.row.memory) or _each_its_own
    return count(sequences, choices.options["memory"])


def is_counted(memory: str) -> bool:
    """Whether it is known how many slots this memory takes: if not, the law "refuse early" compares nothing with it."""
    return _count_of(memory) is not None


def _count_of(memory: str) -> Count | None:
    """The count of a memory, or of the nearest memory that its class inherits from; None: it has none."""
    bases: tuple[type[Any], ...] = stage("memory", memory).__mro__
    for base in bases:
        name = vars(base).get("name")
        if isinstance(name, str) and (name in _COUNTS or is_own(base)):
            count: Count = _COUNTS.get(name, _each_its_own)
            return count
    return None


def _each_its_own(sequences: tuple[Sequence, ...], options: Any) -> int:
    """A slot for each token whose KV is ever needed, or for each state that is held at once."""
    return sum(s.request.max_cached if s.graph is None else s.graph.most_held for s in sequences)


@count_slots("padded")
def _rectangle(sequences: tuple[Sequence, ...], options: Any) -> int:
    requests = [sequence.request for sequence in sequences]
    width = max(len(request.prompt) for request in requests) + max(r.max_new_tokens - 1 for r in requests)
    return len(requests) * width


@count_slots("shaped")
def _one_row(sequences: tuple[Sequence, ...], options: Any) -> int:
    """A row for the longest, of the part that may be in use: the prompts of a request may be served in turn."""
    threshold: float = options.threshold
    longest = max(sequence.request.max_cached for sequence in sequences)
    return math.ceil(longest / threshold - 1e-9)


@count_slots("embedded")
def _one_row_and_a_prompt_apart(sequences: tuple[Sequence, ...], options: Any) -> int:
    """The same of the part that rows have, and the longest prompt in the other part."""
    threshold, part = float(options.threshold), float(options.prefill)
    row = max(sequence.request.max_cached for sequence in sequences) / (1 - part)
    prompt = max(len(sequence.request.prompt) for sequence in sequences) / part
    return math.ceil(max(row, prompt) / threshold - 1e-9)


@count_slots("paged")
def _blocks(sequences: tuple[Sequence, ...], options: Any) -> int:
    size: int = options.block_size
    return sum(-(-sequence.request.max_cached // size) * size for sequence in sequences)


@count_slots("tiered")
def _chunks(sequences: tuple[Sequence, ...], options: Any) -> int:
    size: int = options.chunk
    return sum(-(-sequence.request.max_cached // size) * size for sequence in sequences)


@count_slots("waves")
def _the_longest(sequences: tuple[Sequence, ...], options: Any) -> int | None:
    """The blocks of the longest, of one layer if layers take turns: the prompts of a request may be attended in
    turn. All have room on the host."""
    size: int = options.block_size
    lengths = [-(-sequence.request.max_cached // size) * size for sequence in sequences]
    longest: int = -(-max(lengths) // (options.layers or 1))
    if options.host is not None:
        return longest if sum(lengths) <= options.host else None
    return max(longest, -(-sum(lengths) // HOST_TIMES))


@count_slots("slots")
def _equal_parts(sequences: tuple[Sequence, ...], options: Any) -> int | None:
    slots: int = options.slots
    return slots * max(s.request.max_cached for s in sequences) if len(sequences) <= slots else None


@count_slots("rows")
def _rows(sequences: tuple[Sequence, ...], options: Any) -> int | None:
    return len(sequences) if all(map(_is_chain, sequences)) else None


@can_serve("graph_padded")
def _is_chain(sequence: Sequence) -> bool:
    """Whether each node reads the one before it and nothing else."""
    graph = unfolded(sequence)
    starts = sum(not sources for sources in graph.topology.sources)
    ends = sum(not readers for readers in graph.topology.readers)
    narrow = all(len(sources) <= 1 for sources in graph.topology.sources) and all(
        len(nodes) <= 1 for nodes in graph.topology.readers
    )
    return starts == ends == 1 and narrow
