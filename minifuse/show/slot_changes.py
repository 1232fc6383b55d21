"""Writes the owners of slots into the page's record, as changes by column.

A change is six numbers: the first slot, the number of slots, the index of the set of owners, the state, the twin in the
other tier and the token. Twin and token are given for the first slot, plus 1, or 0 for none; they rise by 1 per slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minifuse.trace.idle_slots import idle_slots
from minifuse.trace.slot_books import FREE, Frame, Slots
from minifuse.trace.slots import fresh_slots

STATES = ("free", "reserved", "written", "kept", "copy")


class SlotChanges:
    """Follows the slots of one run; `number` maps requests to their numbers in the record."""

    def __init__(self, number: Mapping[str, int]) -> None:
        self.number = number
        self.sets: dict[frozenset[str], int] = {FREE.owners: 0}
        self.sizes = {"device": 0, "host": 0}

    def told(self) -> dict[str, Any]:
        """Return the sets of owners, and for each tier its highest slot plus 1."""
        sets = [sorted(self.number[name] for name in owners) for owners in self.sets]
        return {"sets": sets, "device": self.sizes["device"], "host": self.sizes["host"]}

    def column(self, frame: Frame) -> dict[str, Any]:
        """Return what the record says about the slots of a column, by key."""
        event, held, changed, effects = frame
        found: dict[str, Any] = {
            "s": self._changes("device", changed, held),
            "h": self._changes("host", changed, held),
            "wd": [self._changes("device", _differing(wave, held), wave) for wave in effects.waves],
            "mo": [self.sets.setdefault(owners, len(self.sets)) for owners in effects.sources],
            "win": [list(window) for window in effects.windows],
        }
        if event.get("work"):
            waves = range(len(event["waves"]))
            found["fr"] = [_runs(fresh_slots(event, wave)) for wave in waves]
            if effects.waves and (event["shape"] or {}).get("kind") == "StateRows":
                found["iw"] = [_runs(idle_slots(event, held, wave).computed) for wave in waves]
            else:
                found["id"], found["ly"] = map(_runs, idle_slots(event, held))
        return found

    def _changes(self, tier: str, slots: Iterable[tuple[str, int]], held: Slots) -> list[int]:
        found: list[int] = []
        last, following = FREE, -1
        look: tuple[Any, ...] = ()
        for number in sorted([slot for one, slot in slots if one == tier]):
            one = held.get((tier, number), FREE)
            if number != following or one is not last:
                last, before = one, look
                look = owners, state, twin, token = (
                    one.owners,
                    one.state,
                    one.twin,
                    one.token if tier == "device" else None,
                )
                if number != following or look != before:
                    found += [number, 0, self.sets.setdefault(owners, len(self.sets)), STATES.index(state)]
                    found += [0 if offset is None else number + offset + 1 for offset in (twin, token)]
            found[-5] += 1
            following = number + 1
        if found:
            self.sizes[tier] = max(self.sizes[tier], found[-6] + found[-5])
        return found


def _differing(wave: Slots, held: Slots) -> set[tuple[str, int]]:
    return {slot for slot, one in wave.items() if held.get(slot, FREE) is not one}


def _runs(slots: Iterable[int]) -> list[int]:
    """Write slots as runs of consecutive slots: [first, count, first, count, ...].

    >>> _runs({5, 6, 9})
    [5, 2, 9, 1]
    """
    found: list[int] = []
    for slot in sorted(slots):
        if found and found[-2] + found[-1] == slot:
            found[-1] += 1
        else:
            found += [slot, 1]
    return found
