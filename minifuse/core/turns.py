"""Requests that have not arrived: they wait for their time, or for the turn before."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from minifuse.core.errors import RequestRefused, brief
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.stages import Arrivals
from minifuse.core.submitted import check_prompts, read

LARGEST = 10**12  # seconds, and levels of priority
Stored = Callable[[Request], tuple[int, ...]]  # its conversation's text in earlier runs; may raise `RequestRefused`
ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)  # to the end
WITHOUT_ANSWER = (FinishReason.REFUSED, FinishReason.INTERRUPTED)


class Turns(Arrivals):
    """Keeps track of submitted requests, and of those still to arrive.

    A request that follows another arrives `delay_s` after the other has ended, with the other's text in front of its
    prompt. It is refused if the other was refused. The first request of a conversation continues the text that `stored`
    returns, which is empty by default. Set `stored` before adding requests.

    >>> arrivals = Turns()
    >>> first = Sequence(Request("a", prompt=(7, 8), conversation="c"), tokens=[7, 8, 9])
    >>> _ = arrivals.add((first.request,), now=0.0)
    >>> _ = arrivals.add((Request("b", prompt=(5,), conversation="c", after="a", delay_s=2.0),), now=0.0)
    >>> [request.id for request, _ in arrivals.due(9.0)]
    ['a']
    >>> first.ended_s = 9.0
    >>> arrivals.ended(first)
    []
    >>> arrivals.next_s, [(request.prompt, num_history) for request, num_history in arrivals.due(11.0)]
    (11.0, [((7, 8, 9, 5), 3)])
    """

    def __init__(self) -> None:
        self.stored: Stored = lambda request: ()
        self._finished: dict[str, Sequence] = {}  # the sequences that have ended, by request
        self._num_submitted = 0
        self._submitted: dict[str, int] = {}  # every request that is not forgotten -> its number
        self._groups: dict[str, tuple[str, ...]] = {}  # every group that is not forgotten -> the ids of its prompts
        self._turns: dict[str, list[str]] = defaultdict(list)  # conversation -> requests with a text, now or later
        self._without_text: set[str] = set()  # requests that ended before they arrived
        self._refused: set[str] = set()  # requests that were refused when they were submitted
        self._pending: dict[str, Request] = {}  # requests that have not arrived
        self._times: list[tuple[float, int, str]] = []  # a heap of known arrival times
        self._behind: dict[str, list[Request]] = {}  # request -> its followers, until it has ended

    def __bool__(self) -> bool:
        return bool(self._pending)

    def read(self, prompts: tuple[Request, ...]) -> tuple[Request, ...]:
        return tuple([self._in_turn(read(prompt)) for prompt in prompts])

    def _in_turn(self, request: Request) -> Request:
        """Make a request follow its conversation's last one, unless its `after` names another."""
        last = None if request.after is not None else self.last(request.conversation)
        return request if last is None else replace(request, after=last)

    def last(self, conversation: str | None) -> str | None:
        """Return a conversation's last request that has or will have a text, or None."""
        turns = self._turns.get(conversation) if isinstance(conversation, str) else None
        return turns[-1] if turns else None

    def check(self, prompts: tuple[Request, ...]) -> list[Request]:
        check_prompts(prompts, self._submitted, self._groups)
        for prompt in prompts:
            self._check_turn(prompt)
        return [self._whole(prompt)[0] if prompt.after is None else prompt for prompt in prompts]

    def _check_turn(self, request: Request) -> None:
        name, after, conversation = f"Request {request.id!r}", request.after, request.conversation
        for what, seconds in (("an arrival_s", request.arrival_s), ("a delay_s", request.delay_s)):
            if not (isinstance(seconds, (int, float)) and 0 <= seconds <= LARGEST):
                raise RequestRefused(f"{name} has {what} of {brief(seconds)}: give seconds, from 0 to {LARGEST:g}.")
        if not (isinstance(request.priority, int) and abs(request.priority) <= LARGEST):
            raise RequestRefused(
                f"{name} has a priority of {brief(request.priority)}: give a whole number, of at most {LARGEST:g}."
            )
        if after in self._refused and after not in self._submitted:
            raise RequestRefused(f"{name} follows {after!r}, which was refused.")
        if request.group is not None and (after is not None or conversation is not None):
            raise RequestRefused(
                f"{name} is one of several prompts, and a turn of a conversation has one: submit it as a request of "
                "its own, or leave out conversation and after."
            )
        if after is None and request.delay_s:
            raise RequestRefused(
                f"{name} has a delay_s of {request.delay_s:g} and follows no request: name one with after, or give "
                "arrival_s instead."
            )
        last = self.last(conversation)
        if last is not None and after != last:
            raise RequestRefused(
                f"{name} belongs to the conversation {conversation!r}, whose last request is {last!r}: give after as "
                "that request."
            )
        if after is None:
            return
        if after in self._groups:
            raise RequestRefused(
                f"{name} follows {after!r}, which has several prompts: give after as one of {self._groups[after]}."
            )
        if after not in self._submitted:
            raise RequestRefused(
                f"{name} follows {after!r}, which was not submitted before it: submit that request first."
            )
        ended = self._finished.get(after)
        if ended is not None and (why := self._why_not_followed(ended)):
            raise RequestRefused(f"{name} follows {after!r}, {why}.")
        if conversation is not None and last is None:
            raise RequestRefused(
                f"{name} follows {after!r}, which does not belong to the conversation {conversation!r}: give both "
                "requests the same conversation."
            )

    def refuse(self, prompts: tuple[Request, ...]) -> None:
        """Record requests that were refused when they were submitted."""
        self._refused.update(prompt.id for prompt in prompts if isinstance(prompt.id, str))

    def add(self, prompts: tuple[Request, ...], now: float) -> list[tuple[Request, int]]:
        if (group := prompts[0].group) is not None:
            self._groups[group] = tuple(prompt.id for prompt in prompts)
        known = []
        for prompt in prompts:
            self._submitted[prompt.id] = self._num_submitted
            self._num_submitted += 1
            if prompt.conversation is not None:
                self._turns[prompt.conversation].append(prompt.id)
            if prompt.after is None:
                known.append(self._whole(self._push(prompt, now)))
            elif (ended := self._finished.get(prompt.after)) is not None:
                self._push(prompt, max(now, ended.ended_s + prompt.delay_s))
            else:
                self._pending[prompt.id] = prompt
                self._behind.setdefault(prompt.after, []).append(prompt)
        return known

    def _push(self, request: Request, earliest_s: float) -> Request:
        if request.arrival_s < earliest_s:
            request = replace(request, arrival_s=earliest_s)
        self._pending[request.id] = request
        heapq.heappush(self._times, (request.arrival_s, self._submitted[request.id], request.id))
        return request

    @property
    def next_s(self) -> float | None:
        while self._times and self._times[0][2] not in self._pending:  # it was withdrawn
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

    def due(self, now: float) -> Iterator[tuple[Request, int]]:
        while (arrives_s := self.next_s) is not None and arrives_s <= now:
            yield self._whole(self._pending.pop(heapq.heappop(self._times)[2]))

    def _whole(self, request: Request) -> tuple[Request, int]:
        before: tuple[int, ...] = ()
        if request.after is not None:
            before = tuple(self._finished[request.after].tokens)
        elif request.conversation is not None:
            before = self.stored(request)
        return (replace(request, prompt=before + request.prompt) if before else request), len(before)

    def ended(self, sequence: Sequence) -> list[tuple[Request, str]]:
        self._finished[sequence.id] = sequence
        refused = []
        if sequence.finish_reason is FinishReason.REFUSED:
            self._end_without_text(sequence.request)
        for request in self._behind.pop(sequence.id, ()):
            if request.id not in self._pending:
                continue
            if why := self._why_not_followed(sequence):
                del self._pending[request.id]
                refused.append((request, f"Request {request.id!r} follows {sequence.id!r}, {why}."))
            else:
                self._push(request, sequence.ended_s + request.delay_s)
        return refused

    def is_followed(self, name: str) -> bool:
        """Return whether a request that has not arrived follows this one."""
        return any(request.after == name for request in self._pending.values())

    def forget(self, name: str) -> None:
        """Forget a request that has ended and that no other follows.

        From now on, its conversation continues the text that `stored` returns.
        """
        sequence = self._finished.pop(name, None)
        self._submitted.pop(name, None)
        self._without_text.discard(name)
        self._refused.discard(name)
        if sequence is None:
            return
        conversation, group = sequence.request.conversation, sequence.request.group
        if conversation is not None and name in self._turns.get(conversation, ()):
            self._leave(conversation, name)
        if group is not None and not any(prompt in self._submitted for prompt in self._groups.get(group, ())):
            self._groups.pop(group, None)

    def withdraw(self, name: str) -> list[Request]:
        found = []
        names = [name]
        while names:
            if (request := self._pending.pop(names.pop(), None)) is not None:
                found.append(request)
                self._end_without_text(request)
                names += [follower.id for follower in self._behind.pop(request.id, ())]
        return found

    def _end_without_text(self, request: Request) -> None:
        """End a request without a text; its conversation continues from the previous request."""
        self._without_text.add(request.id)
        if request.conversation is not None:
            self._leave(request.conversation, request.id)

    def _leave(self, conversation: str, name: str) -> None:
        turns = self._turns[conversation]
        turns.remove(name)
        if not turns:
            del self._turns[conversation]

    def withdraw_all(self) -> list[Request]:
        found = list(self._pending.values())
        for books in (self._pending, self._times, self._behind):
            books.clear()
        return found

    def _why_not_followed(self, sequence: Sequence) -> str:
        """Say why no request can follow an ended one; "" if one can."""
        if sequence.finish_reason in WITHOUT_ANSWER:
            return "which was refused" if sequence.finish_reason is FinishReason.REFUSED else "which was interrupted"
        if sequence.id in self._without_text:
            return "which was aborted before it arrived"
        return "" if sequence.tokens else "which has no text"

    def prompts_of(self, name: str) -> tuple[str, ...]:
        return self._groups.get(name) or ((name,) if name in self._submitted else ())
