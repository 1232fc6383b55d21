"""A padded batch into whose rows KV is embedded that was computed apart from it (Baton, 4.2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.errors import LawBroken, RequestRefused
from minifuse.memory.away import copies
from minifuse.memory.prefilled import Prefilled
from minifuse.memory.shaped import ROUNDING, Shaped, ShapedOptions, ShapedRoom
from minifuse.options import option
from minifuse.parsing import number
from minifuse.plan import Move, Placement, Proposal, Reason
from minifuse.request import Phase, Request, Sequence
from minifuse.stages import register

__all__ = ["Embedded"]


class _Room(ShapedRoom):
    """Tries out an iteration of the batch, or of prompts that are computed apart."""

    memory: Embedded

    def __init__(self, memory: Embedded) -> None:
        super().__init__(memory)
        self.prompts: list[int] = []  # lengths of those that are computed apart

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        if sequence.phase is not Phase.RECEIVED:
            return super().admit(sequence, growing=growing)
        prompts = [*self.prompts, len(sequence)]
        making_way = self.memory.make_way(len(prompts) * max(prompts))
        if making_way is None or not self._below(self.memory.prefilled.used_without(making_way), prompts):
            text = (
                f"not admitted: there is no room to compute {number(len(prompts), 'prompt')} of {max(prompts)} tokens"
            )
            return Reason("memory-full", sequence.id, text)
        self.prompts = prompts
        return None

    def _below(self, used: int, prompts: list[int]) -> bool:
        """Whether the threshold leaves room for them beside the batch with its next tokens, and beside the longest row
        there can be, which must be able to go on."""
        batch = max(self.window.height * (self.window.width + 1), self.memory.longest)
        return used + len(prompts) * max(prompts) + batch <= self.memory.limit


@register
class Embedded(Shaped):
    """Rows as those of `shaped`, and a part of memory for prompts that are computed apart, as rectangles of their own.

    There the prompts wait for a row, or on the host when others need their place. When such a sequence joins the batch,
    its KV is copied to where it ends with the others' token, and it costs them nothing. A sequence that was
    evicted, and whose KV could not be kept, is computed in its row.
    """

    name = "embedded"
    apart: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Options(ShapedOptions):
        prefill: float = option(
            0.25,
            "part of the memory for prompts that are computed apart and wait there for a row",
            minimum=0.01,
            maximum=0.9,
        )

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        size = int(self.options.prefill * self.options.threshold * capacity + ROUNDING)
        self.prefilled = Prefilled(self.slots, size)
        self.waiting: dict[str, Sequence] = {}  # whose prompts have been computed apart

    @property
    def embeds(self) -> bool:
        return True

    @property
    def part_apart(self) -> float:
        return float(self.options.prefill)

    @property
    def num_apart(self) -> int:
        return self.prefilled.num_used

    def check(self, *prompts: Request) -> None:
        super().check(*prompts)
        for request in prompts:
            if len(request.prompt) > self.prefilled.size:
                raise RequestRefused(
                    f"Request {request.id!r} has a prompt of {len(request.prompt)} tokens, and memory has room to "
                    f"compute {self.prefilled.size} apart: shorten it, raise memory.prefill{self._raise_threshold}, or "
                    "raise --kv-memory."
                )

    @property
    def _set_apart(self) -> str:
        return f"{super()._set_apart} and memory.prefill {self.options.prefill:g}"

    def room(self) -> _Room:
        return _Room(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        return self._prefill(proposal) if proposal.phase is Phase.PREPROCESSING else super().place(proposal, now)

    def _prefill(self, proposal: Proposal) -> Placement:
        """Prompts are computed apart; those that wait in their way go on waiting on the host."""
        names, lengths = [s.id for s in proposal.admit], [len(s) for s in proposal.admit]
        room = self.room()
        if full := next(filter(None, [room.admit(sequence, growing=True) for sequence in proposal.admit]), None):
            raise LawBroken("budget", f"the proposal does not fit: {full}")
        if strangers := {work.sequence for work in proposal.work} - {*names}:
            raise LawBroken("conservation", f"work was proposed apart for {strangers}, which are not admitted")
        moves = self._leave_apart(self.make_way(len(names) * max(lengths)) or ())
        rectangle = self.prefilled.take(names, lengths)
        self.extents.update({name: self.prefilled.rows[name].place for name in names})
        self.waiting |= {sequence.id: sequence for sequence in proposal.admit}
        return Placement(tuple([self.extents[work.sequence] for work in proposal.work]), rectangle, tuple(moves))

    def make_way(self, size: int) -> tuple[str, ...] | None:
        """The sequences that must leave to the host before `size` slots are free for prompts; None: they never are."""
        names = self.prefilled.in_the_way(size)
        return names if names is not None and self.away.fit(self.cached[name] for name in names) else None

    def make_room_apart(self, size: int, staying: Collection[str]) -> tuple[str, ...] | None:
        names: list[str] = []
        for name, row in reversed(self.prefilled.rows.items()):  # those that were computed last wait longest
            if name not in staying:
                names.append(name)
                size -= row.width
                if size <= 0:
                    break
        return tuple(names) if size <= 0 and self.away.fit(self.cached[name] for name in names) else None

    def _leave_apart(self, names: Collection[str]) -> list[Move]:
        moves: list[Move] = []
        for name in names:
            moves += self.away.leave(name, self.prefilled.give_back(name), self.cached[name]) or ()
            del self.extents[name]
        return moves

    def _joining(self, proposal: Proposal) -> list[Sequence]:
        """Also those whose prompts have been computed apart."""
        computed = [self.waiting[work.sequence] for work in proposal.work if work.sequence in self.waiting]
        return [*computed, *proposal.admit]

    def _bring(self, name: str) -> list[Move]:
        self.waiting.pop(name, None)
        if name not in self.prefilled.rows:
            return super()._bring(name)
        return copies("embed", self.prefilled.give_back(name), self.extents[name], self.cached[name])

    def release(self, sequence: Sequence, now: float) -> None:
        super().release(sequence, now)
        self.waiting.pop(sequence.id, None)
        if sequence.id in self.prefilled.rows:
            del self.extents[sequence.id]
            self.prefilled.give_back(sequence.id)

    def check_integrity(self) -> None:
        super().check_integrity()
        self.prefilled.check()
