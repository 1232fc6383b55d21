"""Begins runs with conversations under way, so that short runs resemble long ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.memory.tiered.profile import Profile
from minifuse.papers.curve import Served, latencies
from minifuse.trace.lives import Life
from minifuse.trace.log import Event
from minifuse.trace.running import RunningMetrics
from minifuse.trace.tally import percentile
from minifuse.workload.conversations import MEANS, Asked, Lengths, draw_lengths
from minifuse.workload.laws import Arrival

DEEP = 40  # reaction times before the run in which conversations begin; hardly any lasts longer
REMEMBERED = 3  # reaction times before the first turns; an earlier last answer counts as given then
WARM_UP = 1  # reaction times from the first turns to the measured period
TOKEN_S = 1 / 2000  # of a reaction time: about what a token of an answer takes (30 ms of a minute)


class Period(NamedTuple):
    """The measured period: requests count if they arrive in [begin_s, end_s)."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Crowd:
    """Conversations that begin as a Poisson process, long before the run begins.

    A conversation that began earlier sends its text so far as one request, with an answer of one token. These requests
    fill memory as a long run would. They arrive in the first `remembered` reaction times, when the last answer of their
    conversation was given. A conversation that ends in this time, or goes on only after the run, sends its text, too.
    Then turns arrive: first in a warm-up, then in the measured period. Later turns are left out.

    >>> # reaction times of 60 s, 300 requests at 2/s: texts so far until 180 s, turns from then on, measured in
    >>> # [240, 390)

    Attributes:
        found: lengths of conversations to choose from, with equal chances; without any, lengths are drawn (`asked`).
    """

    asked: Asked
    vocab_size: int
    seed: int
    remembered: float = REMEMBERED
    found: Sequence[Lengths] = ()

    def lengths(self, number: int) -> Lengths:
        """Return the lengths of a conversation's turns."""
        if not self.found:
            return draw_lengths(self.asked, number, self.seed)
        return random.Random(f"pensieve conversation {number} {self.seed}").choice(self.found)

    def period(self, rate: float, count: int) -> Period:
        """Return the period in which about `count` requests arrive at `rate` requests per second."""
        begin_s = (self.remembered + WARM_UP) * self.asked.reaction
        return Period(begin_s, begin_s + count / rate)

    def requests(self, rate: float, count: int, mean_turns: float = MEANS[0]) -> list[Request]:
        """Make conversations whose turns arrive at about this rate until the period ends.

        Args:
            rate: requests per second.
            count: the number of requests in the period, approximately.
            mean_turns: the mean number of turns of a conversation.
        """
        start_s = self.remembered * self.asked.reaction
        before_s, length_s = DEEP * self.asked.reaction, self.period(rate, count).end_s - start_s
        gap_s = mean_turns / rate
        num = round((before_s + length_s) / gap_s)
        begins = self._arrivals(gap_s, num)
        return [
            request
            for number, begin_s in enumerate(begins)
            for request in self._of(number, begin_s - before_s, start_s, length_s)
        ]

    def offered(self, requests: Sequence[Request], period: Period) -> float:
        """Return requests per second in the period, if answers take the expected time."""
        times: dict[str, float] = {}
        answers: dict[str, int] = {}
        for request in requests:
            earliest = 0.0
            if request.after is not None:
                took_s = TOKEN_S * self.asked.reaction * answers[request.after]
                earliest = times[request.after] + took_s + request.delay_s
            times[request.id], answers[request.id] = max(request.arrival_s, earliest), request.max_new_tokens
        begin_s, end_s = period
        return sum(begin_s <= time_s < end_s for time_s in times.values()) / (end_s - begin_s)

    def at_once(self, count: int) -> list[Request]:
        """Make at least `count` separate requests at once: turns, with histories in their prompts."""
        found: list[Request] = []
        number = 0
        while len(found) < count:
            rng, history = self._words(number), 0
            for prompt, answer in self.lengths(number):
                tokens = self._draw(rng, history + prompt)
                found.append(Request(f"r{len(found)}", tokens, answer, ignore_eos=True))
                history += prompt + answer
            number += 1
        return found

    @staticmethod
    def is_turn(name: str) -> bool:
        """Return whether a request is a turn, and not a text so far."""
        return "." in name

    def _arrivals(self, gap_s: float, count: int) -> list[float]:
        return Arrival(gap_s, cv=1.0).times(count, random.Random(f"pensieve arrivals {self.seed}"))

    def _reactions(self, number: int) -> random.Random:
        return random.Random(f"pensieve reactions {number} {self.seed}")

    def _words(self, number: int) -> random.Random:
        return random.Random(f"pensieve words {number} {self.seed}")

    def _draw(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(self.vocab_size), k=count))

    def _of(self, number: int, begin_s: float, start_s: float, length_s: float) -> Iterator[Request]:
        """Yield the requests of one conversation.

        Args:
            begin_s: when the conversation begins, counted from `start_s`.
            start_s: when the first turns arrive.
            length_s: the seconds from `start_s` to the end of the period.
        """
        reactions, words, reaction = self._reactions(number), self._words(number), self.asked.reaction
        time_s, said, last_s = begin_s, 0, begin_s  # last_s: of the last answer
        after: str | None = None
        delay_s = 0.0
        goes_on = False  # whether turns follow after the period
        for i, (prompt, answer) in enumerate(self.lengths(number)):
            if time_s >= length_s:
                goes_on = True
                break
            if time_s >= 0:
                if after is None and said:
                    yield self._so_far(number, said, words, start_s + last_s)
                    after = f"c{number}"
                yield Request(
                    id=f"c{number}.{i}",
                    prompt=self._draw(words, prompt),
                    max_new_tokens=answer,
                    ignore_eos=True,
                    arrival_s=start_s + time_s if after in (None, f"c{number}") else 0.0,
                    conversation=f"c{number}",
                    after=after,
                    delay_s=0.0 if after in (None, f"c{number}") else delay_s,
                )
                after = f"c{number}.{i}"
            said += prompt + answer
            delay_s = reactions.expovariate(1 / reaction)
            last_s = time_s + TOKEN_S * reaction * answer
            time_s = last_s + delay_s
        if after is None and said and (goes_on or last_s > -start_s):  # ended recently, or goes on later
            yield self._so_far(number, said, words, start_s + last_s)

    def _so_far(self, number: int, said: int, words: random.Random, at_s: float) -> Request:
        prompt = self._draw(words, said - 1)
        return Request(f"c{number}", prompt, 1, ignore_eos=True, arrival_s=max(0.0, at_s), conversation=f"c{number}")


class Costs(RunningMetrics):
    """Counts metrics, and what it costs to recompute histories, by the cost of a chunk."""

    def __init__(self, profile: Profile, chunk: int) -> None:
        self.ended: dict[str, Life] = {}
        super().__init__(on_end=self.ended.__setitem__)
        self.profile, self.chunk = profile, chunk
        self.recomputing = 0.0  # in the unit of the profile: seconds

    def read(self, event: Event) -> None:
        """Count an event."""
        super().read(event)
        if event["event"] != "step":
            return
        for name, start, stop, *_ in event["work"]:
            stop = min(stop, self.lives[name].history)
            if start < stop:  # by the cost in its middle, as costs are nearly linear
                self.recomputing += (stop - start) / self.chunk * self.profile.cost((start + stop) // 2)


def measured(counted: Costs, period: Period, offered: float) -> Served:
    """Return the outcome of a run in the measured period.

    Percentiles are those of the normalized latency (end-to-end seconds per token of the answer) of requests that arrive
    in the period. Throughput counts the turns that end in the period. Hits are the parts of histories found on the
    device, on the host, and on either. Recomputed tokens, `recomputing` (what histories among them cost, in seconds),
    and `history` (the tokens of all histories) count over the whole run.

    Args:
        offered: the requests per second that were to arrive in the period, the same for all contenders.

    Raises:
        UsageError: no request arrived in the period.
    """
    metrics, (begin_s, end_s) = counted.result(), period
    lives = [life for life in counted.ended.values() if begin_s <= life.arrival_s < end_s and life.finished]
    if not lives:
        raise UsageError("No request arrived in the measured period: give more --requests, or higher --rates.")
    ended = sum(begin_s <= life.ended_s < end_s for name, life in counted.ended.items() if Crowd.is_turn(name))
    history = metrics["history"]
    device_hits, host_hits = history["device_hit_rate"] or 0.0, history["host_hit_rate"] or 0.0

    def of(name: str, percent: int) -> float:
        return percentile(sorted(life.latencies[name] for life in lives), percent)

    return {
        "throughput": ended / (end_s - begin_s),
        **latencies("normalized_latency_s", of),
        "mean_batch": metrics["mean_batch_size"],
        "idle_share": metrics["tokens"]["idle_share"],
        "offered": offered,
        "device_hits": device_hits,
        "host_hits": host_hits,
        "hits": device_hits + host_hits,
        "recomputed": metrics["tokens"]["recomputed"],
        "recomputing": counted.recomputing,
        "history": history["tokens"],
        "suspended": metrics["evictions"],
    }
