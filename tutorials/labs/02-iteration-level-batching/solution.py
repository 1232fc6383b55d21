"""Lab 2: iteration-level batching, with a token budget.

A request that runs or waits is told as {"name": "r0", "start": 3, "stop": 9}: it misses tokens [start, stop), the KV of
those before `start` is written. A request that misses one token decodes; one that misses more is a prompt. A piece of
work is [name, start, stop]. All functions get and return plain data.
"""


class Policy:
    """Decides, before each iteration, which requests compute how many of the tokens that they miss."""

    def __init__(self, max_batch: int, token_budget: int) -> None:
        """At most `max_batch` requests run at once, and an iteration has at most `token_budget` tokens."""
        self.max_batch = max_batch
        self.token_budget = token_budget

    def propose(self, running: list[dict], waiting: list[dict]) -> dict:
        """The work of the next iteration, and who joins with it.

        1. Each running request that decodes gets its token.
        2. Running prompts get what is left of the budget, the first to be admitted first, as much as it can use.
        3. While there is a place and a token left, the first that waits joins, and gets as much as it can use.

        Args:
            running: those that run, in the order in which they were admitted.
            waiting: those that wait, in the order in which they arrived.

        >>> running = [{"name": "a", "start": 5, "stop": 6}, {"name": "b", "start": 2, "stop": 4}]
        >>> Policy(3, 6).propose(running, [{"name": "c", "start": 0, "stop": 8}])
        {'admit': ['c'], 'work': [['a', 5, 6], ['b', 2, 4], ['c', 0, 3]]}
        """
        # BEGIN SOLUTION: who is served first, and what is left for the others?
        left = self.token_budget
        work, admit, prompts = [], [], []
        for one in running:
            if one["stop"] - one["start"] > 1:
                prompts.append(one)
            elif left:
                work.append([one["name"], one["start"], one["stop"]])
                left -= 1
        for one in prompts:
            if not left:
                break
            left -= self._piece(one, left, work)
        for one in waiting:
            if not left or len(running) + len(admit) >= self.max_batch:
                break
            admit.append(one["name"])
            left -= self._piece(one, left, work)
        return {"admit": admit, "work": work}
        # END SOLUTION

    # BEGIN SOLUTION
    def _piece(self, one: dict, left: int, work: list) -> int:
        """Add as many of a request's tokens as are left. Returns how many."""
        stop = min(one["stop"], one["start"] + left)
        work.append([one["name"], one["start"], stop])
        return stop - one["start"]

    # END SOLUTION


def attention(work: list[list]) -> list[tuple[int, int, int]]:
    """How the one matrix of an iteration is split for attention: (first row, end of rows, keys) of each piece.

    The tokens of all pieces are the rows of one matrix, in the order of the work. The queries of a piece are its rows
    [first, end); they attend to the keys of their own text, from its beginning to the end of the piece.

    >>> attention([["a", 5, 6], ["b", 0, 3]])
    [(0, 1, 6), (1, 4, 3)]
    """
    # BEGIN SOLUTION: where does each piece begin, if those before it lie in front of it?
    pieces, row = [], 0
    for _, start, stop in work:
        pieces.append((row, row + stop - start, stop))
        row += stop - start
    return pieces
    # END SOLUTION


def sampled(work: list[list], lengths: dict[str, int]) -> list[tuple[str, int]]:
    """The rows from which a next token is drawn: (name, row), in increasing order of rows.

    Args:
        lengths: the tokens that the text of each request has now. Its next token is drawn from the last of them.

    >>> sampled([["a", 5, 6], ["b", 0, 3]], {"a": 6, "b": 8})
    [('a', 0)]
    """
    # BEGIN SOLUTION: which pieces reach the end of their text, and which row is the last of each?
    found, row = [], 0
    for name, start, stop in work:
        row += stop - start
        if stop == lengths[name]:
            found.append((name, row - 1))
    return found
    # END SOLUTION


class Bounded:
    """Open task: a policy under which no two tokens of an answer are more than `bound_s` apart.

    An iteration takes (all in seconds, `cost` has the four rates and the overhead)

        overhead + max(weights + slot * keys, token * tokens + pair * pairs)

    where `tokens` are those of its work, `keys` the sum of the pieces' `stop`, and `pairs` the sum of all
    (query, key) pairs, each query with the keys up to its own. This policy computes one prompt at a time, 16 tokens of
    it in an iteration. Do better: finish all requests sooner.
    """

    def __init__(self, max_batch: int, bound_s: float, cost: dict[str, float]) -> None:
        """`cost` is {"overhead": ..., "weights": ..., "slot": ..., "token": ..., "pair": ...}."""
        self.most, self.bound_s, self.cost = max_batch, bound_s, cost

    def propose(self, running: list[dict], waiting: list[dict]) -> dict:
        """As `Policy.propose`. Memory takes all that you admit."""
        prompts = [one for one in running if one["stop"] > one["start"] + 1]
        work = [[one["name"], one["start"], one["stop"]] for one in running if one not in prompts]
        admit = [] if prompts or len(running) == self.most else waiting[:1]
        for prompt in (prompts + admit)[:1]:
            work += [[prompt["name"], prompt["start"], min(prompt["stop"], prompt["start"] + 16)]]
        return {"admit": [newcomer["name"] for newcomer in admit], "work": work}
