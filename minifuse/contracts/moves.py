"""Which moves a plan can have."""

from __future__ import annotations

from typing import get_args

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Moment, Move, MoveKind

__all__ = ["MOMENTS", "MOVE_KINDS", "by_layer", "check_move"]

MOVE_KINDS: tuple[MoveKind, ...] = get_args(MoveKind)
MOMENTS: tuple[Moment, ...] = get_args(Moment)


def by_layer(move: Move) -> bool:
    """Whether it is made layer by layer, beside the waves."""
    return move.moment in ("before", "after")


def check_move(move: Move, num_waves: int) -> None:
    """Raise `LawBroken` if there can be no such move in a plan of so many waves; 0: in a plan without work."""
    behind = move.moment == "behind"
    if move.source_tier == move.target_tier == "host":
        raise LawBroken("layout", f"{move} goes from the host to the host: move KV on the device, or to or from it")
    if behind != (num_waves == 0):
        raise LawBroken("layout", f"{move} is in a plan of {num_waves} waves: moves behind everything have their own")
    if behind and not move.crosses:
        raise LawBroken("layout", f"{move} is behind everything and stays on the device: only transfers may be")
    if by_layer(move) and not 0 <= move.wave < num_waves:
        raise LawBroken("layout", f"{move} names wave {move.wave} of a plan of {num_waves} waves")
    if move.num_tokens < 1 or min(move.source, move.target) < 0:
        raise LawBroken("layout", f"{move} moves {move.num_tokens} tokens: give slots from 0, and at least one token")
