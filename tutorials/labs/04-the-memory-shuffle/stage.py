"""The memory of Flover, whose shuffle is the student's."""

from collections.abc import Sequence

from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.memory.slots.slots import Slots
from minifuse.stages import register
from minifuse.techniques import mix, technique

__all__ = ["ROW", "Shuffled", "asked", "drawn", "gathered", "side_by_side", "told"]


def drawn(live: list[bool]) -> str:
    """Memory as the README draws it, in brackets: 1 for each live buffer, . for each free one."""
    return f"[{''.join('.1'[one] for one in live)}]"


def told(live: list[bool], stays: int | None) -> str:
    """Memory, and what stays, in words."""
    return f"{drawn(live)}{'' if stays is None else f', of which {stays} stays,'}"


def asked(work, live: list[bool], stays: int | None) -> list[list[int]]:
    """The student's moves, which are valid: each copies a live buffer to a free one, none twice, not what stays."""
    moves = work.call("moves", live, stays, form=list[tuple[int, int]])
    for source, target in moves:
        if not (0 <= source < len(live) and 0 <= target < len(live)):
            raise StudentFault(
                f"moves of {told(live, stays)} copies buffer {source} to {target}: there are {len(live)}, from 0."
            )
        if not live[source] or live[target]:
            what = f"{source}, which is free" if not live[source] else f"{source} to {target}, which is taken"
            raise StudentFault(f"moves of {told(live, stays)} copies buffer {what}: copy live buffers to free ones.")
        if source == stays:
            raise StudentFault(f"moves of {told(live, stays)} copies it: choose a window that it lies in.")
    if len({source for source, _ in moves}) < len(moves) or len({target for _, target in moves}) < len(moves):
        raise StudentFault(
            f"moves of {told(live, stays)} is {moves}: copy each buffer once, and each to a place of its own."
        )
    return moves


def gathered(live: list[bool], moves: list[list[int]]) -> list[bool]:
    """What is live when the moves have been made."""
    after = list(live)
    for source, target in moves:
        after[source], after[target] = False, True
    return after


def side_by_side(live: list[bool]) -> bool:
    """Whether there is no hole between live buffers."""
    return "." not in drawn(live).strip("[.]")


@register
class Shuffled(OfStudent, Slots):
    """Adjacent buffers, gathered by the student's `moves`. The longest text stays, for its copy would take longest.

    Fixed buffers are left out of what `moves` is given.
    """

    name = "lab-shuffled"

    def _moves(self, live: Sequence[int], fixed: Sequence[int]) -> list[tuple[int, int]]:
        movable = [buffer for buffer in range(self.slots) if buffer not in fixed]
        tokens = {
            self.slot(name): num_tokens for name, num_tokens in self.books.cached.items()
        }  # with KV, in each buffer
        longest = max(live, key=lambda buffer: tokens.get(buffer, 0))
        found = asked(self.work, [buffer in live for buffer in movable], movable.index(longest))
        return [(movable[source], movable[target]) for source, target in found]


ROW = mix(technique("fusion"), memory="lab-shuffled")
