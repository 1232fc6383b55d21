"""Cases that can be done by hand, and a run in the engine."""

from stage import SHAPED, ShapedByStudent

from minifuse.core.request import Request
from minifuse.labs.engine import run
from minifuse.labs.judge import Unmet

SPANS = list[tuple[int, int]]
SIX = [(4, 3), (2, 9), (3, 6), (3, 5), (5, 3), (2, 4)]  # prompt and answer, as in chapter 9


class Shown:
    """A student's window and the calls that have changed it, which are shown where a value is not right."""

    def __init__(self, work, rows, embed):
        self.window, self.calls = work.make("Window", rows, embed), [f"Window({rows}, {embed})"]

    def do(self, method, *given):
        self.window(method, *given)
        self.calls.append(told(method, given))

    def expect(self, method, *given, right, form):
        """The value of a method, which must be this."""
        found = self.window(method, *given, form=form)
        if found != right:
            what = f"{told(method, given)} is {found}, and should be {right}"
            raise Unmet(f"{what}, after these calls:", self.calls)

    def enter(self, newcomers, start, stop, idle):
        """These columns are computed, and so many tokens are idle."""
        self.expect("enter", newcomers, right=[start, stop], form=tuple[int, int])
        self.calls.append(told("enter", [newcomers]))
        self.expect("idle", right=idle, form=int)


def told(method, given):
    return f"{method}({', '.join(map(repr, given))})"


def test_opening_by_hand(work):
    """Newcomers of an empty window take the first rows; their texts end in the same column, and padding is idle. A
    window that has become empty begins anew."""
    window = Shown(work, 4, False)
    window.enter([["a", 2, 2], ["b", 5, 5], ["c", 4, 4]], 0, 5, 4)
    window.expect("rows", right={"a": 0, "b": 1, "c": 2}, form=dict[str, int])
    for name, start in (("a", 3), ("b", 0), ("c", 1)):
        window.expect("columns", name, right=[[start, 5]], form=SPANS)
    for name in ("c", "b", "a"):
        window.do("leave", name)
    window.enter([["d", 3, 3]], 0, 3, 0)
    window.expect("columns", "d", right=[[0, 3]], form=SPANS)
    window = Shown(work, 2, True)
    window.enter([["a", 6, 1], ["b", 3, 1]], 5, 6, 0)
    window.expect("columns", "b", right=[[3, 6]], form=SPANS)


def opened(work, embed):
    """Three sequences of three tokens, and an iteration more."""
    window = Shown(work, 3, embed)
    window.do("enter", [["q0", 3, 3], ["q1", 3, 3], ["q2", 3, 3]])
    window.do("enter", [])
    return window


def test_shaping_by_hand(work):
    """Figure 4: query3 of two tokens takes the row of query2, and the others get a gap of one column. Later a sequence
    gets another row."""
    window = opened(work, False)
    window.do("leave", "q2")
    window.enter([["q3", 2, 2]], 4, 6, 2)
    window.expect("rows", right={"q0": 0, "q1": 1, "q3": 2}, form=dict[str, int])
    window.expect("columns", "q0", right=[[0, 5]], form=SPANS)
    window.expect("columns", "q3", right=[[4, 6]], form=SPANS)
    window.enter([], 6, 7, 0)
    window.expect("columns", "q0", right=[[0, 5], [6, 7]], form=SPANS)
    window.expect("columns", "q3", right=[[4, 7]], form=SPANS)
    window.do("leave", "q1")
    window.do("leave", "q3")
    window.enter([["q4", 2, 2]], 7, 9, 1)
    window.expect("rows", right={"q0": 0, "q4": 1}, form=dict[str, int])
    window.do("leave", "q0")
    window.do("move", "q4", 0)
    window.enter([["q5", 2, 2]], 9, 11, 1)
    window.expect("rows", right={"q4": 0, "q5": 1}, form=dict[str, int])
    window.expect("columns", "q4", right=[[7, 10]], form=SPANS)


def test_embedding_by_hand(work):
    """Figure 5: a shorter text ends with the others' token; for a longer one the window is extended on the left."""
    window = opened(work, True)
    window.do("leave", "q2")
    window.enter([["short", 3, 1]], 4, 5, 0)
    window.expect("columns", "short", right=[[2, 5]], form=SPANS)
    window.expect("begin", right=0, form=int)
    window.do("leave", "q1")
    window.enter([["long", 9, 1]], 5, 6, 0)
    window.expect("columns", "long", right=[[-3, 6]], form=SPANS)
    window.expect("columns", "q0", right=[[0, 6]], form=SPANS)
    window.expect("begin", right=-3, form=int)


def test_masks_by_hand(work):
    """Masks after figure 4: a gap and what was before a newcomer are 0."""
    window = opened(work, False)
    window.do("leave", "q2")
    window.do("enter", [["q3", 2, 2]])
    window.expect("mask", "q3", right=[0, 0, 0, 0, 1, 1], form=list[int])
    window.expect("mask", "q0", right=[1, 1, 1, 1, 1, 0], form=list[int])
    window.do("enter", [])
    window.expect("mask", "q1", right=[1, 1, 1, 1, 1, 0, 1], form=list[int])
    window.expect("mask", "q3", right=[0, 0, 0, 0, 1, 1, 1], form=list[int])


def test_runs_in_the_engine(work):
    """The six requests of chapter 9 run in three rows: 3 tokens are idle at the opening, 4, 8, 2 at insertions."""
    requests = [Request(f"r{i}", (1,) * prompt, most, ignore_eos=True) for i, (prompt, most) in enumerate(SIX)]
    found = run(work, SHAPED, ShapedByStudent, requests, batching__max_batch=3, memory__rows=3)
    idle, right = [step["idle"] for step in found.steps if step["idle"]], [3, 4, 8, 2]
    if idle != right:
        raise Unmet(f"the iterations with idle tokens have {idle} of them: {right} were expected.", events=found.events)
