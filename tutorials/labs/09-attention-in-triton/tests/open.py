"""Open task: which programs a launch has. Bytes are counted by the rules of the README, from the programs alone."""

from collections import Counter

from minifuse.labs.submission import StudentFault

COSTS = {"KiB in all": "lower", "KiB of the longest program": "lower"}
PAGE, DIM, KV_HEADS, GROUP, MOST_ROWS = 16, 64, 2, 4, 64
HALF, FULL = 2, 4  # bytes of a number of q, keys, values and the output, and of a partial result
FORM = list[tuple[int, list[tuple[int, int, int]], list[int]]]


def workload(work):
    """Three groups of requests that share their first blocks: most have one query, some a prompt."""
    random = work.random
    groups = [[random.randint(8, 30), random.randint(2, 6)] for _ in range(3)]
    free = iter(random.sample(range(400), 400))
    requests = []
    for shared, count in groups:
        common = [next(free) for _ in range(shared)]
        for _ in range(count):
            queries = random.choice((1, 1, 1, random.randint(4, 40)))
            context = shared * PAGE + queries + random.randint(0, 10 * PAGE)
            own = [next(free) for _ in range(-(-context // PAGE) - shared)]
            requests.append((queries, context, common + own))
    return requests


def visible(requests):
    """(request, query) -> the blocks that hold a token which it sees."""
    return {
        (request, query): frozenset(blocks[: (context - queries + query) // PAGE + 1])
        for request, (queries, context, blocks) in enumerate(requests)
        for query in range(queries)
    }


def costs(requests, programs):
    """What a launch costs.

    Raises:
        StudentFault: a row lacks a block that it sees, or has it twice; or a program is none.
    """
    sees, had, parts, sizes = visible(requests), Counter(), Counter(), []
    for number, (kv_head, rows, blocks) in enumerate(programs):
        if not rows or len(rows) > MOST_ROWS or len({*map(tuple, rows)}) < len(rows) or len({*blocks}) < len(blocks):
            told = f"{len(rows)} rows and {len(blocks)} blocks"
            raise StudentFault(
                f"program {number} has {told}: give it 1 to {MOST_ROWS} rows, and each row and block once."
            )
        for request, query, head in rows:
            if (request, query) not in sees or not 0 <= head < KV_HEADS * GROUP or head // GROUP != kv_head:
                raise StudentFault(
                    f"program {number} of KV head {kv_head} has the row {(request, query, head)}: no such."
                )
            mine = sees[request, query].intersection(blocks)
            had.update((request, query, head, block) for block in mine)
            parts[request, query, head] += 1
        sizes.append(HALF * DIM * (2 * PAGE * len(blocks) + len(rows)))
    for (request, query), blocks in sees.items():
        for head in range(KV_HEADS * GROUP):
            for block in blocks:
                if (times := had[request, query, head, block]) != 1:
                    where = f"query {query} of request {request} under head {head}"
                    raise StudentFault(f"{where} attends to block {block} {times} times: once is right.")
    merged = sum(2 * count * FULL * (DIM + 2) for count in parts.values() if count > 1)
    written = HALF * DIM * len(parts)
    return {"KiB in all": (sum(sizes) + merged + written) / 1024, "KiB of the longest program": max(sizes) / 1024}


def score(work):
    requests = workload(work)
    return costs(requests, work.call("programs", requests, KV_HEADS, GROUP, PAGE, form=FORM))


def launch(requests, most, together):
    """`together` heads of a KV head in a program of at most `most` rows."""
    found = []
    for request, (queries, context, blocks) in enumerate(requests):
        step = most // together
        for head in range(0, KV_HEADS * GROUP, together):
            for first in range(0, queries, step):
                mine = range(first, min(queries, first + step))
                rows = [(request, query, head + one) for query in mine for one in range(together)]
                found.append((head // GROUP, rows, blocks[: (context - queries + mine[-1]) // PAGE + 1]))
    return found


def baselines(work):
    requests = workload(work)
    rows = KV_HEADS * GROUP * sum(queries for queries, _, _ in requests)
    blocks = KV_HEADS * len({block for _, _, mine in requests for block in mine})
    least = HALF * DIM * (2 * PAGE * blocks + 2 * rows)
    return {
        "16 queries of one head": costs(requests, launch(requests, 16, 1)),
        "64 rows of one request, heads together": costs(requests, launch(requests, MOST_ROWS, GROUP)),
        "bound: each block once, and no partial results": {"KiB in all": least / 1024},
    }
