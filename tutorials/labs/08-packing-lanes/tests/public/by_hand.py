"""Cases that can be done by hand, and a run in the engine."""

from stage import ROW, LanesOfStudent, asked, called

from minifuse.core.request import Request
from minifuse.labs.engine import run, served
from minifuse.labs.judge import Unmet
from minifuse.simulate.cost import Hardware
from minifuse.techniques import mix, technique

FIG_9 = [25, 4, 1, 25, 1, 1]
COSTS = [
    ((10, 10, 100, 1), 40_000),
    ((100, 100, 64, 10), 2_560_000),
    ((1, 10, 100, 2), 8_960),
    ((1, 1000, 64, 164), 43_337_984),
]
LANES = [
    (FIG_9, None, [[0], [3], [1, 2, 4, 5]]),
    ([7], None, [[0]]),
    ([3, 3, 3], None, [[0], [1], [2]]),
    ([12, 6, 5, 4, 4, 3, 2], None, [[0], [1, 2], [3, 4, 5], [6]]),
    ([5, 5, 2, 2], 2, [[0, 2], [1, 3]]),
    (FIG_9, 5, [[0], [3], [1, 2, 4, 5]]),
    ([], None, []),
]
SIX = [10, 3, 1, 3, 3, 1]
ROOMS = [
    (SIX, 2, None, [[0, 5], [1, 3, 4, 2]]),
    (SIX, 2, 3, [[0, 2, 5], [1, 3, 4]]),
    (FIG_9, None, 2, [[0], [3], [1, 2], [4, 5]]),
    ([9, 4, 3, 2, 2, 2], None, 2, [[0], [1, 2], [3, 4], [5]]),
    ([6, 6, 1, 1, 1, 1], 3, 3, [[0, 5], [1], [2, 3, 4]]),
    ([4, 2, 1], None, 1, [[0], [1], [2]]),
    ([1, 4, 2], 3, 1, [[1], [2], [0]]),
]
BUBBLES = [
    ([25, 4, 1], [True, True, False], [[0], [1], [2]], [21, 24, 0]),
    (FIG_9, [True, True, False, True, False, False], [[0], [3], [1, 2, 4, 5]], [18, 0, 0]),
    (FIG_9, [True, True, False, True, False, False], [[0, 1], [3], [2, 4], [5]], [4, 55, 0]),
    ([], [], [], [0, 0, 0]),
]


def test_costs_by_hand(work):
    """Whole prompts and single tokens cost what the formulas of section 4.1 say."""
    for given, right in COSTS:
        found = work.call("cost", *given, form=int)
        if found != right:
            raise Unmet(f"cost{given} is {found}, and should be {right}.")


def test_lanes_by_hand(work):
    """The lanes of figure 9 and of six other cases hold what the greedy rule says. Equal pieces may be exchanged."""
    for costs, most, right in LANES:
        by_hand(work, costs, most, None, right)


def test_room_by_hand(work):
    """Lanes with few places, among them the README's, hold what the rule says. Equal pieces may be exchanged."""
    for case in ROOMS:
        by_hand(work, *case)


def by_hand(work, costs, most, room, right):
    found = asked(work, costs, most, room)
    if [[costs[piece] for piece in lane] for lane in found] != [[costs[piece] for piece in lane] for lane in right]:
        raise Unmet(f"{called(costs, most, room)} is {found}, and should be {right}.")


def test_bubbles_by_hand(work):
    """The bubbles of figure 9, of another division of it, and of a wave without work."""
    for costs, prompts, lanes, right in BUBBLES:
        found = work.call("bubbles", costs, prompts, lanes, form=tuple[int, int, int])
        if found != right:
            raise Unmet(f"bubbles({costs}, {prompts}, {lanes}) is {found}, and should be {right}.")


EIGHT_LANES = Hardware(bandwidth=1e12, flops=1e15, overhead_s=50e-6, processors=256)  # 32 KV heads: 8 lanes at once
CONTEXTS = [500] * 64 + [4000] + [100] * 8
ROOM = 10  # places in a lane: 80 in all, for 73 pieces


def test_runs_in_the_engine(work):
    """A long context and 72 shorter ones run in eight lanes of ten places: packed, they take less time."""
    requests = [Request(f"r{i}", (1,) * length, 50, ignore_eos=True) for i, length in enumerate(CONTEXTS)]
    settings = {"kv_tokens": 65_536, "hardware": EIGHT_LANES, "batching__token_budget": 65_536}
    found = run(work, ROW, LanesOfStudent, requests, attention__room=ROOM, **settings)
    apart = served(mix(technique("fluid"), attention="paged"), requests, **settings)
    took, before = (1e3 * one.metrics["duration_s"] for one in (found, apart))
    if took > 0.85 * before:
        raise Unmet(
            f"the run takes {took:.0f} ms, and {before:.0f} ms if the pieces begin in the order of arrival, each in a "
            f"lane of its own: at most {0.85 * before:.0f} ms were expected. Which lanes do the leftovers go to?",
            events=found.events,
        )
