"""Runs plans in virtual time: a cost model says how long each plan takes."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable

from minifuse.core.clock import VirtualClock
from minifuse.core.measured import Measured, Messages, measured_of
from minifuse.core.plan import Plan, sampled_work
from minifuse.core.report import Completion, Ran
from minifuse.core.request import Sequence
from minifuse.core.stages import RunPlan
from minifuse.execute.link import Link


def placeholder_tokens(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
    """Give every sampled sequence the token -1, which is never a stop token."""
    return Ran({plan.work[i].sequence: (-1,) for i in sampled_work(plan, sequences)})


class VirtualExecutor:
    """Runs plans in virtual time.

    `cost` returns how many seconds a plan computes. `run` returns the plan's tokens: a model's tokens or placeholders.

    `link` carries the transfers of a plan's moves between the tiers; by default they take no time. Transfer time that
    does not overlap with computing is added to the plan's seconds. A plan without work occupies no worker, and ends
    when its moves are complete. With simulated ranks, `messages` counts and times the messages of a plan that samples
    so many tokens; their time is added, too.

    `host` returns how many seconds the host prepares a plan before it can start, for example to merge graphs. The host
    prepares one plan at a time, in the order submitted, while workers compute.

    A worker runs its plans in order. Each worker has a device of its own, or all share one (`shared`): while k plans
    run, each gets a k-th of it. Several together may be faster than one alone, by the factor `together`.

    >>> # Two plans of 4 s share a device; the second begins 2 s after the first. The first runs 2 s alone, then at
    >>> # half speed: it ends at 2 + 2 * 2 = 6 s. The second then has 2 s left, runs alone, and ends at 8 s.
    """

    def __init__(
        self,
        clock: VirtualClock,
        cost: Callable[[Plan], float],
        run: RunPlan = placeholder_tokens,
        *,
        shared: bool = False,
        together: float = 1.0,
        link: Link | None = None,
        messages: Callable[[Plan, int], Messages] | None = None,
        host: Callable[[Plan], float] = lambda plan: 0.0,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._cost = cost
        self._link = link or Link()
        self._messages = messages
        self._host, self._host_free = host, 0.0  # the time at which the host has prepared all plans submitted so far
        self._run = run
        self._shared, self._together = shared, together
        self._on_close = on_close
        # A plan ends when `_served` reaches the plan's end. `_served` is the time itself or, on a shared device, the
        # device time that a plan would have received by `_now` if it had run from the start.
        self._served = self._now = 0.0
        self._running: list[tuple[float, int, Plan, Callable[[], Ran]]] = []  # a heap, by end and step
        self._busy: set[int] = set()  # workers that run a plan
        # Plans that wait for the host or their worker, and when the host has prepared each.
        self._queued: deque[tuple[float, Plan, dict[str, Sequence]]] = deque()

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        self._advance(now)
        if plan.work:
            self._host_free = max(self._host_free, now) + self._host(plan)
            self._queued.append((self._host_free, plan, sequences))
            self._start_queued()
        else:
            self.start(plan, sequences)

    def start(self, plan: Plan, sequences: dict[str, Sequence]) -> None:
        """Start a plan: on its worker, or on the link if it has no work."""
        if not plan.work:
            self._link.behind(plan, self._now)
            return
        seconds, sent = self._cost(plan), None
        if self._messages is not None:
            sent = self._messages(plan, len(sampled_work(plan, sequences)))
            seconds += sent.seconds
        carried = self._link.run(plan, seconds, self._now) if plan.moves or "host" in plan.tiers else None
        waited_s = 0.0 if carried is None else carried.exposed_s + carried.awaited_s
        self._push(plan, lambda: self._ran(plan, sequences, carried, sent), self._served + seconds + waited_s)

    def _ran(
        self, plan: Plan, sequences: dict[str, Sequence], carried: Measured | None, sent: Messages | None = None
    ) -> Ran:
        """Run a plan; report what was carried and awaited, and its simulated messages."""
        ran = self._run(plan, sequences)
        if carried is None and sent is None:
            return ran
        counted = measured_of(ran)
        messages = counted if sent is None else sent
        measured = counted if carried is None else carried
        return ran._replace(
            measured=measured._replace(num_messages=messages.num_messages, message_bytes=messages.message_bytes)
        )

    def _start_queued(self) -> None:
        """Start prepared plans on idle workers; the engine has committed the previous plans."""
        for _ in range(len(self._queued)):
            ready, plan, sequences = self._queued.popleft()
            if plan.worker in self._busy or ready > self._now:
                self._queued.append((ready, plan, sequences))
            else:
                self._busy.add(plan.worker)
                self.start(plan, sequences)

    def _push(self, plan: Plan, run: Callable[[], Ran], end: float) -> None:
        """Schedule a plan to be run and completed when `_served` reaches `end`."""
        heapq.heappush(self._running, (end, plan.step, plan, run))

    def _advance(self, now: float) -> None:
        if not self._shared:
            self._served = now
        elif self._running:
            self._served += (now - self._now) / self._slowdown()
        self._now = now

    def _next_end(self) -> float:
        if not self._running:
            return math.inf
        end = self._running[0][0]
        return self._now + (end - self._served) * self._slowdown() if self._shared else end

    def _next_ready(self) -> float:
        """Return when the host has prepared the next plan of an idle worker."""
        return min([ready for ready, plan, _ in self._queued if plan.worker not in self._busy], default=math.inf)

    def _slowdown(self) -> float:
        """Return the factor by which a shared device slows down each plan now."""
        num_running = len(self._running)
        return num_running / self._together if num_running > 1 else 1.0

    def wait(self, until: float | None) -> list[Completion]:
        self._start_queued()
        until = math.inf if until is None else until
        while (ready := self._next_ready()) < min(self._link.next_landing(), self._next_end(), until):
            self._advance(ready)
            self._start_queued()
        landing, end = self._link.next_landing(), self._next_end()
        now = min(landing, end, until)
        if now == math.inf:
            return []
        self._clock.sleep_until(now)
        if now == landing:
            return self._land(now)
        return self._end(now) if now == end else []

    def wake(self) -> None:
        """Do nothing: this executor never sleeps."""

    def _end(self, now: float) -> list[Completion]:
        """Complete the plans that end now."""
        end = self._running[0][0]
        self._served, self._now = end, now
        done = []
        while self._running and self._running[0][0] == end:
            _, _, plan, run = heapq.heappop(self._running)
            self._busy.discard(plan.worker)
            done.append(Completion(plan, run(), now))
        return done

    def _land(self, now: float) -> list[Completion]:
        """Complete the plans without work whose moves are complete now."""
        self._advance(now)
        plans = self._link.landed(now)
        return [Completion(plan, self._ran(plan, {}, self._link.carried(plan)), now) for plan in plans]

    def close(self) -> None:
        """Call `on_close`, which stops what computes the plans."""
        if self._on_close is not None:
            self._on_close()
