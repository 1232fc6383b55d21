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
# # 2. Batching
#
# Reading the weights once can serve many requests. This chapter puts several requests into one iteration in the oldest
# way: as the rows of a rectangle, padded to the same length, computed until the last row has ended. It counts what that
# saves and what it wastes, and it meets the question that a batch raises: how long to wait for others before it starts.
#
# **You will be able to**
#
# - lay prompts of different lengths into a rectangle, and write down the mask that keeps padding out of attention;
# - count the idle tokens of a batch from the lengths alone, and check the count against a run;
# - predict how idle computation grows with the size of the batch and with the spread of the lengths;
# - say what the window of dynamic batching costs each request, and when it is worth that;
# - name a workload for which a padded batch is slower than one request at a time.

# %%
import random
from itertools import accumulate

import matplotlib.pyplot as plt
import torch

from minifuse.core.errors import UsageError
from minifuse.model.source import resolve
from minifuse.show.notebook import asks, draw_lanes, draw_memory, draw_series, kv_in_use, play, replay, show_source

plt.rcParams.update(
    {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"
tokenizer = resolve("tiny").tokenizer()

# %% [markdown]
# ## The failure of the last chapter: a queue before an idle machine
#
# Four requests arrive together, and `serial` serves one after the other.

# %%
texts = ["count from 3 to 12", "sort 9 4 8 2 6", "given ann 17, bob 4: recall bob", "repeat duck 4 times"]
four = asks(*texts)
queued = play("serial", four)
draw_lanes(queued)

# %% [markdown]
# In the middle of the picture one request computes one token, and the others wait. Each iteration reads all weights for
# that one token. The next cell compares what an iteration costs with one token and with four, in virtual time
# (chapter 1). It uses the technique `static`, which the rest of this chapter explains: it computes up to `max_batch`
# requests in one iteration. A pair such as `(5, 4)` asks for a prompt of five random tokens and an answer of exactly
# four, and `kv_memory` makes the device's memory large enough.


# %%
def decode_ms(batch):
    """Milliseconds of the last iteration of a batch of equal requests: one token for each of them."""
    run = play("static", asks(*[(5, 4)] * batch), max_batch=batch, kv_memory="1MiB")
    return run.history.iterations[-1].seconds * 1e3


one, together = decode_ms(1), decode_ms(4)
print(f"one token {one:.3f} ms, four tokens {together:.3f} ms: {4 * one / together:.2f} times as many tokens a second")
assert together < 1.05 * one

# %% [markdown]
# Four tokens cost hardly more than one. So the four requests belong in one iteration.
#
# ## The idea: a rectangle
#
# A matrix product wants a rectangle of numbers, and the prompts have different lengths. *Padding* fills the short ones
# up. In minifuse's `static`, as in most libraries, the padding stands on the left: then all prompts end in the same
# column, and the next token of every row goes into the same next column. Here are the four prompts, with their answers
# behind them.


# %%
def words(tokens):
    return [tokenizer.decode([token]).strip() or "end" for token in tokens]


prompts = [words(request.prompt) for request in four]
answers = [words(queued.tokens[request.id]) for request in four]
print("tokens of the prompts", [len(one) for one in prompts], "and of the answers", [len(one) for one in answers])


# %% tags=["plot"]
def draw_rectangle(prompts, answers, title):
    """Rows of tokens: prompts that end in one column, answers behind it, and idle tokens."""
    longest, most = max(map(len, prompts)), max(map(len, answers))
    _, axes = plt.subplots(figsize=(9.2, 0.36 * len(prompts) + 1))
    for row, (prompt, answer) in enumerate(zip(prompts, answers)):
        cells = [("", "idle")] * (longest - len(prompt)) + [(word, "prompt") for word in prompt]
        cells += [(word, "answer") for word in answer[:-1]] + [("", "idle")] * (most - len(answer))
        for column, (word, kind) in enumerate(cells):
            face = {"prompt": "#cfe3f1", "answer": "#cdeadf", "idle": "#f6e7c8"}[kind]
            look = {"facecolor": face, "edgecolor": "white", "hatch": "///" if kind == "idle" else ""}
            axes.add_patch(plt.Rectangle((column, row - 0.42), 1, 0.84, **look))
            axes.text(column + 0.5, row, word, ha="center", va="center", fontsize=7)
    axes.axvline(longest, color="black", linewidth=1)
    axes.set_xlim(0, longest + most - 1)
    axes.set_ylim(len(prompts) - 0.4, -0.6)
    axes.set_yticks(range(len(prompts)), [f"r{row}" for row in range(len(prompts))])
    axes.set_xticks([at + 0.5 for at in range(longest + most - 1)], range(longest + most - 1), fontsize=7)
    axes.set_xlabel("column (blue: prompt, green: answer, hatched: idle)", fontsize=8)
    axes.set_title(title, loc="left", fontsize=10)
    plt.show()


draw_rectangle(prompts, answers, "what is given to the model: the last token of an answer never is")

# %% [markdown]
# One iteration computes everything left of the black line, for all rows at once. Each later iteration computes one
# column, in all rows. A row whose answer has ended stays in the rectangle, and is still computed: nothing can be taken
# out of a rectangle, and nothing can be put in. What is computed although no request needs it is called **idle
# computation** (Baton, section 1). It has two sources, padding and finished rows.
#
# ### What keeps padding out of the answers
#
# The tokens of the padding mean nothing. They must not be seen, so attention gets a *mask*: 0 where a query may
# look, minus infinity where it may not. After the softmax, a masked key has the weight zero. The next cell attends
# once over three tokens, and once over the same three tokens behind two columns of noise.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 3, 8)  # three tokens: a query, a key and a value each


def attend(q, k, v, mask):
    return (q @ k.T / 8**0.5 + mask).softmax(-1) @ v


def causal(padding, length):
    """Of each query, which keys it may see: from the first token that is not padding up to itself."""
    columns = torch.arange(padding + length)
    visible = (columns <= columns[:, None]) & (columns >= padding) | (columns == columns[:, None])
    return torch.where(visible, 0.0, float("-inf"))


noise = 100 * torch.randn(3, 2, 8)
padded_q, padded_k, padded_v = (torch.cat([extra, own]) for extra, own in zip(noise, (q, k, v)))
alone = attend(q, k, v, causal(0, 3))
padded = attend(padded_q, padded_k, padded_v, causal(2, 3))[2:]
print(f"the three tokens' outputs differ by {(alone - padded).abs().max():.1e}")
assert torch.allclose(alone, padded)

# %% [markdown]
# The tokens of the padding see something themselves: each looks at itself. If one saw nothing, its softmax would be
# 0/0, not a number (NaN); and a NaN stays a NaN when it is multiplied with the weight zero. Here are the masks of the
# four prompts in their rectangle.

# %% tags=["plot"]
longest = max(map(len, prompts))
figure, panels = plt.subplots(1, 4, figsize=(9, 2.6), sharey=True)
for axes, request in zip(panels, four):
    mask = causal(longest - len(request.prompt), len(request.prompt))
    axes.imshow((mask == 0).float(), cmap="Blues", vmax=1.5)
    axes.set_title(f"{request.id}: {len(request.prompt)} of {longest} columns", fontsize=9)
    axes.set_xlabel("key in column")
    axes.set_xticks(range(0, longest, 2))
panels[0].set_ylabel("query in column")
figure.suptitle("Masks of four padded prompts: a query sees the dark keys", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## A count by hand
#
# Take $B$ requests with prompts of $p_1 \ldots p_B$ tokens and answers of $n_1 \ldots n_B$. Let $P$ be the longest
# prompt and $N$ the longest answer. The first iteration computes $BP$ tokens, and gives each request its first new
# token. Then come $N - 1$ iterations of $B$ tokens:
#
# $$\text{computed} = B\,(P + N - 1), \qquad \text{needed} = \sum_i (p_i + n_i - 1),$$
#
# $$\text{idle} = \underbrace{\sum_i (P - p_i)}_{\text{padding}} +
# \underbrace{\sum_i (N - n_i)}_{\text{finished rows}}.$$

# %%
p, n = [len(one) for one in prompts], [len(one) for one in answers]
B, P, N = len(p), max(p), max(n)
padding, finished = sum(P - one for one in p), sum(N - one for one in n)
print(f"prompts {p}, answers {n}")
print(f"computed {B * (P + N - 1)} = needed {sum(p) + sum(n) - B} + padding {padding} + finished rows {finished}")

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# The technique `static` does this. Before you run the next cell, predict from the lengths above:
#
# 1. How many iterations does `static` take, and how many did `serial` take?
# 2. In which iteration is a finished row computed for the first time?
# 3. Which request has its answer *later* than under `serial`, if any?
# 4. How many slots of KV are in use at the end, idle ones included?

# %%
batched = play("static", four)
print(batched)
assert batched.tokens == queued.tokens
draw_lanes(queued, batched)

# %%
counted = batched.metrics["tokens"]
print("iterations", len(queued.steps), "and", len(batched.steps))
print("computed  ", queued.metrics["tokens"]["computed"], "and", counted["computed"], "of which idle", counted["idle"])
assert len(queued.steps) == sum(n)
assert len(batched.steps) == N
assert counted["computed"] == B * (P + N - 1)
assert counted["idle"] == padding + finished
for before, after in zip(queued.history.by_arrival, batched.history.by_arrival):
    print(
        f"{before.id} has its answer after {before.ended_s * 1e3:5.2f} ms under serial, "
        f"{after.ended_s * 1e3:5.2f} ms under static"
    )
assert batched.history.by_arrival[0].ended_s > queued.history.by_arrival[0].ended_s

# %% [markdown]
# More tokens are computed, in fewer iterations, and the iterations are what costs time. The answers are the same
# tokens. The hatched stretches in the picture are finished rows. `static` returns each answer as soon as it is
# complete (so do the baselines of Baton, section 5.1), so the hatched part delays only what comes after the batch. One
# request is served a little later than before: the first of the queue, whose first iteration now computes the padded
# prompts of all four.

# %%
draw_series(queued, batched, series=["computed", "idle"], by="iterations")

# %%
in_use = kv_in_use(batched)[-1].used
print(in_use, "slots in use at the end")
assert in_use == B * (P + N - 1)
draw_memory(batched, step=[0, 5, N - 1])

# %% [markdown]
# The map shows the rectangle row by row. What is marked as computed and not needed at the left of a row is padding; at
# the right it is a finished row that goes on growing. The light slots are set aside for the longest answer that *might*
# come. `asks` allows 24 tokens unless it is told otherwise, and the last one is never given back to the model: so a row
# has $9 + 24 - 1 = 32$ slots. Chapter 4 returns to this.
#
# ## See it move
#
# Step through the batch with the arrow keys. Before each step say which rows the next iteration needs, and which it
# computes for nothing. The page shows `static` above and `serial` below, at the same moment of virtual time.

# %%
replay(queued, batched, address="run=static&b=serial&i=2&request=r1")

# %% [markdown]
# ## The source that matters
#
# In minifuse a technique is made of three *stages* that work together: a *batching policy* says which requests run, a
# *memory* says where their KV lies, and *attention* reads it there. A policy is an order of the requests and a rule for
# admitting them. The rule of `static` is short: no request is admitted while a batch runs, nor beyond the batch's size.
# The memory gives each newcomer its row; look at `padding`, which is where the row's first token lies. And attention
# is one product over all rows, with the mask added to the scores.

# %%
from minifuse.attention.padded import Rows
from minifuse.batching.static import run_to_completion
from minifuse.memory.padded import Padded

show_source(run_to_completion, Padded._open, Rows.attend)

# %% [markdown]
# Not all stages fit each other. Attention over a rectangle needs a memory that keeps one, and the memory
# `contiguous` (chapter 3) does not:

# %%
try:
    play("static", four, memory="contiguous")
except UsageError as error:
    print(error)

# %% [markdown]
# ## How much a batch is worth
#
# Sixteen equal requests, served in batches of 1, 2, 4, 8 and 16. There is no padding and no finished row in these
# runs. The left chart is in virtual time, on a simulated CPU; the right one is by the clock of the machine that
# executes this page.

# %%
equal = asks(*[(5, 25)] * 16)
sizes = [1, 2, 4, 8, 16]
rates = {}
for clock in ("virtual", "real"):
    play("static", equal, max_batch=16, kv_memory="1MiB", clock=clock)  # once before it counts
    runs = [play("static", equal, max_batch=size, kv_memory="1MiB", clock=clock) for size in sizes]
    rates[clock] = [run.metrics["throughput"]["tokens_per_s"] for run in runs]
    print(f"16 in a batch give {rates[clock][-1] / rates[clock][0]:.1f} times the tokens a second in {clock} time")
assert rates["virtual"][-1] > 8 * rates["virtual"][0]

# %% tags=["plot"]
figure, panels = plt.subplots(1, 2, figsize=(8, 2.8))
for axes, clock, colour in zip(panels, ("virtual", "real"), (BLUE, GREEN)):
    axes.plot(sizes, [rates[clock][0] * size for size in sizes], ":", color=GREY)
    axes.plot(sizes, rates[clock], "o-", color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, sizes)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("requests in a batch")
    axes.set_ylabel("tokens/s")
    axes.set_title(f"{clock} time (dotted: proportional)", loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# Throughput, the tokens a second of all requests together, grows almost in proportion for as long as the iteration's
# time is that of reading the weights, and of starting the iteration at all. In virtual time it bends down where
# arithmetic begins to count (chapter 1, the roofline). Your own machine may bend earlier, or be busy; the growth is
# there all the same.
#
# ## One knob to turn: the size of the batch, when lengths differ
#
# With equal lengths a larger batch is always better. Now let 64 requests have answers between 1 and 32 tokens, each
# length equally likely. What share of the computed tokens is idle? By hand: the batch lasts as long as its longest
# answer, and the longest of $B$ random numbers between 0 and $U$ is $U \cdot B / (B+1)$ on average, where the mean is
# $U/2$. So of what decoding computes, the share
#
# $$1 - \frac{U/2}{U \cdot B/(B+1)} = \frac{B-1}{2B}$$
#
# is idle: a quarter with two rows, then more, and never more than a half. Expect the run to stay a little below,
# because its prompts are all of one length and count as needed.
#
# This sweep and the ones below use `llama-2-7b` on a simulated A100. In virtual time no weights are needed, only
# shapes: the lengths are given, so nothing depends on what the tokens are.

# %%
LLAMA = {"model": "random:llama-2-7b", "dtype": "float16", "hardware": "a100-40g", "kv_memory": "16GiB"}


def play_llama(technique, requests, **options):
    return play(technique, requests, **LLAMA, **options)


def asks_llama(*lengths, **options):
    return asks(*lengths, model=LLAMA["model"], **options)


drawn = random.Random(3)
lengths = [(4, drawn.randint(1, 32)) for _ in range(64)]
varied = asks_llama(*lengths)
sizes = [2, 4, 8, 16, 32, 64]
runs = [play_llama("static", varied, max_batch=size) for size in sizes]
shares = [100 * run.metrics["tokens"]["idle_share"] for run in runs]
times = [run.history.last_s for run in runs]
slower, faster = times[0], times[-1]
print(
    f"with 64 in a batch {shares[-1]:.0f}% of the tokens are idle, and the run is {slower / faster:.0f} times as fast"
)
assert shares == sorted(shares)
assert shares[-1] < 50
assert times == sorted(times, reverse=True)

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
by_hand = [100 * (size - 1) / (2 * size) for size in sizes]
left.plot(sizes, by_hand, "--", color=GREY, label="(B - 1) / 2B")
left.plot(sizes, shares, "o-", color=ORANGE, label="in the run")
left.set_ylim(0, 60)
left.set_ylabel("idle tokens, % of all")
left.legend(frameon=False, fontsize=8, loc="lower right")
left.set_title("what is wasted", loc="left", fontsize=9)
right.plot(sizes, times, "o-", color=BLUE)
right.set_ylim(0)
right.set_ylabel("s for all 64 requests")
right.set_title("what is gained all the same", loc="left", fontsize=9)
for axes in (left, right):
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, sizes)
    axes.set_xlabel("requests in a batch")
figure.tight_layout()
plt.show()

# %% [markdown]
# Both are true at once: more than two fifths of the work is wasted, and the larger batch is still faster, because an
# idle token in an iteration that is bound by memory costs almost no time. That is why padded batches were used for so
# long. The waste is paid for elsewhere: in memory, which the idle rows occupy, and in the time of requests that wait
# for a row.

# %% [markdown] tags=["prediction"]
# ## How long to wait for others
#
# So far all requests arrived together. Now they arrive one by one, 2 ms apart. `static` starts as soon as it is idle,
# with whatever waits then: with the first request alone.
#
# The technique `dynamic`, dynamic batching, waits on purpose. A batch starts when `max_batch` requests wait, or when
# the oldest of them has waited for the **window**. The rest is `static`. Predict: with a window of 5 ms, which
# requests are in the first batch, and when does the last answer come, compared with `static`?

# %%
spaced = asks(*texts, every=0.002)
eager = play("static", spaced)
patient = play("dynamic", spaced, batching__window="5ms")
draw_lanes(eager, patient, by="time")

# %%
first_batch = patient.history.iterations[0].requests
print("first batch of dynamic:", first_batch)
assert first_batch == ["r0", "r1", "r2"]
for before, after in zip(eager.history.by_arrival, patient.history.by_arrival):
    took = [(story.ended_s - story.arrival_s) * 1e3 for story in (before, after)]
    print(f"{before.id}: {took[0]:5.2f} ms under static, {took[1]:5.2f} ms under dynamic")

# %% [markdown]
# The window gathers three requests. Two of them gain. The first pays the whole window, and the fourth, which came 1 ms
# after the window had closed, waits for the whole batch of the others.

# %% [markdown]
# Flover (section III, figure 1) shows the same in seconds: a window of 500 ms, requests of 300 iterations, and a third
# request that arrives at 510 ms. Here it is in the virtual time of an A100. The prompts and the second
# arrival are ours.

# %%
flover = asks_llama((32, 300), (32, 300), (32, 300), arrivals=[0, 0.2, 0.51])
late = play_llama("dynamic", flover, batching__window="500ms")
draw_lanes(late, by="time")

# %%
from minifuse.batching.dynamic import Dynamic

third = late.history.by_arrival[2]
waits, computes = third.admitted_s - third.arrival_s, third.ended_s - third.admitted_s
print(f"the third request waits {waits:.2f} s and computes for {computes:.2f} s")
assert waits > 0.95 * computes
show_source(Dynamic.admission, Dynamic._window_closes)

# %% [markdown]
# The third request missed the batch by 10 ms, and its answer takes twice as long for that. Note a decision in
# `_window_closes`: the window opens when the oldest waiting request *arrives*. Time spent behind a running batch
# counts, so a request that has waited for longer than the window starts at once. (Evicted requests, which a comment
# mentions, come in chapter 4.)

# %% [markdown] tags=["prediction"]
# ### What the window is worth
#
# Twenty-four requests arrive at random, once every two seconds on average, then once every 0.6 s. The *latency* of a
# request is the time from its arrival to the end of its answer. Predict: what does its mean do as the window grows, and
# what does the number of iterations, each of which reads all weights?


# %%
def workload(gap):
    drawn = random.Random(1)
    times = [0.0, *accumulate(drawn.expovariate(1 / gap) for _ in range(23))]
    return asks_llama(*[(32, drawn.randint(20, 200)) for _ in range(24)], arrivals=times)


windows = [0, 0.25, 0.5, 1, 2]
swept = {}
for gap in (2.0, 0.6):
    requests = workload(gap)
    runs = [play_llama("dynamic", requests, batching__window=f"{window}s") for window in windows]
    assert runs[0].steps == play_llama("static", requests).steps
    assert runs[-1].metrics["e2e_s"]["mean"] > runs[0].metrics["e2e_s"]["mean"]
    assert runs[-1].metrics["iterations"] < runs[0].metrics["iterations"]
    swept[gap] = runs

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
for gap, colour, mark in ((2.0, BLUE, "o-"), (0.6, ORANGE, "s-")):
    latency = [run.metrics["e2e_s"]["mean"] for run in swept[gap]]
    left.plot(windows, latency, mark, color=colour, label=f"{gap:g} s apart")
    right.plot(windows, [run.metrics["iterations"] for run in swept[gap]], mark, color=colour)
for axes in (left, right):
    axes.set_ylim(0)
    axes.set_xlabel("window, s")
left.set_ylabel("mean latency, s")
left.set_title("from arrival to answer", loc="left", fontsize=9)
right.set_ylabel("iterations")
right.set_title("how often the weights are read", loc="left", fontsize=9)
left.legend(frameon=False, fontsize=8, loc="lower right")
figure.tight_layout()
plt.show()

# %% [markdown]
# The longest window saves the most iterations, and the requests pay for it. A short window may cost next to nothing,
# or even gain a little where it catches two requests that come close together. With the window at 0, `dynamic` decides
# as `static` does: the requests that arrive during a batch form the next one. That already adapts to the load, without
# a number that has to be guessed. Flover (section III) writes of the window that choosing it "can be heuristic and
# exhibits no flexibility": it is set for one load, and loads change.
#
# ## Where this idea loses
#
# **One long prompt among short ones.** Eight requests arrive together; one has a prompt of 100 tokens, seven have 3,
# and each asks for one token. By hand: `serial` computes $100 + 7 \cdot 3$ tokens in eight iterations, `static`
# computes $8 \cdot 100$ in one.

# %%
uneven = asks((100, 1), *[(3, 1)] * 7)
contest = {name: play(name, uneven, kv_memory="2MiB") for name in ("serial", "static")}
for name, run in contest.items():
    tokens = run.metrics["tokens"]
    print(
        f"{name:6} {len(run.steps)} iterations, {tokens['computed']:3} tokens computed, "
        f"{tokens['idle']:3} idle, {run.history.last_s * 1e3:.2f} ms"
    )
assert contest["serial"].metrics["tokens"]["computed"] == 100 + 7 * 3
assert contest["static"].metrics["tokens"]["computed"] == 8 * 100
assert contest["static"].history.last_s > contest["serial"].history.last_s

# %% [markdown]
# One request at a time wins, in virtual time: here the idle tokens are so many that arithmetic is the bound, and
# padding is no longer free.
#
# **One long answer among short ones.** A batch of eight, one answer of 300 tokens and seven of 20, on the A100. A
# ninth request arrives when the short ones are nearly done.

# %%
tail = asks_llama((32, 300), *[(32, 20)] * 7, (32, 20), arrivals=[0.0] * 8 + [0.15])
stuck = play_llama("static", tail)
draw_lanes(stuck, by="time")

# %%
ninth = stuck.history.by_arrival[8]
share = stuck.metrics["tokens"]["idle_share"]
waited, computed = ninth.admitted_s - ninth.arrival_s, ninth.ended_s - ninth.admitted_s
print(f"idle: {share:.0%} of the tokens computed")
print(f"the ninth request waits {waited:.2f} s, then computes for {computed:.2f} s")
assert share > 0.5
assert waited > 10 * computed
draw_series(stuck, series=["batch", "idle", "queue"])

# %% [markdown]
# Seven of eight rows are idle for most of the run, and a request that needs a fraction of a second waits for more
# than ten times that. The rows are there. They cannot be given to it: its prompt has several tokens, and the batch
# computes one column of the rectangle in each iteration.
#
# ## Exercises
#
# 1. A batch has prompts of 10, 10, 10 and 50 tokens, and answers of 40, 20, 20 and 20. How many tokens are computed,
#    and what share of them is idle? *Hint: the count by hand.*
#    <details><summary>Answer</summary>
#    4·(50 + 39) = 356 computed; padding 120, finished rows 60: 180 idle, about 51%.
#    </details>
# 2. The 64 requests of the sweep are served in batches of eight, in the order in which they came. Sort them by the
#    length of their answers before you give them to `static`. What happens to the idle share? Why can a server not do
#    this? *Hint: `play_llama("static", asks_llama(*sorted(lengths)), max_batch=8)`.*
#    <details><summary>Answer</summary>
#    It falls below a tenth: batches hold answers of similar length. But the length of an answer is known only when it
#    has ended. The lengths of prompts are known, and sorting by them does away with most of the padding (BatchMaker
#    calls it bucketing, Baton builds its prefill batches so).
#    </details>
# 3. Pad on the right instead of the left: which column does the next token of each row go to? Can one iteration still
#    compute the next tokens of all rows as one column? *Hint: draw the four prompts, each beginning in column 0.*
#    <details><summary>Answer</summary>
#    To the column behind its own prompt, which differs from row to row. One column for all rows is possible only
#    with a gap: rows with short prompts then have padding between prompt and answer, and the mask leaves it out.
#    </details>
# 4. In the workload with arrivals 0.6 s apart, give `dynamic` a window of one hour. What does the run become, and when
#    does it end? *Hint: `batching__window="3600s"`; `max_batch` is 8.*
#    <details><summary>Answer</summary>
#    Every batch waits for eight requests. Twenty-four requests make three full batches, so the run ends soon after the
#    last arrival. With twenty-three, the last seven would wait for an hour.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Baton (section 2.1, figure 3) describes the padded batch: the shorter prompts padded, a 0-1 mask, finished rows
#   that go on producing the end token, and a batch that ends with its last row. Our finished rows compute an idle
#   token, too, and it is thrown away; nothing is appended to a finished answer.
# - `static` and `dynamic` return an answer as soon as it is complete, as Baton's *Benchmark* does (section 5.1).
# - BatchMaker (section 2.2.3) calls the same thing *graph batching* and sees both costs: a newcomer waits for the
#   running batch, and padding wastes computation. Its remedy for the second, *bucketing*, makes requests wait for
#   their bucket's turn (section 2.7.1).
# - Flover (section III) forms windows one after the other, $\tau_1, \tau_2, \ldots$ We open a window with the arrival
#   of a request, so that no request waits for longer than the window before an idle machine.
#
# ## Further reading
#
# - Gao et al., *Low Latency RNN Inference with Cellular Batching* (2018): the same waste, measured for recurrent
#   networks.
# - The documentation of NVIDIA's Triton Inference Server, *dynamic batcher*: the window, as servers offer it.
# - `minifuse explain static`, `minifuse explain dynamic`.
#
# **Next:** the rows of finished requests are computed for nothing while new requests wait; chapter 3 gives up the
# rectangle, so that requests can leave and join at every iteration.
