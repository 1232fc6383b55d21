"""What is shared by the memories that copy nothing behind everything."""

from __future__ import annotations

from minifuse.errors import LawBroken
from minifuse.plan import Move
from minifuse.report import KVUsage

__all__ = ["NothingAhead"]


class NothingAhead:
    """Moves KV with the plans that need it, and never ahead of them."""

    def ahead(self, now: float) -> tuple[Move, ...]:
        return ()

    def landed(self, moves: tuple[Move, ...], now: float) -> KVUsage:
        raise LawBroken("conservation", f"{moves} have landed, and this memory never asked for them")
