"""Makes conversations of tasks that the shipped model has learnt, with the right answers.

    crowd                          tasks of one turn each, the default without --workload
    crowd:turns=4                  conversations of one to four turns, each number equally likely
    crowd:turns=4,reaction=10ms    a mean time of 10 ms (1 s by default) from an answer to the next turn, exponential

In a conversation of several turns, the first turn states a fact and the last turn asks for a fact
(`minifuse.model.tiny.tasks`). The last answer is right only if the model still sees the earlier turns.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.io.parsing import LONGEST_S, keyed, parse_duration, parse_int
from minifuse.model.tiny.tasks import Task, conversation, crowd
from minifuse.workload.conversations import MOST_TURNS, as_requests
from minifuse.workload.files import Encode
from minifuse.workload.laws import Arrival


@dataclass(frozen=True, slots=True)
class Talk:
    """Says which conversations are asked for."""

    turns: int = 1  # the maximum number of turns of a conversation
    reaction: float = 1.0  # mean seconds from an answer to the next turn


def parse_talk(text: str) -> Talk:
    """Parse `crowd`, with or without options.

    >>> parse_talk("crowd:turns=4,reaction=10ms")
    Talk(turns=4, reaction=0.01)

    Raises:
        UsageError: an option is unknown, is given twice or has a wrong value, or a reaction time is given for one turn.
    """
    given = keyed(text, {"turns": "4", "reaction": "10ms"})
    turns = parse_int(given.get("turns", "1"), "The turns of crowd", 1, MOST_TURNS)
    if "reaction" in given and turns == 1:
        raise UsageError(f'The workload is "{text}", and a conversation of one turn has no reaction: add turns=4.')
    reaction = parse_duration(given.get("reaction", "1s"), "The mean reaction time of crowd", LONGEST_S)
    return Talk(turns, reaction)


def talk(
    asked: Talk,
    count: int,
    encode: Encode,
    limit: int,
    arrival: Arrival | None = None,
    seed: int = 0,
) -> tuple[list[Request], dict[str, str]]:
    """Make the turns of `count` conversations (see `as_requests`), and the right answers.

    Args:
        limit: the maximum number of tokens of an answer; DEFAULT means the default of `Request`.
    """
    turns_rng, alone = random.Random(f"minifuse turns of crowd {seed}"), iter(crowd(count, seed))
    conversations: list[list[Task]] = []
    for number in range(count):
        turns = turns_rng.randint(1, asked.turns)
        # Each conversation has a seed of its own, so a larger crowd begins with the conversations of a smaller one.
        conversations.append([next(alone)] if turns == 1 else conversation(turns, seed * 1_000_003 + number))
    lengths = [
        [(tuple(encode(task.prompt, continues=i > 0)), limit) for i, task in enumerate(tasks)]
        for tasks in conversations
    ]
    requests = as_requests(lengths, asked.reaction, arrival, seed)
    tasks = (task for tasks in conversations for task in tasks)
    return requests, {request.id: task.answer for request, task in zip(requests, tasks, strict=True)}
