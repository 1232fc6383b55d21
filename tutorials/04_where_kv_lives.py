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
# # 4. Where KV lives
#
# Chapter 3 lets requests join and leave at every iteration, as long as memory has room. This chapter is about that
# room. It begins with memory that is full although most of it was never written, cuts memory into *blocks* that a
# request takes as it grows, lets requests share blocks, and ends with the price: a request may lose its place in the
# middle of its answer.
#
# **You will be able to**
#
# - compute how many slots a reservation takes that are never written, and tell internal from external fragmentation;
# - find the slot of any token with a block table, and count the blocks of a text;
# - say which blocks two requests share, and when one of them needs a copy;
# - predict the iteration in which memory runs out and which request is evicted, and choose between swap and
#   recompute;
# - name a load under which blocks are worse than reservations.

# %%
import math

import matplotlib.pyplot as plt

from minifuse.core.errors import UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Plan, Reason, Work
from minifuse.memory.blocks import BlockCount, BlockPool
from minifuse.memory.paged.paged import Paged
from minifuse.memory.paged.tables import Tables
from minifuse.model.text.presets import preset
from minifuse.show.notebook import (
    asks,
    block_tables,
    check,
    draw_lanes,
    draw_memory,
    kv_in_use,
    moves,
    owner_colour,
    pieces,
    play,
    reasons,
    replay,
    show_source,
)
from minifuse.simulate.cost import Roofline, hardware
from minifuse.stages import register

plt.rcParams.update(
    {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"

# %% [markdown]
# ## The failure of reservations: full, and almost empty
#
# Six requests arrive together. Each may get an answer of up to 40 tokens, because the server cannot know how long an
# answer will be before its last token is there. The device has 128 slots, and a slot holds the KV of one token.
# `orca` of chapter 3 serves them.

# %%
texts = ["count from 3 to 9", "sort 7 2 5 1", "given ann 17, bob 4: recall bob"]
texts += ["repeat duck 4 times", "count from 10 to 20", "sort 9 8 7 3"]
six = asks(*texts, max_new_tokens=40)
orca = play("orca", six)
print(orca)
print(orca.answers)
draw_memory(orca, step=[0, 8])

# %% [markdown]
# The dark slots hold KV. The light ones are set aside for tokens that may come. In iteration 0 two requests run and
# four wait, and most of the memory holds nothing.
#
# **A count by hand.** A request with a prompt of $p$ tokens and an answer of at most $m$ tokens can need
#
# $$p + m - 1$$
#
# slots (the last token of an answer is never given back to the model, chapter 1). `orca` sets all of them aside at
# admission, in one run of consecutive slots. For the prompts of 5 tokens that is 44 slots, so two of them take 88,
# and 40 are left.

# %%
by_hand = [len(one.prompt) + 40 - 1 for one in six]
kv = kv_in_use(orca)[0]
assert by_hand == [one.max_cached for one in six]
assert kv.reserved == by_hand[0] + by_hand[1]
assert len(orca.history.iterations[0].requests) == 2
print("needed at most", by_hand)
print(f"in iteration 0: {kv.reserved} of {kv.capacity} slots set aside, {kv.used} written")
waits = reasons(orca)[0]
print(waits.request, waits.text)

# %% [markdown]
# The last line is the reason (chapter 3) why `r2`, the first of the queue, is not admitted. Over the whole run the
# memory looks like this.


# %% tags=["plot"]
def edges_ms(run):
    steps = [one for one in run.history.iterations if one.work]
    return [one.start_s * 1e3 for one in steps] + [steps[-1].end_s * 1e3]


def draw_reserved(axes, run):
    kv, edges = kv_in_use(run), edges_ms(run)
    axes.stairs([one.reserved for one in kv], edges, fill=True, color=GREY, label="set aside")
    axes.stairs([one.used for one in kv], edges, fill=True, color=BLUE, label="written")
    axes.axhline(run.capacity, color="black", linewidth=1, linestyle="--")
    axes.set_title(f"{run.name}: {run.history.last_s * 1e3:.1f} ms", loc="left", fontsize=10)
    axes.set_xlabel("ms of virtual time")
    axes.set_ylim(0, 1.15 * run.capacity)


figure, axes = plt.subplots()
draw_reserved(axes, orca)
axes.set_ylabel("slots of the device")
axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
plt.show()

# %% [markdown]
# What is set aside and never used is called *internal fragmentation*: waste inside what a request owns. There is a
# second kind. Here are five requests of other lengths, and the picture of iteration 8, when the first and the third
# have ended.

# %%
holes = play("orca", asks((20, 8), (20, 20), (20, 8), (20, 20), (40, 10)))
kv = kv_in_use(holes)[8]
free, needed = kv.capacity - kv.reserved, 40 + 10 - 1
print(f"{free} slots are free, r4 needs {needed}")
waits = next(one for one in reasons(holes) if 8 in one.steps)
print(waits.request, waits.text)
assert free >= needed
assert waits.request == "r4"
draw_memory(holes, step=8)

# %% [markdown]
# There is room enough for `r4`, but not in one piece. That is *external fragmentation*: waste between owners. Both
# kinds have one cause: a request's slots must be one run. A run cannot grow when other runs lie behind it, so it is
# reserved in its full length before it is used.
#
# ## The idea: blocks, and a table
#
# Operating systems solved this for programs long ago: memory is cut into *pages* of one size, and a table says where
# each page of a program lies. vLLM does so with KV. A **block** is a few consecutive slots. A request has a **block
# table**, the list of its blocks in the order of its text, and takes one more when it grows beyond the last. With
# blocks of $B$ slots,
#
# $$\text{a text of } n \text{ tokens takes } \left\lceil \frac{n}{B} \right\rceil \text{ blocks,} \qquad
# \text{token } t \text{ lies in slot } \text{table}[\lfloor t / B \rfloor] \cdot B + t \bmod B .$$
#
# No block needs to lie beside another, so there is no external fragmentation: any free block serves any request. Of
# internal fragmentation only the empty end of the last block is left, at most $B - 1$ slots.
#
# **A count by hand.** The six prompts have 5, 5, 9, 4, 5 and 5 tokens. In blocks of 4 they take
#
# | tokens | 5 | 5 | 9 | 4 | 5 | 5 | in all |
# |---|---|---|---|---|---|---|---|
# | blocks | 2 | 2 | 3 | 1 | 2 | 2 | 12 |
# | slots | 8 | 8 | 12 | 4 | 8 | 8 | 48 |
# | of them empty | 3 | 3 | 3 | 0 | 3 | 3 | 15 |

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# The technique `vllm` uses blocks. Like `orca` it asks at every iteration who may join, and admits a request as soon as
# there are blocks for its *prompt*. Prompts and single tokens run in iterations of their own: it does not mix them. The
# command line's default is blocks of 16; we take 4, so that there is something to see. Predict before you run:
#
# 1. How many requests run in the first iteration, and how many slots are set aside in it?
# 2. How many iterations will `vllm` need, compared with those of `orca`, which the first output above shows?
# 3. Will the answers differ?

# %%
vllm = play("vllm", six, memory__block_size=4)
print(orca, vllm, sep="\n")
together, kv = len(vllm.history.iterations[0].requests), kv_in_use(vllm)[0]
print(f"in iteration 0: {together} requests, {kv.reserved} slots set aside, {kv.used} written")
assert (kv.reserved, kv.used) == (48, 33)
assert vllm.answers == orca.answers
assert vllm.history.last_s < 0.5 * orca.history.last_s
assert max(len(one.requests) for one in orca.history.iterations) == 2
draw_memory(vllm, step=[0, 5, 8])

# %%
draw_lanes(orca, vllm, by="time")

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6), sharex=True, sharey=True)
draw_reserved(left, orca)
draw_reserved(right, vllm)
left.set_ylabel("slots of the device")
right.legend(frameon=False, fontsize=8, loc="center right")
figure.tight_layout()
plt.show()

# %% [markdown]
# All six run at once, in the memory in which `orca` never ran more than two, and the run takes less than half the time.
# No iteration has become faster: each computes more requests, and chapter 2 measured what that costs: next to nothing.

# %% [markdown]
# The page below has both runs. Step through `vllm`, look at its *Memory* further down the page, and find the
# iterations in which a request takes another block: each does at every fourth token of its own text, so not all do at
# the same time.

# %%
replay(orca, vllm, address="run=vllm&i=4&b=orca&request=r4", height=760)

# %% [markdown]
# ### Check the table yourself
#
# The trace has the block table of every request in every iteration. `r4` counts from 10 to 20. Here is where its
# tokens lie at the end.

# %%
last, size = pieces(vllm, "r4")[-1], 4
blocks = block_tables(vllm, last.step)["r4"]
slots = [blocks[token // size] * size + token % size for token in range(last.stop)]
print(f"r4: block table {blocks}, tokens 0 to {last.stop - 1} in slots\n{slots}")
assert slots == Pages(tuple(blocks), size).slots(0, last.stop)

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(6, 2.4))
axes.plot(range(last.stop), slots, "s", color=owner_colour(vllm, "r4"))
for edge in range(size, last.stop, size):
    axes.axvline(edge - 0.5, color=GREY, linewidth=1)
axes.set_xlabel("token of the text")
axes.set_ylabel("slot of the device")
axes.set_title(f"r4 in blocks of {size}", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# ## The source that matters
#
# A pool of blocks is a stack of free ones and a number of *holders* for each. `missing` is what chapter 1 showed for
# other memories: which tokens must be computed. `grow` takes new blocks at the end of a table. (`promised` counts
# blocks that are kept for a request under a policy that never takes any back: exercise 4.)

# %%
show_source(BlockPool.take, BlockPool.share, BlockPool.give_back, Paged.missing, Tables.grow)

# %% [markdown]
# ## Sharing, and copy on write
#
# A table makes something possible that a run of slots does not: two tables can name the same block. Four users ask
# about the same document, which stands at the beginning of each prompt.

# %%
document = "given ann 17, bob 4, dan 21, lily 9, paul 3, rosa 12: what is"
readers = asks(*[f"{document} {name}?" for name in ("bob", "dan", "ann", "lily")], every=0.0005)
common = next(i for i, both in enumerate(zip(*[one.prompt for one in readers])) if len(set(both)) > 1)
print(f"each prompt has {len(readers[0].prompt)} tokens, the first {common} are the same")
apart = play("vllm", readers, memory__block_size=8)
together = play("vllm", readers, memory__block_size=8, memory__share=True)
assert apart.answers == together.answers
print(together.answers)
joined = [step for step in together.steps if moves(together, step)]
draw_memory(together, step=[0, joined[0], joined[-1] + 1])

# %% [markdown]
# `r1` holds the full blocks of the common text together with `r0`. The last block of the common text is not full, and
# `r1` will write its own words there, where `r0` has written others. So it gets a block of its own, and the tokens of
# the common text in it are copied: **copy on write**. The arrow is that copy. Blocks that are full are never written
# again, so they can be shared for as long as any table names them.
#
# **A count by hand.** Of $c$ common tokens, $\lfloor c / B \rfloor$ blocks are shared and $c \bmod B$ tokens are
# copied. A newcomer computes its prompt without the $c$ tokens.

# %%
B = 8
copies = together.metrics["moves"]["copy"]["tokens"]
assert copies == 3 * (common % B)
computed = [run.metrics["tokens"]["computed"] for run in (apart, together)]
assert computed[0] - computed[1] == 3 * common
print(f"each newcomer shares {common // B} blocks, copies {common % B} tokens, and does not compute {common}")
print(f"tokens computed: {computed[0]} apart, {computed[1]} together")

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.2))
for run, style, label in ((apart, "--", "each has its own"), (together, "-", "blocks are shared")):
    in_use = [one.reserved / B for one in kv_in_use(run)]
    axes.stairs(in_use, edges_ms(run), color=GREEN, linestyle=style, linewidth=2, label=label)
axes.set_ylabel("blocks in use")
axes.set_xlabel("ms of virtual time")
axes.set_ylim(0)
axes.legend(frameon=False, fontsize=8)
axes.set_title("Four questions about one document, blocks of 8", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Sharing here is between requests that run at the same time. When the last reader of the document has ended, its
# blocks are free, and the next reader computes it again. Keeping them is the subject of chapter 8.
#
# ## What if memory runs out?
#
# `vllm` admits requests without knowing how long they become. Sooner or later all of them need one more block, and
# there is none. Then one must leave: it is **evicted**, its blocks are given to the others, and it waits until it can
# come back.
#
# **A count by hand.** Three requests with prompts of 20 tokens and answers of 24 run on 96 slots, in 12 blocks of 8.
# Iteration 0 computes the prompts, and iteration $k$ writes the KV of token $19 + k$ of each. Each takes one more block
# whenever $19 + k$ is a multiple of 8.
#
# | iteration | token written | blocks of each | in all |
# |---|---|---|---|
# | 0 | 0 to 19 | 3 | 9 |
# | 5 | 24 | 4 | 12 |
# | 13 | 32 | 5 | 15: three too many |
#
# A request that is evicted has two ways back. **Recompute**: its KV is dropped, and when it comes back, its prompt and
# all tokens of its answer so far are computed again, as one long prompt. **Swap**: its KV is copied to the memory of
# the *host*, the computer that the device is part of, and copied back later. Both are played here.

# %%
three = asks((20, 24), (20, 24), (20, 24))
small = {"kv_memory": "144KiB", "memory__block_size": 8}
recomputed = play("vllm", three, label="vllm, recompute", **small)  # the name that pictures show
swapped = play("vllm", three, label="vllm, swap", memory__preemption="swap", **small)

# %% [markdown] tags=["prediction"]
# Memory runs out in iteration 13. Three more blocks are needed, and a request that leaves frees four. The policy is
# first come, first served, so the newest goes. The page below stops behind iteration 12 and asks. Before you press the
# right arrow key: which request goes, and in which iteration can it come back?

# %%
replay(swapped, address="i=10&predict=evicted", height=560)

# %% [markdown]
# The newest of the three is `r2`, the last in the order, and it waits until the others have ended, until iteration 24.

# %% [markdown]
# Here is the map of both iterations with a swap.

# %%
evictions = [(name, *one) for name, story in swapped.history.stories.items() for one in story.evictions]
print("evicted, and in which iterations it goes and comes back:", evictions)
assert evictions == [("r2", 13, 24)]
assert recomputed.tokens == swapped.tokens
copied = {step: sum(move.tokens for move in moves(swapped, step)) for step in (13, 24)}
print("tokens copied in each of them:", copied)
draw_memory(swapped, step=[13, 24])

# %% [markdown]
# (Blocks that lie side by side on both tiers, device and host, are moved together: on the way out three of them share
# one arrow.) On the way back `r2` gets other blocks than those it had. That does not matter: only the table has to
# know. In the lanes, the difference between the two ways is the green stretch at the return.

# %%
draw_lanes(swapped, recomputed)

# %%
for label, run in (("swap", swapped), ("recompute", recomputed)):
    tokens, moved = run.metrics["tokens"], run.metrics["moves"]
    print(
        f"{label:10} computes {tokens['computed']} tokens, {tokens['recomputed']} of them again, "
        f"and copies {moved['swap_out']['tokens']} + {moved['swap_in']['tokens']}"
    )
assert recomputed.metrics["tokens"]["recomputed"] == swapped.metrics["moves"]["swap_in"]["tokens"] == 32

# %% [markdown] tags=["prediction"]
# ### Which is cheaper?
#
# Swap costs the bytes of the KV, twice, over the *link* between device and host (`a100.link`, in bytes a second).
# Recompute costs a prefill of the same tokens: at least the reading of all weights, and more when the arithmetic
# takes longer than that. For the machine and models of chapter 1 the cost model of virtual time gives both.
# **Predict**: which model gains more from swapping, the one with 512 KiB of KV a token, or the one with 128 KiB?

# %%
a100 = hardware("a100-40g")
lengths = list(range(16, 2049, 16))
prefills = [Plan(0, 0, (Work("r", 0, n),), (Extent(0, n),)) for n in lengths]  # iterations that compute n tokens
kib, swap, again = {}, {}, {}  # of each model: KiB of KV a token; ms of a swap, of computing again
for name in ("llama-2-7b", "llama-3-8b"):
    shape = preset(name)
    kv_bytes, cost = shape.kv_bytes_per_token("float16"), Roofline(shape, "float16", a100)
    kib[name] = kv_bytes // 1024
    swap[name] = [2 * n * kv_bytes / a100.link * 1e3 for n in lengths]
    again[name] = [cost(prefill) * 1e3 for prefill in prefills]
    ratio = swap[name][-1] / again[name][-1]
    print(f"{name}: of {lengths[-1]} tokens, a swap takes {ratio:.2f} times as long as computing them again")

# %% tags=["plot"]
figure, charts = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True)
for axes, name in zip(charts, kib):
    axes.plot(lengths, swap[name], color=BLUE, label="swap out and in")
    axes.plot(lengths, again[name], "--", color=ORANGE, label="recompute")
    axes.set_title(f"{name}: {kib[name]} KiB a token", loc="left", fontsize=9)
    axes.set_xlabel("tokens that were evicted")
charts[0].set_ylabel("ms on an A100")
charts[0].legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# The lines are near each other for the older model and far apart for the one with fewer KV heads, whose KV is a
# quarter as large. A faster link makes swaps cheaper, faster arithmetic makes recomputing cheaper. And a swap can be
# hidden: with `memory__transfer="overlapped"`, each layer waits for its own part only, while the layers before it
# compute. Chapter 8 is built on that.
#
# ## Your turn: count the blocks
#
# A policy tries its decisions on a count of blocks before memory changes anything. `claim` answers for a newcomer that
# already shares `held` blocks: `None`, or a `Reason(code, id, sentence)` if too few are `free`. If `growing`, it claims
# blocks for its text so far, and leaves `kept` to others (exercise 5); otherwise for the longest possible text,
# `sequence.request.max_cached`. It takes what it lacks from `self.free`, and enters in `self.whole`, by id, how many
# blocks it then has, shared ones included. `extend_to` gives a running request room for `length` tokens;
# `self.whole_of(name)` is the number of blocks that it has, taken or promised.


# %% tags=["task"]
class Count(BlockCount):
    """Counts the blocks that are `free`, and those of each request, while a decision is tried."""

    def claim(self, sequence, held, growing, kept):
        # BEGIN SOLUTION: how many blocks does the newcomer lack, and are they free?
        tokens = len(sequence) if growing else sequence.request.max_cached
        whole = math.ceil(tokens / self.size)
        leaves = kept if growing else 0
        lacks = whole - held
        if lacks > self.free - leaves:
            return Reason("memory-full", sequence.id, f"not admitted: it lacks {lacks} blocks of {self.free}")
        self.free -= lacks
        self.whole[sequence.id] = whole
        return None
        # END SOLUTION

    def extend_to(self, name, length):
        # BEGIN SOLUTION: how many more blocks does the running request need, and are they free?
        more = math.ceil(length / self.size) - self.whole_of(name)
        if more > self.free:
            return Reason("memory-full", name, f"has no room for its next token: it lacks {more} blocks")
        if more > 0:
            self.whole[name] = self.whole_of(name) + more
            self.free -= more
        return None
        # END SOLUTION


@register
class Mine(Paged):
    """Keeps KV in blocks, and counts them by hand."""

    name = "mine"

    def room(self):
        room = super().room()
        room.count = Count(self.tables.blocks, self.tables.num_available, "block")
        room.extend = room.count.extend
        return room


# %%
promises = check("vllm", memory="mine", batching="iteration")  # under a policy that never evicts
tight = {"kv_memory": "72KiB", "memory__block_size": 8, "memory__share": True, "memory__watermark": 0.2}
check("vllm", readers, memory="mine", **tight) if promises.passed else promises

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the size of a block
#
# A large block wastes more in its empty end, on average half a block for each request. A small block makes long tables:
# each block is an entry to look up in every attention, and a transfer of its own when it is swapped. Forty requests of
# many lengths arrive, and memory is small. Predict: with which size of block, from 1 to 64, do their answers take the
# least time, and with which the most?

# %%
crowd = asks(*[(4 + 7 * i % 23, 5 + 11 * i % 29) for i in range(40)])
sizes = (1, 2, 4, 8, 16, 32, 64)
runs = [play("vllm", crowd, kv_memory="384KiB", max_batch=16, memory__block_size=size) for size in sizes]
reserving = play("orca", crowd, kv_memory="384KiB", max_batch=16)
waste = [run.metrics["kv"]["mean_reserved_tokens"] - run.metrics["kv"]["mean_used_tokens"] for run in runs]
each = [one / run.metrics["mean_batch_size"] for one, run in zip(waste, runs)]


def longest_table(run):
    ends = {one.id: pieces(run, one.id)[-1].step for one in crowd}  # a table is longest in a request's last iteration
    return max(len(block_tables(run, step)[name]) for name, step in ends.items())


longest = [longest_table(run) for run in runs]
assert longest[0] > 8 * longest[-1]
assert runs[0].history.last_s < reserving.history.last_s < runs[-1].history.last_s

# %% tags=["plot"]
figure, charts = plt.subplots(1, 3, figsize=(9, 2.7))
charts[0].plot(sizes, each, "o-", color=ORANGE)
charts[0].plot(sizes, [(size - 1) / 2 for size in sizes], ":", color=GREY)
charts[0].set_ylabel("slots for each request")
charts[0].set_title("set aside, not written\n(dotted: half a block)", loc="left", fontsize=9)
charts[1].plot(sizes, longest, "o-", color=GREEN)
charts[1].set_ylabel("blocks")
charts[1].set_title("longest block table\n", loc="left", fontsize=9)
charts[2].plot(sizes, [run.history.last_s * 1e3 for run in runs], "o-", color=BLUE)
charts[2].axhline(reserving.history.last_s * 1e3, color="black", linewidth=1, linestyle="--")
charts[2].set_ylim(0)
charts[2].set_ylabel("ms of virtual time")
charts[2].set_title("all 40 answers\n(dashed: orca)", loc="left", fontsize=9)
for axes in charts:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("slots in a block")
figure.tight_layout()
plt.show()

# %% [markdown]
# The waste grows with the block, and so does the time as soon as it keeps requests out. (It is more than half a block
# where texts are shorter than a block.) With the largest blocks `vllm` is slower than `orca` with its reservations.
# Small blocks cost nothing here because the cost model does not charge for the length of a table; a kernel does
# (chapter 11). Sixteen slots are a common compromise.

# %% [markdown]
# Not every combination exists. An attention that expects a run of slots cannot read a table, and a block must fit into
# memory. So must a request, with its longest possible answer, even if it is alone; one that cannot is refused, and the
# others are served:

# %%
for refused in ({"attention": "per_sequence"}, {"memory__block_size": 1000}):
    try:
        play("vllm", three, **refused)
    except UsageError as error:
        print(error, "\n")
lonely = play("vllm", asks((100, 60), (5, 5)))
assert list(lonely.refused) == ["r0"]
print(lonely)

# %% [markdown]
# ## Where this idea loses, measured
#
# Let the machine be an A100 with `llama-2-7b`. As in chapters 2 and 3 no weights are needed: the cost model tells how
# long each iteration takes. In the first load, there is memory for 2,048 tokens, and short prompts are followed by
# long answers, which are as long as the server allows. What `orca` sets aside is then really used. In the second
# there is memory for 4,096 tokens, prompts are long, and they arrive one after the other.

# %%
big = {"model": "random:llama-2-7b", "dtype": "float16", "hardware": "a100-40g", "max_batch": 16}
loads = {
    "long answers, all at once": (asks(*[(50, 400)] * 16, model=big["model"]), "1GiB"),
    "long prompts, every 50 ms": (asks(*[(600, 60)] * 24, every=0.05, model=big["model"]), "2GiB"),
}
rows = [
    (load, name, play(name, requests, kv_memory=memory, **big))
    for load, (requests, memory) in loads.items()
    for name in ("orca", "vllm")
]
for load, name, run in rows:
    again = run.metrics["tokens"]["recomputed"]
    print(f"{load}  {name}  evictions {run.metrics['evictions']:3}  computed again {again:5}")

# %% tags=["plot"]
figure, charts = plt.subplots(2, 2, figsize=(8, 3.4))
for line, load in zip(charts, loads):
    pair = [run for of_load, _, run in rows if of_load == load]
    for axes, values, unit in (
        (line[0], [run.history.last_s for run in pair], "s until all have ended"),
        (line[1], [1e3 * run.metrics["latency_bound_s"] for run in pair], "ms between two tokens, at most"),
    ):
        bars = axes.barh(["orca", "vllm"], values, color=[GREY, BLUE])
        axes.bar_label(
            bars, [f"{value:,.0f}" if value > 20 else f"{value:.1f}" for value in values], fontsize=8, padding=2
        )
        axes.set_xlim(0, 1.2 * max(values))
        axes.invert_yaxis()
        axes.set_xlabel(unit, fontsize=9)
    line[0].set_title(load, loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %%
answers, prompts = rows[:2], rows[2:]
gap = [run.metrics["latency_bound_s"] for *_, run in answers]
assert gap[1] > 100 * gap[0]
assert answers[1][2].history.last_s < answers[0][2].history.last_s
assert prompts[1][2].history.last_s > prompts[0][2].history.last_s
assert prompts[1][2].metrics["latency_bound_s"] > prompts[0][2].metrics["latency_bound_s"]
print(f"the longest silence in an answer is {gap[1] / gap[0]:.0f} times as long with vllm")

# %% [markdown]
# Under the first load `vllm` ends earlier, but a user may see an answer stop in the middle and go on seconds later:
# that request had been evicted. `orca` never does this. What it has admitted, it finishes, and a request that waits
# has not begun its answer yet. These pauses are the price of admitting requests without knowing their lengths.
#
# Under the second load there are no evictions at all, and `vllm` loses on both counts. It computes prompts in
# iterations of their own: each prompt stops all running answers, and the single tokens that could have shared the
# reading of the weights have to wait and read them again. That is a choice of the *batching policy*, not of blocks.
# Exercise 4 exchanges the policy.
#
# ## Exercises
#
# 1. A block table is `(7, 2, 9)`, and blocks have 16 slots. In which slot does token 20 lie, and how many tokens does
#    the text have when it needs a fourth block? *Hint: token 20 lies in block 20 // 16 of the table.*
#    <details><summary>Answer</summary>
#    Token 20 is token 4 of the second block: slot 2·16 + 4 = 36. There is room for 48 tokens, so the
#    49th needs a fourth block.
#    </details>
# 2. Two prompts have 30 tokens in common and blocks have 16 slots. How many blocks are shared, how many tokens
#    copied? What if the whole prompts are the same 32 tokens? *Hint: something of a prompt must always be computed.*
#    <details><summary>Answer</summary>
#    One block is shared and 14 tokens are copied. Of two equal prompts of 32 tokens 31 are taken over: the last token
#    must be computed, since the first token of the answer is chosen from its logits. So again one block is shared,
#    and 15 tokens are copied.
#    </details>
# 3. In the run with three requests, how much memory would avoid the eviction? Compute it, then check it with
#    `kv_memory` (1536 bytes a token). *Hint: the last token of an answer is never written.*
#    <details><summary>Answer</summary>
#    Each writes 20 + 24 - 1 = 43 tokens, which take 6 blocks of 8. Three take 18 blocks: 144 slots, 216 KiB. With one
#    block less there is an eviction, if only for the last tokens.
#    </details>
# 4. Put the memory of `vllm` under the policy of `orca`: serve both loads again with `batching="iteration"`. What
#    becomes of them, and why is nothing evicted? *Hint: `requests, memory = loads["long answers, all at once"]`, then
#    `play("vllm", requests, kv_memory=memory, batching="iteration", **big)`; and read `print(Paged.__doc__)`.*
#    <details><summary>Answer</summary>
#    The policy `iteration` does not evict, so the memory promises each newcomer the blocks of its longest possible
#    answer. There is no external fragmentation, but the reservation is back. The first load has no pauses, and takes
#    as long as with `orca`. In the second, prompts and single tokens share iterations, and `vllm` is no longer
#    slower.
#    </details>
# 5. `memory.watermark` is a part of the blocks that newcomers leave free. What would you expect of 0.2 under the
#    first load, for the number of evictions and for the time? *Hint: as in exercise 4, with `memory__watermark=0.2`.*
#    <details><summary>Answer</summary>
#    Newcomers are admitted later, so fewer requests are evicted, 15 instead of 19, and fewer tokens are computed
#    again. But memory is less full, so the run takes a little longer, 9.3 s instead of 8.8 s. Pensieve keeps 10% free
#    for that reason (3.4.3.5).
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - The idea is vLLM's (Kwon et al., 2023, sections 4.1 to 4.5). Pensieve tells it in 3.2.2, and FluidInfer in section
#   2, whose Figure 2 shows both layouts, as our maps of `orca` and `vllm` do.
# - Pensieve's baseline is vLLM as we serve it here: batches of one phase, prompts or single tokens (3.4.2). Later
#   versions of vLLM mix them.
# - vLLM shares blocks between several answers to one prompt, and between prompts whose common text was announced. Here
#   common beginnings of running requests are found in a *prefix tree*, in which texts with the same first tokens share
#   a path, and the block that is shared in part is copied at admission, because the newcomer is going to write there at
#   once.
# - A request that could never fit, even alone, is refused when it is submitted. A running one can therefore always be
#   finished: the first in order is never evicted.
# - Pensieve also evicts the newest first, and swaps (3.4.3.5). Recompute is our default, `memory__preemption="swap"`
#   the other.
#
# ## Further reading
#
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention* (SOSP 2023).
# - Knuth, *The Art of Computer Programming*, volume 1, section 2.5, on first fit and its holes: it is how `orca`
#   finds a run here.
# - Zheng et al., *SGLang* (2023), whose RadixAttention keeps a prefix tree for requests that come later.
#
# **Next:** an iteration now serves as many requests as fit, but a prompt that arrives still holds up every answer
# that is being written; chapter 5 computes prompts beside the iterations of the others.
