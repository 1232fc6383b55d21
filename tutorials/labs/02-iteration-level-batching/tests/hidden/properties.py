"""What holds of any proposal."""

from hypothesis import strategies as st
from stage import ROW, Students, asked

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

DECODES = st.tuples(st.integers(1, 9), st.just(1))
PROMPTS = st.tuples(st.integers(0, 4), st.integers(2, 9))
ANY = st.one_of(DECODES, PROMPTS)


@st.composite
def cases(draw, runs=ANY):
    """max_batch, token_budget, and requests that run and wait; no more run than may."""
    most, budget = draw(st.integers(1, 6)), draw(st.integers(1, 3) | st.integers(1, 12))
    count = draw(st.integers(0, most))
    running = [ask(f"r{9 - i}", *draw(runs)) for i in range(count)]  # the order of names is not that of arrival
    lengths = draw(st.lists(st.integers(1, 9), min_size=not running, max_size=5))
    return most, budget, running, [ask(f"w{9 - i}", 0, tokens) for i, tokens in enumerate(lengths)]


def ask(name, start, tokens):
    return {"name": name, "start": start, "stop": start + tokens}


def proposed(work, case):
    """What a new policy proposes: whom it admits, and the tokens that each request computes."""
    most, budget, running, waiting = case
    admit, pieces = asked(work.make("Policy", most, budget), running, waiting)
    return admit, {name: stop - start for name, start, stop in pieces}


def said(case, admit, tokens):
    most, budget, running, waiting = case
    return f"Policy({most}, {budget}).propose({running}, {waiting}) admits {admit}, with {tokens} tokens of each"


def missed(one):
    return one["stop"] - one["start"]


def test_decoding_goes_first(work):
    """No prompt computes a token while a running request that decodes goes without its own."""

    def demand(case):
        admit, tokens = proposed(work, case)
        prompts = [one["name"] for one in case[2] if missed(one) > 1] + admit
        without = [one["name"] for one in case[2] if missed(one) == 1 and one["name"] not in tokens]
        if without and (first := next((name for name in prompts if name in tokens), None)):
            raise Unmet(f"{said(case, admit, tokens)}: {without[0]} decodes and gets none, while {first} does.")

    work.smallest(cases(), demand)


def test_within_the_budget(work):
    """An iteration has no more tokens than the budget, and no more requests run than max_batch."""

    def demand(case):
        admit, tokens = proposed(work, case)
        if sum(tokens.values()) > case[1]:
            raise Unmet(f"{said(case, admit, tokens)}: {sum(tokens.values())} tokens, and {case[1]} are allowed.")
        if len(case[2]) + len(admit) > case[0]:
            raise Unmet(f"{said(case, admit, tokens)}: {len(case[2]) + len(admit)} run, and {case[0]} may.")

    work.smallest(cases(), demand)


def test_fills_the_budget(work):
    """If budget is left over, no running request misses a token, and none waits while there is a place."""

    def demand(case):
        admit, tokens = proposed(work, case)
        left = case[1] - sum(tokens.values())
        told = {one["name"]: one for one in (*case[2], *case[3])}
        short = [
            name for name in (*(one["name"] for one in case[2]), *admit) if tokens.get(name, 0) < missed(told[name])
        ]
        if left > 0 and short:
            raise Unmet(f"{said(case, admit, tokens)}: {left} tokens are left over, and {short[0]} misses more.")
        if left > 0 and len(admit) < len(case[3]) and len(case[2]) + len(admit) < case[0]:
            raise Unmet(f"{said(case, admit, tokens)}: {left} tokens are left over, there is a place, and one waits.")

    work.smallest(cases(), demand)


def test_first_come_first_served(work):
    """Who came first is served first: of the queue, and of the prompts that run."""

    def demand(case):
        admit, tokens = proposed(work, case)
        queue = [one["name"] for one in case[3]]
        if admit != queue[: len(admit)]:
            raise Unmet(f"{said(case, admit, tokens)}: {queue[: len(admit)]} came first.")
        prompts = [one for one in case[2] if missed(one) > 1] + case[3][: len(admit)]
        for early, late in zip(prompts, prompts[1:], strict=False):
            if tokens.get(early["name"], 0) < missed(early) and late["name"] in tokens:
                raise Unmet(
                    f"{said(case, admit, tokens)}: {early['name']} misses more, and comes before {late['name']}."
                )

    work.smallest(cases(PROMPTS), demand)


def test_one_matrix(work):
    """Attention finds the queries and keys of each piece in the one matrix, in whatever order the pieces lie."""
    piece = st.tuples(st.integers(0, 9), st.integers(1, 4))

    def demand(drawn):
        pieces = [[f"r{i}", start, start + tokens] for i, (start, tokens) in enumerate(drawn)]
        rows = [(name, position) for name, start, stop in pieces for position in range(start, stop)]
        right = []
        for name, _, stop in pieces:
            own = [row for row, (who, _) in enumerate(rows) if who == name]
            right.append([own[0], own[-1] + 1, stop])
        found = work.call("attention", pieces, form=list[tuple[int, int, int]])
        if found != right:
            raise Unmet(f"attention({pieces}) is {found}, and should be {right}.")

    work.smallest(st.lists(piece, max_size=5), demand)


def counted(work, most, budget, running, waiting, right):
    """The steps of a proposal, if it admits as many as are right, and if all that run or join get all their tokens."""
    admit, tokens = proposed(work, (most, budget, running, waiting))
    joined = waiting[:right]
    wanted = {one["name"]: missed(one) for one in running + joined}
    if admit != [one["name"] for one in joined] or tokens != wanted:
        raise Unmet(
            f"of {len(running)} that run and {len(waiting)} that wait, Policy({most}, {budget}).propose admits "
            f"{len(admit)}, and {len(tokens)} compute: {right} may join, and {len(wanted)} get all that they miss."
        )
    return work.steps


def test_looks_no_further(work):
    """Twice as many running requests take about twice as many steps; those that stay in the queue take none."""
    running = [ask(f"r{i}", work.random.randint(1, 99), 1) for i in range(400)]
    steps = [counted(work, size, 1000, running[:size], [], 0) for size in (100, 200, 400)]
    if steps[2] > 2.5 * steps[1] + 50:
        raise Unmet(f"propose takes {steps} steps for 100, 200 and 400 running requests: it is to walk over them once.")
    queues = [[ask(f"w{i}", 0, 5) for i in range(size)] for size in (10, 3000)]
    steps = [counted(work, 4, 20, running[:3], queue, 1) for queue in queues]
    if steps[1] > steps[0] + 50:
        raise Unmet(
            f"with one place left, propose takes {steps[0]} steps if 10 wait, and {steps[1]} if 3,000 do: look at no "
            "more of the queue than is admitted, and the next."
        )


def test_keeps_the_laws(work):
    """In the engine, under all laws, with memory that often has no room for a request that you admit."""
    keeps_the_laws(work, ROW, Students)
