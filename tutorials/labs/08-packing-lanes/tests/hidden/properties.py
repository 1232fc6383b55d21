"""What holds of any wave."""

from hypothesis import strategies as st
from stage import ROW, LanesOfStudent, asked

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

DISTINCT = st.lists(st.integers(1, 20), min_size=4, max_size=8, unique=True)
ALIKE = st.lists(st.integers(1, 4), min_size=2, max_size=8)


def greedy(costs, most=None):
    """The rule, read literally: slow, and easy to check."""
    left, longest, found = [*range(len(costs))], max(costs), []
    while left and len(found) != most:
        lane = []
        while fitting := [one for one in left if sum(costs[i] for i in lane) + costs[one] <= longest]:
            lane.append(max(fitting, key=lambda one: (costs[one], -one)))
            left.remove(lane[-1])
        found.append(lane)
    for one in sorted(left, key=lambda one: -costs[one]):
        min(found, key=lambda lane: sum(costs[i] for i in lane)).append(one)
    return found


def lengths(costs, lanes):
    return [[costs[piece] for piece in lane] for lane in lanes]


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
    """Every lane is opened by the longest piece that is left, and filled with the longest that fits, while one does."""

    def demand(costs):
        found, right = asked(work, costs, None), greedy(costs)
        if lengths(costs, found) != lengths(costs, right):
            raise Unmet(f"lanes({costs}, None) is {found}, and should be {right}.")

    work.smallest(DISTINCT, demand, 150)


def test_first_come(work):
    """Of pieces that cost the same, the first to arrive has its turn first."""

    def demand(costs):
        found, right = asked(work, costs, None), greedy(costs)
        if lengths(costs, found) == lengths(costs, right) and found != right:
            raise Unmet(f"lanes({costs}, None) is {found}; of equal pieces the first comes first: {right}.")

    work.smallest(ALIKE, demand)


def test_leftovers_go_where_it_ends_first(work):
    """What is left when all lanes are full goes, longest first, to the lane that ends first."""

    def demand(case):
        costs, most = case
        if lengths(costs, asked(work, costs, None)) != lengths(costs, greedy(costs)):
            return  # which is another test's
        found, right = asked(work, costs, most), greedy(costs, most)
        if lengths(costs, found) != lengths(costs, right):
            raise Unmet(f"lanes({costs}, {most}) is {found}, and should be {right}.")

    work.smallest(st.tuples(DISTINCT, st.integers(1, 3)), demand)


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
    for most in (None, 8):
        steps = []
        for count in (200, 400, 800):
            work.call("lanes", [random.randint(1, 1000) for _ in range(count)], most, form=list[list[int]])
            steps.append(work.steps)
        if steps[2] > 2.6 * steps[1] + 100:
            told = f"lanes takes {steps} steps for 200, 400 and 800 pieces"
            raise Unmet(f"{told} (most: {most}): twice as many pieces are to take about twice as many steps.")


def test_keeps_the_laws(work):
    """In the engine, under all laws: lanes change no answer, and each piece of work has its turn in its own wave."""
    keeps_the_laws(work, ROW, LanesOfStudent, scenarios=15)
