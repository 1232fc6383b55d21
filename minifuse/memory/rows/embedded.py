"""A padded batch that embeds the KV of prompts prefilled in separate iterations (Baton, 4.2)."""

from dataclasses import dataclass
from typing import ClassVar

from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.plan import Move, Placement, Proposal
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Request
from minifuse.core.stages import option
from minifuse.memory.rows.shaped import Shaped, ShapedOptions, ShapedTrial
from minifuse.memory.trial import settle


class Embedded(Shaped):
    """Adds to `shaped` a part of memory for prompts prefilled in iterations of their own.

    Prefilled prompts wait there for a row, or on the host if other prompts need the slots. When a prefilled sequence
    joins the batch, its KV is copied so that its text ends in the column of the other rows' next token: no other row
    needs padding. An evicted sequence whose KV did not fit on the host is recomputed in its row.

    With `prefetch`, prompts on the host are copied to another part of the device ahead of time, in the order in which
    they were prefilled, one at a time. Nothing else uses that part, so no sequence waits for it.
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
        prefetch: float = option(
            0.0,
            "part of the memory to which prompts that wait on the host are copied ahead of time; 0: none",
            minimum=0,
            maximum=0.5,
        )

        insert: ClassVar[str] = "embed"

    def check(self, *prompts: Request) -> None:
        super().check(*prompts)
        for request in prompts:
            if len(request.prompt) > self.prefilled.size:
                raise RequestRefused(
                    f"Request {request.id!r} has a prompt of {len(request.prompt)} tokens, and memory has room to "
                    f"compute {self.prefilled.size} apart: shorten it, raise memory.prefill{self._raise_threshold}, or "
                    "raise --kv-memory."
                )

    def place(self, proposal: Proposal, now: float) -> Placement:
        return self._prefill(proposal) if proposal.phase is Phase.PREPROCESSING else super().place(proposal, now)

    def _prefill(self, proposal: Proposal) -> Placement:
        """Place prompts to prefill, and swap out prefilled sequences to make room for them."""
        trial = settle(proposal, ShapedTrial, self.room)
        if trial.joining or not trial.prompts:
            raise LawBroken("layout", f"{[*trial.joining]} are not computed apart, and in the phase preprocessing")
        moves = self._leave(trial.making_way)
        rectangle = self.prefilled.take(trial.prompts)
        self.books.places |= {name: self.prefilled.rows[name].place for name in trial.prompts}
        self.waiting |= {sequence.id: sequence for sequence in proposal.admit}
        return Placement(self.books.of(proposal.work), rectangle, tuple(moves))

    def ahead(self, now: float) -> tuple[Move, ...]:
        """Fetch the prompt on the host that was prefilled first (4.2: "prefetchable")."""
        return self.fetched.fetch(self.waiting)

    def landed(self, moves: tuple[Move, ...], now: float) -> KVUsage:
        self.fetched.land(moves)
        return self.usage()
