"""What holds of any profile, and of any chunks."""

from hypothesis import strategies as st
from stage import ROW, Valued, ask_take, ask_victims, told

from minifuse.labs.engine import keeps_the_laws
from minifuse.labs.judge import Unmet

# Attention to a token costs 1/32: every cost and idle time is exact, and so what is equal is equal however computed.
STRAIGHT = {"other": 2.0, "contexts": [4, 8, 16, 32, 64, 128], "attention": [0.125, 0.25, 0.5, 1.0, 2.0, 4.0]}
SIZE, NOW = 4, 64.0
CHUNK = st.tuples(st.integers(0, 30), st.sampled_from([0.0, 16.0, 32.0, 40.0, 48.0, 56.0, 60.0, 64.0]))
NOISE = st.lists(st.integers(0, 9).map(float), min_size=3, max_size=6)


def named(pairs, name="c"):
    """Chunks, no two of which are the same one of a conversation: a conversation has one time."""
    return [[f"{name}{active_s:g}", index, active_s] for index, active_s in dict.fromkeys(pairs)]


CHUNKS = st.lists(CHUNK, min_size=1, max_size=12).map(named)


def worth(chunk):
    """The value of a chunk, by the formula."""
    _, index, active_s = chunk
    context, idle_s = (index + 1) * SIZE, NOW - active_s
    return (2.0 + context / 32) / idle_s if idle_s else float("inf")


def test_a_longer_context_never_costs_less(work):
    """Measurements are noisy: where one is below an earlier one, the earlier counts, and so costs never fall."""

    def demand(attention):
        contexts = [8 << i for i in range(len(attention))]
        profile = {"other": 1.0, "contexts": contexts, "attention": attention}
        for i, context in enumerate(contexts):
            found, right = work.call("cost", profile, context, form=float), 1.0 + max(attention[: i + 1])
            if abs(found - right) > 1e-9:
                raise Unmet(
                    f"cost({profile}, {context}) is {found:g}, and should be {right:g}: the largest attention that was "
                    f"measured up to {context} is {right - 1:g}."
                )

    work.smallest(NOISE, demand, examples=40)


def test_victims_have_the_least_value(work):
    """However many are asked for, none is worth more than one that stays, and they go in the order of their values."""

    def demand(case):
        check_victims(work, *case)

    work.smallest(st.tuples(CHUNKS, st.integers(1, 8)), demand, examples=80)


def check_victims(work, chunks, count):
    """Raise `Unmet` unless the student's victims are of the least values, in their order."""
    found = ask_victims(work, STRAIGHT, SIZE, chunks, NOW, count)
    values = [worth(chunks[place]) for place in found]
    right = sorted(map(worth, chunks))[:count]
    if any(abs(one - other) > 1e-9 * other for one, other in zip(values, right, strict=True) if one != other):
        given = f"{chunks}" if len(chunks) < 20 else f"{len(chunks)} chunks, {chunks[:3]} and others"
        raise Unmet(
            f"victims of {given} in chunks of {SIZE} at {NOW:g} s, count {count}, are {found[:20]}, worth "
            f"{rounded(values[:20])}; the least values are {rounded(right[:20])} (other 2, attention l / 32)."
        )


def rounded(values):
    return ", ".join(f"{one:.4g}" for one in values)


def test_copies_are_given_up_first(work):
    """As long as a chunk lies on both tiers, nothing is copied or dropped: of those the one of least value goes."""

    def demand(case):
        both, device, host, host_free = case
        tiers = {"free": 0, "both": both, "device": device, "host_free": host_free, "host": host}
        found = ask_take(work, STRAIGHT, SIZE, tiers, NOW)
        least = min(map(worth, both))
        if found[0] != "reclaim" or abs(worth(both[found[1]]) - least) > 1e-9 * least < float("inf"):
            raise Unmet(
                f"take with {told(tiers)} at {NOW:g} s returned {tuple(found)}: the chunk on both tiers that is worth "
                f"{least:.4g} is to be reclaimed."
            )

    parts = st.tuples(CHUNKS, CHUNKS, CHUNKS, st.integers(0, 2))
    work.smallest(parts, demand, examples=50)


AS_MUCH = [  # a chunk of the device and one of the host that are worth the same, the latter with the lower index
    ([["ann", 17, 0.0]], [["ben", 0, 32.0]]),
    ([["ann", 2, NOW]], [["ben", 1, NOW]]),
]


def test_the_host_keeps_what_is_worth_more(work):
    """On a full host a chunk is dropped for another only if it is worth less; otherwise the other is dropped."""

    def demand(case):
        device, host = case
        tiers = {"free": 0, "both": [], "device": device, "host_free": 0, "host": host}
        what, going, dropped = ask_take(work, STRAIGHT, SIZE, tiers, NOW)
        least, lost = min(map(worth, device)), min(map(worth, host))
        if what not in ("swap_out", "drop") or worth(device[going]) > least * (1 + 1e-9):
            raise Unmet(f"take with {told(tiers)} at {NOW:g} s takes device[{going}]: the least is {least:.4g}.")
        if (what == "swap_out") != (lost < least) or (what == "swap_out" and worth(host[dropped]) > lost * (1 + 1e-9)):
            right = "makes room for it" if lost < least else "stays, and the other is dropped"
            raise Unmet(
                f"take with {told(tiers)} at {NOW:g} s returned {(what, going, dropped)}: the least on the device is "
                f"worth {least:.4g}, the least on the host {lost:.4g}, which {right}."
            )

    for case in AS_MUCH:
        demand(case)
    work.smallest(st.tuples(CHUNKS, CHUNKS), demand, examples=60)


def test_victims_take_few_steps(work):
    """Twice as many chunks, of which twice as many go, take about twice as many steps."""
    random, steps = work.random, []
    for size in (200, 400, 800):
        chunks = [[f"c{i % 17}", i // 17, float(random.randrange(int(NOW)))] for i in range(size)]
        check_victims(work, chunks, size // 2)
        steps.append(work.steps)
    if steps[2] > 2.6 * steps[1] + 100:
        raise Unmet(f"victims takes {steps} steps for 200, 400 and 800 chunks: compute each value once, and sort.")


def test_keeps_the_laws(work):
    """In the engine, under all laws, with hosts of all sizes, and with none: no KV is lost, no answer changes."""
    tiers = {"free": 0, "both": [], "device": [["ann", 0, 32.0]], "host_free": 0, "host": []}
    what, going, _ = ask_take(work, STRAIGHT, SIZE, tiers, NOW)
    if (what, going) != ("drop", 0):
        raise Unmet(f"take with {told(tiers)} returned {(what, going)}: no host has room, so the chunk is dropped.")
    keeps_the_laws(work, ROW, Valued, 25)
