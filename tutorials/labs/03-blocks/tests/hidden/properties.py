"""What holds of any requests."""

from hypothesis import strategies as st
from stage import ROW, Device, Students

from minifuse.core.request import Request
from minifuse.labs.engine import keeps_the_laws, run
from minifuse.labs.judge import Unmet

TEXTS = st.lists(st.integers(0, 1), min_size=2, max_size=9)
ANY = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), TEXTS),
        st.tuples(st.just("admit again"), st.integers(0, 3)),
        st.tuples(st.just("write"), st.integers(0, 5), st.integers(1, 5)),
        st.tuples(st.just("release"), st.integers(0, 5)),
    ),
    max_size=14,
)
WRITES = st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 5))
GOES = st.tuples(st.just("release"), st.integers(0, 1))
TWO = st.builds(
    lambda text, first, then, rest: [("admit", text), ("write", 0, first), ("admit again", 0), *then, *rest],
    TEXTS,
    st.integers(1, 5),
    st.one_of(st.tuples(), st.tuples(WRITES), st.tuples(GOES, WRITES)),
    ANY,
)  # a second request shares what the first has written; then one of them writes, or is left alone and writes
OPS = st.one_of(ANY, TWO)


def play(device, ops, releases=True, before=lambda name, stop: None, after=lambda name, stop, copies: None):
    """Carry operations out. What names no request is left out, and no name comes twice."""
    number = 0
    for what, *given in ops:
        names = [*device.tokens]
        if what == "admit" or (what == "admit again" and names):
            text = given[0] if what == "admit" else [*device.tokens[names[given[0] % len(names)]], 0]
            device.admit(f"r{number}", text)
            number += 1
        elif what == "write" and names:
            name = names[given[0] % len(names)]
            stop = min(device.filled[name] + given[1], len(device.tokens[name]))
            if stop > device.filled[name]:
                before(name, stop)
                after(name, stop, device.write(name, stop))
        elif what == "release" and names and releases:
            device.release(names[given[0] % len(names)])


SIZES = st.tuples(st.integers(1, 8), st.integers(1, 4))


def test_nothing_is_lost(work):
    """Texts come, are written and go: each is read as it was written, and none is written where others read."""

    def demand(case):
        device = Device(work, *case[0])

        def after(name, stop, copies):
            device.check()
            if copies is None or not (start := starts.get(name, 0)) < stop:
                return
            for i in range(start // device.size, -(-stop // device.size)):
                if len(whose := device.holders(device.table(name)[i])) > 1:
                    raise Unmet(f"{name} writes into block {device.table(name)[i]}, which {whose} have.", device.log)

        starts = {}
        play(device, case[1], before=lambda name, stop: starts.update({name: device.filled[name]}), after=after)
        device.check()

    work.smallest(st.tuples(SIZES, OPS), demand)


def test_shares_the_longest(work):
    """A newcomer shares the longest beginning that anyone has written, but for its last token."""

    def demand(case):
        texts, text = case
        device = Device(work, 40, 3)
        for i, (one, part) in enumerate(texts):
            device.admit(f"r{i}", one)
            if part > device.filled[f"r{i}"]:
                device.write(f"r{i}", min(part, len(one)))
        written = [device.tokens[name][:count] for name, count in device.filled.items()]
        right = max((common(one, text[:-1]) for one in written), default=0)
        found = device.blocks("shared", text, form=int)
        admitted = device.admit("new", text)
        if found != right or admitted != right:
            raise Unmet(f"shared is {found}, admit returns {admitted}, and {right} is right.", device.log)

    work.smallest(st.tuples(st.lists(st.tuples(TEXTS, st.integers(0, 9)), max_size=4), TEXTS), demand)


def common(one, two):
    return next(
        (i for i, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), min(len(one), len(two))
    )


def test_copies_only_what_is_shared(work):
    """A block that is in no other table is written where it is."""

    def demand(case):
        device, alone = Device(work, 40, case[0]), {}

        def before(name, stop):
            start, table = device.filled[name], device.table(name)
            first = start // device.size
            alone[name] = first >= len(table) or device.holders(table[first]) == [name]

        def after(name, stop, copies):
            if copies and alone[name]:
                raise Unmet(f"write returns {copies}, and {name} alone has this block.", device.log)

        play(device, case[1], before=before, after=after)

    work.smallest(st.tuples(st.integers(2, 4), TWO), demand)


def test_refuses_only_when_full(work):
    """None is returned only when too few blocks are free; and then nothing has changed."""

    def demand(case):
        device, told = Device(work, *case[0]), {}

        def before(name, stop):
            start = device.filled[name]
            first, table = start // device.size, device.table(name, -(-start // device.size))
            copied = start % device.size > 0 and len(device.holders(table[first])) > 1
            needed = max(0, -(-stop // device.size) - len(table)) + copied
            told[name] = needed, device.num_free, {one: device.table(one) for one in device.tokens}

        def after(name, stop, copies):
            needed, free, tables = told[name]
            if copies is None and needed <= free:
                raise Unmet(f"write returns {copies}: {needed} blocks are needed, {free} free.", device.log)
            if copies is None and tables != {one: device.table(one) for one in device.tokens}:
                raise Unmet(f"write returns None, and the tables have changed from {tables}.", device.log)

        play(device, case[1], releases=False, before=before, after=after)

    pieces = st.lists(st.tuples(st.just("write"), st.just(0), st.integers(1, 5)), max_size=4)
    one = st.builds(lambda text, rest: [("admit", text), *rest], st.lists(st.just(0), min_size=9, max_size=9), pieces)
    work.smallest(st.tuples(st.tuples(st.integers(1, 3), st.integers(2, 4)), st.one_of(one, TWO)), demand)


def test_gives_everything_back(work):
    """When all have been released, one request can have all blocks."""

    def demand(case):
        (count, size), ops, unwritten = case
        device = Device(work, count, size)
        play(device, ops)
        if unwritten:
            device.admit("u", [2] * (size + 1))
            device.write("u", size, wrote=False)
        for name in [*device.tokens]:
            device.release(name)
        device.admit("all", [3] * (count * size + 1))
        if device.write("all", count * size) is None:
            raise Unmet(f"all have been released, and {count} blocks of {size} are refused to one.", device.log)

    work.smallest(st.tuples(st.tuples(st.integers(1, 5), st.integers(1, 4)), OPS, st.booleans()), demand)


def steps_of_the_last(work, count, length, token):
    """The steps of a request's last write, beside others and behind so many tokens, if all are read as written."""
    device = Device(work, 2000, 4)
    texts = {f"r{i}": ([i, *[token] * 4], 3) for i in range(count)} | {"long": ([5000] * (length + 2), length + 1)}
    for name, (text, stop) in texts.items():
        device.admit(name, text)
        device.write(name, stop)
    refused = device.write("long", length + 2) is None
    steps = device.steps
    try:
        device.check()
    except Unmet as lost:
        raise Unmet(f"{lost.what:.300} ...", lost.picture[-6:]) from None
    if refused or any(device.filled[name] < stop for name, (_, stop) in texts.items()):
        raise Unmet("write returned None, and many of 2000 blocks are free.", device.log[-6:])
    return steps


def test_writes_in_few_steps(work):
    """A write takes as many steps beside 400 requests as beside 4, and behind 4,000 tokens as behind 40."""
    token = work.random.randrange(5000)
    steps = [steps_of_the_last(work, *one, token) for one in ((4, 40), (400, 40), (4, 4000))]
    if max(steps) > steps[0] + 20:
        raise Unmet(f"write takes {steps} steps beside 4 requests, beside 400, and behind 4,000 tokens.")


def test_keeps_the_laws(work):
    """In the engine, under the laws of a run: requests are evicted, and come back."""
    lengths = work.random.sample(range(10, 20), 3)
    requests = [Request(f"r{i}", (i + 1, i + 1), length, ignore_eos=True) for i, length in enumerate(lengths)]
    found = run(work, ROW, Students, requests, kv_tokens=24, memory__block_size=2)
    for step in found.steps:
        for name, shared, _ in step.get("reused", ()):
            raise Unmet(f"{name} was evicted, and admit returns {shared} when it comes back: its KV is gone.")
    keeps_the_laws(work, ROW, Students, 30, compared=False)
