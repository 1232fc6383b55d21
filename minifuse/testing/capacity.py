"""Counts what a technique can hold and serve, independently of its stages.

The law "refuse early" compares these counts with the refused requests. Register a count for a memory of your own,
unless it inherits the count of its base. Without a count, the comparison is left out, and the verdict says so. If a
policy cannot serve every graph, use `can_serve` to register which graphs it can serve.

    @count_slots("mine")
    def _in_pairs(sequences, options):
        return sum(2 * -(-sequence.request.max_cached // 2) for sequence in sequences)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

from minifuse.contracts.fault import is_own
from minifuse.core.request import Sequence
from minifuse.core.unfolded import unfolded
from minifuse.memory.waves.waves import BUFFER, HOST_TIMES
from minifuse.serve.assembly import Choices
from minifuse.stages import stage

Count = Callable[[tuple[Sequence, ...], Any], int | None]
Serves = Callable[[Sequence], bool]
F = TypeVar("F", Count, Serves)
_COUNTS: dict[str, Count] = {}  # by memory
_SERVES: dict[str, Serves] = {}  # by batching policy


def count_slots(memory: str) -> Callable[[Count], Count]:
    """Register a function that counts how many slots of `memory` a request takes.

    The function is called with the request's sequences, as they are before anything is computed, and the memory's
    options. It returns None if no capacity is enough.
    """

    return partial(_register, _COUNTS, memory)


def can_serve(batching: str) -> Callable[[Serves], Serves]:
    """Register a function that tells whether the policy `batching` can serve a sequence."""

    return partial(_register, _SERVES, batching)


def _register(functions: dict[str, F], name: str, function: F) -> F:
    functions[name] = function
    return function


def slots_needed(choices: Choices, sequences: tuple[Sequence, ...]) -> int | None:
    """Return the slots that one request's sequences take, or None if they cannot be served."""
    serves = _SERVES.get(choices.row.batching)
    if serves is not None and not all(map(serves, sequences)):
        return None
    count = _count_of(choices.row.memory) or _each_its_own
    return count(sequences, choices.options["memory"])


def is_counted(memory: str) -> bool:
    """Return whether this memory has a count for the law "refuse early" to compare with."""
    return _count_of(memory) is not None


def _count_of(memory: str) -> Count | None:
    """Return the count of a memory or of its nearest base with one, or None."""
    bases: tuple[type[Any], ...] = stage("memory", memory).__mro__
    for base in bases:
        name = vars(base).get("name")
        if isinstance(name, str) and (name in _COUNTS or is_own(base)):
            count: Count = _COUNTS.get(name, _each_its_own)
            return count
    return None


def _each_its_own(sequences: tuple[Sequence, ...], options: Any) -> int:
    """Count a slot for each token whose KV is needed, or for each state held."""
    return sum(s.request.max_cached if s.graph is None else s.graph.most_held for s in sequences)


@count_slots("contiguous")
def _set_aside(sequences: tuple[Sequence, ...], options: Any) -> int:
    least: int = options.per_request or 0
    return sum(max(_each_its_own((one,), options), least) for one in sequences)


@count_slots("padded")
def _rectangle(sequences: tuple[Sequence, ...], options: Any) -> int:
    requests = [sequence.request for sequence in sequences]
    width = max(len(request.prompt) for request in requests) + max(r.max_new_tokens - 1 for r in requests)
    return len(requests) * width


@count_slots("shaped")
def _one_row(sequences: tuple[Sequence, ...], options: Any) -> int:
    """Count the slots needed so that the longest sequence stays below the threshold.

    The prompts of a request may be served one after the other, so one row is enough.
    """
    threshold: float = options.threshold
    longest = max(sequence.request.max_cached for sequence in sequences)
    return math.ceil(longest / threshold - 1e-9)


@count_slots("embedded")
def _one_row_and_a_prompt_apart(sequences: tuple[Sequence, ...], options: Any) -> int:
    """Count the slots needed for the longest sequence and the longest prompt.

    One part of memory must hold the longest prompt, the other part the longest sequence.
    """
    threshold, part = float(options.threshold), float(options.prefill)
    row = max(sequence.request.max_cached for sequence in sequences) / (1 - part - float(options.prefetch))
    prompt = max(len(sequence.request.prompt) for sequence in sequences) / part
    return math.ceil(max(row, prompt) / threshold - 1e-9)


def _whole(length: int, size: int) -> int:
    """Round a number of tokens up to whole blocks of `size` slots."""
    return -(-length // size) * size


@count_slots("paged")
def _blocks(sequences: tuple[Sequence, ...], options: Any) -> int:
    return sum(_whole(sequence.request.max_cached, options.block_size) for sequence in sequences)


@count_slots("tiered")
def _chunks(sequences: tuple[Sequence, ...], options: Any) -> int:
    return sum(_whole(sequence.request.max_cached, options.chunk) for sequence in sequences)


@count_slots("waves")
def _the_longest(sequences: tuple[Sequence, ...], options: Any) -> int | None:
    """Count the longest sequence's slots, on the device or in slots that layers share.

    The prompts of a request may be attended one after the other, but the host must hold them all.
    """
    size: int = options.block_size
    most = max(sequence.request.max_cached for sequence in sequences)
    lengths = [_whole(sequence.request.max_cached, size) for sequence in sequences]
    if options.host is not None and sum(lengths) > options.host // size * size:
        return None
    for capacity in count(max(size, -(-most // (options.layers or 1)))):
        shared = 0
        if options.turns == "layers":
            part = BUFFER if options.buffer is None else options.buffer
            shared = min(math.ceil(part * capacity), capacity - 1)
        of_one_layer = shared * (options.layers or 1) // size * size
        in_turn = most <= min(of_one_layer, options.beyond or most)
        device = capacity - shared + of_one_layer // (options.layers or 1)
        host = options.host or max(size, HOST_TIMES * device) // size * size
        if (in_turn or _whole(most, size) <= capacity - shared) and sum(lengths) <= host:
            return capacity
    raise AssertionError("count() never ends")


@count_slots("slots")
def _equal_parts(sequences: tuple[Sequence, ...], options: Any) -> int | None:
    slots: int = options.slots
    return slots * max(s.request.max_cached for s in sequences) if len(sequences) <= slots else None


@count_slots("rows")
def _rows(sequences: tuple[Sequence, ...], options: Any) -> int | None:
    return len(sequences) if all(map(_is_chain, sequences)) else None


@can_serve("graph_padded")
def _is_chain(sequence: Sequence) -> bool:
    """Return whether each node reads the one before it and nothing else."""
    topology = unfolded(sequence).topology
    chain = [0] + [1] * (len(topology.sources) - 1)
    return sorted(map(len, topology.sources)) == sorted(map(len, topology.readers)) == chain
