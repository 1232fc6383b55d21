"""Cases that can be done by hand."""

import math

from stage import ROW, Valued, ask_take, ask_victims, shown, told

from minifuse.core.request import Request
from minifuse.labs.engine import run
from minifuse.labs.judge import Unmet

SMALL = {"other": 2.0, "contexts": [32, 64, 128], "attention": [1.0, 2.0, 4.0]}
BENT = {"other": 1.0, "contexts": [8, 16, 32, 64], "attention": [1.0, 2.0, 3.0, 7.0]}
COSTS = [
    (SMALL, 32, 3.0),
    (SMALL, 64, 4.0),
    (SMALL, 96, 5.0),
    (SMALL, 16, 3.0),
    (SMALL, 256, 10.0),
    (BENT, 12, 2.5),
    (BENT, 24, 3.5),
    (BENT, 40, 5.0),
    (BENT, 128, 16.0),
]


def near(found, right):
    return math.isclose(found, right, rel_tol=1e-9) or found == right


def test_cost_by_hand(work):
    """The costs of nine contexts: measured ones, between them, before the first, and beyond the last."""
    for profile, context, right in COSTS:
        found = work.call("cost", profile, context, form=float)
        if not near(found, right):
            raise Unmet(f"cost({profile}, {context}) is {found:g}, and should be {right:g}.")


def test_value_by_hand(work):
    """The cost over the idle time; what was used just now is worth math.inf."""
    for profile, context, idle_s, right in [(SMALL, 96, 10.0, 0.5), (BENT, 32, 0.5, 8.0), (SMALL, 64, 0.0, math.inf)]:
        found = work.call("value", profile, context, idle_s, form=float)
        if not near(found, right):
            raise Unmet(f"value({profile}, {context}, {idle_s}) is {found:g}, and should be {right:g}.")


VICTIMS = [
    # costs 3 and 4; a text goes from its beginning
    ([["ann", 1, 0.0], ["ann", 0, 0.0]], 10.0, 2, [1, 0], "3/10 and 4/10"),
    # 3/2 of ann, 6/3 of ben, who has been idle for longer: not the least recently used
    ([["ben", 3, 7.0], ["ann", 0, 8.0]], 10.0, 1, [1], "6/3 and 3/2"),
    # 3/10, and 4/5: here it is
    ([["ann", 1, 5.0], ["ben", 0, 0.0]], 10.0, 1, [1], "4/5 and 3/10"),
    # equal values, 4/4 and 3/3: the lower index first
    ([["ann", 1, 6.0], ["ben", 0, 7.0]], 10.0, 2, [1, 0], "4/4 and 3/3"),
    # equal values and indices: the first in the list
    ([["ann", 0, 7.0], ["ben", 0, 7.0]], 10.0, 1, [0], "3/3 and 3/3"),
    # both infinite
    ([["ann", 1, 10.0], ["ben", 0, 10.0]], 10.0, 1, [1], "both infinite"),
]


def test_victims_by_hand(work):
    """Six pairs of chunks: by cost, by idle time, and in the order that is told for equal values."""
    for chunks, now, count, right, why in VICTIMS:
        found = ask_victims(work, SMALL, 32, chunks, now, count)
        if found != right:
            raise Unmet(
                f"victims of {shown(chunks)} at {now:g} s, count {count}, are {found}, and should be {right}: the "
                f"values are {why}."
            )


def held(free=0, both=(), device=(), host_free=0, host=()):
    """An argument of `take`."""
    return {"free": free, "both": [*both], "device": [*device], "host_free": host_free, "host": [*host]}


OLD, NEW, LATE = ["old", 0, 0.0], ["new", 0, 8.0], ["new", 3, 8.0]
TAKES = [
    (held(free=1, both=[OLD], device=[NEW], host_free=1), ["free", None, None]),
    (held(both=[NEW, OLD], device=[LATE], host_free=1), ["reclaim", 1, None]),
    (held(device=[LATE, NEW], host_free=1, host=[OLD]), ["swap_out", 1, None]),
    (held(device=[LATE, NEW], host=[LATE, OLD]), ["swap_out", 1, 1]),
]


def test_take_by_hand(work):
    """Four cases: a free block, one with a copy on the host, one that is copied, and one that takes another's place."""
    for tiers, right in TAKES:
        found = ask_take(work, SMALL, 32, tiers, 10.0)
        if found != right:
            raise Unmet(f"take with {told(tiers)} at 10 s returned {tuple(found)}, and should return {tuple(right)}.")


def asked(name, turn, prompt, answer, start_s=0.0, pause_s=0.0):
    """A turn of a conversation: a new prompt of so many tokens, and an answer of so many."""
    after = f"{name}.{turn - 1}" if turn else None
    return Request(
        f"{name}.{turn}",
        tuple(range(1, prompt + 1)),
        answer,
        ignore_eos=True,
        arrival_s=start_s,
        conversation=name,
        after=after,
        delay_s=pause_s,
    )


def test_runs_in_the_engine(work):
    """Ann and Ben of chapter 8 in the engine, with 8 chunks on the device and 3 on the host: a chunk of Ann is dropped
    and computed again, and another comes back from the host."""
    requests = [
        asked("ann", 0, 20, 8),
        asked("ann", 1, 5, 4, pause_s=3.0),
        asked("ben", 0, 30, 16, start_s=0.5),
        asked("ben", 1, 4, 4, pause_s=4.0),
    ]
    found = run(work, ROW, Valued, requests, kv_tokens=64, memory__chunk=8, memory__host=24)
    reused = {name: [device, host] for step in found.steps for name, device, host in step.get("reused") or ()}
    right = {"ann.1": [11, 8]}
    if reused.get("ann.1") != right["ann.1"]:
        raise Unmet(
            f"ann.1 finds {reused.get('ann.1')} tokens of its 27 on the device and on the host: [11, 8] are right, and "
            "the other 8, the beginning of its text, were dropped.",
            events=found.events,
        )
