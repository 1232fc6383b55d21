# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11. A kernel
#
# Since chapter 3, prompts and single tokens share an iteration; since chapter 4, KV lies in blocks that are scattered
# over memory; and chapter 10 gave up the batch size, so that every iteration has another shape. Attention has to read
# all of that, and so far it was taken for granted. This chapter writes it: *multi-token attention* over blocks, first
# as a loop in Python, then tile by tile, then as a kernel in Triton. It runs without a GPU, in Triton's
# *interpreter*.
#
# **You will be able to**
#
# - count how many tokens of KV three ways of attending move, for any work;
# - compute a softmax in pieces, with a pencil, and say what is kept between the pieces;
# - say for each tile of queries and keys whether it is computed, masked, or skipped;
# - read a Triton kernel: programs, pointers, masks, constants; and write a small one;
# - name what the interpreter cannot show.
#
# A *kernel* is a function that runs on a GPU in many copies at once, which Triton calls *programs*. Starting them is a
# *launch*. Triton compiles such functions from Python. With `TRITON_INTERPRET=1` it interprets them instead, on the
# CPU, one program after the other. The variable must be set before Triton is imported, so it is the first thing here.

# %%
import os

os.environ["TRITON_INTERPRET"] = "1"

import json
import math

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl

from minifuse.attention.triton import TritonAttention
from minifuse.core.errors import KernelError
from minifuse.io.shipped import places, shipped
from minifuse.kernels.multi_token import _walk, attend_tile, multi_token_attention, multi_token_attention_torch
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.tile import slot_of, tile_owner
from minifuse.show.notebook import asks, draw_lanes, draw_memory, pieces, play, replay, show_source, turns

plt.rcParams.update({"figure.figsize": (7, 2.6), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"
_ = torch.manual_seed(0)

# %% [markdown]
# ## The failure: neither kernel fits
#
# A conversation has two turns, and two other requests run meanwhile. `pensieve` (chapter 8) keeps the KV of the first
# turn, so the second has only its own new words to compute, and they join an iteration of single tokens.

# %%
requests = [
    *turns("ann", "given ann 17, bob 4, dan 21: recall bob", "recall ann", pause=0.001),
    *asks("count from 3 to 12", (9, 12), arrivals=[0.0, 0.001], names=["bob", "cat"]),
]
kept = play("pensieve", requests, memory__chunk=4)
turn = pieces(kept, "ann.1")[0]  # the first piece of work of her second turn
print("iteration", turn.step)
for name in kept.history.stories:
    for piece in pieces(kept, name):
        if piece.step == turn.step:
            print(f"  {name:6} computes tokens {piece.start} to {piece.stop - 1}, over a context of {piece.stop}")
assert turn.stop - turn.start > 1 and turn.start > 0
draw_lanes(kept)

# %%
draw_memory(kept, step=turn.step)

# %% [markdown]
# In this iteration one request has several *queries* (the new tokens) over a context that lies in scattered blocks;
# the others have one query each. Pensieve's thesis (3.4.4) found two kinds of kernels, and neither does this. Fast
# *multi-token* kernels want keys and values in one piece. vLLM's *PagedAttention* reads blocks, but takes one query
# per request. So there are two workarounds (3.6.6): copy the KV together first, or call the single-token kernel once
# for each new token.
#
# **A count by hand.** $n$ new tokens follow $p$ past ones. How many tokens of KV are moved to attend?
#
# | | tokens of KV that are read or written | $n = 8$, $p = 1000$ |
# |---|---|---|
# | copy, then attend | $3(p + n)$: read, write, read again | 3,024 |
# | one token after the other | $(p+1) + \ldots + (p+n) = np + n(n+1)/2$ | 8,036 |
# | all queries at once | $p + n$ | 1,008 |


# %%
def moved(n, p):
    rounds = 0
    for query in range(n):  # each reads what is before it, and itself
        rounds += p + query + 1
    return {"copy, then attend": 3 * (p + n), "one after the other": rounds, "all queries at once": p + n}


print(moved(8, 1000))
assert list(moved(8, 1000).values()) == [3024, 8036, 1008]

# %% tags=["plot"]
pasts = [0, 250, 500, 1000, 2000, 4000]
figure, axes = plt.subplots()
for name, colour, mark in (
    ("copy, then attend", ORANGE, "s"),
    ("one after the other", GREEN, "^"),
    ("all queries at once", BLUE, "o"),
):
    axes.plot(pasts, [moved(8, p)[name] for p in pasts], mark + "-", color=colour, label=name)
axes.set_xlabel("past tokens")
axes.set_ylabel("tokens of KV moved")
axes.legend(frameon=False, fontsize=8)
axes.set_title("8 new tokens of one request, one layer", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# The thesis's Figure 3.17 is the same picture in measured time. The lowest line is what a kernel of our own is for.
#
# ## The idea, step by step
#
# We take the batch of the thesis's Figure 3.6. Request 0 decodes, with its KV in blocks 3 and 1. Request 1 has a new
# prompt of 7 tokens behind 12 past ones, and its KV is in blocks 0, 4, 5, 2 and 7. A block has 4 slots here.

# %%
PAGE, DIM = 4, 16
keys, values = torch.randn(2, 32, DIM)  # 32 slots: 8 blocks
tables = [[3, 1], [0, 4, 5, 2, 7]]
contexts, news = [6, 19], [1, 7]
queries = [torch.randn(n, DIM) for n in news]


def slots_of(table, tokens):
    return [table[token // PAGE] * PAGE + token % PAGE for token in tokens]


print("request 1 lies in slots", slots_of(tables[1], range(contexts[1])))

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 1.6))
for request, colour in ((0, ORANGE), (1, BLUE)):
    for token, slot in enumerate(slots_of(tables[request], range(contexts[request]))):
        new = token >= contexts[request] - news[request]
        axes.barh(0, 0.9, left=slot, color=colour, alpha=1 if new else 0.45)
        axes.text(
            slot + 0.45, 0, token, ha="center", va="center", fontsize=7, color="white" if new and request else "black"
        )
for edge in range(0, 33, PAGE):
    axes.axvline(edge - 0.05, color="black", linewidth=0.8)
axes.set_xticks([PAGE * block + 2 for block in range(8)], [f"block {block}" for block in range(8)], fontsize=8)
axes.set_yticks([])
axes.set_xlim(-0.2, 32.2)
axes.set_title("request 0 orange, request 1 blue; strong: queries; the number is the token", loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# ### Step 1: block by block, with one query
#
# The formula of chapter 1 needs all scores before it can divide by their sum. To read one block at a time and keep
# nothing of it, the softmax must be computed in pieces. This is called the *online softmax*. Three things are kept:
# the largest score so far $m$, the sum $l$ of the weights, and the weighted sum $a$ of the values. When a block
# brings a larger score, what has been summed is shrunk:
#
# $$m' = \max(m, \max s), \quad p = e^{s - m'}, \quad l' = l\, e^{m - m'} + \sum p, \quad a' = a\, e^{m - m'} + p V,$$
#
# and at the end the output is $a / l$.
#
# **A count by hand.** Scores $\ln 1, \ln 2$ in the first block and $\ln 4$ in the second, with values 7, 7 and 0. All
# at once: weights 1, 2 and 4, so $(7 + 14 + 0) / 7 = 3$. In pieces: after the first block $m = \ln 2$, $l = \frac12 +
# 1 = 1.5$, $a = 3.5 + 7 = 10.5$. The second has $m' = \ln 4$, so what we had shrinks by $\frac24$: $l = 0.75 + 1 =
# 1.75$, $a = 5.25 + 0$. And $5.25 / 1.75 = 3$.


# %%
def in_pieces(pieces):
    """Pieces of (scores, values); yields the peak, the sum and the output after each."""
    peak, total, weighted = -math.inf, 0.0, 0.0
    for scores, piece in pieces:
        new_peak = max(peak, scores.max().item())
        weights = torch.exp(scores - new_peak)
        shrink = math.exp(peak - new_peak)
        total = total * shrink + weights.sum().item()
        weighted = weighted * shrink + weights @ piece
        peak = new_peak
        yield peak, total, weighted / total


by_hand = [
    (torch.tensor([1.0, 2.0]).log(), torch.tensor([[7.0], [7.0]])),
    (torch.tensor([4.0]).log(), torch.tensor([[0.0]])),
]
(_, first_sum, _), (_, second_sum, out) = in_pieces(by_hand)
print(f"sums {first_sum:.3f} and {second_sum:.3f}, output {out.item():.3f}")
assert torch.allclose(torch.tensor([first_sum, second_sum, out.item()]), torch.tensor([1.5, 1.75, 3.0]))
*_, (_, third_sum, _) = in_pieces([*by_hand, (torch.tensor([40.0]).log(), torch.tensor([[0.0]]))])
print(f"with a third block of score ln 40 the sum is {third_sum:.3f}")
assert third_sum < second_sum


# %%
def blocks_of(query, table, context):
    for block in range(-(-context // PAGE)):
        slots = slots_of(table, range(block * PAGE, min((block + 1) * PAGE, context)))
        yield keys[slots] @ query / math.sqrt(DIM), values[slots]


query, table = queries[0][0], tables[0]
*_, (_, _, ours) = in_pieces(blocks_of(query, table, contexts[0]))
together = slots_of(table, range(contexts[0]))
exact = torch.softmax(keys[together] @ query / math.sqrt(DIM), 0) @ values[together]
print(f"differs from the formula of chapter 1 by {(ours - exact).abs().max().item():.1e}")
assert torch.allclose(ours, exact, atol=1e-5)

# %% [markdown]
# Here is how the numbers grow for a query of request 1, block by block.

# %%
steps = [list(in_pieces(blocks_of(query, tables[1], contexts[1]))) for query in queries[1]]
rising = max(steps, key=lambda one: len({peak for peak, _, _ in one}))  # the query whose peak rises most often
peaks, sums, outputs = zip(*rising)
away = [(one - outputs[-1]).norm().item() for one in outputs]
assert list(peaks) == sorted(peaks)

# %% tags=["plot"]
figure, columns = plt.subplots(1, 3, figsize=(8, 2.2))
for axes, series, label, colour in zip(
    columns, (peaks, sums, away), ("peak m", "sum l", "|a / l - the end|"), (ORANGE, GREEN, BLUE)
):
    axes.plot(range(1, 6), series, "o-", color=colour)
    axes.set_title(label, loc="left", fontsize=9)
    axes.set_xlabel("blocks read")
    axes.set_xticks(range(1, 6))
figure.tight_layout()
plt.show()

# %% [markdown]
# The peak never falls. Where it rises, what was summed before is shrunk; if it rises a lot, the sum even falls. The
# count by hand has such a case: a third block with $\ln 40$ shrinks 1.75 by $\frac{4}{40}$ and adds 1.
#
# ### Step 2: a tile of queries
#
# With several queries, each block of keys can serve all of them while it is there. The scores of a few queries with a
# few keys are a *tile*: one small product of matrices, which is what GPUs are best at. $m$, $l$ and $a$ become
# columns, with a row for each query. One thing is new. A query must not see later tokens, so the tiles on the
# diagonal are *masked* (causal masking): hidden scores become $-\infty$ before the exponential.


# %%
def tiles(context, n, block_q, block_n):
    """(query tile, key tile) -> "full", "masked" or "skipped"."""
    found = {}
    for i in range(-(-n // block_q)):
        lowest, highest = context - n + i * block_q, context - n + min((i + 1) * block_q, n) - 1
        for j in range(-(-context // block_n)):
            begin, end = j * block_n, (j + 1) * block_n - 1
            found[i, j] = "skipped" if begin > highest else "full" if end <= lowest else "masked"
    return found


print("request 1, tiles of 8 by 4:", tiles(19, 7, 8, 4))

# %% tags=["plot"]
figure, rows = plt.subplots(1, 2, figsize=(8, 2.7), gridspec_kw={"width_ratios": [1, 1.3]})
for axes, (context, n, block_q, block_n) in zip(rows, ((19, 7, 8, 4), (32, 32, 8, 8))):
    for query in range(n):
        for key in range(context):
            seen = key <= context - n + query
            kind = tiles(context, n, block_q, block_n)[query // block_q, key // block_n]
            colour = {"full": BLUE, "masked": ORANGE, "skipped": "white"}[kind]
            axes.add_patch(plt.Rectangle((key, query), 1, 1, color=colour, alpha=1 if seen else 0.25, linewidth=0))
    for edge in range(0, context + 1, block_n):
        axes.axvline(edge, color="black", linewidth=0.7)
    for edge in range(0, n + 1, block_q):
        axes.axhline(edge, color="black", linewidth=0.7)
    axes.set_xlim(0, context)
    axes.set_ylim(n, 0)
    axes.set_xlabel("token of the key")
    axes.set_ylabel("query")
    axes.set_title(f"{n} queries at the end of {context} tokens,\ntiles of {block_q} by {block_n}", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# Blue tiles are visible to all their queries and need no mask. Orange ones are masked; pale squares in them are
# computed for nothing. White ones are never read. On the left is request 1 of our batch, on the right a whole prompt. A
# single token is a tile with one row, and a prompt without a past begins at key 0: one form for all of them. That is
# why Pensieve can put prompts and single tokens into one launch.
#
# ### Step 3: the same in Triton
#
# Now the loop becomes a kernel. Read it with these rules:
#
# - The function describes *one program*. `tl.program_id(0)` says which one: here, which tile of queries.
# - There are no Python lists. `tl.arange(0, N)` is a vector, `[:, None]` makes it a column, and operators work on
#   whole tiles.
# - Tensors arrive as *pointers*: `tl.load(ptr + offsets)` reads any addresses, a tile of them at once. This is where
#   the block table comes in: it only changes the offsets.
# - `mask=` excludes addresses that must not be read; `other=` is what stands there instead.
# - `tl.constexpr` arguments are constants of the compiled code, as the sizes of tiles must be.
# - `tl.dot` is the product of two tiles.


# %%
@triton.jit
def attend(
    out_ptr, q_ptr, keys_ptr, values_ptr, table_ptr, walked_ptr, context, num_queries, scale,
    DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr,  # noqa: N803
    CAREFUL: tl.constexpr,  # noqa: N803
):  # fmt: skip
    tile = tl.program_id(0)
    query = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dim = tl.arange(0, DIM)
    mine = query < num_queries
    position = context - num_queries + query  # of each query in its context
    end = tl.minimum(context, context - num_queries + (tile + 1) * BLOCK_Q)  # what lies behind is skipped
    q = tl.load(q_ptr + query[:, None] * DIM + dim[None, :], mask=mine[:, None], other=0.0)

    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    weighted = tl.zeros([BLOCK_Q, DIM], tl.float32)
    walked = 0
    for start in range(0, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        there = token < end
        slot = tl.load(table_ptr + token // PAGE, mask=there, other=0) * PAGE + token % PAGE
        offsets = slot[:, None] * DIM + dim[None, :]
        readable = there if CAREFUL else token >= 0  # the second one is a defect, for later
        k = tl.load(keys_ptr + offsets, mask=readable[:, None], other=0.0)
        v = tl.load(values_ptr + offsets, mask=readable[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where((token[None, :] <= position[:, None]) & there[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp(scores - new_peak[:, None])
        shrink = tl.exp(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        weighted = weighted * shrink[:, None] + tl.dot(weights, v)
        peak = new_peak
        walked += 1
    tl.store(out_ptr + query[:, None] * DIM + dim[None, :], weighted / total[:, None], mask=mine[:, None])
    tl.store(walked_ptr + tile, walked)


def launch(q, keys, values, table, context, block_q=16, block_n=16, careful=True):
    """A program for each tile of queries. Returns the output, and how many tiles of keys each program walked."""
    programs = -(-len(q) // block_q)
    out, walked = torch.empty_like(q), torch.zeros(programs, dtype=torch.int32)
    attend[(programs,)](
        out, q, keys, values, torch.tensor(table, dtype=torch.int32), walked, context, len(q), 1 / math.sqrt(DIM),
        DIM=DIM, PAGE=PAGE, BLOCK_Q=block_q, BLOCK_N=block_n, CAREFUL=careful,
    )  # fmt: skip
    return out, walked.tolist()


# %% [markdown] tags=["prediction"]
# ## A prediction
#
# The next cell launches the kernel for both requests, with tiles of 8 queries by 8 keys. Predict:
#
# 1. How many programs does each launch have?
# 2. How many tiles of keys does each program walk?
# 3. A tile computes all of its $8 \cdot 8$ pairs of a query and a key. Of those that request 1 computes, how many are
#    needed?

# %%
for request, (q, table, context) in enumerate(zip(queries, tables, contexts)):
    out, walked = launch(q, keys, values, table, context, 8, 8)
    slots = slots_of(table, range(context))
    scores = q @ keys[slots].T / math.sqrt(DIM)
    hidden = torch.arange(context)[None, :] > context - len(q) + torch.arange(len(q))[:, None]
    exact = scores.masked_fill(hidden, -math.inf).softmax(-1) @ values[slots]
    assert torch.allclose(out, exact, atol=1e-5)
    needed, computed = int((~hidden).sum()), sum(walked) * 8 * 8
    print(f"request {request}: programs walk {walked} tiles, {needed} of {computed} pairs are needed")
    assert walked == [-(-context // 8)]

# %% [markdown]
# The kernel agrees with the formula. One program is enough for up to 8 queries, and it walks $\lceil c / 8 \rceil$
# tiles of keys. Many pairs are computed for nothing, of request 0 nearly all: its tile has eight rows and one query.
#
# ## The source that matters
#
# minifuse's kernel is the same loop, with four additions. Below, `_walk` is the loop, and `attend_tile` one tile's
# program; look for them:
#
# - *Heads.* All query heads that share a KV head are rows of one tile (`GROUP`), so a key is read once for all.
# - *Two walks.* Tiles that all rows see come first, without a mask; only those on the diagonal are masked.
# - *Powers of two.* It uses `exp2`, with the scale adjusted, since that is what the hardware has.
# - *A count from `first`*, for the padded rows of chapter 2.

# %%
show_source(_walk, attend_tile, slot_of)

# %% [markdown]
# One launch serves *all* requests. Program number $i$ has to find the request to which its tile belongs. Request $s$
# gets the tiles from $\lfloor \text{cu}_s / B_q \rfloor + s$ on, where $B_q$ is the number of queries in a tile and
# $\text{cu}_s$ the number of queries of all requests before it. Some tiles are then empty. But the number of programs
# is known without asking the device: for $T$ queries of $S$ requests it is
# $$\left\lfloor T / B_q \right\rfloor + S.$$

# %%
show_source(tile_owner)

# %%
heads, kv_heads = 4, 2
k, v = torch.randn(2, 32, kv_heads, DIM)
q = torch.randn(sum(news), heads, DIM)
numbers = [torch.tensor(one, dtype=torch.int32) for one in ([0, 1, 8], contexts, [[3, 1, -1, -1, -1], tables[1]])]
batch = Ragged(*numbers, page=PAGE, max_queries=7, max_context=19)
out = multi_token_attention(q, k, v, batch)
twin = multi_token_attention_torch(q, k, v, batch)
print(f"both requests, {heads} heads: kernel and twin differ by {(out - twin).abs().max().item():.1e}")
assert torch.allclose(out, twin, atol=1e-5)
rows_of_tile = 16  # float32, at most 7 queries x 2 heads of a group = 14 rows
block_q = rows_of_tile // (heads // kv_heads)
first_tiles = [begins // block_q + s for s, begins in enumerate([0, 1])]
print(f"tiles of {block_q} queries: {8 // block_q + 2} programs a KV head; the requests begin at tiles {first_tiles}")

# %% [markdown]
# Every kernel of minifuse has such a *twin* in PyTorch, which is its specification: the tests compare the two. The
# whole engine can run on the kernels too. In the interpreter it is slow, so the request is short.

# %%
short = asks("sort 7 2")
on_torch, on_triton = play("pensieve", short), play("pensieve", short, attention__backend="triton")
print(on_torch.answers, on_triton.answers)
assert on_torch.tokens == on_triton.tokens
try:
    multi_token_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), batch)
except KernelError as error:
    print(error)

# %% [markdown]
# The last line is a guard: the interpreter silently computes bfloat16 wrongly, so minifuse refuses it there.
#
# What the kernel makes possible is an iteration with everything in it. Below, `pensieve` runs the requests from the
# beginning of this chapter, and `vllm`, whose policy was made for kernels of one sort or the other, keeps prompts apart
# and computes the first turn of `ann` again.

# %%
apart = play("vllm", requests, memory__block_size=4)
assert apart.tokens == kept.tokens
assert apart.metrics["tokens"]["computed"] > kept.metrics["tokens"]["computed"]
replay(kept, apart, address=f"i={turn.step}&b=vllm&request=ann.1")

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the size of a tile
#
# 24 queries stand at the end of 64 tokens. Each tile of queries reads all the keys that it sees. So larger tiles read
# the keys less often, but compute more pairs for nothing. The kernel counts its own tiles. Before you look: which of
# the sizes 4, 8, 16 and 32 would you choose?

# %%
many, long = torch.randn(24, DIM), list(range(16))
big_keys, big_values = torch.randn(2, 64, DIM)
needed = sum(range(41, 65))
sizes = [4, 8, 16, 32]
read, idle = [], []
for size in sizes:
    _, walked = launch(many, big_keys, big_values, long, 64, size, 16)
    read.append(sum(walked) * 16)
    idle.append(1 - needed / (sum(walked) * 16 * size))
    assert walked == [-(-min(64, 40 + (i + 1) * size) // 16) for i in range(-(-24 // size))]
    print(f"tiles of {size:2} queries: {read[-1]:3} tokens of KV are read, {idle[-1]:.0%} of the pairs are not needed")
assert read == sorted(read, reverse=True)
assert idle == sorted(idle)

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
left.bar([str(size) for size in sizes], read, color=BLUE)
left.set_ylabel("tokens of KV read")
right.bar([str(size) for size in sizes], [100 * one for one in idle], color=ORANGE)
right.set_ylabel("% of pairs not needed")
for axes in (left, right):
    axes.set_xlabel("queries in a tile")
left.set_title("24 queries at the end of 64 tokens", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# Reading falls with every larger tile. Idle pairs rise in a step: tiles of 4 and of 8 divide the 24 queries evenly,
# those of 16 and of 32 have rows without a query. So 8 is better than 4 here, and beyond it you pay with idle pairs.
# For a long prompt the tile is large, since its reading is shared by many rows. For decoding it is as small as the
# hardware allows.

# %% [markdown]
# What limits a tile above are *registers*: the places, next to the arithmetic, in which the threads of a program hold
# $q$, $a$ and the scores. What does not fit is *spilled* to memory, and then costs more than the larger tile saved.
# minifuse compiles every form of its kernels ahead of time, without a GPU, and keeps a table. Here are three forms,
# for heads of 128 numbers, 4 query heads to a KV head, and blocks of 16 slots. (*Reference numerics* add in a fixed
# order; the end of this chapter says what for.) The dashed line is the most that a thread of these GPUs can have. None
# of the three spills.

# %%
found = shipped(places("kernels/registers.json", "benchmarks/results/kernels-registers.json"), "The registers are")
table = json.loads(found.read_text())
forms = [
    row for row in table["rows"] if row["target"] == "sm_90" and row["name"].startswith("multi_token d128 g4 page16")
]
meant = {"decode": "one query", "chunk": "many queries", "chunk reference": "many, reference numerics"}
labels = [meant[row["name"].removeprefix("multi_token d128 g4 page16 ")] for row in forms]
assert all(row["stack"] == 0 for row in forms), "nothing is spilled"

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 1.9))
axes.barh(labels, [row["registers"] for row in forms], color=GREEN)
axes.axvline(255, color="black", linestyle="--", linewidth=1)
axes.text(253, -0.72, "a thread has 255", ha="right", va="center", fontsize=7)
axes.set_xlabel("registers of a thread")
axes.set_title("multi-token attention, compiled for sm_90 (H100, H200)", loc="left", fontsize=9)
axes.set_ylim(-1.05, len(forms) - 0.4)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Where this idea loses, measured
#
# **1. Single tokens.** A tile has at least 16 rows, the least that a *tensor core* takes, the part of a GPU that
# multiplies tiles. A decoding request has one query.

# %%
shares = {}
for n in (1, 2, 4, 8, 16):
    _, walked = launch(many[:n], big_keys, big_values, long, 64, 16, 16)
    shares[n] = sum(range(64 - n + 1, 65)) / (sum(walked) * 16 * 16)
assert shares[1] == 1 / 16

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(6, 2.2))
axes.bar([str(n) for n in shares], [100 * share for share in shares.values()], color=BLUE)
axes.set_xlabel("queries of a request, in a tile of 16 rows")
axes.set_ylabel("% of pairs needed")
axes.set_title("contexts of 64 tokens", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# With one query, fifteen of sixteen rows are idle (fewer with grouped heads, which fill rows of the tile too). That
# alone costs little, because a decoding request waits for its KV (chapter 1).
#
# **2. Too few programs.** A GPU runs many programs at once. But one request with a context of 100,000 tokens gets one
# program for each KV head, which walks the context from end to end while the rest of the GPU has nothing to do. The
# cure is to split the *context*: each program walks a part, and the parts are merged with the rule of the online
# softmax. The kernel in `split_kv.py` does that, and is called `decode_attention` below. Look for the line that
# chooses it: all requests have one query.

# %%
show_source(TritonAttention.reads)

# %%
q1 = many[:1]
scores = (big_keys @ q1[0]) / math.sqrt(DIM)
parts = [next(in_pieces([(scores[part], big_values[part])])) for part in (slice(0, 30), slice(30, 64))]
peak = max(part[0] for part in parts)
weight = [part[1] * math.exp(part[0] - peak) for part in parts]
merged = sum(w * part[2] for w, part in zip(weight, parts)) / sum(weight)
whole, walked = launch(q1, big_keys, big_values, long, 64)
assert len(walked) == 1
print(f"one program walked all {walked[0]} tiles of the context; with parts, each could have its own")
print(f"two parts, merged, differ from one program by {(merged - whole[0]).abs().max().item():.1e}")
assert torch.allclose(merged, whole[0], atol=1e-5)

# %% [markdown]
# **3. What the interpreter hides.** Slots that were never written may hold anything, even NaN ("not a number"). Masked
# scores have weight 0, but $0 \cdot \text{NaN}$ is NaN (chapters 6 and 9). So values must be masked when they are
# *loaded*. Here is our kernel with and without that mask, on memory that is NaN wherever no token of request 0 lies.

# %%
dirty = torch.full_like(values, math.nan)
used = slots_of(tables[0], range(6))
dirty[used] = values[used]
clean, _ = launch(queries[0], keys, dirty, tables[0], 6, 8, 8)
spoiled, _ = launch(queries[0], keys, dirty, tables[0], 6, 8, 8, careful=False)
print("rows with NaN:", int(clean.isnan().any(1).sum()), "with the mask,", int(spoiled.isnan().any(1).sum()), "without")
plain, _ = launch(queries[0], keys, values, tables[0], 6, 8, 8, careful=False)
assert torch.equal(plain, clean), "on clean memory the defect does not show"
assert not clean.isnan().any()
assert spoiled.isnan().any()

# %% [markdown]
# On memory without NaN both are right, as the first assertion says, so a test there finds nothing. The interpreter is
# permissive in other ways too: an address outside of a tensor is read all the same; programs run one after the other,
# so two that write the same place never collide; products narrower than the compiler accepts pass; float32 products are
# exact, where a GPU rounds unless it is told not to. And it says nothing about speed. What it does show is *which
# numbers* a kernel computes.
#
# ## Exercises
#
# 1. Add a score $\ln 8$ with value 15 as a third block to the count by hand. What are $m$, $l$ and the output?
#    *Hint: shrink by 4/8 first.*
#    <details><summary>Answer</summary>
#    m = ln 8; l = 0.875 + 1 = 1.875; a = 2.625 + 15 = 17.625; output 9.4. At once: (7 + 14 + 0 + 120) / 15 = 9.4.
#    </details>
# 2. 512 queries at the end of 2,048 tokens, tiles of 64 by 64: how many tiles are full, masked, skipped? *Hint:
#    `tiles`.*
#    <details><summary>Answer</summary>
#    8 rows of tiles. Row i has 24 + i full tiles and 1 masked one: 220 full, 8 masked, 28 skipped.
#    </details>
# 3. Which line of `attend` changes if keys lie in one piece, as after a copy? Change it, copy the KV of request 1
#    together, and launch. *Hint: what is the table for? Then look at `slot_of`.*
#    <details><summary>Answer</summary>
#    Only <code>slot</code>: it becomes <code>tl.load(table_ptr) + token</code>, if the table holds the first slot
#    alone. That is the case <code>PAGE == 0</code> in <code>slot_of</code>. With <code>slots = slots_of(tables[1],
#    range(19))</code>, the changed kernel gives for <code>launch(queries[1], keys[slots], values[slots], [0], 19, 8,
#    8)</code> what the old one gave with the table.
#    </details>
# 4. Let `attend` walk only the last 8 keys of each query (a *sliding window*). Which tiles may be skipped now? Launch
#    it on the 24 queries with tiles of 8 by 8, and compare with the formula. *Hint: the first token that the first
#    query of the tile sees. And what is $e^{s - m}$ while no key was seen?*
#    <details><summary>Answer</summary>
#    All tiles before the first key of the first query. So the loop starts at <code>tl.maximum(context - num_queries +
#    tile * BLOCK_Q - 7, 0) // BLOCK_N * BLOCK_N</code>, and the condition gets <code>&amp; (token[None, :] &gt;
#    position[:, None] - 8)</code>. The first tile may be hidden from a whole row, whose peak is still minus infinity
#    then. Subtract <code>tl.where(new_peak == float("-inf"), 0.0, new_peak)</code> in both exponents, or the row
#    becomes NaN. Each of the three programs walks 2 tiles, where it walked 6, 7 and 8.
#    </details>
# 5. A prompt has 32 tiles of queries, and tile $i$ walks $i$ tiles of keys, from 1 to 32. Eight programs run at once,
#    and when one ends the next begins. How long does the launch take if tile 1 is the first, and how long if tile 32
#    is? *Hint: a list of eight ends; the next program goes to the earliest.*
#    <details><summary>Answer</summary>
#    With <code>ends = [0] * 8</code> and <code>heapq.heapreplace(ends, ends[0] + i)</code> for each tile,
#    <code>max(ends)</code> is 80 for <code>range(1, 33)</code> and 66 for <code>range(32, 0, -1)</code>. 66 is the sum
#    divided by eight: no place is idle. The longest should not begin last, so minifuse's kernel counts its tiles from
#    the end (<code>tile = tl.num_programs(0) - 1 - tl.program_id(0)</code> in
#    <code>minifuse/kernels/multi_token.py</code>).
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Pensieve (3.4.4) extends PyTorch's memory-efficient attention, written with Cutlass, by block tables. Here it is
#   one Triton kernel. The single query is a special case in both; for batches of single tokens alone we split the
#   context.
# - Pensieve computes dropped tokens and a new prompt as two *sub-requests* over one context (Figure 3.8). For this
#   kernel they are two sequences with the same table and different ends.
# - vLLM's PagedAttention, as the thesis tells it, takes one query per request. Flover's regions have a kernel of their
#   own (`minifuse/kernels/slots.py`), and FluidInfer's lanes run the same `attend_tile`, several one after the other.
# - With `--numerics reference` all sums run in the order of the context, with tiles of one size, so that a row's bits
#   do not depend on how a prompt was cut. It is how the laws of chapter 15 compare techniques bit by bit.
# - No GPU was used for this chapter: it claims counts, and no speed.
#
# ## Further reading
#
# - Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018): the rule of step 1.
# - Dao et al., *FlashAttention* (2022), and *FlashAttention-2* (2023): tiles, and which loop goes outside.
# - Tillet, Kung and Cox, *Triton* (2019), and the tutorials at triton-lang.org.
# - `minifuse/kernels/multi_token.py` as a whole, and `minifuse/kernels/split_kv.py`.
#
# **Next:** one kernel fills one device; when the weights do not fit there, chapter 12 divides a layer among several,
# and counts what they have to tell each other.
