"""Batches for the student's kernel, and what should come of them. (This lab has no stage in the engine.)"""

import math

from minifuse.labs.judge import Unmet
from minifuse.labs.submission import StudentFault

__all__ = ["compare", "drawn", "exact"]

NEAR = 1e-4  # of the largest value
DIM = 16


def drawn(random, work, kv_heads=1, group=1, page=4, factor=1.0, unwritten=None):
    """A batch for `attention`: `work` are (queries, tokens of the context) of each request, whose blocks are scattered.

    Slots that no token has hold drawn numbers, or `unwritten`. No request has block 0.
    """

    def rows(count, heads):
        return [[[random.gauss(0, 1) for _ in range(DIM)] for _ in range(heads)] for _ in range(count)]

    needed = [-(-context // page) for _, context in work]
    blocks = random.sample(range(1, sum(needed) + 3), sum(needed))
    tables = [[blocks.pop() for _ in range(count)] for count in needed]
    slots = (sum(needed) + 3) * page
    keys, values = rows(slots, kv_heads), rows(slots, kv_heads)
    keys = [[[factor * one for one in head] for head in slot] for slot in keys]
    if unwritten is not None:
        used = {slot for (_, context), table in zip(work, tables) for slot in slots_of(table, context, page)}
        for slot in set(range(slots)) - used:
            keys[slot] = values[slot] = [[unwritten] * DIM] * kv_heads
    queries = [rows(count, kv_heads * group) for count, _ in work]
    return queries, keys, values, tables, [context for _, context in work], page


def slots_of(table, context, page):
    return [table[token // page] * page + token % page for token in range(context)]


def exact(queries, keys, values, tables, contexts, page):
    """The attention of each request, in plain torch."""
    import torch

    found = []
    for mine, table, context in zip(queries, tables, contexts, strict=True):
        q, slots = torch.tensor(mine, dtype=torch.float64), slots_of(table, context, page)
        k, v = (torch.tensor([one[slot] for slot in slots], dtype=torch.float64) for one in (keys, values))
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
        token, position = torch.arange(context), torch.arange(context - len(mine), context)
        weights = scores.masked_fill(token[None, :] > position[:, None], -math.inf).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, v))
    return found


def compare(work, batch):
    """Raise `Unmet` unless the student's attention of a batch is right."""
    import torch

    found = work.call("attention", *batch, form=list[list[list[list[float]]]])
    queries, _, _, tables, contexts, page = batch
    told = f"With blocks of {page} slots, {len(queries[0][0])} heads and {len(batch[1][0])} KV heads"
    right = exact(*batch)
    if len(found) != len(right):
        raise StudentFault(f"attention returned {len(found)} requests of {len(right)}: leave the launcher as it is.")
    for request, (came, should) in enumerate(zip(found, right, strict=True)):
        came = torch.tensor(came, dtype=torch.float64)
        if came.shape != should.shape:
            raise StudentFault(f"attention returned the shape {tuple(came.shape)}: leave the launcher as it is.")
        wrong = ~((came - should).abs() <= NEAR * max(1.0, should.abs().max().item()))  # NaN is wrong, too
        if wrong.any():
            query, head, dim = wrong.nonzero()[0].tolist()
            raise Unmet(
                f"{told}: of request {request}, with {len(should)} queries at the end of {contexts[request]} tokens in "
                f"the blocks {tables[request]}, query {query} under head {head} has {came[query, head, dim]:.4f} at "
                f"place {dim}, and should have {should[query, head, dim]:.4f}. {int(wrong.sum())} of {wrong.numel()} "
                "numbers of the request are wrong."
            )
