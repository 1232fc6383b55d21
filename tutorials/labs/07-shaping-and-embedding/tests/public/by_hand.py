"""Cases that can be done by hand, and a run in the engine."""

from stage import SHAPED, ShapedByStudent

from minifuse.labs.engine import run
from minifuse.labs.judge import Unmet
from minifuse.request import Request

SPANS = list[tuple[int, int]]
SIX = [(4, 3), (2, 9), (3, 6), (3, 5), (5, 3), (2, 4)]  # prompt and answer, as in chapter 9


def expect(window, method, *given, right, form):
    """The value of a method, which must be this."""
    found = window(method, *given, form=form)
    if found != right:
        told = ", ".join(map(repr, given))
        raise Unmet(f"{method}({told}) is {found}, and should be {right}.")


def enter(window, newcomers, start, stop, idle):
    expect(window, "enter", newcomers, right=[start, stop], form=tuple[int, int])
    expect(window, "idle", right=idle, form=int)


def test_opening_by_hand(work):
    """Newcomers of an empty window take the first rows; their texts end in the same column, and padding is idle."""
    window = work.make("Window", 4, False)
    enter(window, [["a", 2, 2], ["b", 5, 5], ["c", 4, 4]], 0, 5, 4)
    expect(window, "rows", right={"a": 0, "b": 1, "c": 2}, form=dict[str, int])
    for name, start in (("a", 3), ("b", 0), ("c", 1)):
        expect(window, "columns", name, right=[[start, 5]], form=SPANS)
    window = work.make("Window", 2, True)
    enter(window, [["a", 6, 1], ["b", 3, 1]], 5, 6, 0)
    expect(window, "columns", "b", right=[[3, 6]], form=SPANS)


def opened(work, embed):
    """Three sequences of three tokens, and an iteration more."""
    window = work.make("Window", 3, embed)
    window("enter", [["q0", 3, 3], ["q1", 3, 3], ["q2", 3, 3]])
    window("enter", [])
    return window


def test_shaping_by_hand(work):
    """Figure 4: query3 of two tokens takes the row of query2, and the others get a gap of one column."""
    window = opened(work, False)
    window("leave", "q2")
    enter(window, [["q3", 2, 2]], 4, 6, 2)
    expect(window, "rows", right={"q0": 0, "q1": 1, "q3": 2}, form=dict[str, int])
    expect(window, "columns", "q0", right=[[0, 5]], form=SPANS)
    expect(window, "columns", "q3", right=[[4, 6]], form=SPANS)
    enter(window, [], 6, 7, 0)
    expect(window, "columns", "q0", right=[[0, 5], [6, 7]], form=SPANS)
    expect(window, "columns", "q3", right=[[4, 7]], form=SPANS)
    window("leave", "q1")
    window("leave", "q3")
    enter(window, [["q4", 2, 2]], 7, 9, 1)
    expect(window, "rows", right={"q0": 0, "q4": 1}, form=dict[str, int])


def test_embedding_by_hand(work):
    """Figure 5: a shorter text ends with the others' token; for a longer one the window is extended on the left."""
    window = opened(work, True)
    window("leave", "q2")
    enter(window, [["short", 3, 1]], 4, 5, 0)
    expect(window, "columns", "short", right=[[2, 5]], form=SPANS)
    expect(window, "begin", right=0, form=int)
    window("leave", "q1")
    enter(window, [["long", 9, 1]], 5, 6, 0)
    expect(window, "columns", "long", right=[[-3, 6]], form=SPANS)
    expect(window, "columns", "q0", right=[[0, 6]], form=SPANS)
    expect(window, "begin", right=-3, form=int)


def test_masks_by_hand(work):
    """Masks after figure 4: a gap and what was before a newcomer are 0."""
    window = opened(work, False)
    window("leave", "q2")
    window("enter", [["q3", 2, 2]])
    expect(window, "mask", "q3", right=[0, 0, 0, 0, 1, 1], form=list[int])
    expect(window, "mask", "q0", right=[1, 1, 1, 1, 1, 0], form=list[int])
    window("enter", [])
    expect(window, "mask", "q1", right=[1, 1, 1, 1, 1, 0, 1], form=list[int])
    expect(window, "mask", "q3", right=[0, 0, 0, 0, 1, 1, 1], form=list[int])


def test_runs_in_the_engine(work):
    """The six requests of chapter 9 run in three rows: 3 tokens are idle at the opening, 4, 8, 2 at insertions."""
    requests = [Request(f"r{i}", (1,) * prompt, most, ignore_eos=True) for i, (prompt, most) in enumerate(SIX)]
    found = run(work, SHAPED, ShapedByStudent, requests, batching__max_batch=3, memory__rows=3)
    idle, right = [step["idle"] for step in found.steps if step["idle"]], [3, 4, 8, 2]
    if idle != right:
        raise Unmet(f"the iterations with idle tokens have {idle} of them: {right} were expected.", events=found.events)
