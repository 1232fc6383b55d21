"""Attention in lanes, which the student's functions divide."""

from minifuse.attention.layouts import BALANCE, HIDDEN_SIZE, PackedStage
from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.layout import Layout
from minifuse.stages import register
from minifuse.techniques import mix, technique
from minifuse.work import Span

__all__ = ["ROW", "LanesOfStudent", "asked", "valid"]


def asked(work, costs, most):
    """The student's lanes, which name each piece once, and are not more than they may be."""
    return valid(f"lanes({costs}, {most})", work.call("lanes", costs, most, form=list[list[int]]), len(costs), most)


def valid(told, found, count, most):
    """Lanes, if each of so many pieces is in one of them.

    Raises:
        StudentFault: they are not what they should be.
    """
    named = [piece for lane in found for piece in lane]
    if strange := [piece for piece in named if not 0 <= piece < count]:
        raise StudentFault(f"{told} names piece {strange[0]}: there are {count}, from 0.")
    if twice := [piece for piece in named if named.count(piece) > 1]:
        raise StudentFault(f"{told} returned {found}: piece {twice[0]} has two turns; give each one.")
    if gone := {*range(count)} - {*named}:
        raise StudentFault(f"{told} returned {found}: piece {min(gone)} has no turn; give each one.")
    if most is not None and len(found) > most:
        raise StudentFault(f"{told} returned {len(found)} lanes: at most {most} are allowed.")
    return found


@register
class LanesOfStudent(OfStudent, PackedStage):
    """The attention `packed`. What a piece costs, and the lanes of each wave, are asked of the student."""

    name = "lab-lanes"

    def layout(self, work, placement):
        waves = placement.waves or (Span(0, len(work)),)
        divided = []
        for start, stop in waves:
            if start == stop:
                continue
            found = asked(self.work, [self.cost(item) for item in work[start:stop]], self.options.lanes)
            if [] in found:
                raise StudentFault(f"lanes returned {found}: a lane without a piece is none; leave it out.")
            divided += [tuple([start + piece for piece in lane]) for lane in found]
        # the engine has the lanes of a wave behind those of the wave before it
        return Layout(waves, lanes=tuple(divided))

    def cost(self, item):
        """The student's estimate of one piece of work."""
        balance = BALANCE if self.options.balance is None else self.options.balance
        return self.work.call("cost", item.num_tokens, item.stop, HIDDEN_SIZE, max(1, round(balance)), form=int)


ROW = mix(technique("fluid"), attention="lab-lanes")
