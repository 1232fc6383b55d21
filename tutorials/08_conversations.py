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
# # 8. Conversations
#
# A chat is many requests about one text that grows. All techniques so far forget that text when an answer ends, and
# compute it again for the next question. Pensieve keeps its KV: on the device while there is room, then on the host,
# and at last not at all. This chapter follows one conversation through all three, and finds what a piece of KV is
# worth.
#
# > **Claim.** Pensieve (thesis, 3.6) has 1.25 times the throughput of vLLM on OPT-13B, 1.52 on Llama 2-13B with ten KV
# > heads, 1.5 on OPT-66B and 1.6 on Llama 2-70B; with five turns or more 1.3 and 1.7 on the two smaller models. Its
# > eviction recomputes up to 14.6% fewer tokens than LRU, with a hit rate up to 4.4 points higher. The paper of EuroSys
# > 2025 claims 1.14 to 3.0 times the throughput of vLLM and TensorRT-LLM.
# >
# > **Setting.** One A100 of 80 GB, four for the larger models, with 40 GB for KV on each; ShareGPT's conversations of
# > up to 16,384 tokens; reaction times of 60 s on average. Baselines: vLLM 0.2.0, and Pensieve without a host cache.
# >
# > **What we measure.** `minifuse reproduce pensieve`: what history costs (`pensieve-fig3.3`, `pensieve-fig3.4`),
# > latency against throughput (`pensieve-fig3.12`, `pensieve-fig3.13`, `pensieve-fig3.15`, `pensieve-fig3.16`,
# > `pensieve-fig3.18`), eviction (`pensieve-fig3.14`) and the kernel (`pensieve-fig3.17`). `--scale paper` is virtual
# > time by data sheets.
# >
# > **Agreement.** Fig. 3.3 agrees with Llama 2-13B (from 1,416 tokens of history on), and does not with OPT-13B. Fig.
# > 3.4: attention grows linearly in real time, agrees. Over vLLM, at equal p90: Fig. 3.12 1.14 and 2.12 times, Fig.
# > 3.13 1.44 and 3.30, Fig. 3.15 1.27 and 2.34, each for OPT (undecided) and for Llama 2 (above). With a quarter of
# > the host's memory Llama 2 has 1.55 times in Fig. 3.12 (undecided), and 1.61 in Fig. 3.15, which agrees; OPT is
# > below in all three (1.02 to 1.13). Fig. 3.14 is below: the policies hardly differ (1.2% fewer tokens). Fig. 3.16:
# > 2.12 times at 60 s, above, and 1.75 at 120 s, undecided. Fig. 3.17: on a CPU alone. Fig. 3.18 agrees. All figures:
# > `benchmarks/results/README.md`.
# >
# > **Errata.** The abstract claims 33% to 100% more throughput; the figures' text has 25% to 70%. Section 1.4.2 evicts
# > a suffix of a conversation, and 3.4.3.1 its leading end, as here. No model is named for Fig. 3.3, and no numbers are
# > given for Fig. 3.4. The size of the host's cache is not given: 220 GB a GPU are system memory. Nor is the length of
# > a run.
#
# **You will be able to**
#
# - count the tokens that a conversation costs with and without kept KV;
# - say where each chunk of a conversation lies, and what is taken first when memory is short;
# - compute the value of a chunk, and order chunks of several conversations by hand;
# - read a request with two spans of queries, and count its pairs of query and key;
# - compute how much of a transfer is hidden behind the layers, and check it against a run;
# - name loads under which keeping KV is worth nothing, or worse.

# %%
import random

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from minifuse.memory.tiered.eviction import CostAware, LeastRecentlyUsed
from minifuse.memory.tiered.owners import Owners
from minifuse.memory.tiered.profile import ASSUMED, Profile
from minifuse.memory.tiered.tiered import Tiered
from minifuse.memory.tiered.tiers import Tiers
from minifuse.show.notebook import (
    block_tables,
    check,
    draw_lanes,
    draw_memory,
    moves,
    pieces,
    play,
    replay,
    show_source,
    turns,
)
from minifuse.stages import register
from minifuse.trace.slot_books import books

plt.rcParams.update({"figure.figsize": (7, 2.6), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"

# %% [markdown]
# ## The failure: every question computes the whole conversation again
#
# The cells of chapter 7 hand on states of a fixed size, which are easy to keep. What a transformer would have
# to keep of a text grows with every token, and no technique so far keeps it beyond the end of an answer.
#
# A **conversation** is a list of requests, its *turns*. Each is put behind the text of all earlier ones, prompts and
# answers, which is called its *history*. `turns` writes such requests; each arrives a pause after the answer before
# it.

# %%
questions = "remember ann 17", "note bob 4", "recall ann", "count from 1 to 12", "what is bob?"
ann = turns("ann", *questions, pause=0.002)
forgetting = play("vllm", ann, memory__block_size=8)
for one in ann:
    print(f"{one.id}  {len(one.prompt)} new tokens, answer: {forgetting.answers[one.id]}")

# %% [markdown]
# The model is `tiny`, and its answers are right: `bob` was named three turns before. To the technique `vllm` of
# chapter 4, each turn is a new prompt, which happens to begin with the old text. When the answer has ended, its
# blocks are free, and the KV in them is lost.
#
# **A count by hand.** Let a conversation have $k$ turns, each with $u$ new tokens and an answer of $a$. Turn $i$ has
# a history of $(i - 1)(u + a)$ tokens, so the prompts have
#
# $$k u + (u + a) \frac{k (k - 1)}{2}$$
#
# tokens in all. It is chapter 1's sum again: twice as many turns cost four times as much. With kept KV, a turn
# computes its $u$ new tokens, and one more: the last token of an answer was never given to the model, so its KV is
# still missing. That makes $k u + k - 1$.

# %%
k, u, a = 8, 6, 10
long = turns("ann", *[(u, a)] * k, pause=0.002)
forgets, keeps = play("vllm", long, kv_memory="384KiB"), play("pensieve", long, kv_memory="384KiB")
by_hand = k * u + (u + a) * k * (k - 1) // 2, k * u + k - 1
assert by_hand == tuple(run.metrics["tokens"]["prefill"] for run in (forgets, keeps))
assert forgets.tokens == keeps.tokens
print(f"prompt tokens computed: vllm {by_hand[0]}, pensieve {by_hand[1]}")


# %%
def prompt_tokens(run):
    """The prompt tokens that each turn computes; single tokens are those of the answer."""
    lengths = {one.id: [stop - start for _, start, stop in pieces(run, one.id)] for one in long}
    return [sum(length for length in of_one if length > 1) for of_one in lengths.values()]


print(prompt_tokens(forgets), prompt_tokens(keeps), sep="\n")
assert by_hand == (sum(prompt_tokens(forgets)), sum(prompt_tokens(keeps)))

# %% tags=["plot"]
figure, axes = plt.subplots()
places = range(k)
axes.bar([at - 0.2 for at in places], prompt_tokens(forgets), 0.4, color=GREY, label="vllm")
axes.bar([at + 0.2 for at in places], prompt_tokens(keeps), 0.4, color=BLUE, label="pensieve")
axes.set_xticks(places, [f"turn {at + 1}" for at in places])
axes.set_ylabel("prompt tokens computed")
axes.legend(frameon=False, fontsize=8)
axes.set_title(f"{u} new tokens and an answer of {a} in each turn", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# ## The idea: two tiers, and nothing is thrown away before its place is needed
#
# Memory has two *tiers*, the device and the host (chapter 4). In Pensieve KV belongs to the conversation, not to the
# request. It comes in **chunks**: the KV of 32 consecutive tokens (here: of 8), each in a block of its own. A chunk
# that no running request reads is *idle*, and idle KV is **kept**, in one of these places:
#
# | a chunk lies | and when its slots are needed |
# |---|---|
# | on the device alone | it must be copied to the host first |
# | on both tiers | the slots on the device can be taken at once: it lies on the host then |
# | on the host alone | it can be dropped |
# | nowhere: **dropped** | its tokens must be computed again |
#
# Two rules move chunks down. *Ahead of time*: a slot of the device can be taken at once if it is free or has a copy on
# the host. While fewer than a quarter of the slots can be taken at once, idle chunks are copied to the host, beside the
# computing, so that no request has to wait for it later. *Lazily*: the copy on the device stays until its slots are
# really needed, and if the conversation goes on before that, nothing has to be moved.

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# The device has 64 slots, which is 8 chunks of 8 tokens. The host has room for 3 chunks. Ann asks, and her text
# becomes 28 tokens long. Then Ben asks; his text becomes 46 tokens long. Then Ann comes back with 5 new tokens, then
# Ben with 4. Before you run it:
#
# 1. Ann's 27 tokens with KV lie in four chunks. How many chunks do both need together, and how many do not fit on the
#    device?
# 2. Which of Ann's chunks will leave the device first, the beginning of her text or its end?
# 3. When Ann comes back: will all of her history be there?

# %%
pair = [*turns("ann", (20, 8), (5, 4), pause=0.03), *turns("ben", (30, 16), (4, 4), start=0.004, pause=0.03)]
small = {"kv_memory": "96KiB", "memory__chunk": 8, "memory__host": 24}
kept = play("pensieve", pair, **small)
stateless = play("vllm", pair, kv_memory="96KiB", memory__block_size=8)
assert kept.tokens == stateless.tokens
draw_lanes(kept, by="time")

# %%
first_copy = next(one.step for one in kept.history.iterations if moves(kept, one.step))
returns = next(one.step for one in kept.history.iterations if "ann.1" in one.requests)
before = [one.step for one in kept.history.iterations if one.work and one.step < returns][-1]
draw_memory(kept, step=[first_copy, before, returns])

# %% [markdown]
# In the first map Ann's answer has ended and Ben's prompt is computed. Ann's KV is kept (dotted), and as few slots
# are free, her first chunk is copied to the host: a plan of moves alone, for which nothing waits. In the second,
# Ben's text has grown over two of her chunks. One of them lies on the host alone. The other has been dropped, because
# the host was full. Her last two are on both tiers. In the last, Ann is back: a chunk comes in from the host, and
# chunks of Ben go out to make room. (Her second request has another colour than her first. The KV is the same.)
#
# Ann's text needs four chunks and Ben's six: ten, where the device has eight. So two had to leave, and the host had
# room for copies of three.

# %% [markdown]
# The next cell follows every chunk of a conversation through the run, from the trace alone. A column is a plan, in
# the order of time; plans of moves alone are among them.


# %%
def life_of(run, conversation, size=8):
    """For each plan, in which way each chunk of the conversation is held."""
    table = {"device": {}, "host": {}}  # tier -> block -> (conversation, chunk)
    lives = []
    for frame in books(run.events):
        if frame.event["event"] != "step":
            continue
        for one in moves(run, frame.event["step"]):
            for i in range(0, one.tokens, size):
                table[one.target_tier][(one.target + i) // size] = table[one.tier].get((one.source + i) // size)
        for name, blocks in block_tables(run, frame.event["step"]).items():
            table["device"] |= {block: (name.split(".")[0], i) for i, block in enumerate(blocks)}
        held = {}
        for (tier, slot), one in frame.held.items():
            owner, chunk = table[tier].get(slot // size) or ("", 0)
            mine = owner == conversation and all(name.startswith(f"{owner}.") for name in one.owners)
            if mine and one.state != "reserved":
                held.setdefault(chunk, set()).add((tier, one.state))
        lives.append(held)
    return lives


STATES = ["not yet written", "in use", "kept on the device", "kept on both tiers", "on the host alone"]
STATES += ["dropped"]


def grid_of(lives):
    chunks = 1 + max(chunk for held in lives for chunk in held)
    grid, written = [[0] * len(lives) for _ in range(chunks)], set()
    for at, held in enumerate(lives):
        for chunk in range(chunks):
            tiers = {tier for tier, _ in held.get(chunk, ())}
            if ("device", "written") in held.get(chunk, ()):
                grid[chunk][at] = 1
            elif tiers:
                grid[chunk][at] = 3 if len(tiers) == 2 else 2 if "device" in tiers else 4
            elif chunk in written:
                grid[chunk][at] = 5
        written |= held.keys()
    return grid


grids = [grid_of(life_of(kept, name)) for name in ("ann", "ben")]
print("when ann comes back, her chunks are:", *[STATES[row[returns - 1]] for row in grids[0]][:4], sep="\n  ")
assert [row[returns - 1] for row in grids[0]][:4] == [5, 4, 3, 3]  # the numbers of STATES

# %% tags=["plot"]
SHADES = ["#ffffff", BLUE, "#56b4e9", "#b9dcf0", ORANGE, "#222222"]
figure, charts = plt.subplots(2, 1, figsize=(9, 4), sharex=True)
for axes, name, grid in zip(charts, ("ann", "ben"), grids):
    axes.imshow(grid, aspect="auto", interpolation="nearest", cmap=ListedColormap(SHADES), vmin=0, vmax=5)
    labels = [f"tokens {8 * i} to {8 * i + 7}" for i in range(len(grid))]
    axes.set_yticks(range(len(grid)), labels, fontsize=7)
    axes.set_title(f"chunks of {name}", loc="left", fontsize=9)
    axes.axvline(returns - 0.5, color="black", linewidth=1, linestyle="--")
charts[1].set_xlabel("number of the plan (dashed: ann comes back)")
patches = [Patch(facecolor=shade, edgecolor=GREY, label=state) for shade, state in zip(SHADES, STATES)]
figure.legend(handles=patches, loc="lower center", ncols=6, fontsize=7, frameon=False)
figure.tight_layout(rect=(0, 0.06, 1, 1))
plt.show()

# %% [markdown]
# Read Ann's first four rows from left to right, up to the dashed line. The beginning of her text is copied first,
# lies on the host alone first, and when the host is full it is dropped first. The end of her text was on the device
# all the time. The counts say the same:

# %%
for one in kept.history.iterations:
    for name, device, host in one.event.get("reused", ()):
        history = kept.history.stories[name].request["history_tokens"]
        spans = [(piece.start, piece.stop) for piece in pieces(kept, name) if piece.step == one.step]
        print(f"{name}: history {history}, on the device {device}, on the host {host}; computes {spans}")
found = kept.metrics["history"]
assert found["tokens"] == found["on_device"] + found["on_host"] + kept.metrics["tokens"]["recomputed"]

# %% [markdown]
# The page begins where Ann is back; below Pensieve it shows `vllm` at the same time. Scroll to *Memory of pensieve*,
# and step back to see how her chunks left.

# %%
replay(stateless, kept, address=f"run=pensieve&b=vllm&i={returns}&request=ann.1", height=760)

# %% [markdown]
# ## What a chunk is worth
#
# Why the beginning? The KV of a token is computed by attending to all tokens before it. So a chunk near the end of a
# text costs more to compute again than one near its beginning. On the other hand, a conversation that has been silent
# for long may never go on. Pensieve puts both into one number (section 3.4.3.1 of the thesis):
#
# $$\text{Value} = \frac{\text{Cost}(s, l)}{T} \quad (3.4), \qquad
# \text{Cost}(l) = \text{Cost}_\text{attention}(l) + c \quad (3.6).$$
#
# $s$ is the size of the chunk, and $l$ its context, the tokens up to its end. All chunks have one size, so (3.6) leaves
# $s$ out, and $c$, the cost of everything but attention, is a constant. ((3.5) is the same sum for any $s$.) $T$ is the
# time since the conversation was last active. The chunk of least value goes first.
#
# **A count by hand.** Without a profile of the machine minifuse assumes that attention to 4,096 tokens costs as much as
# all the rest: $\text{Cost}(l) = 1 + l / 4096$. (The thesis' text has no numbers for its Figure 3.4, only that the cost
# grows linearly.) Two conversations have texts of 4,096 tokens. Ann has been silent for 60 s, Ben for 90 s. Which
# chunks go before the first of Ann's? Those of Ben with
#
# $$\frac{1 + l / 4096}{90} < \frac{1 + 32 / 4096}{60} \quad\Longleftrightarrow\quad l < 2096 ,$$
#
# which are the first 65 of his 128. After that the two take turns.

# %%
value, chunk = CostAware(ASSUMED).value, 32
ends = range(chunk, 4096 + 1, chunk)
idle = {"ann": 60.0, "ben": 90.0}
order = sorted((value(end, idle[name]), name, end) for name in idle for end in ends)
names = [name for _, name, _ in order]
print(f"{names.index('ann')} chunks of ben go before the first of ann")
assert names.index("ann") == 65 == 2096 // chunk

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
for name, colour in (("ann", BLUE), ("ben", GREEN)):
    label = f"{name}, idle for {idle[name]:.0f} s"
    left.plot(ends, [value(end, idle[name]) for end in ends], color=colour, label=label)
    taken = [sum(one == name for one in names[:count]) for count in range(len(names) + 1)]
    right.plot(range(len(names) + 1), taken, color=colour, label=f"{name}, by value")
lru = sorted((LeastRecentlyUsed().value(end, idle[name]), end, name) for name in idle for end in ends)
taken = [sum(name == "ben" for *_, name in lru[:count]) for count in range(len(lru) + 1)]
right.plot(range(len(lru) + 1), taken, ":", color=GREEN, label="ben, least recently used")
right.set_ylim(-5, 195)
left.axhline(value(chunk, idle["ann"]), color=GREY, linestyle="--", linewidth=1)
left.axvline(2096, color=GREY, linestyle="--", linewidth=1)
left.set_xlabel("tokens up to the end of the chunk")
left.set_ylabel("value of the chunk")
right.set_xlabel("chunks taken in all")
right.set_ylabel("taken of each")
left.legend(frameon=False, fontsize=8)
right.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
figure.tight_layout()
plt.show()

# %% [markdown]
# The dotted line is the classic rule, *least recently used* (LRU): all of Ben goes before any of Ann. The two rules
# agree where one conversation has been idle for much longer than the other, and differ where the times are alike and
# texts are long. The thesis finds up to 14.6% fewer tokens computed again than with LRU (3.6.3). The value does not
# seek that: it saves the tokens that cost most, not the most tokens. `pensieve-fig3.14` compares the two, rate by rate.
# `minifuse calibrate` measures the cost on the machine at hand, from which it is interpolated (3.4.3.1).
#
# ## Your turn: which chunk goes first
#
# Memory keeps idle chunks in three pools, one for each place in the table above: device, both tiers, host. Write what a
# pool is asked. `lowest` returns the chunk that goes first, or None. `value` returns what two chunks are compared by,
# here and when the host is full: a tuple of the value, the chunk's index, and `chunk.rank`, so that of equal values the
# chunk nearest to the beginning of its text goes first. `self.eviction.value(l, T)` is (3.4). `chunk.index`
# counts from 0, and `chunk.active_s` is the time at which the conversation was last active. The check serves six
# conversations, with a profile by which attention is the larger part of the cost.


# %% tags=["task"]
class Pool:
    """The idle chunks of one place."""

    def __init__(self, eviction, size):
        self.eviction, self.size = eviction, size  # tokens of a chunk
        self.chunks = []
        self.add, self.remove = self.chunks.append, self.chunks.remove

    def __len__(self):
        return len(self.chunks)

    def value(self, chunk, now):
        # BEGIN SOLUTION: how long is its context, how long has it been idle, and what decides between equal values?
        context = (chunk.index + 1) * self.size
        idle_s = now - chunk.active_s
        return self.eviction.value(context, idle_s), chunk.index, chunk.rank
        # END SOLUTION

    def lowest(self, now):
        # BEGIN SOLUTION: the chunk of least value at this time
        first, least = None, None
        for chunk in self.chunks:
            worth = self.value(chunk, now)
            if first is None or worth < least:
                first, least = chunk, worth
        return first
        # END SOLUTION


@register
class Mine(Tiered):
    """Pensieve's memory, with pools of your own."""

    name = "mine"

    def __init__(self, capacity, options=None):
        super().__init__(capacity, options)
        tiers, eviction = self.tiers, self._eviction()
        tiers.on_device, tiers.on_both, tiers.on_host = [Pool(eviction, tiers.size) for _ in range(3)]


# %%
draw, six = random.Random(0), []
for i in range(6):
    lengths = [(draw.randint(4, 16), draw.randint(2, 14)) for _ in range(3)]
    six += turns(f"c{i}", *lengths, start=i * 0.003, pause=draw.uniform(0.005, 0.03))
steep = Profile(other=1.0, contexts=(8, 1024), attention=(1.0, 128.0)).text()
check("pensieve", six, memory="mine", memory__chunk=8, memory__host=24, memory__profile=steep)

# %% [markdown]
# ## The source that matters
#
# The value of a chunk; which block is given out next, in the order of the table above; and when copies are made
# ahead of time. Look at the three cases of `take`, and at what `_find_host_block` compares before it drops anything.

# %%
show_source(CostAware.value, LeastRecentlyUsed.value, Tiers.take, Tiers._find_host_block, Tiered.ahead)

# %% [markdown]
# ## Two spans over one context
#
# When Ann came back, her first chunk had been dropped, and her new prompt stands at the other end. So her request
# computes two *spans* of tokens, with KV between them that is there. Both are put into one iteration. The next
# picture has a row for each token that is computed, and a column for each token of her text.

# %%
back_again = next(one for one in kept.history.iterations if one.step == returns)
spans = [(start, stop) for start, stop, _ in back_again.work_of("ann.1")]
queries = [token for start, stop in spans for token in range(start, stop)]
length = spans[-1][1]
((_, on_device, on_host),) = back_again.event["reused"]


def seen(query, key):
    if key > query:
        return 0
    return 1 if key in queries else 2 if key < 8 + on_host else 3


table = [[seen(query, key) for key in range(length)] for query in queries]
pairs = sum(cell > 0 for row in table for cell in row)
assert queries == [*range(8), *range(27, 33)]
assert (on_device, on_host) == (11, 8)
print(f"spans {spans}: {len(queries)} queries, {pairs} pairs of query and key")

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8, 3.4))
shades = ["#ffffff", BLUE, ORANGE, "#56b4e9"]
axes.imshow(table, cmap=ListedColormap(shades), vmin=0, vmax=3, aspect="auto", interpolation="nearest")
axes.set_yticks(range(len(queries)), queries, fontsize=7)
axes.set_xticks(range(0, length, 4))
axes.set_xticks([at - 0.5 for at in range(length)], minor=True)
axes.set_yticks([at - 0.5 for at in range(len(queries))], minor=True)
axes.grid(which="minor", color="white", linewidth=0.6)
axes.tick_params(which="minor", length=0)
axes.set_ylabel("query: token computed")
axes.set_xlabel("key: token of the text")
words = ["masked", "computed in this iteration", "swapped in from the host", "was still on the device"]
patches = [Patch(facecolor=shade, edgecolor=GREY, label=word) for shade, word in zip(shades, words)]
figure.legend(handles=patches, loc="lower center", ncols=4, fontsize=8, frameon=False)
title = f"ann.1: {len(queries)} queries in two spans, {pairs} pairs of query and key"
axes.set_title(title, loc="left", fontsize=10)
figure.tight_layout(rect=(0, 0.07, 1, 1))
plt.show()

# %% [markdown]
# **A count by hand.** A query at position $t$ sees $t + 1$ keys. The span $[0, 8)$ has $1 + 2 + \ldots + 8 = 36$ pairs,
# the span $[27, 33)$ has $28 + \ldots + 33 = 183$: 219 in all. Computing the whole text would be $33 \cdot 34 / 2 =
# 561$.
#
# An attention kernel is usually written for one span of queries at the end of the context. Pensieve does not change
# that: the request is given to the kernel as *two* requests that share a block table, one that ends at 8 and one that
# ends at 33. No KV is copied for that. In this code a sequence's `missing` returns several spans, and each becomes a
# piece of `Work`; that is all.

# %%
assert pairs == sum(range(1, 9)) + sum(range(28, 34)) == 219
print("ann.1 computes", spans, "with the block table", block_tables(kept, returns)["ann.1"])
show_source(Owners.missing)

# %% [markdown]
# ## Recovery, layer by layer
#
# What lies on the host has to come back over the link, and the link is slow. But a layer needs only its own part of
# the KV, at its own attention. So the transfer is made layer by layer: layer 0 starts as soon as its part is there,
# while the parts of later layers are still on their way.
#
# **A count by hand.** Let the transfer take $T$ seconds in all, the computing $C$, and let there be $L$ layers. If
# the iteration waits for everything first, it takes $T + C$. Layer by layer, layer $i$ can begin when $(i + 1)\,T/L$
# have passed and its predecessor has ended. If computing takes longer, only the first layer's part is waited for; if
# the transfer does, only the last layer is left to compute behind it:
#
# $$\text{exposed} = \max\left(\frac{T}{L},\; T + \frac{C}{L} - C\right).$$
#
# We check it with `llama-2-7b` on an A100, in virtual time. Ann has a text of 620 tokens, others use the device, and
# she comes back. To make room for her, a few chunks of the others are copied to the host in the same iteration: they
# use the same link, and count in $T$.


# %%
def on_a100(name, requests, memory, **options):
    """Serve with llama-2-7b on a simulated A100."""
    return play(name, requests, kv_memory=memory, **MODEL, **A100, **options)


MODEL = {"model": "random:llama-2-7b"}
A100 = {"dtype": "float16", "hardware": "a100-40g", "max_batch": 32}
three = [
    *turns("ann", (600, 20), (20, 10), pause=2.0, **MODEL),
    *turns("ben", (1200, 20), start=0.5, **MODEL),
    *turns("dan", (600, 20), start=1.2, **MODEL),
]
ways = {
    "computed again": on_a100("vllm", three, "1GiB"),
    "waits for all": on_a100("pensieve", three, "1GiB", memory__transfer="blocking"),
    "layer by layer": on_a100("pensieve", three, "1GiB"),
}
back = {way: next(one for one in run.history.iterations if "ann.1" in one.requests) for way, run in ways.items()}
L = 32
wall = back["layer by layer"].event["wall"]["transfers"]
T = wall["to_host"][1] + wall["to_device"][1]
C = back["layer by layer"].seconds - wall["exposed_s"]
exposed = max(T / L, T + C / L - C)
print(f"T = {T * 1e3:.2f} ms, C = {C * 1e3:.2f} ms")
print(f"exposed: by hand {exposed * 1e3:.3f} ms, in the run {wall['exposed_s'] * 1e3:.3f} ms")
assert abs(exposed - wall["exposed_s"]) < 1e-6
waited = back["waits for all"].event["wall"]["transfers"]["exposed_s"]
assert abs(waited - T) < 1e-6

# %%
begins = [0.0] * L  # of each layer, if it waits for its own part
for layer in range(L):
    before_it = begins[layer - 1] + C / L if layer else 0.0
    begins[layer] = max((layer + 1) * T / L, before_it)
assert abs(begins[-1] + C / L - C - exposed) < 1e-6

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(9, 2.8))
for layer in range(L):
    for row, begin in ((1, T + layer * C / L), (3, begins[layer])):
        axes.barh(row, C / L * 1e3, left=begin * 1e3, color=GREEN, edgecolor="white", linewidth=0.4)
    for row in (0, 2):
        begin = layer * T / L
        axes.barh(row, T / L * 1e3, left=begin * 1e3, color=ORANGE, edgecolor="white", linewidth=0.4)
axes.set_yticks(range(4), ["waits for all: link", "device", "layer by layer: link", "device"], fontsize=8)
axes.invert_yaxis()
axes.set_xlabel("ms since the iteration began (each box is one of 32 layers)")
axes.set_title("The iteration in which ann comes back", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %%
first = {way: one.seconds * 1e3 for way, one in back.items()}
assert list(first.values()) == sorted(first.values(), reverse=True)

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 1.9))
bars = axes.barh(list(first), list(first.values()), color=[GREY, ORANGE, GREEN])
axes.bar_label(bars, [f"{one:.1f} ms" for one in first.values()], fontsize=8, padding=3)
axes.set_xlim(0, 1.15 * max(first.values()))
axes.invert_yaxis()
axes.set_xlabel("ms of the iteration with ann's second prompt")
axes.set_title("Her history: 620 tokens, all but the last with KV", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Swapping in beats computing again, and most of the swap is hidden. Note what $C$ is: the iteration computes about
# twenty tokens, and reading the weights takes the same time for one token as for twenty. Transfers hide behind the
# bound of chapter 1.
#
# Copies in the other direction are hidden as well, behind all computing. Only one thing may get in their way: a link
# that carries both directions at once is slower. So a copy to the host waits while anything is on its way back (3.5.1).

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the host
#
# Sixteen conversations of four turns come and go; their texts do not fit on the device together. How large must the
# host be? Predict for a host of 0, 1,024, 2,048, 4,096 and 8,192 tokens: how much of the history is found, and where,
# and what becomes of the latency?


# %%
def talk(number, num_turns, new, answer, pause, apart, seed=0):
    """Conversations with lengths and pauses drawn around these."""
    draw = random.Random(seed)
    found = []
    for i in range(number):
        around = [(new * draw.uniform(0.5, 1.5), answer * draw.uniform(0.5, 1.5)) for _ in range(num_turns)]
        lengths = [(round(prompt), round(reply)) for prompt, reply in around]
        found += turns(f"c{i}", *lengths, start=i * apart, pause=pause * draw.uniform(0.5, 1.5), **MODEL)
    return found


crowd = talk(16, 4, 60, 100, pause=1.0, apart=0.15)
hosts = (0, 1024, 2048, 4096, 8192)
runs = [on_a100("pensieve", crowd, "3GiB", memory__host=host) for host in hosts]
without = on_a100("vllm", crowd, "3GiB")

# %%
total = without.metrics["history"]["tokens"]
shares = {
    "found on the device": [run.metrics["history"]["on_device"] / total for run in runs],
    "found on the host": [run.metrics["history"]["on_host"] / total for run in runs],
    "computed again": [run.metrics["tokens"]["recomputed"] / total for run in runs],
}
assert all(abs(sum(one) - 1) < 1e-9 for one in zip(*shares.values()))
assert shares["computed again"] == sorted(shares["computed again"], reverse=True)
assert shares["computed again"][-1] == 0
gaps = [run.metrics["itl_s"]["p99"] * 1e3 for run in runs]
longest = without.metrics["itl_s"]["p99"] * 1e3
assert gaps[-1] < gaps[0] < longest

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
floor = [0.0] * len(hosts)
for (label, values), colour in zip(shares.items(), (BLUE, ORANGE, GREY)):
    left.bar(range(len(hosts)), values, bottom=floor, color=colour, label=label)
    floor = [low + value for low, value in zip(floor, values)]
for axes in (left, right):
    axes.set_xticks(range(len(hosts)), [f"{host:,}" for host in hosts])
    axes.set_xlabel("tokens that the host has room for")
left.set_ylabel("part of the history")
left.set_ylim(0, 1.45)
left.set_yticks([0, 0.25, 0.5, 0.75, 1])
left.legend(frameon=False, fontsize=8, loc="upper right")
right.plot(range(len(hosts)), gaps, "o-", color=BLUE, label="pensieve")
right.axhline(longest, color="black", linestyle="--", linewidth=1, label="vllm")
right.set_ylim(0)
right.set_ylabel("ms")
right.set_title("between two tokens, 99th percentile", loc="left", fontsize=9)
right.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# The host makes the difference: with enough of it nothing is computed again. The gaps between tokens fall, because a
# prompt that joins is short. `vllm` has far longer gaps for two reasons: it computes all history, and it stops all
# answers meanwhile. Pensieve puts prompts and single tokens into the same iteration (**unified** batches, 3.4.2),
# which its kernel makes possible: single tokens are spans of one query. `batching__unify=False` turns that off;
# exercise 4 is about it.
#
# ## Where this idea loses, measured
#
# Now the device is a third as large, and conversations arrive a little faster. The host has room for everything, so
# that all of the history is found. And yet:

# %%
rush = talk(16, 4, 60, 100, pause=1.0, apart=0.1)
tight = {
    "vllm": on_a100("vllm", rush, "1GiB"),
    "pensieve": on_a100("pensieve", rush, "1GiB"),
    "pensieve, no reserve": on_a100("pensieve", rush, "1GiB", memory__reserve=0),
}
print(f"found: {tight['pensieve'].metrics['history']['host_hit_rate']:.0%} on the host")
seconds = [run.history.last_s for run in tight.values()]
assert tight["pensieve"].metrics["tokens"]["recomputed"] == 0
assert seconds[2] < seconds[0] < seconds[1]

# %% tags=["plot"]
figure, charts = plt.subplots(1, 3, figsize=(9, 2.2), sharey=True)
measured = {
    "s until all have ended": seconds,
    "s to the first token, mean": [run.metrics["ttft_s"]["mean"] for run in tight.values()],
    "evictions": [run.metrics["evictions"] for run in tight.values()],
}
for axes, (unit, values) in zip(charts, measured.items()):
    bars = axes.barh(list(tight), values, color=[GREY, BLUE, "#56b4e9"])
    form = "{:.0f}" if unit == "evictions" else "{:.2f}"
    axes.bar_label(bars, [form.format(value) for value in values], fontsize=8, padding=2)
    axes.set_xlim(0, 1.25 * max(values))
    axes.set_xlabel(unit, fontsize=9)
charts[0].invert_yaxis()
figure.tight_layout()
plt.show()

# %% [markdown]
# Pensieve computes no token twice and is slower than `vllm`, which computes all history again. It leaves a tenth of
# the device to running requests (3.4.3.5), so that they are seldom evicted, and never in this run; on a device this
# small, that tenth is a request that waits. Without the reserve it is ahead again, and requests are evicted. Saving
# work is worth nothing while the bottleneck is room.
#
# The second loss is easier to see coming. If conversations do not come back, all their copies to the host were made
# for nothing; and a short history costs nothing to compute again, since an iteration that reads all weights has room
# for some hundred tokens more.

# %%
once = talk(40, 1, 60, 100, pause=1.0, apart=0.1)
short = talk(30, 3, 20, 20, pause=1.0, apart=0.02)
for what, requests in (("never come back", once), ("short histories", short)):
    keeping = on_a100("pensieve", requests, "1GiB")
    dropping = on_a100("pensieve", requests, "1GiB", memory__keep=False)
    moved = [run.metrics["transfers"]["to_host"]["bytes"] / 1e9 for run in (keeping, dropping)]
    ends = [run.history.last_s for run in (keeping, dropping)]
    print(
        f"{what}: {moved[0]:.2f} GB copied to the host, {moved[1]:.2f} without keeping; "
        f"the run takes {ends[0] / ends[1]:.4f} times as long"
    )
    assert ends[0] >= 0.999 * ends[1]
    assert moved[0] > moved[1]

# %% [markdown]
# The loss in time is small, because copies ahead of time hold up nothing. What is lost is the link, and the host's
# memory.
#
# ## Exercises
#
# 1. A conversation has 10 turns, each with 40 new tokens and an answer of 200. How many prompt tokens are computed
#    without and with kept KV? *Hint: both formulas are above.*
#    <details><summary>Answer</summary>
#    Without: 10·40 + 240·45 = 11,200. With: 400 + 9 = 409.
#    </details>
# 2. Two conversations of equal text are idle for 100 s and 200 s. With Cost(l) = 1 + l/4096, up to which context do
#    chunks of the second go before the first chunk (32 tokens) of the other? *Hint: set the two values equal, then
#    compare with `value(l, 200)` and `value(32, 100)`, the function of the cell above.*
#    <details><summary>Answer</summary>
#    1 + l/4096 = 2·(1 + 32/4096) gives l = 4,160. In texts of up to 4,160 tokens all of the second conversation goes
#    first.
#    </details>
# 3. A transfer takes 40 ms, computing 16 ms, the model has 32 layers. How much is exposed, waiting for all and layer
#    by layer? From which transfer on is more than the first layer's part exposed?
#    <details><summary>Answer</summary>
#    Waiting for all: 40 ms. Layer by layer: max(1.25, 40 + 0.5 - 16) = 24.5 ms. The second term is the larger as soon
#    as T(1 - 1/L) exceeds C(1 - 1/L), that is, as soon as the transfer takes longer than the computing: T > C.
#    </details>
# 4. Serve `crowd` with `batching__unify=False` and a host of 8,192. Which number suffers, and why is it still better
#    than `vllm`? *Hint: the 99th percentile of the gaps, `run.metrics["itl_s"]["p99"]`.*
#    <details><summary>Answer</summary>
#    The gaps between tokens grow, from 10 to 19 ms: each prompt stops all answers for an iteration. But the prompts are
#    short, since history is not computed, so the stop is shorter than with `vllm`, 33 ms.
#    </details>
# 5. In the run of Ann and Ben, make the host 40 tokens large (`memory__host=40`). Predict Ann's spans on her return;
#    then look at `run.history.iterations`.
#    <details><summary>Answer</summary>
#    The host has five chunks then, and no chunk of Ann's is dropped. She computes one span, [27, 33), and two chunks
#    are swapped in.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Chapter 3 of the thesis: value (3.4.3.1), swapping ahead of time and lazily (3.4.3.2), recovery in a pipeline
#   (3.4.3.3), two sub-requests (3.4.3.4, Figure 3.8), suspension and the reserve (3.4.3.5), the kernel (3.4.4;
#   chapter 11 here).
# - The thesis measures 1.25 times the throughput of vLLM with OPT-13B and 1.52 times with Llama 2-13B of ten KV heads
#   (3.6.2, Figure 3.12): a smaller KV leaves more room to keep it.
# - It swaps a suspended request out at once. Here its KV becomes idle like that of a conversation, and is taken chunk
#   by chunk as it is needed.
# - In words, its value has a third factor, the probability that a conversation goes on after so many turns. Equation
#   3.4 does not have it, and neither does this code.
# - A chunk is the unit of eviction in the thesis. Here it is also the block: 32 tokens by default.
# - The raw tokens of conversations can be kept in a file (`minifuse run --state`), so that a crash loses no text. No
#   KV is kept there: it is computed again.
#
# ## Further reading
#
# - Yu, *Improve Language Model Serving Efficiency with Fine-grained and Stateful Scheduling* (thesis, 2024), chapter
#   3; also Yu, Lin and Li, *Stateful Large Language Model Serving with Pensieve* (2025).
# - Gao et al., *Cost-Efficient Large Language Model Serving for Multi-turn Conversations with CachedAttention*
#   (2024): three tiers.
# - Zheng et al., *SGLang* (NeurIPS 2024): kept KV as a tree, shared between conversations (`memory__share=True` here).
#
# **Next:** all this needs kernels that read blocks. Chapter 9 asks how far one gets without them, in padded
# rectangles whose rows are given to newcomers.
