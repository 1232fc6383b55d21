"""What holds of any wave."""

from hypothesis import strategies as st
from stage import ROOMS_OF_2, LanesOfStudent, asked, called

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

DISTINCT = st.lists(st.integers(1, 30), min_size=4, max_size=12, unique=True)
ALIKE = st.lists(st.integers(1, 4), min_size=2, max_size=8)
ROOM = st.none() | st.integers(2, 4)
SIZES = (100, 200, 400)
MOST = 8


def greedy(costs, most, room):
    """The rule, read literally: slow, and easy to check."""
    left, longest, found = [*range(len(costs))], max(costs), []
    while left and len(found) != most:
        lane, end = [], 0
        while len(lane) != room and (fitting := [one for one in left if end + costs[one] <= longest]):
            lane.append(max(fitting, key=lambda one: (costs[one], -one)))
            end += costs[lane[-1]]
            left.remove(lane[-1])
        found.append(lane)
    for one in sorted(left, key=lambda one: -costs[one]):
        min((lane for lane in found if len(lane) != room), key=lambda lane: sum(costs[i] for i in lane)).append(one)
    return found


def lengths(costs, lanes):
    return [[costs[piece] for piece in lane] for lane in lanes]


def check(found, costs, most, room):
    """Raise `Unmet` unless these are the lanes of the rule, but for the order of equal pieces."""
    right = greedy(costs, most, room)
    if lengths(costs, found) == lengths(costs, right):
        return
    told = called(costs, most, room)
    if len(costs) < SIZES[0]:
        raise Unmet(f"{told} is {found}, and should be {right}.")
    if len(found) != len(right):
        raise Unmet(f"{told} has {len(found)} lanes, and should have {len(right)}.")
    for number, pair in enumerate(zip(lengths(costs, found), lengths(costs, right))):
        if pair[0] != pair[1]:
            raise Unmet(f"{told}: lane {number} has pieces of {pair[0]}, and should have pieces of {pair[1]}.")


def test_costs_of_pieces(work):
    """A piece of a prompt at the end of a longer context costs its arithmetic or its bytes, whichever take longer."""

    def demand(case):
        queries, before, hidden, balance = case
        context = queries + before
        right = max(
            4 * queries * context * hidden, balance * (4 * context * hidden + queries * (8 * context + 4 * hidden))
        )
        found = work.call("cost", queries, context, hidden, balance, form=int)
        if found != right:
            raise Unmet(f"cost({queries}, {context}, {hidden}, {balance}) is {found}, and should be {right}.")

    work.smallest(
        st.tuples(st.integers(2, 400), st.integers(0, 4000), st.integers(1, 4096), st.integers(1, 300)), demand
    )


def test_longest_that_fits(work):
    """Every lane is opened by the longest piece that is left, and filled with the longest that fits, while one does
    and the lane has a place."""

    def demand(case):
        check(asked(work, *case), *case)

    work.smallest(st.tuples(DISTINCT, st.none(), ROOM), demand)


def test_first_come(work):
    """Of pieces that cost the same, the first to arrive has its turn first."""

    def demand(case):
        costs, room = case
        found, right = asked(work, costs, None, room), greedy(costs, None, room)
        if lengths(costs, found) == lengths(costs, right) and found != right:
            told = called(costs, None, room)
            raise Unmet(f"{told} is {found}; of equal pieces the first comes first: {right}.")

    work.smallest(st.tuples(ALIKE, ROOM), demand)


def test_leftovers_go_where_it_ends_first(work):
    """What is left when all lanes are filled goes, longest first, to the lane that ends first of those with a place."""

    def demand(case):
        costs, _, room = case
        if work.call("lanes", costs, None, room, form=list[list[int]]) != greedy(costs, None, room):
            return  # which is another test's
        check(asked(work, *case), *case)

    def bounded(case):
        costs, most, spare = case
        return costs, most, None if spare is None else -(-len(costs) // most) + spare

    spares = st.none() | st.integers(0, 2)  # places of a lane, beside the fewest that are enough
    work.smallest(st.tuples(DISTINCT, st.integers(1, 4), spares).map(bounded), demand)


def test_bubbles_of_any_lanes(work):
    """The bubbles of any lanes, among them those of waves that have no prompt."""

    def demand(case):
        pieces, breaks, several = case
        lanes = [[]]
        for number, broken in zip(range(len(pieces)), [False, *breaks, *[False] * 9]):
            if broken:
                lanes.append([])
            lanes[-1].append(number)
        costs, prompts = [one for one, _ in pieces], [one and several for _, one in pieces]
        ends, right = [sum(costs[i] for i in lane) for lane in lanes], [0, 0, 0]
        for lane, end in zip(lanes, ends):
            kind = 0 if any(prompts[i] for i in lane) else 1 if any(prompts) else 2
            right[kind] += max(ends) - end
        found = work.call("bubbles", costs, prompts, lanes, form=tuple[int, int, int])
        if found != right:
            raise Unmet(f"bubbles({costs}, {prompts}, {lanes}) is {found}, and should be {right}.")

    pieces = st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=2, max_size=7)
    work.smallest(st.tuples(pieces, st.lists(st.booleans(), min_size=3, max_size=7), st.booleans()), demand)


def test_is_fast(work):
    """Twice as many pieces take little more than twice as many steps, also where lanes are few."""
    random = work.random
    for most in (None, MOST):
        steps = []
        for size in SIZES:
            costs = [random.randint(1, random.choice([60, 1000])) for _ in range(size)]
            case = costs, most, -(-size // most) if most else 3
            check(asked(work, *case), *case)
            steps.append(work.steps)
        if steps[2] > 2.6 * steps[1] + 100:
            told = f"lanes takes {steps} steps for 100, 200 and 400 pieces"
            raise Unmet(f"{told} (most: {most}): twice as many pieces are to take about twice as many steps.")


def test_keeps_the_laws(work):
    """In the engine, under all laws: lanes of two places change no answer, and each piece has its turn in its wave."""
    keeps_the_laws(work, ROOMS_OF_2, LanesOfStudent, scenarios=15)
