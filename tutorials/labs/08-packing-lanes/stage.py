"""Attention in lanes, which the student's functions divide."""

from dataclasses import dataclass, replace

from minifuse.attention.layouts import BALANCE, HIDDEN_SIZE, PackedStage
from minifuse.core.plan import Layout, Span
from minifuse.core.stages import option
from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.stages import register
from minifuse.techniques import mix, technique

__all__ = ["ROOMS_OF_2", "ROW", "LanesOfStudent", "asked", "called", "valid"]


def asked(work, costs, most, room):
    """The student's lanes, which name each piece once, and are neither more nor longer than they may be."""
    found = work.call("lanes", costs, most, room, form=list[list[int]])
    return valid(called(costs, most, room), found, len(costs), most, room)


def called(costs, most, room):
    """The call, as it is told."""
    return f"lanes({shown(costs)}, {most}, {room})"


def shown(values):
    """A list, or its beginning if it is long."""
    if len(values) <= 20:
        return str(values)
    return f"[{', '.join(map(str, values[:5]))}, ... {len(values)} in all]"


def valid(told, found, count, most, room=None):
    """Lanes, if each of so many pieces is in one of them.

    Raises:
        StudentFault: they are not what they should be.
    """
    named = [piece for lane in found for piece in lane]
    if strange := [piece for piece in named if not 0 <= piece < count]:
        raise StudentFault(f"{told} names piece {strange[0]}: there are {count}, from 0.")
    if twice := [piece for piece in named if named.count(piece) > 1]:
        raise StudentFault(f"{told} returned {shown(found)}: piece {twice[0]} has two turns; give each one.")
    if gone := {*range(count)} - {*named}:
        raise StudentFault(f"{told} returned {shown(found)}: piece {min(gone)} has no turn; give each one.")
    if most is not None and len(found) > most:
        raise StudentFault(f"{told} returned {len(found)} lanes: at most {most} are allowed.")
    if room is not None and (long := [number for number, lane in enumerate(found) if len(lane) > room]):
        pieces = f"lane {long[0]} has {len(found[long[0]])} pieces"
        raise StudentFault(f"{told} returned {shown(found)}: {pieces}, and places for {room}.")
    return found


@register
class LanesOfStudent(OfStudent, PackedStage):
    """The attention `packed`. What a piece costs, and the lanes of each wave, are asked of the student."""

    name = "lab-lanes"

    @dataclass(frozen=True)
    class Options(PackedStage.Options):
        room: int | None = option(
            None,
            "pieces that the work list of a lane has a place for; none: as many as it takes",
            minimum=1,
        )

    def layout(self, work, placement):
        waves = placement.waves or (Span(0, len(work)),)
        divided = []
        for start, stop in waves:
            if start == stop:
                continue
            most, room = self.options.lanes, self.options.room
            if most is not None and room is not None:
                room = max(room, -(-(stop - start) // most))  # a wave that is longer than all lists needs longer ones
            found = asked(self.work, [self.cost(item) for item in work[start:stop]], most, room)
            if [] in found:
                raise StudentFault(f"lanes returned {shown(found)}: a lane without a piece is none; leave it out.")
            divided += [tuple([start + piece for piece in lane]) for lane in found]
        # the engine has the lanes of a wave behind those of the wave before it
        return Layout(waves, lanes=tuple(divided), passes=placement.passes)

    def cost(self, item):
        """The student's estimate of one piece of work."""
        balance = BALANCE if self.options.balance is None else self.options.balance
        return self.work.call("cost", item.num_tokens, item.stop, HIDDEN_SIZE, max(1, round(balance)), form=int)


ROW = mix(technique("fluid"), attention="lab-lanes")
ROOMS_OF_2 = replace(ROW, options={**ROW.options, "attention.room": 2})
