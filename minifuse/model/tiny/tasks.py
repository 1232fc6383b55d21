"""The tasks that tiny can do: each has one right answer, of varying length.

    count from 3 to 9                              3 4 5 6 7 8 9
    sort 41 7 88                                   7 41 88
    reverse cat moon tree                          tree moon cat
    repeat owl 3 times                             owl owl owl
    add 17 and 25                                  42
    given ann 17, bob 4: recall bob                bob 4

In a conversation, one turn states a fact (`remember ann 17` is answered `ok`) and a later one asks for it (`recall ann`
is answered `ann 17`), with other tasks in between: a server that loses a conversation's KV gives a wrong number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from minifuse.model.tiny.words import MAX_NUMBER, NAMES, THINGS

MAX_COUNT = 250  # numbers in the longest counting answer
MAX_ITEMS = 6  # of a list to sort or to reverse
MAX_REPEATS = 12
MAX_OPERAND = 29
MAX_FACTS = 8  # in one conversation

_CONTENT = frozenset(NAMES) | frozenset(THINGS)


@dataclass(frozen=True)
class Task:
    """A prompt and its one right answer, without the space between them."""

    kind: str
    prompt: str
    answer: str


def is_held_out(prompt: str) -> bool:
    """Tell whether a prompt is kept out of training: one in ten, by hash.

    A held-out sum may still occur in training in other words, or with swapped operands. A prompt about fewer than two
    things (`recall ann`) has no content of its own and is never held out.
    """
    words = re.findall(r"[a-z]+|\d+", prompt)
    content = sum(word.isdigit() or word in _CONTENT for word in words)
    return content > 1 and hashlib.sha256(prompt.encode()).digest()[0] % 10 == 0


def _count(rng: Random, max_count: int = MAX_COUNT) -> Task:
    """Draw log-uniform lengths: many short answers, and a long tail."""
    length = max(1, min(max_count, int(max_count ** rng.uniform(0.0, 1.05))))
    first = rng.randint(0, MAX_NUMBER + 1 - length)
    last = first + length - 1
    prompt = rng.choice((f"count from {first} to {last}", f"list the numbers from {first} to {last}"))
    return Task("count", prompt, " ".join(map(str, range(first, last + 1))))


def _sort(rng: Random) -> Task:
    numbers = rng.sample(range(100), rng.randint(2, MAX_ITEMS))
    text = " ".join(map(str, numbers))
    prompt = rng.choice((f"sort {text}", f"put these numbers in order: {text}"))
    return Task("sort", prompt, " ".join(map(str, sorted(numbers))))


def _reverse(rng: Random) -> Task:
    things = rng.sample(THINGS, rng.randint(2, MAX_ITEMS))
    text = " ".join(things)
    return Task("reverse", rng.choice((f"reverse {text}", f"say backwards: {text}")), " ".join(reversed(things)))


def _repeat(rng: Random) -> Task:
    thing, times = rng.choice(THINGS), rng.randint(2, MAX_REPEATS)
    prompt = rng.choice((f"repeat {thing} {times} times", f"say {thing} {times} times"))
    return Task("repeat", prompt, " ".join([thing] * times))


def _add(rng: Random) -> Task:
    a, b = rng.randint(0, MAX_OPERAND), rng.randint(0, MAX_OPERAND)
    return Task("add", rng.choice((f"add {a} and {b}", f"what is {a} + {b}?")), str(a + b))


def _question(name: str, rng: Random) -> str:
    return rng.choice((f"recall {name}", f"what is {name}?"))


def _lookup(rng: Random, names: tuple[str, ...] = NAMES) -> Task:
    facts = {name: rng.randint(0, 99) for name in rng.sample(names, min(len(names), rng.randint(1, MAX_FACTS)))}
    name = rng.choice(list(facts))
    stated = ", ".join(f"{name} {number}" for name, number in facts.items())
    return Task("lookup", f"given {stated}: {_question(name, rng)}", f"{name} {facts[name]}")


KINDS: dict[str, Callable[[Random], Task]] = {
    "count": _count,
    "sort": _sort,
    "reverse": _reverse,
    "repeat": _repeat,
    "add": _add,
    "lookup": _lookup,
}
"""The kinds of task that depend on no earlier turn."""

_MIX = (*KINDS, "sort", "add", "add")  # in a conversation, the tasks that take longest to learn come more often


def _draw(make: Callable[[], Task], held_out: bool) -> Task:
    """Repeat `make` until `is_held_out` of the task's prompt equals `held_out`."""
    while is_held_out((task := make()).prompt) != held_out:
        pass
    return task


def crowd(n: int, seed: int = 0) -> list[Task]:
    """Draw `n` held-out prompts of one turn, of all kinds, distinct where possible.

    `crowd(10)` is the beginning of `crowd(20)`.
    """
    rng = Random(f"crowd {seed}")
    tasks: list[Task] = []
    prompts: set[str] = set()
    for _ in range(n):
        make = KINDS[rng.choice(list(KINDS))]
        for _ in range(100):
            task = _draw(lambda make=make: make(rng), held_out=True)  # type: ignore[misc]
            if task.prompt not in prompts:
                break
        prompts.add(task.prompt)
        tasks.append(task)
    return tasks


class Dialogue:
    """A conversation in progress: holds the facts stated, and draws the next task.

    Each name has one fact, so that there is one right answer to every question.
    """

    def __init__(self, rng: Random, held_out: bool, max_facts: int = MAX_FACTS, max_count: int = 30) -> None:
        self.rng = rng
        self.held_out = held_out
        self.max_count = max_count
        self.unused_names = rng.sample(NAMES, max_facts)
        self.facts: dict[str, int] = {}

    def tell(self) -> Task:
        """State a fact about a new name."""
        name = self.unused_names.pop()
        phrase = self.rng.choice(("remember", "note"))

        def make() -> Task:
            return Task("tell", f"{phrase} {name} {self.rng.randint(0, 99)}", "ok")

        task = _draw(make, self.held_out)
        self.facts[name] = int(task.prompt.split()[-1])
        return task

    def ask(self) -> Task:
        """Ask about a fact of an earlier turn."""
        name = self.rng.choice(list(self.facts))
        return Task("ask", _question(name, self.rng), f"{name} {self.facts[name]}")

    def other(self) -> Task:
        """Draw a task that does not depend on earlier turns."""
        kind = self.rng.choice(_MIX)
        if kind == "count":
            return _draw(lambda: _count(self.rng, self.max_count), self.held_out)
        if kind == "lookup":
            return self.lookup() if self.unused_names else self.ask()
        return _draw(lambda: KINDS[kind](self.rng), self.held_out)

    def lookup(self) -> Task:
        """State facts about new names, and ask for one of them, in one turn."""
        task = _draw(lambda: _lookup(self.rng, tuple(self.unused_names)), self.held_out)
        stated = {name: int(number) for name, number in re.findall(r"([a-z]+) (\d+)", task.prompt)}
        self.unused_names = [name for name in self.unused_names if name not in stated]
        self.facts |= stated
        return task

    def next(self) -> Task:
        """Draw a new fact, a question about a stated fact, or another task."""
        draw = self.rng.random()
        if draw < 0.25 and self.unused_names:
            return self.tell()
        return self.ask() if draw < 0.5 and self.facts else self.other()


def conversation(turns: int, seed: int = 0) -> list[Task]:
    """Draw a held-out conversation: its first turn states a fact, its last asks for one.

    Its facts, sums, lists and ranges are all held out of training. A hundred turns take about 800 tokens.
    """
    dialogue = Dialogue(Random(f"conversation {seed}"), held_out=True)
    tasks = [dialogue.tell()] if turns else []
    tasks += [dialogue.next() for _ in range(turns - 2)]
    return [*tasks, dialogue.ask()] if turns > 1 else tasks
