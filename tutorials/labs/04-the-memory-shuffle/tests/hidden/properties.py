"""What holds of any buffers."""

from hypothesis import strategies as st
from stage import ROW, Shuffled, asked, drawn, gathered, side_by_side, told

from minifuse.core.request import Request
from minifuse.labs.engine import keeps_the_laws, run
from minifuse.labs.judge import Unmet

FEW = st.lists(st.booleans(), min_size=1, max_size=12)
MANY = st.integers(13, 24).flatmap(lambda size: st.lists(st.booleans(), min_size=size, max_size=size))


@st.composite
def memories(draw):
    """Buffers, and one of the live ones that stays, or None."""
    live = draw(FEW | MANY)
    taken = [buffer for buffer, one in enumerate(live) if one]
    return live, draw(st.none() | st.sampled_from(taken)) if taken else None


SIZES = (150, 300, 600)


def outside(live, offset):
    """How many live buffers lie outside of a window."""
    count = sum(live)
    return count - sum(live[offset : offset + count])


def windows(live, stays):
    """Where a window may begin."""
    count = sum(live)
    return [one for one in range(len(live) - count + 1) if stays is None or one <= stays < one + count]


def test_windows_of_any_buffers(work):
    """Outside lie the fewest live buffers, and not the one that stays; of equal windows the leftmost is taken."""

    def demand(memory):
        live, stays = memory
        found = work.call("window_offset", live, stays, form=int)
        right = min(windows(live, stays), key=lambda offset: outside(live, offset))  # the first of equal ones
        if found not in windows(live, stays):
            raise Unmet(
                f"window_offset of {told(live, stays)} is {found}: no window of {sum(live)} buffers "
                f"{'' if stays is None else 'with the one that stays '}begins there."
            )
        if outside(live, found) != outside(live, right):
            raise Unmet(
                f"window_offset of {told(live, stays)} is {found}, with {outside(live, found)} live buffers outside of "
                f"the window; {outside(live, right)} are outside of the window at {right}."
            )
        if found != right:
            raise Unmet(
                f"window_offset of {told(live, stays)} is {found}; the window at {right} is as good, and further left."
            )

    work.smallest(memories(), demand)


def test_gathers_any_buffers(work):
    """After the moves the live buffers lie side by side."""

    def demand(memory):
        live, stays = memory
        moves = asked(work, live, stays)
        after = gathered(live, moves)
        if not side_by_side(after):
            raise Unmet(f"{told(live, stays)} becomes {drawn(after)} by the moves {moves}: gather the live buffers.")

    work.smallest(memories(), demand)


def test_moves_the_least(work):
    """No plan has fewer copies: compared with every window that is allowed."""

    def demand(memory):
        live, stays = memory
        moves = asked(work, live, stays)
        best = min(outside(live, offset) for offset in windows(live, stays))
        if not side_by_side(gathered(live, moves)):
            raise Unmet(f"{told(live, stays)} is not gathered by the moves {moves}.")
        if len(moves) > best:
            raise Unmet(f"moves of {told(live, stays)} copies {len(moves)} buffers, and {best} are enough.")

    work.smallest(memories(), demand)


def steps_of(work, name, live, stays):
    """The steps of a call, if its value is as good as any."""
    best = min(outside(live, offset) for offset in windows(live, stays))
    if name == "moves":
        moves = asked(work, live, stays)
        good = side_by_side(gathered(live, moves)) and len(moves) == best
    else:
        offset = work.call(name, live, stays, form=int)
        good = offset in windows(live, stays) and outside(live, offset) == best
    if not good:
        raise Unmet(f"{name} of {told(live, stays)} does not gather the buffers by {best} copies, which are enough.")
    return work.steps


def test_is_linear(work):
    """Twice as many buffers take about twice as many steps."""
    random, memories = work.random, []
    for size in SIZES:
        live = [random.random() < 0.7 for _ in range(size)]  # more than half: windows lie around the one that stays
        live[size // 2] = True
        memories.append((live, size // 2))
    for name in ("window_offset", "moves"):
        steps = [steps_of(work, name, *memory) for memory in memories]
        if steps[2] > 2.5 * steps[1] + 50:
            raise Unmet(f"{name} takes {steps} steps for 150, 300 and 600 buffers: walk over them once.")


def test_keeps_the_laws(work):
    """In the engine, under all laws: the shuffle loses no KV and changes no answer."""
    lengths = work.random.sample(range(2, 12), 6)  # no two end together, so there are holes, which few scenarios have
    requests = [Request(f"r{i}", (1, 2), length, ignore_eos=True) for i, length in enumerate(lengths)]
    found = run(work, ROW, Shuffled, requests, memory__slots=6, batching__preprocess="inline")
    if idle := found.metrics["tokens"]["idle"]:
        raise Unmet(f"{idle} idle tokens are computed: gather the live buffers, and none is.", events=found.events)
    keeps_the_laws(work, ROW, Shuffled)
