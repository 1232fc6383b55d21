"""Cases that can be done by hand."""

from stage import ROW, Device, Students

from minifuse.core.request import Request
from minifuse.labs.engine import run
from minifuse.labs.judge import Unmet


def test_tables_by_hand(work):
    """Chapter 4's six prompts take 12 blocks of 4; one grows by a block, and none is taken before it is needed."""
    device = Device(work, 24, 4)
    for i, (tokens, right) in enumerate(((5, 2), (5, 2), (9, 3), (4, 1), (5, 2), (5, 2))):
        device.admit(f"r{i}", [i] * tokens + [7] * 9)
        device.write(f"r{i}", tokens)
        if len(table := device.table(f"r{i}")) != right:
            raise Unmet(f"the table of {tokens} tokens in blocks of 4 is {table}: {right} are right.", device.log)
    for stop, right in ((6, 2), (8, 2), (9, 3)):
        device.write("r0", stop)
        if len(table := device.table("r0")) != right:
            raise Unmet(f"the table of {stop} tokens in blocks of 4 is {table}: {right} are right.", device.log)
    device.check()


def test_sharing_by_hand(work):
    """A newcomer shares 40 tokens in blocks of 16: two blocks are shared, and the third is copied when it writes."""
    device = Device(work, 8, 16)
    device.admit("a", [*range(48)])
    if device.write("a", 40) is None or (shared := device.admit("b", [*range(45), 1, 2, 3])) != 40:
        raise Unmet("a has written 40 of its tokens, with which b begins: b is to share these 40.", device.log)
    if (tables := (device.table("a"), device.table("b")))[0] != tables[1]:
        raise Unmet(f"a has the table {tables[0]}, b {tables[1]}: before b writes they are the same.", device.log)
    last = device.table("a")[2]
    copies = device.write("b", shared + 1)
    right = [[last, device.table("b")[2]]]
    if copies != right or last == right[0][1] or device.table("a")[:2] != device.table("b")[:2]:
        tables = f"the tables are {device.table('a')} and {device.table('b')}"
        raise Unmet(f"write returns {copies}, and {tables}: block {last} is to be copied, and no other.", device.log)
    if copies := device.write("a", 41):
        raise Unmet(f"a writes next, and write returns {copies}: its last block is its own again.", device.log)
    device.check()


def test_runs_in_the_engine(work):
    """Three readers of one document of 22 tokens: in blocks of 4 each newcomer copies 2, and computes its own."""
    document = tuple(range(1, 23))
    prompts = [(*document, 30), (*document, 31, 32), (*document, 33)]
    requests = [Request(f"r{i}", one, 8, ignore_eos=True, arrival_s=0.002 * i) for i, one in enumerate(prompts)]
    found = run(work, ROW, Students, requests, kv_tokens=128, memory__block_size=4)
    copied = found.metrics["moves"]["copy"]["tokens"]
    computed = found.metrics["tokens"]["computed"]
    right = 23 + 2 + 1 + 3 * 7
    if (copied, computed) != (4, right):
        raise Unmet(
            f"{copied} tokens are copied and {computed} computed, and 4 and {right} are right.", events=found.events
        )
