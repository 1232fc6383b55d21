"""The memories of Baton, with the student's window; and its policy, with the student's choice."""

from minifuse.batching.rebatch import Rebatch
from minifuse.batching.reranking import rerank
from minifuse.core.plan import Reason, Span
from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.memory.rows.embedded import Embedded
from minifuse.memory.rows.shaped import Shaped
from minifuse.memory.rows.window import Window
from minifuse.stages import register
from minifuse.techniques import mix, technique

__all__ = ["CHOOSING", "EMBEDDED", "SHAPED", "Choosing", "EmbeddedByStudent", "ShapedByStudent"]

FORM = list[tuple[int, int]]


class WindowOfStudent(OfStudent, Window):
    """A window whose rows and columns are the student's. Here columns are numbered on when the student's begin anew,
    and a sequence has columns for the tokens that are still to come, too."""

    def divide(self, rows, stride):
        super().divide(rows, stride)
        self.base = -(-self.stop // stride) * stride
        self.lengths, self.most, self.written = {}, {}, {}  # of each sequence; written: the columns of its tokens
        self.of_student = None  # made when the first newcomers enter: a stage is made without the student's file

    def enter(self, newcomers):
        """What the student's `enter` says, checked."""
        if self.of_student is None:
            self.of_student = self.work.make("Window", self._ring.rows, self.embed)
        given = [[one.name, one.length, one.missing] for one in newcomers]
        begins = [*self.of_student("enter", given, form=tuple[int, int])]
        start, stop = (self.base + one for one in begins)
        told = f"enter({given}) returned {begins}"
        if start >= stop or (self.rows and stop <= self.stop):
            raise StudentFault(f"{told}: that is no new column; the window ended at {self.stop - self.base}.")
        rows = self.of_student("rows", form=dict[str, int])
        names = {*self.rows, *(one.name for one in newcomers)}
        if rows.keys() != names:
            raise StudentFault(f"after enter({given}) rows has {sorted(rows)}: {sorted(names)} have rows.")
        self._check_rows(rows)
        missing = {one.name: one.missing for one in newcomers}
        for one in newcomers:
            self.lengths[one.name], self.most[one.name] = one.length, one.most
        for name in names:
            new = missing.get(name, 1)
            self.lengths[name] += name not in missing
            spans = self._columns(name, start, stop, new, name in missing)
            left = self.most[name] - self.lengths[name]
            if left and spans[-1].stop == stop:
                spans[-1] = Span(spans[-1].start, stop + left)
            elif left:
                spans.append(Span(stop, stop + left))
            self.rows[name] = rows[name]
            self.columns[name] = tuple(spans)
        self.free = [row for row in range(self._ring.rows) if row not in rows.values()]
        self.begin, self.stop = min(self.columns[name][0].start for name in names), stop
        if self.width > self.stride:
            raise StudentFault(
                f"{told}, and the window has {self.width} columns now: a row has {self.stride}. Are all columns needed?"
            )
        return Span(start, stop)

    def _check_rows(self, rows):
        if len({*rows.values()}) < len(rows):
            raise StudentFault(f"rows returned {rows}: two sequences have the same row.")
        for name, row in rows.items():
            if not 0 <= row < self._ring.rows:
                raise StudentFault(f"rows returned {rows}: there are {self._ring.rows} rows, from 0.")
            if self.rows.get(name, row) != row:
                raise StudentFault(f"rows returned {rows}: {name} had row {self.rows[name]}, and keeps it.")

    def _columns(self, name, start, stop, new, joins):
        """The columns of a sequence's tokens: its last `new` ones are computed, and the others lie where they lay."""
        found = self.of_student("columns", name, form=FORM)
        lie = [self.base + column for span in found for column in range(*span)]
        told = f"columns({name!r}) returned {found}"
        if len(lie) != self.lengths[name]:
            raise StudentFault(f"{told}: {len(lie)} columns, and {name} has {self.lengths[name]} tokens.")
        if lie != sorted({*lie}) or lie[-1] >= stop:
            raise StudentFault(f"{told}: give columns in order, each once, before {stop - self.base}.")
        if lie[-new] < start:
            gave = f"[{start - self.base}, {stop - self.base})"
            raise StudentFault(f"{told}: the last {new} must be among the columns that enter gave, {gave}.")
        if not joins and lie[:-1] != self.written[name]:
            raise StudentFault(f"{told}: the tokens before the last have moved; KV stays where it was written.")
        self.written[name] = lie
        return [Span(self.base + first, self.base + last) for first, last in found]

    def leave(self, name):
        super().leave(name)
        self.of_student("leave", name)

    def move_last(self):
        name = super().move_last()
        self.of_student("move", name, self.rows[name])
        return name


class WithWindow(OfStudent):
    """A memory with the student's window."""

    def __init__(self, capacity, options=None):
        super().__init__(capacity, options)
        WindowOfStudent.work = self.work
        self.window = WindowOfStudent(1, self.longest, embed=self.window.embed)


@register
class ShapedByStudent(WithWindow, Shaped):
    """The memory `shaped`, with the student's window."""

    name = "lab-shaped"


@register
class EmbeddedByStudent(WithWindow, Embedded):
    """The memory `embedded`, with the student's window."""

    name = "lab-embedded"


@register
class Choosing(OfStudent, Rebatch):
    """The policy of `baton`, with the student's choice of whom to insert."""

    name = "lab-choosing"
    overtaken_at_most = None

    def __init__(self, options=None):
        super().__init__(options)
        self.order, self.since, self.turn = {}, {}, 0

    def rank(self, sequence):
        return self.order.get(sequence.id, len(self.order))

    def propose(self, worker, now, memory):
        self.turn += 1
        by_arrival = sorted(self.waiting, key=lambda one: self.waiting.tickets[one.id][1])
        names = [one.id for one in by_arrival]
        waiting = [[one.id, len(one), self.turn - self.since.setdefault(one.id, self.turn)] for one in by_arrival]
        running = [[one.id, len(one.request.prompt), len(one) - len(one.request.prompt)] for one in self.running]
        free = self.options.max_batch - len(running)
        chosen = self._chosen(waiting, running, free) if waiting and free > 0 else []
        self.order = {name: place for place, name in enumerate(chosen)}
        for name in names:
            rerank(self.waiting, name, self.rank)
        return super().propose(worker, now, memory)

    def _chosen(self, waiting, running, free):
        told = f"choose({waiting}, {running}, {free})"
        chosen = self.work.call("choose", waiting, running, free, form=list[str])
        if {*chosen} - {name for name, *_ in waiting} or len({*chosen}) < len(chosen):
            raise StudentFault(f"{told} returned {chosen}: give names of waiting requests, each once.")
        if len(chosen) > free:
            raise StudentFault(f"{told} returned {len(chosen)} names: {free} rows are free.")
        if not chosen and not running:
            raise StudentFault(f"{told} returned none: none runs, so give one at least.")
        return chosen

    def admission(self, sequence, joining, now):
        if sequence.id not in self.order:
            return Reason("batch-full", sequence.id, "not admitted: it was not chosen")
        return super().admission(sequence, joining, now)


SHAPED = mix(technique("baton"), memory="lab-shaped")
EMBEDDED = mix(technique("baton-pd"), memory="lab-embedded")
CHOOSING = mix(technique("baton"), batching="lab-choosing")
