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
# # 1. One token at a time
#
# A language model writes its answer one token at a time, and each token depends on all tokens before it. This chapter
# follows a single request through a model, first in the most naive way there is, then with a *KV cache*. It ends with
# the number that drives every later chapter: how many bytes a machine has to read for one token.
#
# **You will be able to**
#
# - say what a model computes for one new token, and what of it can be kept for the next one;
# - count the tokens that are computed with and without a KV cache, and check the count against a real run;
# - compute how many bytes of KV one token takes in any model, and how many bytes one iteration reads;
# - tell from two numbers of a machine whether an iteration is bound by its memory or by its arithmetic.
#
# You need Python, and to have seen a transformer once. Everything runs on a CPU.

# %%
import time
from functools import partial

import matplotlib.pyplot as plt
import torch

from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.naive import oracle
from minifuse.show.notebook import (
    asks,
    draw_lanes,
    draw_memory,
    draw_series,
    kv_in_use,
    pieces,
    play,
    replay,
    show_source,
)
from minifuse.simulate.cost import hardware

plt.rcParams.update(
    {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"

# %% [markdown]
# ## A text is a list of numbers, and the next token is a choice
#
# The model of this course is called `tiny`. It comes with minifuse, has fewer than a million parameters, and knows a
# few small tasks: counting, sorting, reversing, repeating, adding, recalling. Its tokens are words; a word that is
# not in its vocabulary is read letter by letter, and answered with nonsense.

# %%
source = resolve("tiny")
tokenizer, config = source.tokenizer(), source.config
prompt = list(tokenizer.encode("count from 3 to 9"))
print("text  ", [tokenizer.decode([token]).strip() for token in prompt])
print("tokens", prompt)
print(
    f"{config.num_parameters:,} parameters: {config.num_layers} layers, {config.hidden_size} numbers a token,",
    f"{config.num_heads} attention heads that share {config.num_kv_heads} KV heads of {config.head_dim}",
)

# %% [markdown]
# minifuse has a second, slow implementation of its models that keeps nothing and serves one text: the *oracle*. We use
# it here because it hides nothing. A model turns the tokens of a text into *logits*: for each position in the text, one
# number for every token of the vocabulary. The largest logit at the last position names the likeliest next token.
# Always choosing the likeliest is called *greedy* decoding; this course decodes greedily unless it says otherwise, so
# that answers can be compared. The picture shows the six likeliest tokens; `tiny` is nearly certain of its first one.

# %%
model = source.load("float32", "cpu", 0)
last = oracle.logits(model, prompt)[-1].softmax(0)
likeliest = last.topk(6)
names = [tokenizer.decode([token]).strip() or "(end)" for token in likeliest.indices.tolist()]
print(f"the likeliest is {names[0]!r}, with a probability of {likeliest.values[0]:.1%}")

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(6, 2))
axes.barh(names[::-1], likeliest.values.tolist()[::-1], color=BLUE)
axes.set_xlabel("probability of the next token")
axes.set_title("after “count from 3 to 9”", loc="left")
plt.show()

# %% [markdown]
# ## The failure to begin with: everything is computed again for every token
#
# The simplest way to write an answer is this loop. It asks the model for the logits of the whole text, appends the
# likeliest token, and asks again, until the token that ends an answer comes.

# %%
tokens, computed = list(prompt), []
while True:
    computed.append(len(tokens))  # the tokens that this turn of the loop computes
    tokens.append(int(oracle.logits(model, tokens)[-1].argmax()))
    if tokens[-1] in config.eos_ids:
        break
print(tokenizer.decode(tokens[len(prompt) :]))
print("tokens computed in each turn:", computed, "in all", sum(computed))

# %% [markdown]
# minifuse has this loop as a technique, `naive`. A *technique* is what the papers of this course propose: a way to
# choose what runs, where its memory lies and how attention reads it. `play` serves requests with a technique, on the
# real engine, exactly as the command `minifuse run --technique naive` does. It gives the requests names, r0, r1, ...

# %%
request = asks("count from 3 to 9")
naively = play("naive", request)
print(naively)
print(naively.answers, naively.tokens)
assert list(naively.tokens["r0"]) == tokens[len(prompt) :]
draw_series(naively, series="computed", by="iterations")

# %% [markdown]
# Each bar is one *iteration*: one pass of the model. The first computes the prompt. Every later one computes the prompt
# and all tokens of the answer so far, to get a single new token.
#
# The milliseconds are *virtual time*: the tokens are computed, but a cost model says how long each iteration would take
# on a certain machine. So a run takes the same time wherever you repeat it. The machine is a simulated CPU here; the
# section on bytes says what the cost model counts.
#
# **A count by hand.** With a prompt of $p$ tokens and an answer of $n$ tokens the iterations compute
# $p, p+1, \ldots, p+n-1$ tokens, in all
#
# $$np + \frac{n(n-1)}{2}.$$
#
# The second term grows with the square of $n$: where the answer is much longer than the prompt, an answer twice as long
# costs nearly four times as much.

# %%
p, n = len(prompt), len(naively.tokens["r0"])
by_hand = n * p + n * (n - 1) // 2
in_the_run = naively.metrics["tokens"]["computed"]
print(f"p = {p}, n = {n}: by hand {by_hand}, in the run {in_the_run}")
assert by_hand == sum(computed) == in_the_run

# %% [markdown]
# ## What can be kept
#
# In a decoder, a token attends to itself and to the tokens before it, never to later ones. So what the model computes
# for the first tokens of a text does not change when tokens are appended. The next cell checks it: it computes the
# logits of a long text and of its beginning, and compares them.

# %%
whole, beginning = oracle.logits(model, tokens), oracle.logits(model, tokens[:p])
difference = (whole[:p] - beginning).abs().max().item()
print(f"the first {p} rows of logits differ by {difference:.1e} at most, of values up to {whole.abs().max():.0f}")
assert difference < 1e-3

# %% [markdown]
# They are the same, up to the rounding of sums. For the next token we need the logits of the last position only. Which
# numbers of earlier tokens does that position use? In every layer, attention forms a *query* from the last token, and
# compares it with a *key* of every token up to it; the scores weigh their *values*:
#
# $$\text{attention}(q, K, V) = \text{softmax}\left(\frac{q K^\top}{\sqrt{d}}\right) V$$
#
# Everything else in a layer is computed for each token by itself. So of the earlier tokens, only their keys and values
# are needed again. Here are the pairs of query and key that one layer computes in three iterations, without and with
# kept keys and values.

# %% tags=["plot"]
figure, rows = plt.subplots(2, 3, figsize=(7, 4.2), sharex=True, sharey=True)
for column, step in enumerate((0, 1, 5)):
    length = p + step
    for row, kept in enumerate((False, True)):
        grid = torch.zeros(p + 5, p + 5)
        for query in range(length):
            for key in range(query + 1):
                is_new = not kept or step == 0 or query == length - 1
                grid[query, key] = 2 if is_new else 0.6
        axes = rows[row][column]
        axes.imshow(grid, cmap="Blues", vmin=0, vmax=3)
        axes.set_title(f"iteration {step}: {int((grid == 2).sum())} pairs", fontsize=9)
        axes.set_xticks(range(0, p + 5, 3))
        axes.set_yticks(range(0, p + 5, 3))
    rows[0][0].set_ylabel("nothing kept\nquery of token")
    rows[1][0].set_ylabel("keys, values kept\nquery of token")
    rows[1][column].set_xlabel("key of token")
figure.suptitle("Pairs of query and key: dark ones are computed in this iteration", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown] tags=["prediction"]
# The place where keys and values are kept is the **KV cache**. With it, the first iteration computes the prompt
# (*prefill*), and each later one computes one token (*decoding*).
#
# ## A prediction
#
# The technique `serial` serves one request at a time with a KV cache. Before you run the next cell, predict for our
# request of $p = 5$ prompt tokens and $n = 8$ new tokens:
#
# 1. How many iterations does `serial` take, compared with `naive`?
# 2. How many tokens does it compute in all?
# 3. How many tokens of KV are in the cache at the end? (Careful: the last token of an answer is never given back to the
#    model.)

# %%
cached = play("serial", request)
print(cached)
assert cached.tokens == naively.tokens, "a technique changes what is computed, never the answer"
draw_series(naively, cached, series="computed", by="iterations")

# %%
print("iterations", len(naively.steps), "and", len(cached.steps))
print("tokens computed", naively.metrics["tokens"]["computed"], "and", cached.metrics["tokens"]["computed"])
in_the_cache = kv_in_use(cached)[-1].used
print("tokens of KV in the cache at the end of serial:", in_the_cache)
assert len(cached.steps) == len(naively.steps) == n
assert cached.metrics["tokens"]["computed"] == in_the_cache == p + n - 1

# %% [markdown]
# The number of iterations is the same: one for each new token. What differs is the work in each. The technique
# `naive` computes $np + n(n-1)/2$ tokens, `serial` $p + n - 1$. The answers are the same tokens. Everything in this
# course is held to that: a technique may change *when* and *where* something is computed, never *what* comes out.
#
# The two times that were printed, 4.728 and 4.722 ms, are nearly the same. Texts of a dozen tokens are so short that an
# iteration spends most of its time on starting and on reading the weights, whether it computes one token or twelve. The
# section on bytes checks this, and exercise 2 looks at longer texts.

# %% [markdown]
# The cache itself grows by one token in each iteration. The *device* is what computes, a CPU or a GPU. `draw_memory`
# shows its memory, slot by slot; one *slot* holds the keys and values of one token, in all layers.

# %%
draw_memory(cached, step=[0, 1, n - 1])

# %% [markdown]
# The dark slots are written. The light ones are set aside: `serial` reserves, at the beginning, as many slots as the
# answer may need at most, whether it will need them or not. Remember this; chapter 4 is about what that costs.
#
# ## See it move
#
# A *replay page* shows a run iteration by iteration. Step with the arrow keys. At each iteration the page shows what
# ran, what memory held, and how the answer grew. Here `naive` is above and `serial` below.

# %%
replay(naively, cached, address="i=3&b=serial&request=r0")

# %% [markdown]
# ## The source that matters
#
# This is the loop from above as minifuse has it, in the oracle. The tests of minifuse compare the answers of every
# technique with it, token by token.

# %%
show_source(oracle.answer)

# %% [markdown]
# And this is how the engine says what has to be computed. Work is a span of tokens, `[start, stop)`. The memory tells
# which span of a request is *missing* from the cache. Without a cache all of it always is. With one, the whole prompt
# is missing at first, and then one token. Nothing in the engine asks "is this prefill?": prefill is work that is
# longer than one token.
#
# In the source below a *sequence* is a request with its text so far, and `cached` says how many of its tokens have
# their keys and values written. `Places` keeps the books of a KV cache. `Recompute` is the memory of `naive`: in
# `spent` it notes whose keys and values have served for one token, and has all of these computed again.

# %%
from minifuse.core.plan import Work
from minifuse.memory.places import Places
from minifuse.memory.recompute import Recompute

show_source(Work, Places.missing, Recompute.missing)

# %%
for name, run in (("naive", naively), ("serial", cached)):
    print(f"{name:7}", [(one.start, one.stop) for one in pieces(run, "r0")])

# %% [markdown]
# ## What a token costs in bytes
#
# **A count by hand.** For each token the cache keeps a key and a value, in every layer, for every *KV head*. (That is
# a head of keys and values; several heads of queries may share one, as in `tiny`, where four share two.)
#
# $$\text{bytes of KV per token} = 2 \cdot \text{layers} \cdot \text{KV heads} \cdot \text{head size} \cdot
# \text{bytes of a number}.$$
#
# For `tiny` in float32: $2 \cdot 3 \cdot 2 \cdot 32 \cdot 4 = 1536$ bytes. For models that people use it is far more.

# %%
assert config.kv_bytes_per_token("float32") == 2 * 3 * 2 * 32 * 4
for name in ("opt-13b", "llama-2-7b", "llama-2-70b", "llama-3-8b"):
    shape = preset(name)
    kv, weights = shape.kv_bytes_per_token("float16"), 2 * shape.num_parameters
    print(
        f"{name:12} {shape.num_heads:2} heads, {shape.num_kv_heads:2} KV heads   KV of a token {kv / 2**10:4.0f} KiB   "
        f"weights {weights / 1e9:5.1f} GB, as much as the KV of {weights / kv:8,.0f} tokens"
    )

# %% [markdown]
# `llama-2-70b` is ten times as large as `llama-2-7b`, and its KV is *smaller*: eight KV heads serve its 64 query heads
# (grouped-query attention), where the older model has a KV head for each query head.
#
# Now the second count: what must an iteration *read*? To compute anything, each weight is read from memory once. To
# attend, the KV of all tokens so far is read. And what does it *compute*? Two operations, a multiplication and an
# addition, for each weight and each token. In attention, each pair of query and key costs four for each number of the
# query: two for the score, and two for the value that it weighs.

# %%
llama, a100 = preset("llama-2-7b"), hardware("a100-40g")


def bytes_read(context):  # two bytes a weight; of the table of embeddings only a row is read for each token
    return 2 * llama.num_matrix_weights + context * llama.kv_bytes_per_token("float16")


def operations(tokens, context):  # q_size: the numbers of a token's query in one layer, all heads together
    # As if every token saw the whole context: in a prefill these are twice the pairs, and still next to nothing.
    return 2 * llama.num_matrix_weights * tokens + 4 * llama.num_layers * llama.q_size * tokens * context


print(
    f"the A100 has {a100.memory / 1e9:.0f} GB, reads {a100.bandwidth / 1e9:,.0f} GB/s "
    f"and computes {a100.flops / 1e12:.0f} T operations/s"
)
for what, new, context in (("prefill of 512 tokens", 512, 512), ("one token after them", 1, 513)):
    moved, done = bytes_read(context), operations(new, context)
    print(
        f"{what:22} reads {moved / 1e9:5.1f} GB in {moved / a100.bandwidth * 1e3:5.2f} ms,  "
        f"computes {done / 1e9:8,.0f} G operations in {done / a100.flops * 1e3:6.2f} ms"
    )
assert moved / a100.bandwidth > 100 * done / a100.flops

cpu = hardware("cpu")
starts, reads = cpu.overhead_s, 4 * config.num_matrix_weights / cpu.bandwidth
print(
    f"tiny on the simulated CPU: {starts * 1e3:.2f} ms to start an iteration, {reads * 1e3:.2f} ms to read the weights"
)
took = n * (starts + reads)
print(f"{n} such iterations take {took * 1e3:.2f} ms; the run of serial took {cached.history.last_s * 1e3:.2f} ms")
assert abs(took - cached.history.last_s) < 0.01 * took

# %% [markdown]
# The first line is from the data sheet of an A100, and the times follow from it. In prefill the arithmetic takes
# longer than the reading. For one token, reading takes more than a hundred times as long as the arithmetic: the
# machine waits for its memory and computes next to nothing. The last lines are the CPU of the runs above: what `serial`
# takes is what its iterations take to start and to read the weights.
#
# The *intensity* of an iteration is its operations for each byte that it reads. A machine has such a number as well:
# operations per second over bytes per second. Where the iteration's number is lower than the machine's, memory is the
# bound. The next picture, a *roofline*, has both: the slope is what the memory allows, the roof what the arithmetic
# allows, and the corner between them is the *ridge*. Its dots are iterations with 1, 2, 4, ... tokens, all of which
# attend to one context of 512.

# %%
ridge = a100.flops / a100.bandwidth
counts = [2**k for k in range(13)]
intensity = [operations(count, 512) / bytes_read(512) for count in counts]
reached = [min(a100.flops, one * a100.bandwidth) / 1e12 for one in intensity]
print(f"the ridge of the A100 is at {ridge:.0f} operations a byte, one token has {intensity[0]:.1f}")

# %% tags=["plot"]
figure, axes = plt.subplots()
axes.loglog(
    [0.5, ridge, 4000], [0.5 * a100.bandwidth / 1e12, a100.flops / 1e12, a100.flops / 1e12], color=GREY, linewidth=3
)
axes.loglog(intensity, reached, "o", color=BLUE)
for count, x, y in list(zip(counts, intensity, reached))[::3]:
    axes.annotate(f"{count}", (x, y), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)
axes.axvline(ridge, color=ORANGE, linestyle="--")
axes.text(0.95 * ridge, 2, f"{ridge:.0f} operations a byte", ha="right", fontsize=8, color="#8a5a00")
axes.set_xlabel("operations for each byte that is read")
axes.set_ylabel("T operations/s")
axes.set_ylim(0.5, 1500)
axes.set_title("llama-2-7b on an A100: the labels are tokens in the iteration", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# One token stands at the lower left: about one operation for each byte, of 201 that the machine could do. On the slope,
# more tokens in an iteration cost *no more time*: the weights are read anyway. That is the reason for everything that
# follows. If one request has a single token to compute, put the tokens of many requests into the iteration. (Each
# request brings a context of its own to read. By the table above, as many as 25,704 / 512, about 50, weigh as much as
# the weights: until then the weights are most of what is read.)
#
# ### The same on the machine that you are using
#
# The next cell measures it. It multiplies one row of numbers with a matrix, as a layer does with one token, then eight
# rows at once, and so on. The matrix has to be read once, whatever the number of rows. (Fewer than eight are left out:
# libraries use another method for a few rows than for many, and where they change it the times jump.)

# %%
torch.set_num_threads(1)
matrix = torch.randn(4096, 2048)


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


counts = [1, 8, 16, 32, 64, 128]
rows = [torch.randn(count, 2048) for count in counts]
rounds = [[seconds(partial(torch.matmul, x, matrix.T)) for x in rows] for _ in range(15)]
took = [min(times) for times in zip(*rounds)]  # all in turn, the best of each: so a busy moment hits all alike
bandwidth = matrix.numel() * 4 / took[0]
rate = 2 * matrix.numel() * counts[-1] / took[-1]
print(
    f"about {bandwidth / 1e9:.0f} GB/s and {rate / 1e9:.0f} G operations/s on one core: "
    f"{rate / bandwidth:.0f} operations for each byte"
)
assert took[-1] / counts[-1] < took[0], "many rows at once cost less each"

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
left.plot(counts, [1e3 * one for one in took], "o-", color=BLUE)
left.plot(counts, [1e3 * took[0] * count for count in counts], ":", color=GREY)
left.set_ylim(0, 1.3e3 * max(took))
left.set_xlabel("rows at once")
left.set_ylabel("ms")
left.set_title("one product (dotted: row after row)", loc="left", fontsize=9)
right.plot(counts, [1e6 * one / count for one, count in zip(took, counts)], "o-", color=GREEN)
right.set_xscale("log", base=2)
right.set_ylim(0)
right.set_xlabel("rows at once")
right.set_ylabel("µs for each row")
right.set_title("the same, shared by the rows", loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# Machines differ, and this one may be busy; the shape of the curves stays the same. A row that comes alone pays for
# reading the whole matrix. Rows that come together share that price.

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the length of the context
#
# KV is read as well, so a long context slows every token down. The picture shows by how much for two models, each with
# a dotted line at twice the time of its weights. Predict from the table of KV and weights above: at which context does
# each line meet its dotted one, so that reading the KV takes as long as reading the weights?

# %%
contexts = list(range(0, 140_001, 4_000))
times, twice = {}, {}  # ms to read weights and KV for one token; ms to read the weights twice
for name in ("llama-2-7b", "llama-3-8b"):
    shape = preset(name)
    weights, kv = 2 * shape.num_matrix_weights, shape.kv_bytes_per_token("float16")
    times[name] = [(weights + context * kv) / a100.bandwidth * 1e3 for context in contexts]
    twice[name] = 2 * weights / a100.bandwidth * 1e3
    print(f"{name}: the weights that an iteration reads are as much as the KV of {weights / kv:,.0f} tokens")

# %% tags=["plot"]
figure, axes = plt.subplots()
for name, colour, mark in (("llama-2-7b", BLUE, "o-"), ("llama-3-8b", GREEN, "s-")):
    axes.plot(contexts, times[name], mark, color=colour, label=name, markevery=5)
    axes.axhline(twice[name], color=colour, linestyle=":", linewidth=1)
axes.set_xlabel("tokens in the context")
axes.set_ylabel("ms for one token")
axes.set_ylim(0)
axes.legend(frameon=False, title="dotted: twice the time of the weights", title_fontsize=8, fontsize=8)
axes.set_title("Reading weights and KV on an A100", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# They meet near the numbers of the table's last column. (A little before: the table counts all weights, and of the
# embeddings an iteration reads only a row for each token.) The smaller the KV of a token, the later it matters. With
# contexts of a few hundred tokens, at the left edge of the picture, the weights decide.
#
# ## Where this idea loses
#
# The KV cache trades computing for memory, and memory is what runs out. An A100 has 40 GB. Subtract the weights, and
# divide by the KV of a token:

# %%
for name in ("opt-13b", "llama-2-7b", "llama-3-8b"):
    shape = preset(name)
    left_over = a100.memory - 2 * shape.num_parameters
    room = left_over / shape.kv_bytes_per_token("float16")
    print(
        f"{name:12} {left_over / 1e9:5.1f} GB are left for KV: {room:8,.0f} tokens, {room / 2000:3.0f} texts of 2,000"
    )

# %% [markdown]
# Of the older models that is a small number of texts, and `serial` uses the memory for only *one* request. What happens
# to the others? Four users ask, two milliseconds apart:

# %%
four = asks("count from 3 to 12", "sort 7 2 5 1", "reverse cat moon tree owl", "repeat duck 4 times", every=0.002)
waiting = play("serial", four)
print(waiting.answers)
draw_lanes(waiting, by="time")

# %%
for story in waiting.history.by_arrival:
    waits = (story.admitted_s - story.arrival_s) * 1e3
    end = (story.ended_s - story.arrival_s) * 1e3
    print(f"{story.id} waits {waits:5.2f} ms, and has its answer {end:5.2f} ms after it arrived")

# %% [markdown]
# Each request waits until all earlier ones have ended, while every iteration reads all weights for the sake of a single
# token. Both problems have the same cure: let several requests share an iteration. That is chapter 2.
#
# ## Exercises
#
# 1. An answer of 1,000 tokens follows a prompt of 100. How many times as many tokens does `naive` compute as `serial`?
#    *Hint: both formulas are above.*
#    <details><summary>Answer</summary>
#    naive: 1000·100 + 1000·999/2 = 599,500; serial: 100 + 999 = 1,099. That is about 545 times as many.
#    </details>
# 2. The runs above are in virtual time. With `clock="real"` the clock of your machine decides. Compare `naive` and
#    `serial` there, with answers of 20, 100 and 400 tokens. From which length on is the cache worth anything? *Hint:
#    `play("naive", asks((5, 100)), clock="real", kv_memory="4MiB")` has a prompt of 5 random tokens, an answer of
#    exactly 100, and room for them; `run.history.last_s` is the time of a run in seconds.*
#    <details><summary>Answer</summary>
#    For 20 tokens the fixed cost of an iteration hides most of the difference. It shows at lengths where computing all
#    tokens takes longer than that: for this model from about a hundred tokens on. Where we tried it, `naive` took
#    one and a half times as long at 20 tokens, twice as long at 100, and ten times as long at 400.
#    </details>
# 3. By how much does the KV cache of `llama-2-7b` shrink if keys and values are kept in one byte each? At which
#    context does it then weigh as much as the weights? *Hint: the last column of the table of models.*
#    <details><summary>Answer</summary>
#    By half, so that context doubles, to 2 · 25,704 = 51,408 tokens. (If the weights are stored in one byte each, too,
#    they halve as well, and it is 25,704 again.)
#    </details>
# 4. Why must the prompt's tokens be computed at all, when only the last position's logits are used? *Hint: what does
#    the last position read in the second layer?*
#    <details><summary>Answer</summary>
#    Their keys and values are needed in every layer, and those of layer 2 depend on the outputs of layer 1.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Baton (section 2.1) begins with the same two phases, *prefilling* and *decoding*; Flover (section V-A) calls the
#   first *pre-processing*. In this code both are work on a span of tokens.
# - BatchMaker (chapter 2 of its thesis; here chapter 7) tells it for recurrent networks, whose whole memory of a text
#   is one *state* of fixed size. For a transformer the state grows with every token; that growth is the subject of
#   chapters 4, 8 and 10.
# - Baton (section 2.1) calls the loop of `naive` the *strawman* way, and none of the papers measures it. We keep it
#   because it is what every technique must agree with. The oracle goes further: it has layers of its own, so a mistake
#   in the layers of the engine shows as well.
#
# ## Further reading
#
# - Pope et al., *Efficiently Scaling Transformer Inference* (2022): the same two counts, bytes and operations, for
#   many chips.
# - Williams, Waterman and Patterson, *Roofline* (2009): the picture with the slope and the roof.
# - `minifuse explain kv`, and `docs/glossary.md`, for the terms.
#
# **Next:** chapter 2 puts several requests into one iteration, and finds what that wastes.
