"""Lab 6: what a chunk of KV is worth.

A profile is {"other": 2.0, "contexts": [32, 64, 128], "attention": [1.0, 2.0, 4.0]}: what one chunk costs to compute
without its attention, and with attention to so many tokens. A chunk is [conversation, index, active_s]: it is the
index-th of its text, from 0, and its conversation was last active at active_s seconds. All functions get and return
plain data.
"""

import math


def cost(profile: dict, context: int) -> float:
    """What it costs to compute a chunk again that ends after `context` tokens: Cost(l) of equation 3.6.

    Between two contexts that were measured it lies on the straight line between them. Before the first it is as at the
    first; beyond the last it goes on along the line through the last two. Where a longer context was measured to cost
    less than a shorter one, the larger measurement counts for both.

    >>> cost({"other": 2.0, "contexts": [32, 64, 128], "attention": [1.0, 2.0, 4.0]}, 96)
    5.0
    """
    # BEGIN SOLUTION: first make the measurements grow, then find the two that stand around the context
    contexts, attention, most = profile["contexts"], [], 0.0
    for measured in profile["attention"]:
        most = max(most, measured)
        attention.append(most)
    if context <= contexts[0]:
        return profile["other"] + attention[0]
    right = next((i for i, at in enumerate(contexts) if at >= context), len(contexts) - 1)
    slope = (attention[right] - attention[right - 1]) / (contexts[right] - contexts[right - 1])
    return profile["other"] + attention[right - 1] + slope * (context - contexts[right - 1])
    # END SOLUTION


def value(profile: dict, context: int, idle_s: float) -> float:
    """What a chunk is worth that has been idle for `idle_s` seconds, equation 3.4; math.inf if it was used just now.

    >>> value({"other": 2.0, "contexts": [32, 64, 128], "attention": [1.0, 2.0, 4.0]}, 96, 10.0)
    0.5
    """
    # BEGIN SOLUTION: the cost over the idle time; mind an idle time of 0
    return cost(profile, context) / idle_s if idle_s > 0 else math.inf
    # END SOLUTION


# BEGIN SOLUTION
def worths(profile: dict, size: int, chunks: list, now: float) -> list[tuple[float, int, int]]:
    costs: dict[int, float] = {}
    found = []
    for place, (_, index, active_s) in enumerate(chunks):
        if index not in costs:
            costs[index] = cost(profile, (index + 1) * size)
        idle_s = now - active_s
        found.append((costs[index] / idle_s if idle_s > 0 else math.inf, index, place))
    return found


# END SOLUTION
def victims(profile: dict, size: int, chunks: list[list], now: float, count: int) -> list[int]:
    """The `count` chunks of least value at time `now`, the least first, as their places in `chunks`.

    The index-th chunk of a text ends after (index + 1) * size tokens. Of equal values the lower index goes first; of
    equal indices too, what stands first in `chunks`.

    >>> profile = {"other": 2.0, "contexts": [32, 64, 128], "attention": [1.0, 2.0, 4.0]}
    >>> victims(profile, 32, [["ann", 1, 0.0], ["ann", 0, 0.0], ["ben", 0, 5.0]], 10.0, 2)
    [1, 0]
    """
    # BEGIN SOLUTION: order all of them once, by what decides between two of them
    return [place for *_, place in sorted(worths(profile, size, chunks, now))[:count]]
    # END SOLUTION


def take(profile: dict, size: int, tiers: dict, now: float) -> tuple[str, int | None, int | None]:
    """Which block of the device is given to a request that needs one.

    `tiers` is {"free": blocks of the device that are free, "both": chunks on both tiers, "device": chunks on the device
    alone, "host_free": free blocks of the host, "host": chunks on the host alone}. All these chunks are idle. Something
    of "free", "both" and "device" is not empty.

    Returns one of:
        ("free", None, None): a free block.
        ("reclaim", b, None): that of both[b], which lies on the host alone from then on.
        ("swap_out", d, None): that of device[d], which is copied to a free block of the host first.
        ("swap_out", d, h): the same, and host[h] is dropped for it: the host was full, and host[h] is worth less.
        ("drop", d, None): that of device[d], which is dropped: the host is full of what is worth as much or more.

    >>> profile = {"other": 2.0, "contexts": [32, 64, 128], "attention": [1.0, 2.0, 4.0]}
    >>> held = {"free": 0, "both": [], "device": [["ann", 0, 0.0]], "host_free": 0, "host": [["ben", 0, 5.0]]}
    >>> take(profile, 32, held, 10.0)
    ('drop', 0, None)
    """
    # BEGIN SOLUTION: the cases in turn; what is compared before the host drops a chunk?
    if tiers["free"]:
        return "free", None, None
    if tiers["both"]:
        return "reclaim", victims(profile, size, tiers["both"], now, 1)[0], None
    going = min(worths(profile, size, tiers["device"], now))
    if tiers["host_free"]:
        return "swap_out", going[-1], None
    least = min(worths(profile, size, tiers["host"], now), default=None)
    if least is not None and least[0] < going[0]:
        return "swap_out", going[-1], least[-1]
    return "drop", going[-1], None
    # END SOLUTION


def kept_for(chunks: list[dict]) -> list[float]:
    """Open task: what each of these idle chunks is worth now; that of least worth is dropped first.

    A chunk is {"conversation": "c7", "index": 0, "context": 32, "idle_s": 1.5, "tokens": 300, "requests": 2,
    "pauses": [2.0]}: `tokens` are those of its whole text, `requests` those of its conversation that have begun so far,
    and `pauses` the seconds from the end of each of them to the beginning of the next. This is LRU. Do better.
    """
    return [-chunk["idle_s"] for chunk in chunks]
