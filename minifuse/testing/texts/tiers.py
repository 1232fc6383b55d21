"""Law "conservation" on two tiers: evicted KV that fits stays, and is counted."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.places import Reuse
from minifuse.core.plan import Plan
from minifuse.core.report import KVUsage
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case


def check_swaps(case: Case, seen: Observation) -> None:
    """Check that evicted KV goes to the host while the host has free blocks.

    A block is free again when its sequence has ended, or when the plan that swaps the block in has run. Example with 3
    host blocks of 4 tokens: a, evicted with 9 tokens, takes all three blocks; b, evicted later, is dropped. Once the
    plan that admits a again has run, all three blocks are free for b.
    """
    options: dict[str, Any] = vars(case.options["memory"])
    if options.get("preemption") != "swap" or "block_size" not in options:
        return
    size = options["block_size"]
    free = (options["host"] or case.capacity) // size
    written: dict[str, int] = {}  # tokens of each sequence
    away: dict[str, int] = {}  # blocks of the host that each suspended sequence has
    returning: dict[int, int] = {}  # blocks of the host that each plan in flight copies from
    for now, event in seen.happened:
        if not isinstance(event, Plan):
            free += returning.pop(event.plan.step, 0)
            written |= {work.sequence: work.stop for work in event.plan.work}
            continue
        free += sum(away.pop(name) for name in [*away] if seen.ended_s.get(name, now + 1) <= now)
        expected = 0
        for name in event.evicted:
            tokens = written.pop(name, 0)
            blocks = -(-tokens // size)
            if 0 < blocks <= free:
                expected += tokens
                free -= blocks
                away[name] = blocks
        moved = sum(move.num_tokens for move in event.moves if move.kind == "swap_out")
        if moved != expected:
            found = f"step {event.step} evicts {event.evicted} and swaps out {moved} tokens"
            raise LawBroken("conservation", f"{found}: the host has room for {expected}")
        returning[event.step] = sum(away.pop(name, 0) for name in event.admitted)


class _Stay(NamedTuple):
    """Counts the tokens of an idle sequence that lay in memory between two moments."""

    begins: int  # the index of the event that began the stay
    ends: int
    tokens: int


def check_kept(case: Case, seen: Observation) -> None:
    """Check that memory counted the KV that turns or evicted requests find later.

    Only memories with the option `keep` are checked, and only without sharing: shared KV may count for several owners.
    """
    options: dict[str, Any] = vars(case.options["memory"])
    if "keep" not in options or options.get("share", True):
        return
    after = {request.id: request.after for request in case.requests}
    left: dict[str, int] = {}  # index of the event by which each sequence left the device
    stays: list[_Stay] = []
    for index, (_, event) in enumerate(seen.happened):
        if not isinstance(event, Plan):
            left |= dict.fromkeys(event.finished, index)
            continue
        for one in map(Reuse._make, event.reused):
            before = one.sequence if one.sequence in left else after[one.sequence]
            if before in left:
                stays.append(_Stay(left.pop(before), index, one.num_tokens))
        left |= dict.fromkeys(event.evicted, index)
    least: Counter[int] = Counter()
    for stay in stays:
        least.update(dict.fromkeys(range(stay.begins + 1, stay.ends), stay.tokens))
    for index, count in least.items():
        _, event = seen.happened[index]
        if isinstance(event, Plan):
            continue
        usage = event.usage
        promised = usage.reserved - usage.used  # kept KV in slots promised to others is no longer counted
        if usage.kept + usage.kept_on_host + promised < count:
            raise LawBroken("conservation", f"{count} tokens in memory were found later, and memory counted {usage}")


def check_found(case: Case, seen: Observation) -> None:
    """Check that memory counted the KV that a newcomer finds.

    A newcomer is checked only if no sequence on the device begins with the same token: otherwise the newcomer may find
    the KV of such a sequence. Every memory is checked, with or without sharing.
    """
    first: dict[str, int] = {}  # request -> the first token of its whole text
    for request in case.requests:
        first[request.id] = first.get(request.after or "", request.prompt[0] if request.prompt else -1)
    running: Counter[int] = Counter()  # first token -> sequences on the device
    flights: Counter[str] = Counter()  # plans in flight of each sequence: memory of an ended one is held until they end
    made = zip(seen.proposals, seen.usages, strict=False)  # the last one may have raised an error
    usages = iter([usage for one, usage in made if one.proposal is not None and one.proposal.work])
    gone: set[str] = set()
    for now, event in seen.happened:
        if isinstance(event, Plan):
            usage = next(usages, None) if event.work else None
            for one in map(Reuse._make, event.reused):
                if usage is not None and not running[first[one.sequence]]:
                    _check_counted(one, usage)
            running.update(first[name] for name in event.admitted)
            running.subtract(first[name] for name in event.evicted)
            flights.update(event.sequences)
        else:
            flights.subtract(event.plan.sequences)
            landed = [name for name in event.plan.sequences if not flights[name] and name not in gone]
            ended = {name for name in landed if seen.ended_s.get(name, math.inf) <= now}
            running.subtract(first[name] for name in ended)
            gone |= ended


def _check_counted(found: Reuse, usage: KVUsage) -> None:
    # On a full device, kept KV in slots that are promised to others is no longer counted.
    full = usage.reserved + usage.kept >= usage.capacity
    counted = usage.kept + usage.kept_on_host + usage.host + (usage.reserved - usage.used if full else 0)
    if found.num_tokens > counted:
        raise LawBroken("conservation", f"{found.sequence} finds {found.num_tokens} tokens, and memory counted {usage}")
