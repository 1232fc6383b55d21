"""Looks up in a run what chapters ask for: pieces of work, gaps, KV, moves, reasons."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from minifuse.core.errors import UsageError
from minifuse.show.notebook.played import Played
from minifuse.trace.history import Iteration, Story
from minifuse.trace.log import whole_tables


class Piece(NamedTuple):
    """The tokens, or nodes, [start, stop) of a request that an iteration computes."""

    step: int
    start: int
    stop: int


class Gap(NamedTuple):
    """The seconds between a token and the one before it."""

    at_s: float  # when the later token comes
    seconds: float


class KVInUse(NamedTuple):
    """Counts slots in an iteration: of the device, and on the host alone."""

    used: int
    reserved: int  # used ones included
    capacity: int
    on_host: int


class Moved(NamedTuple):
    """A copy of KV in an iteration; the host numbers its own slots."""

    kind: str  # such as "swap_in" or "shuffle"
    source: int
    target: int
    tokens: int
    tier: str
    target_tier: str
    moment: str
    wave: int


class Refused(NamedTuple):
    """Why a request was not admitted or had to leave, and in which iterations."""

    request: str
    text: str
    steps: tuple[int, ...]


def pieces(run: Played, name: str) -> list[Piece]:
    """Return what each iteration computes of a request, in order of time.

        pieces(play("serial", asks((3, 2))), "r0")  # [Piece(0, 0, 3), Piece(1, 3, 4)]

    Raises:
        UsageError: the run has no such request.
    """
    story = _story(run, name)
    found = [run.history.iterations[i] for i in story.iterations]
    return [Piece(one.step, start, stop) for one in found for start, stop, _ in one.work_of(name)]


def gaps(run: Played, name: str) -> list[Gap]:
    """Return the gaps between the tokens of a request's answer, in order of time.

    Raises:
        UsageError: the run has no such request.
    """
    times = [time for time, _ in _story(run, name).tokens]
    return [Gap(late, late - early) for early, late in pairwise(times)]


def first_token_s(run: Played, name: str) -> float:
    """Return a request's TTFT: the seconds from its arrival to its first token.

    Raises:
        UsageError: the run has no such request, or it has no token.
    """
    story = _story(run, name)
    if not story.tokens:
        raise UsageError(f"The request {name!r} has no token in {run!r}.")
    return story.tokens[0][0] - story.arrival_s


def kv_in_use(run: Played) -> list[KVInUse]:
    """Return the KV of each iteration with work, in the order of `run.steps`."""
    return [KVInUse(*one.event["kv"]) for one in run.history.iterations if one.work]


def moves(run: Played, step: int) -> list[Moved]:
    """Return the copies that an iteration makes.

    Raises:
        UsageError: the run has no such iteration.
    """
    return [Moved(*move) for move in _iteration(run, step).event["moves"]]


def block_tables(run: Played, step: int) -> dict[str, list[int]]:
    """Return the block table of each request in an iteration.

    Raises:
        UsageError: the run has no such iteration, or its KV is not in blocks.
    """
    _iteration(run, step)
    event = next(one for one in whole_tables(run.events) if one["event"] == "step" and one["step"] == step)
    found = {}
    for (name, *_), place in zip(event["work"], event["places"], strict=True):
        blocks = place[0]
        if not isinstance(blocks, list) or any(isinstance(block, list) for block in blocks):
            raise UsageError(f"{run.name} keeps KV in no blocks: play a technique with paged memory, such as vllm.")
        found[name] = blocks
    return found


def reasons(run: Played) -> list[Refused]:
    """Return why requests waited at the head of the queue, or were evicted.

    for one in reasons(play("orca", requests)):
        print(f"iterations {one.steps[0]} to {one.steps[-1]}: {one.request} {one.text}")
    """
    found: dict[tuple[str, str], list[int]] = {}
    for one in run.history.iterations:
        for _, name, text in one.event["reasons"]:
            found.setdefault((name, text), []).append(one.step)
    return [Refused(name, text, tuple(steps)) for (name, text), steps in found.items()]


def _story(run: Played, name: str) -> Story:
    story = run.history.stories.get(name)
    if story is None:
        raise UsageError(f"There is no request {name!r} in {run!r}: give one of {', '.join(run.history.stories):.80}.")
    return story


def _iteration(run: Played, step: int) -> Iteration:
    found = next((one for one in run.history.iterations if one.step == step), None)
    if found is None:
        raise UsageError(f"There is no iteration {step!r} in {run!r}: give one of `run.steps`.")
    return found
