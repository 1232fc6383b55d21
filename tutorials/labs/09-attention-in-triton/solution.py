"""Lab 9: multi-token attention over blocks, in Triton.

You write `attend`. The launcher `attention` is given, and stays as it is.
"""

# ruff: noqa: N803  # constants of a kernel have capitals

import math

import torch
import triton
import triton.language as tl

BLOCK_Q = 16  # queries of a program
BLOCK_N = 32  # tokens of the context that it reads at once


# BEGIN SOLUTION
@triton.jit
def in_context(token, end, context, PAGE: tl.constexpr):
    return token < end


@triton.jit
def is_visible(token, position):
    return token[None, :] <= position[:, None]


@triton.jit
def kv_head_of(head, HEADS: tl.constexpr, KV_HEADS: tl.constexpr):
    return head // (HEADS // KV_HEADS)


@triton.jit
def readable(there, token):
    return there


@triton.jit
def new_peak_of(peak, scores):
    return tl.maximum(peak, tl.max(scores, 1))


@triton.jit
def shrink_of(peak, new_peak):
    return tl.exp(peak - new_peak)


# END SOLUTION


@triton.jit
def attend(
    out_ptr,  # [T, HEADS, DIM], like the queries
    q_ptr,  # [T, HEADS, DIM], those of all requests, one request after the other
    keys_ptr,  # [slots, KV_HEADS, DIM]
    values_ptr,  # [slots, KV_HEADS, DIM]
    tables_ptr,  # [requests, columns], the blocks of each context, in order; -1 behind them
    begins_ptr,  # [requests + 1], where in T the queries of each request begin, and T
    contexts_ptr,  # [requests], the number of tokens up to and including the last query
    columns,
    scale,  # 1 / sqrt(DIM)
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,  # a power of two, 16 or more
    PAGE: tl.constexpr,  # slots of a block
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: up to BLOCK_Q queries of request `program_id(0)`, under head `program_id(2)`.

    They are its queries BLOCK_Q * t, BLOCK_Q * t + 1, ..., where t is `program_id(1)`. Token n of a context lies in
    slot PAGE * b + n % PAGE, where b is in column n // PAGE of the request's row of the table.

    With PAGE 4 and the table [3, 1] token 5 lies in slot 4 * 1 + 1 = 5.
    """
    # BEGIN SOLUTION: find your queries, walk over the context with an online softmax, and store what comes out
    request, tile, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(begins_ptr + request)
    count = tl.load(begins_ptr + request + 1) - begin
    context = tl.load(contexts_ptr + request)
    kv_head = kv_head_of(head, HEADS, KV_HEADS)

    query = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dim = tl.arange(0, DIM)
    mine = (query < count)[:, None]
    position = context - count + query
    rows = ((begin + query) * HEADS + head)[:, None] * DIM + dim[None, :]
    q = tl.load(q_ptr + rows, mask=mine, other=0.0)

    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    weighted = tl.zeros([BLOCK_Q, DIM], tl.float32)
    end = tl.minimum(context, context - count + (tile + 1) * BLOCK_Q)
    for start in range(0, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        there = in_context(token, end, context, PAGE)
        block = tl.load(tables_ptr + request * columns + token // PAGE, mask=there, other=0)
        slot = block * PAGE + token % PAGE
        cells = (slot * KV_HEADS + kv_head)[:, None] * DIM + dim[None, :]
        mask = readable(there, token)[:, None]
        k = tl.load(keys_ptr + cells, mask=mask, other=0.0)
        v = tl.load(values_ptr + cells, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(is_visible(token, position) & there[None, :], scores, float("-inf"))
        new_peak = new_peak_of(peak, scores)
        weights = tl.exp(scores - new_peak[:, None])
        shrink = shrink_of(peak, new_peak)
        total = total * shrink + tl.sum(weights, 1)
        weighted = weighted * shrink[:, None] + tl.dot(weights, v)
        peak = new_peak
    tl.store(out_ptr + rows, weighted / total[:, None], mask=mine)
    # END SOLUTION


def attention(
    queries: list[list[list[list[float]]]],
    keys: list[list[list[float]]],
    values: list[list[list[float]]],
    tables: list[list[int]],
    contexts: list[int],
    page: int,
) -> list[list[list[list[float]]]]:
    """The attention of `queries[request][query][head]`, the last tokens of contexts that lie in blocks.

    `keys[slot][kv_head]` and `values[slot][kv_head]` are all of memory. This is given: please leave it as it is.
    """
    counts = [len(one) for one in queries]
    q = torch.tensor([row for one in queries for row in one], dtype=torch.float32)
    k, v = torch.tensor(keys, dtype=torch.float32), torch.tensor(values, dtype=torch.float32)
    columns = max(len(table) for table in tables)
    padded = torch.tensor([table + [-1] * (columns - len(table)) for table in tables], dtype=torch.int32)
    begins = torch.tensor([sum(counts[:i]) for i in range(len(counts) + 1)], dtype=torch.int32)
    heads, dim = q.shape[1:]
    grid = (len(counts), triton.cdiv(max(counts), BLOCK_Q), heads)
    room = torch.full((len(q) + grid[1] * BLOCK_Q, heads, dim), math.nan)  # what is not stored is not a number
    out, behind = room[: len(q)], room[len(q) :]  # nothing is to be stored behind the last query
    lengths = torch.tensor(contexts, dtype=torch.int32)
    numbers = (columns, 1 / math.sqrt(dim), heads, k.shape[1], dim, page, BLOCK_Q, BLOCK_N)
    try:
        attend[grid](out, q, k, v, padded, begins, lengths, *numbers)
    except Exception as error:  # the interpreter's own, which hides yours
        raise error.__cause__ or error from None
    if not behind.isnan().all():
        raise IndexError("a program stored rows behind the last query: mask the store, too")
    return [one.tolist() for one in out.split(counts)]


def programs(
    requests: list[tuple[int, int, list[int]]], kv_heads: int, group: int, page: int
) -> list[tuple[int, list[tuple[int, int, int]], list[int]]]:
    """Open task: which programs a launch has, and which blocks each of them reads.

    `requests` are (queries, tokens of the context, blocks of the context). A program is (its KV head, its rows, its
    blocks), and a row (request, query, head). This is the launch from above. Do better.

    >>> programs([(1, 20, [7, 2])], kv_heads=1, group=2, page=16)
    [(0, [(0, 0, 0)], [7, 2]), (0, [(0, 0, 1)], [7, 2])]
    """
    found = []
    for request, (queries, context, blocks) in enumerate(requests):
        for head in range(kv_heads * group):
            for first in range(0, queries, BLOCK_Q):
                rows = [(request, query, head) for query in range(first, min(queries, first + BLOCK_Q))]
                end = context - queries + rows[-1][1] + 1
                found.append((head // group, rows, blocks[: -(-end // page)]))
    return found
