"""Open task: two windows, where one is dear. The mean cost of plans for drawn memories."""

from minifuse.labs.submission import StudentFault

COSTS = {"cost": "lower", "steps": "lower"}
MEMORIES, SIZE = 40, 64


def memories(work):
    """Live buffers in a few groups with some holes, and a price of 1 to 3."""
    random = work.random
    for _ in range(MEMORIES):
        live = [False] * SIZE
        for _ in range(random.randint(2, 5)):
            start, length = random.randrange(SIZE), random.randint(3, 14)
            for buffer in range(start, min(SIZE, start + length)):
                live[buffer] = live[buffer] or random.random() < 0.85
        live[random.randrange(SIZE)] = True
        yield live, random.randint(1, 3)


def cost(live, price, windows):
    inside = sum(sum(live[offset : offset + size]) for offset, size in windows)
    unneeded = sum(size for _, size in windows) - sum(live)
    return sum(live) - inside + price * unneeded + 2 * price * (len(windows) - 1)


def checked(live, windows):
    """Raise `StudentFault` unless these are one or two windows with room for what is live."""
    for offset, size in windows:
        if offset < 0 or size < 1 or offset + size > len(live):
            raise StudentFault(
                f"two_windows gave ({offset}, {size}): a window lies in [0, {len(live)}), and has a place."
            )
    if len(windows) not in (1, 2):
        raise StudentFault(f"two_windows gave {windows}: give one window, or two.")
    (first, size), (second, _) = sorted(windows)[0], sorted(windows)[-1]
    if len(windows) == 2 and first + size > second:
        raise StudentFault(f"two_windows gave {windows}, which overlap: each buffer is in one window.")
    if sum(size for _, size in windows) < sum(live):
        raise StudentFault(f"two_windows gave {windows}, and {sum(live)} buffers are live: there is no room for them.")
    return windows


def score(work):
    found, steps = 0, 0
    for live, price in memories(work):
        windows = work.call("two_windows", live, price, form=list[tuple[int, int]])
        steps += work.steps
        found += cost(live, price, checked(live, windows))
    return {"cost": found / MEMORIES, "steps": steps / MEMORIES}


def best_one(live):
    count = sum(live)
    return min(((offset, count) for offset in range(len(live) - count + 1)), key=lambda one: cost(live, 0, [one]))


def at_the_longest_gap(live, price):
    """Two windows on both sides of the longest gap, each as long as what is live there; one, where that is cheaper."""
    taken = [buffer for buffer, one in enumerate(live) if one]
    plans = [[best_one(live)]]
    if len(taken) > 1:
        gap = max(range(1, len(taken)), key=lambda i: taken[i] - taken[i - 1])
        left = best_one(live[: taken[gap - 1] + 1])
        offset, size = best_one(live[taken[gap] :])
        plans.append([left, (offset + taken[gap], size)])
    return min(plans, key=lambda plan: cost(live, price, plan))


def cheapest(live, price):
    """The lowest cost of any one or two windows. At a price of 1 or more no place too many is worth its price."""
    count, size = sum(live), len(live)
    before = [0]
    for one in live:
        before.append(before[-1] + one)
    most = 0
    for left in range(1, count):
        right, behind = count - left, 0
        for offset in range(size - count, -1, -1):
            start = offset + left
            behind = max(behind, before[start + right] - before[start])  # of right windows from here on
            most = max(most, before[start] - before[offset] + behind)
    return min(cost(live, price, [best_one(live)]), count - most + 2 * price)


def baselines(work):
    drawn = [*memories(work)]

    def mean(costs):
        return {"cost": sum(costs) / MEMORIES}

    return {
        "one window": mean(cost(live, price, [best_one(live)]) for live, price in drawn),
        "split at the longest gap": mean(cost(live, price, at_the_longest_gap(live, price)) for live, price in drawn),
        "bound: the cheapest of all": mean(cheapest(live, price) for live, price in drawn),
    }
