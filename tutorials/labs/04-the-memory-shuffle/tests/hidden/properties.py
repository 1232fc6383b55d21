"""What holds of any buffers."""

from hypothesis import strategies as st
from stage import ROW, Shuffled, asked, drawn, gathered, side_by_side

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

FEW = st.lists(st.booleans(), min_size=1, max_size=12)
MANY = st.integers(13, 24).flatmap(lambda size: st.lists(st.booleans(), min_size=size, max_size=size))


SIZES = (150, 300, 600)


def large(work):
    """The buffers whose steps are counted, so that no steps are saved by wrong answers."""
    random = work.random
    return [[random.random() < 0.5 for _ in range(size)] for size in SIZES]


def outside(live, offset):
    """How many live buffers lie outside of a window."""
    count = sum(live)
    return count - sum(live[offset : offset + count])


def windows(live):
    return range(len(live) - sum(live) + 1)


def test_windows_of_any_buffers(work):
    """Outside of the window lie the fewest live buffers, and of equal windows the leftmost is taken."""

    def demand(live):
        found = work.call("window_offset", live, form=int)
        right = min(windows(live), key=lambda offset: outside(live, offset))  # the first of equal ones
        if found not in windows(live):
            raise Unmet(f"window_offset of {drawn(live)} is {found}: no window of {sum(live)} buffers begins there.")
        if outside(live, found) != outside(live, right):
            raise Unmet(
                f"window_offset of {drawn(live)} is {found}, with {outside(live, found)} live buffers outside of the "
                f"window; {outside(live, right)} are outside of the window at {right}."
            )
        if found != right:
            raise Unmet(
                f"window_offset of {drawn(live)} is {found}; the window at {right} is as good, and further left."
            )

    work.smallest(FEW | MANY, demand)
    for live in large(work):
        demand(live)


def test_gathers_any_buffers(work):
    """After the moves the live buffers lie side by side."""

    def demand(live):
        moves = asked(work, live)
        after = gathered(live, moves)
        if not side_by_side(after):
            raise Unmet(
                f"{drawn(live)} becomes {drawn(after)} by the moves {moves}: live buffers are to lie side by side."
            )

    work.smallest(FEW | MANY, demand)
    for live in large(work):
        demand(live)


def test_moves_the_least(work):
    """No copies gather the live buffers that are fewer: compared with every window."""

    def demand(live):
        moves = asked(work, live)
        best = min(outside(live, offset) for offset in windows(live))
        if len(moves) > best:
            raise Unmet(f"moves of {drawn(live)} copies {len(moves)} buffers, and {best} are enough.")

    work.smallest(FEW | MANY, demand)
    for live in large(work):
        demand(live)


def test_is_linear(work):
    """Twice as many buffers take about twice as many steps."""
    for name in ("window_offset", "moves"):
        steps = []
        for live in large(work):
            work.call(name, live)
            steps.append(work.steps)
        if steps[2] > 2.5 * steps[1] + 50:
            raise Unmet(f"{name} takes {steps} steps for 150, 300 and 600 buffers: walk over them once.")


def test_keeps_the_laws(work):
    """In the engine, under all laws: the shuffle loses no KV and changes no answer."""
    keeps_the_laws(work, ROW, Shuffled)
