"""Lab 7: vector shaping and vector embedding.

A sequence is told by its name. A newcomer is [name, length, missing]: its text has `length` tokens, of which the
iteration computes the last `missing`; the KV of the others is there already, and is copied to where you put it.
A span is [start, stop): columns from `start` up to, and without, `stop`. All is plain data.
"""


class Window:
    """A rectangle of `rows` rows, whose columns are numbered on for ever. Newcomers are shaped, or else embedded.

    >>> window = Window(3, False)
    >>> window.enter([["a", 3, 3], ["b", 3, 3], ["c", 3, 3]]), window.enter([])
    ((0, 3), (3, 4))
    >>> window.leave("c")
    >>> window.enter([["d", 2, 2]]), window.idle()  # 3 rows of 2 columns: 2 tokens of d, and one each of a and b
    ((4, 6), 2)
    >>> window.enter([]), window.columns("a"), window.mask("a")
    ((6, 7), [[0, 5], [6, 7]], [1, 1, 1, 1, 1, 0, 1])
    """

    def __init__(self, rows: int, embed: bool) -> None:
        """No sequence has a row yet."""
        # BEGIN SOLUTION: what is to be remembered of the window, and of each sequence?
        self.embed = embed
        self.free = list(range(rows))
        self.taken, self.spans = {}, {}
        self.first = self.stop = self.wasted = 0
        # END SOLUTION

    def enter(self, newcomers: list[list]) -> tuple[int, int]:
        """Go on by one iteration, with every sequence that has a row and with these newcomers. Leading columns are
        released. Returns the span of columns that is computed, in every row up to the last that has a sequence.
        """
        # BEGIN SOLUTION: which columns are computed, and which of them does each sequence get?
        longest = max((missing for _, _, missing in newcomers), default=0)
        others, before = list(self.spans), self.stop
        if not others:
            self.stop = max(length for _, length, _ in newcomers)
            start = self.stop - longest
        elif self.embed:
            self.stop += 1
            start = min(self.stop - longest, before)
        else:
            self.stop += max(longest, 1)
            start = before
        for name in others:
            self._append(name, before)
        for name, length, _ in newcomers:
            self.taken[name] = self.free.pop(0)
            self.spans[name] = [[self.stop - length, self.stop]]
        self.first = min(spans[0][0] for spans in self.spans.values())
        computed = (max(self.taken.values()) + 1) * (self.stop - start)
        self.wasted = computed - len(others) - sum(missing for _, _, missing in newcomers)
        return start, self.stop
        # END SOLUTION

    def leave(self, name: str) -> None:
        """A sequence has ended, or is evicted: its row is free. Columns are not released before the next `enter`."""
        # BEGIN SOLUTION: what is forgotten, and what is free again?
        self.free = sorted([*self.free, self.taken.pop(name)])
        del self.spans[name]
        # END SOLUTION

    def move(self, name: str, row: int) -> None:
        """A sequence gets another row, which is free, and keeps its columns; its own row is free from now on."""
        # BEGIN SOLUTION: which row is free now, and which is not?
        self.free = sorted([*(one for one in self.free if one != row), self.taken[name]])
        self.taken[name] = row
        # END SOLUTION

    def rows(self) -> dict[str, int]:
        """The row of each sequence that has one."""
        # BEGIN SOLUTION: who has which row?
        return self.taken
        # END SOLUTION

    def columns(self, name: str) -> list[list[int]]:
        """The columns of the tokens of a sequence, in order, as few spans as it takes."""
        # BEGIN SOLUTION: where do its tokens lie?
        return self.spans[name]
        # END SOLUTION

    def begin(self) -> int:
        """The first column in use: those before it have been released."""
        # BEGIN SOLUTION: which columns were released by the last `enter`?
        return self.first
        # END SOLUTION

    def mask(self, name: str) -> list[int]:
        """The mask of a sequence's last token: for each column in use 1 if a token of the sequence lies there, or 0."""
        # BEGIN SOLUTION: which columns does its token see?
        inside = [column for start, stop in self.spans[name] for column in range(start, stop)]
        return [int(column in inside) for column in range(self.first, self.stop)]
        # END SOLUTION

    def idle(self) -> int:
        """The tokens that the last iteration computed for nothing."""
        # BEGIN SOLUTION: how many places are computed, and how many are needed?
        return self.wasted
        # END SOLUTION

    # BEGIN SOLUTION
    def _append(self, name, column):
        spans = self.spans[name]
        if spans[-1][1] == column:
            spans[-1][1] += 1
        else:
            spans.append([column, column + 1])

    # END SOLUTION


def choose(waiting: list[list], running: list[list], free: int) -> list[str]:
    """Open task: which waiting requests are inserted now, by shaping, where `free` rows are free.

    waiting: [name, tokens of the prompt, iterations that it has waited] of each, the first to arrive first.
    running: [name, tokens of the prompt, tokens answered so far] of each.

    Returns names, at most `free`; at least one if none runs. Here the first to arrive. Do better.
    """
    return [name for name, _, _ in waiting[:free]]
