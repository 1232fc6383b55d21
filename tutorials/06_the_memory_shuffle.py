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
# # 6. The memory shuffle
#
# Chapter 5 ended with holes: buffers whose request has ended, inside a region that is computed whole. This chapter
# closes them. The question is small enough to solve completely: what is the smallest number of buffers that have to be
# copied, and which are they? We go from the picture to the algorithm, from the algorithm to the code that serves, and
# check by brute force that no shuffle is shorter.
#
# > **Claim.** For 16 requests with answers of 128 to 1,792 tokens, the shuffle makes Flover up to twice as fast (Fig.
# > 9b). With it, Flover is 6.8 times as fast as instances for 32 requests of random lengths (Fig. 9a). It gains 1.46 to
# > 1.67 times on two GPUs with 16 to 48 requests, and 2.34 to 3.30 times on four with ever longer answers (Fig. 10).
# >
# > **Setting.** GPT-J 6B on A100s of 40 GB, two in a machine; requests 20 ms apart, lengths drawn evenly. The baseline
# > of Figs. 9b and 10 is Flover without shuffle, which keeps its offset and size (Fig. 5); that of Fig. 9a is
# > FasterTransformer with instances.
# >
# > **What we measure.** `minifuse reproduce flover-fig9 --scale paper` and `flover-fig10`, in virtual time on the
# > machines of chapter 5. Without shuffle `memory.shrink=off` keeps offset and size. Lengths that the text does not
# > name are marked as ours. This chapter has Fig. 6.
# >
# > **Agreement.** Fig. 6 agrees: three copies. Fig. 9a is above on all machines: 8.9 to 10.7 times on the one fitted
# > to Fig. 8. Fig. 9b is below on it: the widest lengths gain 1.14 times if an idle row reads as in our kernel, and
# > 1.35 if it reads up to the longest context; if rows also cost in proportion to their context 1.67, undecided. Fig.
# > 10, fitted, with such reads: one of the five points of two GPUs agrees and four are undecided (1.30 to 1.55); if
# > rows cost by context one agrees, one is above (1.97) and three are undecided; four GPUs are below (1.34 to 1.56,
# > by context to 1.96). All figures: `benchmarks/results/README.md`.
# >
# > **Errata.** The text does not say which lengths of Fig. 9a give 6.8. The caption of Fig. 10 lists bounds of 5,120
# > and 16,000 tokens, but not the 7,200 of the text's last gain. Section VI-E counts two all-reduces and an all-gather
# > in an iteration of the model; by V-D there are several in every layer.
#
# **You will be able to**
#
# - draw the windows of a small array of buffers, and find with a pencil how many copies a shuffle needs, and which;
# - explain why a window as wide as the number of live buffers is enough, and why no plan with fewer copies exists;
# - read Algorithm 1 of the paper beside the code, and say why twice as many buffers take it twice as many steps;
# - name what must not be moved, and what must not be overwritten yet;
# - compute after how many iterations a copy has paid for itself, and name runs in which it never does.

# %%
import random
from collections import deque

import matplotlib.pyplot as plt
import torch

from minifuse.attention.rectangle import slots_to_clear
from minifuse.core.errors import UsageError
from minifuse.memory.slots.shuffle import shuffle, shuffled_region
from minifuse.memory.slots.slots import Slots
from minifuse.model.text.presets import preset
from minifuse.papers.flover import paper
from minifuse.show.notebook import asks, check, draw_memory, draw_series, moves, play, replay, show_source
from minifuse.stages import register

STYLE = {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
plt.rcParams.update(STYLE)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"

# %% [markdown]
# ## The failure to begin with: holes
#
# Eight requests begin together, in the eight buffers of the default memory. Their prompts have one token, so that
# they need no pre-processing. `r0`, `r2`, `r3` and `r5` have short answers and end in the same iteration, as two
# requests do in the paper's Figure 5; `r6` ends a little later. First without the shuffle:

# %%
eight = asks((1, 5), (1, 14), (1, 5), (1, 5), (1, 14), (1, 5), (1, 9), (1, 14))
holes = play("fusion", eight, memory__shuffle=False, label="fusion without shuffle")
draw_memory(holes, step=[4, 5, 9])

# %%
last = holes.history.iterations[-1]
assert last.event["idle"] > len(last.requests)
draw_series(holes, series=["batch", "idle"], by="iterations")

# %% [markdown]
# A buffer is *live* if its request runs. A *hole* is a free buffer between two live ones; the paper calls it orphaned
# memory (Fig. 5). The kernel gets an offset and a size, and computes the hole like any row. At the end of this run
# there are more holes than live buffers. The cure is to copy live buffers into holes until the live ones are adjacent
# again.
#
# ## The problem as an array
#
# Write 1 for a live buffer and 0 for a free one. Flover's Figure 6 has this array of 16 buffers, nine of them live:

# %%
FIGURE_6 = [0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1]
print(f"{sum(FIGURE_6)} of {len(FIGURE_6)} buffers are live")

# %% tags=["plot"]
LOOKS = {"stays": BLUE, "must be copied": ORANGE, "hole to be filled": "#ffffff", "free": "#eef0f3"}


def looks_of(array, offset):
    inside = range(offset, offset + sum(array))
    return [
        ("stays" if i in inside else "must be copied") if one else ("hole to be filled" if i in inside else "free")
        for i, one in enumerate(array)
    ]


def draw_windows(title, array, offsets, arrows=()):
    figure, axes = plt.subplots(figsize=(7, 0.9 + 0.32 * len(offsets) + 0.5 * bool(arrows)))
    for row, offset in enumerate(offsets):
        for i, look in enumerate(looks_of(array, offset)):
            axes.add_patch(plt.Rectangle((i, row), 0.94, 0.8, facecolor=LOOKS[look], edgecolor=GREY, linewidth=0.6))
        axes.add_patch(plt.Rectangle((offset - 0.05, row - 0.07), sum(array) + 0.04, 0.94, fill=False, linewidth=1.6))
        copies = looks_of(array, offset).count("must be copied")
        axes.text(len(array) + 0.3, row + 0.4, f"{copies} copies" if copies != 1 else "1 copy", va="center", fontsize=9)
    for source, target in arrows:
        bend = {"arrowstyle": "->", "connectionstyle": "arc3,rad=-0.3", "color": "black"}
        axes.annotate("", (target + 0.47, -0.05), (source + 0.47, -0.05), arrowprops=bend)
    axes.set_xlim(-0.2, len(array) + 2.6)
    axes.set_ylim(len(offsets), -1.9 if arrows else -0.2)
    axes.set_xticks([i + 0.47 for i in range(len(array))], range(len(array)), fontsize=8)
    axes.set_yticks([row + 0.4 for row in range(len(offsets))], offsets, fontsize=8)
    axes.set_xlabel("buffer")
    axes.set_ylabel("offset")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor=GREY) for colour in LOOKS.values()]
    below = 0.11 - 0.55 / figure.get_figheight()
    figure.legend(handles, LOOKS, loc="upper center", ncols=4, frameon=False, fontsize=8, bbox_to_anchor=(0.45, below))
    axes.set_title(title, loc="left", fontsize=10)


draw_windows("All eight windows of nine buffers, each framed in a line of its own", FIGURE_6, range(8))
plt.show()

# %% [markdown]
# In the end the nine live buffers are adjacent. So they fill a *window* of exactly nine buffers, and there are only
# eight windows to choose from: one in each line of the picture. For each window the cost is clear. What is live
# outside must come in; what is free inside is filled; there are equally many of both, because the window is as wide as
# the number of live buffers.
#
# **A count by hand.** The eight buffers of our run, after iteration 4, are the array `[0, 1, 0, 0, 1, 0, 1, 1]`. Four
# are live, so the window is four buffers wide.
#
# | offset | window | live inside | copies |
# |---|---|---|---|
# | 0 | `0 1 0 0` | 1 | 3 |
# | 1 | `1 0 0 1` | 2 | 2 |
# | 2 | `0 0 1 0` | 1 | 3 |
# | 3 | `0 1 0 1` | 2 | 2 |
# | 4 | `1 0 1 1` | 3 | **1** |
#
# One copy is enough: the region becomes [4, 8), and buffer 1 goes into the hole at 5.

# %%
by_hand = [0, 1, 0, 0, 1, 0, 1, 1]


def copies(array, offset):
    return sum(array) - sum(array[offset : offset + sum(array)])


assert [copies(by_hand, offset) for offset in range(5)] == [3, 2, 3, 2, 1]
found = shuffle([1, 4, 6, 7], fixed=[], num_buffers=8)
print(found)
assert found == (4, 4, ((1, 5),))

# %% [markdown]
# `shuffle` is the code that serves. For Figure 6 it finds what the paper prints: three buffers are moved.

# %%
live = [i for i, one in enumerate(FIGURE_6) if one]
answer = shuffle(live, fixed=[], num_buffers=16)
print(answer)
assert answer.offset == 7
assert len(answer.moves) == 3

# %% tags=["plot"]
draw_windows("The shuffle of Figure 6", FIGURE_6, [answer.offset], answer.moves)
plt.show()

# %% [markdown]
# ## From the window to Algorithm 1
#
# The picture is already an algorithm: count the live buffers in each window, and keep the best. For $N$ buffers of
# which $n$ are live, there are $N - n + 1$ windows of $n$ buffers, so it adds $n (N - n + 1)$ numbers. Algorithm 1
# saves most of that. When a window moves one to the right, one buffer enters and one leaves; all others stay. So it
# adds the one, subtracts the other, and needs about $n + 2 (N - n)$ steps, never more than $2N$. (The paper writes
# $O(n)$, with $n$ for the length of the array.)

# %%
show_source(shuffled_region)

# %% [markdown]
# The lines of the paper, and the code:
#
# | Algorithm 1 | the code |
# |---|---|
# | 1-8: count the elements that are not 0, and sum all costs | `non_zero`, `total_cost` |
# | 9-13: the cost inside the first window | `window_cost = sum(arr[:non_zero])` |
# | 14-15: what lies outside must be moved; the first window is the best so far | `min_cost, mem_offset = ..., 0` |
# | 16-17: move the window by one | `window_cost += arr[i] - arr[i - non_zero]` |
# | 18-22: cheaper than the best so far: remember it | `if total_cost - window_cost < min_cost` |
#
# The `<` decides ties: of equal windows the first is taken. How much does sliding save?


# %%
def steps_of_counting(size, live):
    return live * (size - live + 1)


def steps_of_sliding(size, live):
    return live + 2 * (size - live)


assert steps_of_counting(256, 128) > 40 * steps_of_sliding(256, 128)

# %% tags=["plot"]
sizes = list(range(8, 257, 8))
figure, axes = plt.subplots()
axes.plot(sizes, [steps_of_counting(size, size // 2) for size in sizes], color=ORANGE, label="each window counted anew")
axes.plot(sizes, [steps_of_sliding(size, size // 2) for size in sizes], color=BLUE, label="the window slides")
axes.set_yscale("log")
axes.set_xlabel("buffers, half of them live")
axes.set_ylabel("additions")
axes.legend(frameon=False, fontsize=9)
axes.set_title("Steps to find the best window", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# ## No shuffle is shorter: brute force
#
# The argument so far assumed windows, and one copy for each buffer that comes in. Is there no cleverer way, with a
# detour perhaps? Here is a check that assumes neither. A *state* is a set of live buffers. One copy takes any live
# buffer to any free one, and makes another state. We start from all states without holes, and walk backwards, copy by
# copy, until every state has been reached (a breadth-first search). The number of steps to a state is the smallest
# number of copies that it needs, whatever they are.


# %%
def fewest_copies(size):
    """The fewest copies from each state to one without holes. Bit i of a state says whether buffer i is live."""
    whole = [((1 << count) - 1) << offset for count in range(1, size + 1) for offset in range(size - count + 1)]
    fewest, queue = dict.fromkeys(whole, 0), deque(whole)
    while queue:
        state = queue.popleft()
        for source in range(size):
            for target in range(size):
                if state >> source & 1 and not state >> target & 1:
                    before = state ^ 1 << source ^ 1 << target  # a copy undone is a copy
                    if before not in fewest:
                        fewest[before] = fewest[state] + 1
                        queue.append(before)
    return fewest


SIZE = 11
fewest = fewest_copies(SIZE)
needed = {state: shuffle([i for i in range(SIZE) if state >> i & 1], [], SIZE).moves for state in fewest}
assert len(fewest) == 2**SIZE - 1, "every state but the empty one"
assert all(len(needed[state]) == fewest[state] for state in fewest)
for state, copied in needed.items():
    for source, target in copied:
        state ^= 1 << source ^ 1 << target
    assert fewest[state] == 0, "the live buffers are adjacent afterwards"
print(f"{len(fewest):,} states of {SIZE} buffers: the shuffle never needs more copies than the search")

# %% tags=["plot"]
by_live = {count: [fewest[state] for state in fewest if state.bit_count() == count] for count in range(1, SIZE + 1)}
figure, axes = plt.subplots()
axes.bar(list(by_live), [max(values) for values in by_live.values()], color=GREY, label="at worst")
axes.bar(
    list(by_live), [sum(values) / len(values) for values in by_live.values()], 0.45, color=BLUE, label="on average"
)
axes.set_xticks(list(by_live))
axes.set_xlabel(f"live buffers of {SIZE}")
axes.set_ylabel("copies")
axes.legend(frameon=False, fontsize=9)
axes.set_title("Copies that a shuffle needs, over all states", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# A proof in two sentences says the same. Whatever is copied, at the end the live buffers fill some window of $n$
# buffers, and what was live outside of it has been copied at least once; so no plan is shorter than the cheapest
# window. And that many copies suffice, one for each hole.

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# Now the eight requests with the shuffle. The next cell shows the replay page in its mode *Predict*. Step with the
# arrow keys or press Play: it stops before each shuffle, and asks in which window the buffers will lie. When you have
# answered there, look at memory before and after. Before you run the cell, take a pencil:
#
# 1. After iteration 4, buffers 1, 4, 6 and 7 are live. You know this array. Which request is copied, and where does
#    the region lie in iteration 5?
# 2. After iteration 8, `r6` is gone. Draw the array again, with the requests where they lie now. Three windows need
#    one copy each. Which does Algorithm 1 take, and which request is copied?
# 3. In which order do the last three requests lie in memory at the end?

# %%
shuffled = play("fusion", eight)
replay(shuffled, address="i=3&predict=shuffled", height=760)

# %%
draw_memory(shuffled, step=[5, 9])

# %%
for number in (4, 5, 9):
    shape = shuffled.history.iterations[number].event["shape"]
    copied = [
        f"buffer {one.source // shape['width']} to {one.target // shape['width']}: {one.tokens} tokens"
        for one in moves(shuffled, number)
    ]
    print(f"iteration {number}: offset {shape['offset']}, size {shape['size']};", *copied)
assert shuffled.tokens == holes.tokens, "the answers are the same"
assert shuffled.metrics["tokens"]["idle"] == 0
moved = shuffled.metrics["moves"]["shuffle"]
print(f"{moved['count']} copies of {moved['tokens']} tokens in all, against", end=" ")
print(f"{holes.metrics['tokens']['idle']} idle tokens without the shuffle")

# %% [markdown]
# An arrow goes from where KV was to where it is copied, before anything is computed in that iteration. The order of
# requests in memory is disturbed: `r7`, `r4`, `r1` lie side by side at the end. That is why each request keeps track
# of its own offset (V-C), and why row $i$ of an iteration belongs to whatever request has buffer `offset` $+\ i$ now.
#
# ## Your turn: around what is fixed
#
# When there are holes, the memory asks its method `_moves` which buffers to copy, and where to. Algorithm 1 finds the
# window: call `shuffled_region`, which takes and returns places in an array. `live` and `fixed` are numbers of buffers,
# ascending, out of 0 to `self.slots - 1`. Fixed ones are neither copied nor overwritten, because other workers use
# them: leave them out of the array, and turn places back into buffers afterwards, so that a window may lie on both
# sides of one. Pair sources with targets in ascending order. The check has requests with prompts, whose buffers are
# fixed at first.


# %% tags=["task"]
@register
class Mine(Slots):
    """Adjacent buffers, gathered around fixed ones."""

    name = "mine"

    def _moves(self, live, fixed):
        # BEGIN SOLUTION: the array without fixed buffers, the window in it, and the pairs (from, to) of buffers
        usable = [buffer for buffer in range(self.slots) if buffer not in fixed]
        array = [int(buffer in live) for buffer in usable]
        begin = shuffled_region(array)
        window = usable[begin : begin + sum(array)]
        sources = [buffer for buffer in usable if buffer in live and buffer not in window]
        targets = [buffer for buffer in window if buffer not in live]
        return [*zip(sources, targets)]
        # END SOLUTION


# %%
draw = random.Random(0)
fourteen = asks(*[(draw.randint(1, 24), draw.randint(2, 14)) for _ in range(14)], every=0.0004)
check("fusion", fourteen, memory="mine", kv_memory="1MiB")

# %% [markdown]
# ## The source that matters
#
# `shuffle` turns an offset into copies. Look at `movable`: buffers in `fixed` are taken out of the array before
# Algorithm 1 sees it.

# %%
show_source(shuffle)

# %% [markdown]
# What is fixed? A buffer may belong to a request that is not in the main stream: its prompt is being computed by
# another worker at this moment (chapter 5). It must neither be moved nor overwritten. It may end up between live
# buffers; the region then includes it, and its row is idle for as long as it is not fused. Compare:

# %%
print("nothing fixed:  ", shuffle([0, 4], fixed=[], num_buffers=5))
print("buffer 1 fixed: ", shuffle([0, 4], fixed=[1], num_buffers=5))
assert shuffle([0, 4], fixed=[1], num_buffers=5).size == 3

# %% [markdown]
# The memory calls it when it places an iteration. Look for three things. There is a shuffle only if there are holes.
# Requests whose KV is copied are entered in `leaving`: their old buffer may not be given to a newcomer until the copy
# has been made, which is when the plan has run. And `leaving` counts as fixed.

# %%
show_source(Slots.place, Slots._shuffle, Slots.commit)

# %% [markdown]
# One more thing is needed that neither the paper nor the picture shows. Only the written tokens of a buffer are
# copied. Behind them, the target still has what its last owner left. Attention masks that part: its scores become
# $-\infty$ and its weights 0. But the values are multiplied by those weights, and a value left behind may be
# anything, even NaN:

# %%
print("0 x NaN =", (torch.tensor(0.0) * torch.tensor(float("nan"))).item())
show_source(slots_to_clear)

# %% [markdown]
# So the rest of a buffer is cleared when it gets another sequence, and only then.
#
# ## When does a copy pay?
#
# **A count by hand.** A copy of $c$ tokens reads $c$ tokens of KV and writes them: $2c$. A hole that stays costs its
# row in every iteration, and how much that is depends on the kernel. Attention in torch masks a region that it reads up
# to its longest context, $c$ tokens again if contexts are alike: a copy is repaid after two iterations, and a request
# that ends one iteration after it was copied has been copied in vain. minifuse's Triton kernel reads a single token of
# an idle row, and virtual time charges what the backend reads. Here we take torch's.
#
# We test it with GPT-J on an A100, in virtual time. Three requests have contexts of 1,000 tokens. `r1`, which lies
# between the others, ends first. The others go on for $x$ more iterations. (Prompts are computed `inline`, chapter 5,
# so that only the copy makes a difference.)

# %%
GPT_J = "random:gpt-j-6b"


def on_a100(requests, **options):
    machine = {"model": GPT_J, "dtype": "float16", "hardware": "a100-40g", "kv_memory": "16GiB"}
    options = {"attention__backend": "torch", **options}
    return play("fusion", requests, batching__preprocess="inline", **machine, **options)


left, saved = list(range(1, 9)), []
for more in left:
    three = asks((1000, 5 + more), (1000, 5), (1000, 5 + more), model=GPT_J)
    off, on = (on_a100(three, memory__shuffle=choice) for choice in (False, True))
    saved.append(1e6 * (off.history.last_s - on.history.last_s))
assert saved[0] < 0 < saved[2]
assert abs(saved[1]) < 0.1 * saved[3]

# %% tags=["plot"]
figure, axes = plt.subplots()
axes.bar(left, saved, color=[BLUE if one > 0 else ORANGE for one in saved])
axes.axhline(0, color="black", linewidth=0.8)
axes.set_xlabel("iterations of r0 and r2 after r1 has ended")
axes.set_ylabel("µs saved by the shuffle")
axes.set_title("A copy costs as much as the hole costs in two iterations", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# The paper moves whole buffers, and blocks the stream while it does (V-C). It never asks how long the request will go
# on: that is not known. With answers of hundreds of tokens a copy nearly always pays, if a hole is read like this. With
# the kernel, a hole costs next to nothing:

# %%
off, on = (on_a100(three, attention__backend="triton", memory__shuffle=choice) for choice in (False, True))
longer = 1e6 * (on.history.last_s - off.history.last_s)
print(f"with the kernel, the run with shuffle takes {longer:.0f} µs longer, with {left[-1]} iterations left")
assert off.history.last_s < on.history.last_s

# %% [markdown]
# What the paper's kernels read of an idle row is not in its text.

# %% [markdown] tags=["prediction"]
# ## One knob to turn: how different the answers are
#
# The paper draws the lengths of answers evenly between 128 and an upper bound, and raises that bound (VI-D, Fig. 9b:
# 16 requests, 20 ms apart). The more the lengths differ, the more holes. Without a shuffle the paper keeps offset and
# size as they are (Fig. 5); that is `memory.shrink=off`. For a bound of 1,792 the paper reports a speed-up of 2.
# Before you run the cell:
#
# 1. What share of the rows is idle without a shuffle when the bound is 1,792?
# 2. By how much does the shuffle speed up this run?

# %%
bounds, idle, gain = [256, 512, 1024, 1792], [], []
for bound in bounds:
    draw = random.Random(0)
    spread = asks(*[(8, draw.randint(128, bound)) for _ in range(16)], model=GPT_J, every=0.02)
    on = on_a100(spread, memory__slots=16)
    off = on_a100(spread, memory__slots=16, memory__shuffle=False, memory__shrink=False)
    idle.append(off.metrics["tokens"]["idle_share"])
    gain.append(off.history.last_s / on.history.last_s)
    assert on.metrics["tokens"]["idle"] == 0
print("idle:", [f"{one:.0%}" for one in idle], " gain:", [f"{one:.3f}" for one in gain])
assert gain == sorted(gain)
assert 1 < gain[-1] < 1.5

# %% tags=["plot"]
figure, (first, second) = plt.subplots(1, 2, figsize=(8, 2.6))
first.plot(bounds, [100 * one for one in idle], "o-", color=ORANGE)
first.set_ylim(0, 50)
first.set_ylabel("% of rows")
first.set_title("idle without the shuffle", loc="left", fontsize=10)
second.plot(bounds, gain, "o-", color=BLUE)
second.axhline(paper.GAIN_9B, color=GREY, linestyle="--")
second.annotate(
    "the paper: 2", (1792, paper.GAIN_9B), xytext=(0, -10), textcoords="offset points", ha="right", fontsize=8
)
second.set_ylim(0, 2.2)
second.set_ylabel("times as fast")
second.set_title("gain of the shuffle", loc="left", fontsize=10)
for axes in (first, second):
    axes.set_xlabel("longest answer, tokens")
figure.tight_layout()
plt.show()

# %% [markdown]
# Many rows are idle, and yet the gain is small. A count tells why. On this machine an iteration is bound by what it
# reads: all weights once, and the KV of each row. An idle row adds its own KV and nothing else.

# %%
gpt_j = preset("gpt-j-6b")
weights, row = 2 * gpt_j.num_matrix_weights, 1000 * gpt_j.kv_bytes_per_token("float16")
print(
    f"weights {weights / 1e9:.1f} GB, a row of 1,000 tokens {row / 1e9:.2f} GB: "
    f"{100 * row / weights:.0f} % more for each idle row"
)
assert row < 0.05 * weights

# %% [markdown]
# The shuffle can save no more than its idle rows cost. By the paper's Figure 8, with answers of 512 tokens, a row costs
# 4% of an iteration; its KV explains 1%. On a machine fitted to that figure the gain is larger (`flover-fig9`). But
# even if an iteration took as long as its rows, 44% of idle rows would mean a gain of 1 / (1 - 0.44) = 1.79, and not 2.
# If it took as long as the KV of its rows, idle rows included up to the longest context, the bound would be 2.38
# (`flover-fig9`): what the paper's kernels read of an idle row is not known. Between several GPUs rows also lengthen
# the messages (VI-E, `flover-fig10`); chapter 12 counts them.
#
# ## Where this idea loses, measured
#
# **Against blocks.** The shuffle is the price of a kernel that knows nothing but offset and size. Chapter 3's `orca`
# and chapter 4's `vllm` have no region. A request leaves a hole there, too, but no kernel computes it, and nothing is
# moved:

# %%
for name in ("orca", "vllm", "fusion"):
    run = play(name, eight)
    moved = run.metrics["moves"]["shuffle"]
    print(f"{name:7} {run.metrics['tokens']['idle']} idle tokens, {moved['count']} copies of {moved['bytes']:,} bytes")

# %% [markdown]
# **Against itself, with other costs.** Fewest copies are not fewest bytes: a copy costs the tokens that it carries.
# Algorithm 1 would allow for that. Its elements are integers, 0 for a free buffer and otherwise the *cost* of moving
# it. minifuse gives it ones, because the paper's buffers are all of one size. With the numbers of tokens instead:

# %%
short_first = [40, 0, 900]  # tokens in buffers 0, 1, 2
print("ones:   window at", shuffled_region([1, 0, 1]), "so the 900 tokens of buffer 2 are copied")
print("tokens: window at", shuffled_region(short_first), "so the 40 tokens of buffer 0 are copied")


def outside(array, offset, size):
    return sum(array[:offset]) + sum(array[offset + size :])


draw, with_ones, with_tokens = random.Random(1), 0, 0
for _ in range(2000):
    array = [draw.randint(10, 500) if draw.random() < 0.6 else 0 for _ in range(16)]
    count = sum(one > 0 for one in array)
    ones = outside(array, shuffled_region([int(one > 0) for one in array]), count)
    tokens = outside(array, shuffled_region(array), count)
    assert tokens <= ones
    with_ones, with_tokens = with_ones + ones, with_tokens + tokens
print(f"over 2,000 random arrays, ones copy {with_ones / with_tokens:.2f} times as many tokens as costs in tokens")
assert with_ones > with_tokens

# %% [markdown]
# **With one wide answer.** All buffers are equally wide, and a shuffle moves requests between them, so none can be
# made wider for a longer text. More buffers mean narrower ones, and a buffer must hold at least one token. The option
# calls buffers *slots* (chapter 5), and so does the message that refuses too many:

# %%
try:
    play("fusion", eight, memory__slots=200)
except UsageError as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# 1. Find the offset and the copies for `[1, 1, 0, 0, 0, 1, 0, 1, 1, 0]` with a pencil, then check them with
#    `shuffle`.
#    *Hint: five live buffers, six windows.*
#    <details><summary>Answer</summary>
#    Live inside, by offset: 2, 2, 2, 2, 3, 3. The window at 4 is the first with 3, so two copies: `shuffle([0, 1, 5,
#    7, 8], [], 10)` gives offset 4, size 5, and the copies 0 to 4, 1 to 6.
#    </details>
# 2. How many copies does the worst state of eight buffers need? Find it with `fewest_copies(8)`, and draw one such
#    state.
#    *Hint: two groups of equal size, far apart.*
#    <details><summary>Answer</summary>
#    `max(fewest_copies(8).values())` is 2. In `[1, 1, 0, 0, 0, 0, 1, 1]` a window of four buffers holds two live
#    ones at most: one group stays, and the other comes in.
#    </details>
# 3. Change the `<` in Algorithm 1 to `<=`. Is the number of copies still minimal? What changes in the prediction
#    above?
#    *Hint: write your own `shuffled_region` in a cell; only ties differ.*
#    <details><summary>Answer</summary>
#    It is minimal: ties cost the same, and the last of the best windows is taken. The first shuffle has no tie. In
#    iteration 9 the region becomes [5, 8) instead of [3, 6), with the copy of buffer 4 to buffer 6: `r4` moves
#    instead of `r7`.
#    </details>
# 4. A buffer that is copied has $c$ tokens, and the longest context in the region is $L$. After how many iterations
#    is the copy repaid? When is it repaid at once? Check it with the cell that draws the bars.
#    *Hint: give `r2`, which is copied there, a prompt of 500 tokens, then one of 250.*
#    <details><summary>Answer</summary>
#    After 2c / L iterations. If c is at most half of L, the first iteration repays it. With 500 tokens the first bar
#    is next to zero, with 250 it is above.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Algorithm 1 of Flover (V-C) stands in the code as printed, with sums of a slice in place of the loops. The paper
#   stops at the offset; which buffer goes into which hole is ours: in ascending order of both.
# - The paper's shuffle knows no fixed buffers. With pre-processing beside the stream, a buffer may be in use while
#   others are gathered; so they are needed.
# - Without the shuffle, the paper leaves offset and size as they are (Fig. 5). Here a region gives up its free ends by
#   default, which makes the version without shuffle better than the paper's; `memory.shrink=off` is the paper's.
# - "Our algorithm guarantees that the total amount of memory movement is minimized" (V-C): true for buffers that are
#   moved whole, and for costs that are given as such.
#
# ## Further reading
#
# - Yao et al., *Flover* (2023), V-C and VI-D: the algorithm, and Figure 9.
# - Jones, Hosking and Moss, *The Garbage Collection Handbook*, the chapters on compaction: the same problem, with
#   pointers.
# - `minifuse explain shuffle`, and `minifuse reproduce flover-fig9 --scale quick`.
#
# **Next:** every request so far is a chain, whose next step is known to be one more token; chapter 7 batches requests
# that unfold into trees and graphs, where no two have the same steps.
