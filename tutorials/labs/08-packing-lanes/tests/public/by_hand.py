"""Cases that can be done by hand, and a run in the engine."""

from stage import ROW, LanesOfStudent, asked

from minifuse.labs.engine import run, served
from minifuse.labs.judge import Unmet
from minifuse.request import Request
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
    """The lanes of figure 9 and of six smaller cases hold what the greedy rule says. Equal pieces may be exchanged."""
    for costs, most, right in LANES:
        found = asked(work, costs, most)
        if [[costs[piece] for piece in lane] for lane in found] != [[costs[piece] for piece in lane] for lane in right]:
            raise Unmet(f"lanes({costs}, {most}) is {found}, and should be {right}.")


def test_bubbles_by_hand(work):
    """The bubbles of figure 9, of another division of it, and of a wave without work."""
    for costs, prompts, lanes, right in BUBBLES:
        found = work.call("bubbles", costs, prompts, lanes, form=tuple[int, int, int])
        if found != right:
            raise Unmet(f"bubbles({costs}, {prompts}, {lanes}) is {found}, and should be {right}.")


EIGHT_LANES = Hardware(bandwidth=1e12, flops=1e15, overhead_s=50e-6, processors=256)  # 32 KV heads: 8 lanes at once
CONTEXTS = [500] * 64 + [4000]


def test_runs_in_the_engine(work):
    """A long context and 64 short ones are answered on a machine of eight lanes: packed, they take less time."""
    requests = [Request(f"r{i}", (1,) * length, 50, ignore_eos=True) for i, length in enumerate(CONTEXTS)]
    settings = {"kv_tokens": 65_536, "hardware": EIGHT_LANES, "batching__token_budget": 65_536}
    found = run(work, ROW, LanesOfStudent, requests, **settings)
    apart = served(mix(technique("fluid"), attention="paged"), requests, **settings)
    took, before = (1e3 * one.metrics["duration_s"] for one in (found, apart))
    if took > 0.85 * before:
        raise Unmet(
            f"the run takes {took:.0f} ms, and {before:.0f} ms if the pieces begin in the order of arrival, each in a "
            f"lane of its own: at most {0.85 * before:.0f} ms were expected. Which lanes do the leftovers go to?",
            events=found.events,
        )
