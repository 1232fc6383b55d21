"""Makes runs that start cold: with no conversation under way, unlike `under_way`."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from itertools import count as count_up
from typing import NamedTuple

from minifuse.core.request import Request
from minifuse.papers.pensieve.under_way import TOKEN_S, Crowd, Period
from minifuse.workload.conversations import MEANS, Lengths


class _Open(NamedTuple):
    """A conversation that may go on; the one ready for longest goes on first."""

    ready_s: float  # a reaction time after its last answer
    number: int
    ended_s: float  # when its last answer is expected to end
    turn: int  # the number of its next turn
    turns: Lengths
    words: random.Random
    reactions: random.Random


class Cold(Crowd):
    """Makes requests as a Poisson process from time 0 on, each a conversation's turn.

    The conversation that has been ready for longest goes on. If none is ready, a new one begins. The measured period is
    the whole run. The thesis (3.6.1) draws arrivals of requests, and has a user reply no earlier than a reaction time
    after the answer; how it chooses the conversation, and how long its runs are, it does not tell.

    >>> # reaction times of 60 s, 600 requests at 2/s: new conversations at first, replies from about 60 s on, all
    >>> # measured in [0, 300)
    """

    def period(self, rate: float, count: int) -> Period:
        """Return the period of the whole run, in which about `count` requests arrive."""
        return Period(0.0, count / rate)

    def requests(self, rate: float, count: int, mean_turns: float = MEANS[0]) -> list[Request]:
        """Make requests that arrive at this rate; `mean_turns` makes no difference."""
        return list(self._turns(self._arrivals(1 / rate, count)))

    def _turns(self, times: list[float]) -> Iterator[Request]:
        numbers = count_up()
        ready: list[_Open] = []
        for time_s in times:
            if ready and ready[0].ready_s <= time_s:
                one = heapq.heappop(ready)
            else:
                number = next(numbers)
                turns = self.lengths(number)
                one = _Open(time_s, number, time_s, 0, turns, self._words(number), self._reactions(number))
            index, (prompt, answer) = one.turn, one.turns[one.turn]
            yield Request(
                id=f"c{one.number}.{index}",
                prompt=self._draw(one.words, prompt),
                max_new_tokens=answer,
                ignore_eos=True,
                arrival_s=0.0 if index else time_s,
                conversation=f"c{one.number}",
                after=f"c{one.number}.{index - 1}" if index else None,
                delay_s=time_s - one.ended_s if index else 0.0,
            )
            if index + 1 < len(one.turns):
                reaction = self.asked.reaction
                ended_s = time_s + TOKEN_S * reaction * answer
                ready_s = ended_s + one.reactions.expovariate(1 / reaction)
                heapq.heappush(ready, one._replace(ready_s=ready_s, ended_s=ended_s, turn=index + 1))
