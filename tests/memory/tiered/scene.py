"""Tiered memory by hand: iterations that are placed and committed at once, and copies that land when told to."""

from __future__ import annotations

from typing import Any

from helpers import asks

from minifuse.core.plan import Move, Placement, Plan, Proposal, Work
from minifuse.core.request import Sequence
from minifuse.memory import Tiered

SIZE = 4  # tokens of a chunk


class TieredScene:
    """A tiered memory and its sequences. Every iteration produces a token for each sequence that has all of its KV."""

    def __init__(self, chunks: int = 6, host: int | None = None, **options: Any) -> None:
        given = {"chunk": SIZE, "reserve": 0.0, "host": None if host is None else host * SIZE, **options}
        self.memory = Tiered(chunks * SIZE, Tiered.Options(**given))
        self.sequences: dict[str, Sequence] = {}
        self.texts: dict[str, list[int]] = {}  # of the conversations

    def ask(self, name: str, prompt: int | tuple[int, ...] = 4, new: int = 9, conversation: str | None = None) -> None:
        """A request arrives; one of a conversation has all of its text in front of the prompt."""
        request = asks(name, prompt, new)
        before = () if conversation is None else tuple(self.texts.get(conversation, ()))
        whole = asks(name, (*before, *request.prompt), new, conversation=conversation)
        self.sequences[name] = Sequence(whole, num_history=len(before))
        self.memory.receive(self.sequences[name])

    def iterate(
        self, *running: str, admit: str = "", evict: str = "", now: float = 0.0, growing: bool = True
    ) -> tuple[Placement, tuple[Work, ...]]:
        memory, every = self.memory, self.sequences
        work = tuple(Work(name, *span) for name in (*running, *admit) for span in memory.missing(every[name]))
        proposal = Proposal(
            work, tuple(every[n] for n in admit), evict=tuple(every[n] for n in evict), growing=growing
        )  # fmt: skip
        placement = memory.place(proposal, now)
        memory.check_integrity()
        plan = Plan(0, 0, work, placement.places, tuple(admit), moves=placement.moves if work else ())
        memory.commit(plan, {item.sequence for item in work}, now)
        memory.check_integrity()
        for name in dict.fromkeys(item.sequence for item in work):
            every[name].tokens.append(0)
        return placement, work

    def end(self, name: str, now: float) -> None:
        """A request ends. The token it got last has not been computed."""
        sequence = self.sequences[name]
        if (conversation := sequence.request.conversation) is not None:
            self.texts[conversation] = list(sequence.tokens)
        self.memory.release(sequence, now)
        self.memory.check_integrity()

    def turn(self, name: str, conversation: str, tokens: int, now: float) -> None:
        """A request of a conversation that adds so many tokens of KV, computed by one iteration."""
        history = len(self.texts.get(conversation, ()))
        self.ask(name, tuple(range(history, history + tokens)), 1, conversation)
        self.iterate(admit=name, now=now)
        del self.sequences[name].tokens[-1]  # as if no token came of it: so that chunks are whole
        self.end(name, now)

    def ahead(self, now: float, land: bool = True) -> tuple[Move, ...]:
        """What is copied ahead: all that follows one another, each landing before the next, or what begins at once."""
        every: tuple[Move, ...] = ()
        while moves := self.memory.ahead(now):
            self.memory.check_integrity()
            every += moves
            if not land:
                break
            self.memory.landed(moves, now)
            self.memory.check_integrity()
        return every

    def tiers(self, conversation: str) -> str:
        """Where the chunks of a conversation lie: d device, b both, h host, - dropped, > on its way to the host."""
        owner = self.memory.books.owners.get(f"conversation {conversation}")
        return "" if owner is None else "".join(_tier(owner.chunks.get(i)) for i in range(-(-owner.end // SIZE)))


def _tier(chunk: Any) -> str:
    if chunk is None:
        return "-"
    if chunk.copying or chunk.arriving:
        return ">"
    if chunk.device is None:
        return "h"
    return "d" if chunk.host is None else "b"
