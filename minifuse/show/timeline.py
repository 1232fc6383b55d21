"""Draws a run in characters: a row for each request, iterations from left to right."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minifuse.core.plan import TRANSFORMER
from minifuse.trace.history import History, Iteration, Story
from minifuse.trace.idle_rows import idle_rows

WAITING, READY, SUSPENDED, HELD, PREPROCESSING, PROMPT, RUNNING, IDLE, ENDED, BROKEN_OFF = ".:~-op#x|!"
MEANINGS = {
    WAITING: "waits",
    PREPROCESSING: "prompt computed apart",
    READY: "prompt computed apart, waits to join",
    PROMPT: "computes a prompt, or a text anew",
    RUNNING: "computes a token",
    HELD: "admitted, not in this iteration",
    SUSPENDED: "suspended: evicted, waits to come back",
    IDLE: "ended, and is still computed: idle",
    ENDED: "ends",
    BROKEN_OFF: "ends before its answer does",
}
STRENGTH = {sign: i for i, sign in enumerate(WAITING + HELD + RUNNING + READY + PROMPT + PREPROCESSING + IDLE)}
WAIT_SIGNS = {"waiting": WAITING, "ready": READY, "suspended": SUSPENDED}
PHASE_SIGNS = {"pre-processing": PREPROCESSING, "prompt": PROMPT, "decoding": RUNNING}


class Column(NamedTuple):
    """A column before columns are binned: an iteration, or a pause in which nothing ran."""

    start_s: float
    end_s: float
    iteration: int | None  # its index; None: a pause


@dataclass(frozen=True, slots=True)
class Timeline:
    """A picture: rows of signs; each sign stands for `per_column` iterations or pauses."""

    rows: dict[str, str]
    idle: str  # for each column, the tenths of its tokens that were idle; blank if none
    memory: str  # for each column, the tenths of memory in use
    per_column: int
    num_columns: int  # before binning
    in_all: int  # columns of the whole run; the picture ends when the requests with rows have ended
    legend: dict[str, str]
    left_out: int  # requests that have no row


def draw_timeline(history: History, most_columns: int, most_rows: int) -> Timeline:
    """Draw the first `most_rows` requests by arrival, in at most `most_columns` columns."""
    stories = history.by_arrival
    shown = stories[:most_rows]
    every = columns = columns_of(history)
    if len(shown) < len(stories):
        until_s = max(map(history.end_of, shown))
        columns = [column for column in every if column.start_s < until_s]
    per_column = max(1, -(-len(columns) // most_columns))
    letters = letters_of(history)
    idle = idle_rows(history) if shown else {}
    painter = _Painter(history, columns, letters, idle)
    rows = {story.id: _binned(painter.row(story), per_column) for story in shown}
    occurring = set("".join(rows.values()))
    legend = {sign: means for sign, means in MEANINGS.items() if sign in occurring}
    legend |= {sign: f"computes nodes of {cell}" for cell, sign in letters.items() if sign in occurring}
    bins = [columns[i : i + per_column] for i in range(0, len(columns), per_column)]
    return Timeline(
        rows=rows,
        idle="".join(_idle_share(history, one) for one in bins),
        memory=_shown_if_any("".join(_memory_share(history, one) for one in bins)),
        per_column=per_column,
        num_columns=len(columns),
        in_all=len(every),
        legend=legend,
        left_out=len(stories) - len(shown),
    )


def columns_of(history: History) -> list[Column]:
    """Return iterations with work, and pauses with waiting requests, ordered by their ends.

    Workers compute side by side: in another order, a request could seem to go on after its last iteration, or to have a
    token before its prompt.
    """
    columns = [Column(one.start_s, one.end_s, i) for i, one in enumerate(history.iterations) if one.work]
    columns += [
        Column(pause.at_s, end_s, None)
        for pause, end_s in zip(history.pauses, history.pauses_end_s, strict=True)
        if pause.reasons
    ]
    return sorted(columns, key=lambda column: (column.end_s, column.start_s))


def letters_of(history: History) -> dict[str, str]:
    """Choose a letter for each type of cell: the first free letter of its name.

    Encoder, decoder and end get e, d and n.
    """
    found: dict[str, str] = {}
    taken = set(MEANINGS)
    for one in history.iterations:
        for cell in one.cells:
            if cell not in found and cell != TRANSFORMER:
                free = [letter for letter in cell.lower() + "abcdefghijklmnopqrstuvwxyz" if letter.isalpha()]
                found[cell] = next((letter for letter in free if letter not in taken), RUNNING)
                taken.add(found[cell])
    return found


def sign_of(story: Story, one: Iteration, letters: Mapping[str, str]) -> str:
    """Return a request's sign in an iteration; `letters` is the result of `letters_of`."""
    phase = story.phase_in(one)
    return letters[phase] if phase in letters else PHASE_SIGNS[phase]


class _Painter:
    """Fills rows with signs: what a request does at the end of each column."""

    def __init__(
        self, history: History, columns: list[Column], letters: dict[str, str], idle: dict[str, list[int]]
    ) -> None:
        self._history, self._columns, self._letters, self._idle = history, columns, letters, idle
        self._ends = [column.end_s for column in columns]
        self._of = {column.iteration: i for i, column in enumerate(columns) if column.iteration is not None}

    def row(self, story: Story) -> list[str]:
        """Return a request's sign in each column: computing hides waiting, waiting hides `HELD`."""
        signs = [" "] * len(self._columns)
        if story.admitted_s is not None:
            self._fill(signs, story.admitted_s, self._history.end_of(story), HELD)
        for wait in story.waits:
            self._fill(signs, wait.start_s, wait.end_s, WAIT_SIGNS[wait.kind])
        self._compute(signs, story)
        last = self._last(story)
        if last is not None:
            after = self._after(story, last)
            signs[last:] = [ENDED if story.finished else BROKEN_OFF, *[" "] * (len(signs) - last - 1)]
            for i in after:
                signs[i] = IDLE
        return signs

    def _after(self, story: Story, last: int) -> list[int]:
        """Return the columns after a request's end that still compute for it."""
        idle = [*self._idle.get(story.id, ()), *story.iterations]
        return [self._of[index] for index in idle if self._of.get(index, -1) > last]

    def _fill(self, signs: list[str], start_s: float, end_s: float, sign: str) -> None:
        """Put `sign` into every column whose end is after `start_s` and not after `end_s`."""
        first, stop = bisect_right(self._ends, start_s), bisect_right(self._ends, end_s)
        signs[first:stop] = [sign] * (stop - first)

    def _compute(self, signs: list[str], story: Story) -> None:
        """Put in the signs of a request's iterations.

        While an iteration of the request runs, iterations of other workers may end: their columns get the request's
        sign, too. Suppose that the request's iterations end in columns 3 and 7, and that other iterations end in
        columns 5 and 6 while the second one runs. Then columns 5, 6 and 7 get the sign of the second one.
        """
        before, before_end_s, sign = -1, float("-inf"), HELD
        own = sorted((self._of[index], index) for index in story.iterations if index in self._of)
        for column, index in own:
            one = self._history.iterations[index]
            first = min(column, max(before + 1, bisect_right(self._ends, one.start_s)))
            for i in range(before + 1, first):  # others', begun before the request's last one ended
                if signs[i] == HELD and self._columns[i].start_s < before_end_s:
                    signs[i] = sign
            sign = sign_of(story, one, self._letters)
            signs[first : column + 1] = [sign] * (column + 1 - first)
            before, before_end_s = column, one.end_s

    def _last(self, story: Story) -> int | None:
        """Return the column of a request's last iteration, or the column of its abort."""
        if story.ended_s is None:
            return None
        iterations = self._history.iterations
        with_it = [i for i in story.iterations if iterations[i].end_s == story.ended_s and i in self._of]
        if with_it:
            return max(self._of[i] for i in with_it)
        i = bisect_left(self._ends, story.ended_s)
        if i == len(self._ends) or self._columns[i].start_s >= story.ended_s:
            i -= 1
        return i if i >= 0 else None


def _binned(signs: list[str], per_column: int) -> str:
    """Bin signs: show an end, else the most frequent sign; of equals, the strongest.

    >>> _binned(list("..p###|"), 3)
    '.#|'
    """
    if per_column == 1:
        return "".join(signs)
    return "".join(_of_bin(signs[i : i + per_column]) for i in range(0, len(signs), per_column))


def _of_bin(signs: list[str]) -> str:
    for end in (BROKEN_OFF, ENDED):
        if end in signs:
            return end
    counts = Counter(sign for sign in signs if sign != " ")
    return max(counts, key=lambda sign: (counts[sign], STRENGTH.get(sign, len(STRENGTH))), default=" ")


def _idle_share(history: History, columns: list[Column]) -> str:
    events = [history.iterations[one.iteration].event for one in columns if one.iteration is not None]
    computed, idle = (sum(event[name] for event in events) for name in ("computed", "idle"))
    return _tenths(idle, computed) if idle else " "


def _memory_share(history: History, columns: list[Column]) -> str:
    events = [history.iterations[one.iteration].event for one in columns if one.iteration is not None]
    return max((_tenths(event["kv"][0], event["kv"][2]) for event in events), default=" ")


def _tenths(part: int, whole: int) -> str:
    """Write a share in tenths as a digit from 0 to 9."""
    return str(min(9, 10 * part // whole)) if whole else " "


def _shown_if_any(digits: str) -> str:
    """Return the row of digits, or an empty text if all are 0 or blank."""
    return digits if digits.strip(" 0") else ""
