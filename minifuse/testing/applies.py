"""Says which laws apply to a technique: some need an option or a claim."""

from __future__ import annotations

from collections.abc import Callable

from minifuse.contracts.fault import is_own
from minifuse.stages import kinds_of, stage
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing.capacity import is_counted


def lacks(law: str, row: Technique) -> str | None:
    """Return what the stages of `row` lack for a law; None if it applies.

    >>> from minifuse.techniques import technique
    >>> lacks("window", technique("orca")), lacks("window", technique("dynamic"))
    ('the option batching.window', None)
    """
    needed, has = NEEDS.get(law, ("", lambda row: True))
    return None if has(row) else needed


def _has(*names: str) -> Callable[[Technique], bool]:
    return lambda row: row.option_names.issuperset(names)


def _remembers(row: Technique) -> bool:
    return any(stage(kind, row.stages[kind]).remembers for kind in ("batching", "memory"))


_CHUNKS = ("memory.share", "memory.chunk", "memory.keep")
_VALUE = (*_CHUNKS, "memory.eviction", "memory.ahead", "memory.reserve", "memory.profile")
NEEDS: dict[str, tuple[str, Callable[[Technique], bool]]] = {
    "refuse early": ("a count of slots (count_slots)", lambda row: is_counted(row.memory)),
    "queue": ("the option batching.order", _has("batching.order")),
    "window": ("the option batching.window", _has("batching.window")),
    "together": (
        "the claim starts_together, or the option batching.unify",
        lambda row: stage("batching", row.batching).starts_together or _has("batching.unify")(row),
    ),
    "overtaking": (
        "the claim overtaken_at_most, or the option batching.starve",
        lambda row: stage("batching", row.batching).overtaken_at_most is not None or _has("batching.starve")(row),
    ),
    "work conserving": ("the claim work_conserving", lambda row: stage("batching", row.batching).work_conserving),
    "second life": ("stages that do not say remembers", lambda row: not _remembers(row)),
    "value": ("the options memory.eviction, chunk, share and others of tiered", _has(*_VALUE)),
    "alike": ("the options memory.share, chunk and keep", _has(*_CHUNKS)),
}

CLAIMS = {  # attribute of a policy -> its default, which claims nothing, and what a claim is about
    "overtaken_at_most": (None, "the order of admission (overtaken_at_most)"),
    "work_conserving": (False, "how full its batch is (work_conserving)"),
}


def unclaimed(name: str) -> list[str]:
    """Return what a plugin's policy makes no claim about.

    For shipped policies, memories and attentions the list is empty.

    Args:
        name: the name of the policy, or of its technique.
    """
    if name in TECHNIQUES:
        policy = stage("batching", TECHNIQUES[name].batching)
    elif "batching" in kinds_of(name):
        policy = stage("batching", name.rpartition(".")[2])
    else:
        return []
    if is_own(policy):
        return []
    return [about for claim, (default, about) in CLAIMS.items() if getattr(policy, claim) is default]
