"""What holds of any window."""

from hypothesis import strategies as st
from stage import EMBEDDED, SHAPED, EmbeddedByStudent, ShapedByStudent

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

SPANS = list[tuple[int, int]]
TEXTS = st.lists(
    st.integers(1, 6).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length))), min_size=1, max_size=4
)


def test_newcomers_end_together(work):
    """The texts of newcomers that are inserted together end in the same column, the last that is computed. The number
    of columns that are computed is the largest `missing`."""

    def demand(case):
        texts, embed = case
        window = work.make("Window", 6, embed)
        window("enter", [["a", 3, 3], ["b", 3, 3]])
        given = [[f"n{i}", length, missing] for i, (length, missing) in enumerate(texts)]
        longest = max(missing for *_, missing in given)
        stop = 4 if embed else 3 + longest
        right = [stop - longest, stop]
        found = window("enter", given, form=tuple[int, int])
        calls = [f"Window(6, {embed})", "enter([['a', 3, 3], ['b', 3, 3]])", f"enter({given})"]
        if found != right:
            raise Unmet(f"the last of these calls returned {found}, and should return {right}:", calls)
        for name, length, _ in given:
            columns = window("columns", name, form=SPANS)
            if columns != [[stop - length, stop]]:
                what = f"after these calls columns({name!r}) is {columns}, and should be {[[stop - length, stop]]}:"
                raise Unmet(what, calls)

    work.smallest(st.tuples(TEXTS, st.booleans()), demand)


class Played:
    """Iterations in a student's window, and what is known of them."""

    def __init__(self, work, embed):
        self.window, self.embed = work.make("Window", 4, embed), embed
        self.there, self.told = [], []

    def step(self, number, leaving, lengths):
        """Some leave, newcomers enter as rows are free. Returns those that enter, or None: there are none."""
        for name in [name for place, name in enumerate(self.there) if place in leaving]:
            self.window("leave", name)
            self.there.remove(name)
            self.told.append(f"leave({name!r})")
        given = [[f"s{number}.{i}", n, 1 if self.embed else n] for i, n in enumerate(lengths[: 4 - len(self.there)])]
        if not given and not self.there:
            return None
        self.computed = self.window("enter", given, form=tuple[int, int])
        self.told.append(f"enter({given})")
        self.before = len(self.there)
        self.there += [name for name, *_ in given]
        return given

    def says(self, what):
        return Unmet(f"Window(4, {self.embed}): after the calls below {what}.", self.told)


STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 2), max_size=2), st.lists(st.integers(1, 5), max_size=2)), min_size=4, max_size=6
)


def played(work, demand):
    """Play drawn iterations, and demand something of each."""

    def attempt(case):
        steps, embed = case
        play = Played(work, embed)
        for number, (leaving, lengths) in enumerate(steps):
            given = play.step(number, leaving, lengths)
            if given is not None:
                demand(play, given)

    work.smallest(st.tuples(STEPS, st.booleans()), attempt, 60)


def test_idle_of_any_iteration(work):
    """What is computed, in rows up to the last that has a sequence, and is no token of one, is idle."""

    def demand(play, given):
        rows = play.window("rows", form=dict[str, int])
        start, stop = play.computed
        useful = play.before + sum(missing for *_, missing in given)
        right = (max(rows.values()) + 1) * (stop - start) - useful
        found = play.window("idle", form=int)
        if found != right and not play.embed:
            raise play.says(f"idle() is {found}, and should be {right}")

    played(work, demand)


def test_releases(work):
    """Each `enter` releases the leading columns in which no sequence has a token; `leave` releases none."""

    def demand(play, given):
        first = min(play.window("columns", name, form=SPANS)[0][0] for name in play.there)
        found = play.window("begin", form=int)
        if found != first:
            raise play.says(f"begin() is {found}, and the first token in use lies in column {first}")
        if len(play.there) > 1:
            trial = play.window.copy()
            leaving = min(play.there, key=lambda name: trial("columns", name, form=SPANS)[0][0])
            trial("leave", leaving)
            if (after := trial("begin", form=int)) != first:
                play.told.append(f"leave({leaving!r})")
                raise play.says(f"begin() is {after}, and before the last of them it was {first}: enter releases")

    played(work, demand)


def test_keeps_the_laws(work):
    """In the engine, under all laws, shaped and embedded: no token's KV is lost, moved, or written over."""
    keeps_the_laws(work, SHAPED, ShapedByStudent, scenarios=15)
    keeps_the_laws(work, EMBEDDED, EmbeddedByStudent, scenarios=15)
