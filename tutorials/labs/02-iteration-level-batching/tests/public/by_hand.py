"""Cases that can be done by hand."""

from stage import ROW, Students, asked

from minifuse.core.request import Request
from minifuse.labs.engine import check_schedule, run
from minifuse.labs.judge import Unmet


def ask(name, start, stop):
    return {"name": name, "start": start, "stop": stop}


SIX = [ask(f"d{i}", 32 + i, 33 + i) for i in range(6)]
CASES = [  # max_batch, token_budget, running, waiting, admit, what of each is computed
    (4, 8, [], [ask("a", 0, 3)], ["a"], [["a", 0, 3]]),
    (4, 8, [], [ask("a", 0, 3), ask("b", 0, 6)], ["a", "b"], [["a", 0, 3], ["b", 0, 5]]),
    (2, 8, [ask("a", 7, 8), ask("b", 4, 9)], [ask("c", 0, 2)], [], [["a", 7, 8], ["b", 4, 9]]),
    (3, 2, [ask("a", 7, 8), ask("b", 4, 9)], [ask("c", 0, 2)], [], [["a", 7, 8], ["b", 4, 5]]),
    (8, 256, SIX, [ask("p", 0, 1800)], ["p"], [*([f"d{i}", 32 + i, 33 + i] for i in range(6)), ["p", 0, 250]]),
    (8, 256, [*SIX, ask("p", 250, 1800)], [], [], [*([f"d{i}", 32 + i, 33 + i] for i in range(6)), ["p", 250, 500]]),
]


def test_iterations_by_hand(work):
    """Six single iterations, two of them chapter 3's prompt of 1,800 tokens beside six answers, are as done by hand."""
    for most, budget, running, waiting, admit, right in CASES:
        found, pieces = asked(work.make("Policy", most, budget), running, waiting)
        if (found, sorted(pieces)) != (admit, sorted(right)):
            raise Unmet(
                f"Policy({most}, {budget}).propose({running}, {waiting}) admits {found} for the work {pieces}; "
                f"{admit} and {right} are right."
            )


def test_a_run_by_hand(work):
    """Three requests run in the engine, two at most at once, with four tokens in an iteration: as done by hand."""
    requests = [
        Request(name, tuple(range(1, 1 + prompt)), answer, ignore_eos=True)
        for name, prompt, answer in (("a", 2, 5), ("b", 9, 1), ("c", 10, 1))
    ]
    found = run(work, ROW, Students, requests, batching__max_batch=2, batching__token_budget=4)
    check_schedule(
        found,
        [
            [("a", 0, 2), ("b", 0, 2)],
            [("a", 2, 3), ("b", 2, 5)],
            [("a", 3, 4), ("b", 5, 8)],
            [("a", 4, 5), ("b", 8, 9)],
            [("a", 5, 6), ("c", 0, 3)],
            [("c", 3, 7)],
            [("c", 7, 10)],
        ],
    )


def test_rows_by_hand(work):
    """Next tokens are drawn from the right rows: in a case done by hand, and in twenty that are drawn."""
    check_rows(work, [["a", 5, 6], ["b", 0, 3], ["c", 4, 6]], {"a": 6, "b": 8, "c": 6}, [["a", 0], ["c", 5]])
    random = work.random
    for _ in range(20):
        pieces, lengths, right, row = [], {}, [], -1
        for i in range(random.randint(1, 5)):
            start, tokens, rest = random.randint(0, 9), random.randint(1, 4), random.choice((0, 0, 1, 5))
            pieces.append([f"r{i}", start, start + tokens])
            lengths[f"r{i}"] = start + tokens + rest
            row += tokens
            if not rest:
                right.append([f"r{i}", row])
        check_rows(work, pieces, lengths, right)


def check_rows(work, pieces, lengths, right):
    found = work.call("sampled", pieces, lengths, form=list[tuple[str, int]])
    if found != right:
        raise Unmet(f"sampled({pieces}, {lengths}) is {found}, and should be {right}.")
