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
# # 3. Joining and leaving at every iteration
#
# A padded batch holds its rows until the last answer has ended. This chapter decides anew before every iteration which
# requests run. That takes two ideas, one of scheduling and one of computing, and both come from Orca: *iteration-level
# scheduling* and *selective batching*. It ends with what they cost: a long prompt delays the next token of all others.
#
# **You will be able to**
#
# - say which parts of a layer may mix the tokens of any requests, and which part may not;
# - count the tokens, the pairs of query and key, and the iterations of a run from the lengths alone;
# - tell from a trace why a request waits, and which stage makes it wait;
# - read TTFT, the time between tokens, and throughput, and say which of them a change makes better and which worse;
# - choose a token budget that bounds the gap between two tokens.

# %%
import random
import time
from dataclasses import dataclass
from heapq import heapreplace
from itertools import accumulate

import matplotlib.pyplot as plt
import torch

from minifuse.batching.iteration import Iteration
from minifuse.batching.queue import QueueOptions
from minifuse.core.plan import Proposal, Work
from minifuse.core.stages import option
from minifuse.kernels.operators import TORCH
from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.show.notebook import (
    asks,
    check,
    draw_lanes,
    draw_memory,
    draw_series,
    first_token_s,
    gaps,
    kv_in_use,
    owner_colour,
    pieces,
    play,
    reasons,
    replay,
    show_source,
)
from minifuse.simulate.cost import hardware
from minifuse.stages import register

plt.rcParams.update(
    {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"

# %% [markdown]
# ## The failure of the last chapter: idle rows, and a queue
#
# Six requests are served with `static` of chapter 2. Three arrive at once, three a little later; a batch holds three.

# %%
texts = ["count from 3 to 12", "repeat duck 4 times", "sort 7 2 5 1"]
texts += ["given ann 17, bob 4: recall bob", "count from 6 to 14", "reverse dog cat"]
six = asks(*texts, arrivals=[0, 0, 0, 0.001, 0.0015, 0.002])
padded = play("static", six, max_batch=3)
draw_lanes(padded)

# %%
both = [
    one.step
    for one in padded.history.iterations
    if one.event["idle"]
    and any(story.arrival_s <= one.start_s < story.admitted_s for story in padded.history.by_arrival)
]
print(f"iterations that compute idle rows while requests wait: {both}")
print(f"idle: {padded.metrics['tokens']['idle_share']:.0%} of the tokens computed")
assert len(both) >= 5

# %% [markdown] tags=["prediction"]
# In those iterations there were rows to give away and requests that wanted them. Why
# could those requests not use those rows? A technique has three stages (chapter 2), and each can be exchanged by
# itself. Here the batching policy is exchanged for `iteration`, which admits a request before any iteration as long as
# fewer than `max_batch` run. Memory and attention are still the padded ones. The cell also prints the *reasons* of both
# runs: the *trace*, the record that a run leaves of every iteration, tells why the first request of the queue was not
# admitted. Predict: does it help?

# %%
stubborn = play("static", six, max_batch=3, batching="iteration")
for run in (padded, stubborn):
    print(run)
    for one in reasons(run):
        print(f"  iterations {one.steps[0]} to {one.steps[-1]}: {one.request} {one.text}")
assert len(stubborn.steps) == len(padded.steps)

# %% [markdown]
# It does not help. The policy would admit the fourth request, `r3`, as soon as two rows have ended: *the batch has 3
# requests* is no longer its reason. But then the memory declines: a rectangle is as wide as its longest row was when
# it was opened, and all rows stand at the same column. To let requests join, the rectangle itself has to go.
#
# ## The idea: concatenate what can be, split what cannot
#
# A layer does two kinds of things. Norms, projections and the feed-forward part are *token-wise*: they take each token
# by itself, and do not ask whose it is. So the tokens of all requests can stand one behind the other, without padding,
# as the rows of one matrix. Only attention must know to which text a token belongs. There the rows are split by
# request, each request attends to its own keys and values, and the results are put together again (Baton, section 2.2;
# FluidInfer, section 2). Orca calls this **selective batching**: batch all operations but attention.
#
# The next cell checks the token-wise half on the model's own layer: `pre_attention` is the norm and the projections to
# query, key and value. It gets a prompt of five tokens and two single tokens, apart and then concatenated.

# %%
model = resolve("tiny").load("float32", "cpu", 0)
layer = model.layers[0]
parts = [([11, 12, 13, 14, 15], range(5)), ([21], [7]), ([31], [3])]  # tokens, and their positions in their texts
with torch.inference_mode():
    apart = [layer.pre_attention(model.embed(torch.tensor(ids), torch.tensor([*at])), TORCH) for ids, at in parts]
    ids = torch.tensor([token for ids, _ in parts for token in ids])
    positions = torch.tensor([position for _, at in parts for position in at])
    together = layer.pre_attention(model.embed(ids, positions), TORCH)
difference = (torch.cat(apart) - together).abs().max().item()
print(
    f"{len(parts)} products of {[len(own) for own, _ in parts]} rows, or one of {len(ids)}: "
    f"they differ by {difference:.1e}"
)
assert difference < 1e-4

# %% [markdown]
# The results are the same up to rounding, and the weights are read once instead of three times. Each token keeps its
# position in its own text; the row in which it stands means nothing.
#
# **A count by hand: pairs.** Why not attend in one product as well, with a mask that hides the texts from each other?
# Count the pairs of query and key. Let work $i$ have $q_i$ new tokens at the end of a text of $k_i$ tokens. One
# product over everything computes $\left(\sum q_i\right)\left(\sum k_i\right)$ pairs, attention request by request
# $\sum q_i k_i$.

# %%
new, context = [5, 1, 1], [5, 8, 4]
whole, split = sum(new) * sum(context), sum(q * k for q, k in zip(new, context))
print(f"one product {whole} pairs, request by request {split}")
assert whole > 2 * split

# %% tags=["plot"]
grid, row, column = torch.zeros(sum(new), sum(context)), 0, 0
for number, (q, k) in enumerate(zip(new, context)):
    for query in range(q):
        grid[row + query, column : column + k - q + query + 1] = number + 1
    row, column = row + q, column + k
figure, axes = plt.subplots(figsize=(6, 2.8))
colours = plt.matplotlib.colors.ListedColormap(["#eef0f3", BLUE, ORANGE, GREEN])
axes.imshow(grid, cmap=colours)
axes.set_xticks(range(0, sum(context), 2))
axes.set_yticks(range(sum(new)))
axes.set_xlabel("keys of three texts, one behind the other")
axes.set_ylabel("row of the iteration")
axes.set_title("Pairs that are needed (coloured), of all that one product computes", loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# (The 37 pairs are the three whole rectangles around the colours. Of the first, nearly half is masked as well: no query
# sees a later key.) With $n$ requests of one token each and texts of equal length, one product would compute $n$ times
# as many pairs as are needed. So attention is split. Nothing is padded there either: each text brings as many keys as
# it has.
#
# ## A count by hand: tokens and iterations
#
# Nothing idle is computed, so a request costs $p_i + n_i - 1$ tokens, whatever runs beside it:
#
# $$\text{computed} = \sum_i (p_i + n_i - 1).$$
#
# A request that is admitted before iteration $a$ computes its prompt in that iteration, and leaves after iteration
# $a + n_i - 1$. Call the number of requests that may run at once, `max_batch`, the number of *places*: the place of
# this request is free from the next iteration on. If all requests are there from the beginning, the iterations can be
# counted on paper: give each request, in the order of arrival, the place that is free first. `joined_iterations` below
# counts so (`heapreplace` takes the smallest number out of a heap and puts another in); `padded_iterations` is the
# count of chapter 2.


# %%
def joined_iterations(lengths, places):
    free = [0] * places  # the iteration in which each place is free
    for length in lengths:
        heapreplace(free, free[0] + length)
    return max(free)


def padded_iterations(lengths, rows):
    return sum(max(lengths[at : at + rows]) for at in range(0, len(lengths), rows))


lengths = [11, 5, 5, 3, 10, 3, 7, 2, 12, 4]
all_at_once = asks(*[(4, length) for length in lengths])
for places in (2, 3, 4):
    runs = [play(name, all_at_once, max_batch=places, kv_memory="1MiB") for name in ("static", "orca")]
    counts = [len(run.steps) for run in runs]
    least = sum(lengths) / places
    print(f"{places} places: static {counts[0]}, orca {counts[1]}, {least:.1f} if every place were always taken")
    assert counts == [padded_iterations(lengths, places), joined_iterations(lengths, places)]

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# The technique `orca`, which the last cell has already used, is the policy `iteration` with memory `contiguous` (a
# run of slots for each request, anywhere) and attention `per_sequence`. The six requests of the beginning have
# answers of 11, 5, 5, 3, 10 and 3 tokens. Predict:
#
# 1. In which iteration does the fourth request join, and in which the sixth?
# 2. How many iterations are there in all? (`static` took 21.)
# 3. How many tokens are computed in the iteration in which the fourth and the fifth request join? Their prompts have 9
#    and 5 tokens.
# 4. Whose answer comes later than under `static`?

# %%
joined = play("orca", six, max_batch=3)
assert joined.tokens == padded.tokens
draw_lanes(padded, joined)

# %%
needed = sum(len(one.prompt) + len(joined.tokens[one.id]) - 1 for one in six)
assert joined.metrics["tokens"]["computed"] == needed
assert joined.metrics["tokens"]["idle"] == 0
assert joined.history.iterations[5].event["computed"] == 9 + 5 + 1
for before, after in zip(padded.history.by_arrival, joined.history.by_arrival):
    print(
        f"{after.id} joins iteration {joined.history.iterations[after.iterations[0]].step:2}, has its answer "
        f"{(after.ended_s - after.arrival_s) * 1e3:5.2f} ms after it arrived (static: "
        f"{(before.ended_s - before.arrival_s) * 1e3:5.2f} ms)"
    )
print(f"computed {needed} instead of {padded.metrics['tokens']['computed']}, in {len(joined.steps)} iterations")

# %% [markdown]
# Two requests leave after iteration 4, and two join in iteration 5: nothing in between is lost. The first request ends
# a little later than before, because the prompts of the others are now computed in its iterations. The waiting
# requests gain far more than that. What an iteration holds can be drawn from the trace: a strip of tokens, one request
# behind the other.

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8, 4.2))
for at, one in enumerate(joined.history.iterations):
    left = 0
    for name, start, stop, *_ in one.work:
        look = {"facecolor": owner_colour(joined, name), "edgecolor": "white"}
        axes.add_patch(
            plt.Rectangle((left, at - 0.4), stop - start, 0.8, hatch="////" if stop - start > 1 else "", **look)
        )
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.text(left + (stop - start) / 2, at, name, ha="center", va="center", fontsize=7, bbox=box)
        left += stop - start
axes.set_xlim(0, 16)
axes.set_ylim(len(joined.steps) - 0.4, -0.6)
axes.set_yticks(range(len(joined.steps)), joined.steps, fontsize=7)
axes.set_xlabel("tokens, concatenated (striped: a prompt)")
axes.set_ylabel("iteration")
axes.set_title("What each iteration of orca computes", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %%
draw_series(padded, joined, series=["computed", "idle", "queue"])

# %% [markdown]
# ## See it move
#
# Go on with the right arrow key. Before an iteration in which more requests wait than can join, the page stops and
# asks which of them are admitted. You have seen which; say why before you answer. Then compare the two runs at the
# same moment: B, below, follows A by time.

# %%
replay(joined, padded, address="run=orca&b=static&i=0&predict=admitted")

# %% [markdown]
# ## Your turn: the policy
#
# Write `propose`, which decides an iteration. The sequences in `self.running` come first, and get work for every span
# `(start, stop)` of `memory.missing(one)`. Then those in `self.waiting` join, the first to arrive first, until a reason
# speaks against it. `self.admission(one, joining, now)` returns the reason why one cannot join after `joining` others,
# or None. `room = memory.room()` is a trial: `room.admit(one)` reserves a newcomer's memory, or returns a reason. At
# the end, move each newcomer: `self.running.add(self.waiting.remove(one.id))`. The parts are `Work(id, start, stop)`
# and `Proposal(work, newcomers, reasons)`, of tuples.


# %% tags=["task"]
@register
class Mine(Iteration):
    """Requests join and leave at every iteration."""

    name = "mine"

    @dataclass(frozen=True)
    class Options(QueueOptions):
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)

    def propose(self, worker, now, memory):
        # BEGIN SOLUTION: the work of this iteration, the newcomers, and the reason at which the queue stops
        work = [Work(one.id, *span) for one in self.running for span in memory.missing(one)]
        newcomers, reasons, room = [], [], memory.room()
        for one in self.waiting:
            reason = self.admission(one, len(newcomers), now) or room.admit(one)
            if reason is not None:
                reasons.append(reason)
                break
            newcomers.append(one)
            work += [Work(one.id, *span) for span in memory.missing(one)]
        for one in newcomers:
            self.running.add(self.waiting.remove(one.id))
        return Proposal(tuple(work), tuple(newcomers), tuple(reasons))
        # END SOLUTION


# %%
check("orca", six, batching="mine", max_batch=3)

# %% [markdown]
# ## The source that matters
#
# The whole policy is one question: is the batch full? Compare it with `Static.admission` in chapter 2. `forward` is the
# split: look at the calls of `pre_attention` and `post_attention`, which get all tokens, with attention between them.
# In `PerSequenceAttention.attention` the loop over `reads` is the loop over requests. (Here `forward` has one *wave*,
# all of the iteration; waves come in chapters 7 and 10.)

# %%
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.execute.texts import forward

show_source(Iteration.admission, forward, PerSequenceAttention.attention)

# %% [markdown] tags=["prediction"]
# ## What a user notices
#
# Latency has parts, and techniques trade one for another:
#
# - **TTFT**, time to first token: from arrival to the end of the iteration that computes the prompt. Waiting is part
#   of it.
# - **ITL**, the gap between two tokens of one answer; the *latency bound* of a run is its longest gap (FluidInfer,
#   section 6). The mean gap of an answer is its TPOT, the time per output token.
# - **Throughput**: tokens per second, of all requests together.
#
# Forty requests with prompts of 20 to 400 tokens and answers of 20 to 200 arrive at random: in a first run one a
# second on average, in further runs two, four, eight and sixteen a second. The model is `llama-2-7b` in virtual time
# on an A100, as in chapter 2. Before you look: which of the three does `orca` make better, which worse?

# %%
LLAMA = {"model": "random:llama-2-7b", "dtype": "float16", "hardware": "a100-40g", "kv_memory": "16GiB"}


def play_llama(technique, requests, **options):
    return play(technique, requests, **LLAMA, **options)


def asks_llama(*lengths, **options):
    return asks(*lengths, model=LLAMA["model"], **options)


def workload(gap, count=40):
    drawn = random.Random(1)
    times = [0.0, *accumulate(drawn.expovariate(1 / gap) for _ in range(count - 1))]
    return asks_llama(*[(drawn.randint(20, 400), drawn.randint(20, 200)) for _ in range(count)], arrivals=times)


per_second = [1, 2, 4, 8, 16]
measured = {name: [play_llama(name, workload(1 / rate)).metrics for rate in per_second] for name in ("static", "orca")}
for static, orca in zip(*measured.values()):
    assert orca["ttft_s"]["mean"] < static["ttft_s"]["mean"] / 2
    assert orca["throughput"]["tokens_per_s"] > static["throughput"]["tokens_per_s"]
    assert orca["latency_bound_s"] > static["latency_bound_s"]

# %% tags=["plot"]
figure, panels = plt.subplots(1, 3, figsize=(9.4, 2.9))
for name, colour, mark in (("static", ORANGE, "s-"), ("orca", BLUE, "o-")):
    of_run = measured[name]
    values = (
        [1e3 * one["ttft_s"]["mean"] for one in of_run],
        [1e3 * one["latency_bound_s"] for one in of_run],
        [one["throughput"]["tokens_per_s"] for one in of_run],
    )
    for axes, value in zip(panels, values):
        axes.plot(per_second, value, mark, color=colour, label=name)
for axes, title, unit in zip(panels, ("TTFT, mean", "longest gap", "throughput"), ("ms", "ms", "tokens/s")):
    axes.set_xscale("log", base=2)
    axes.set_xticks(per_second, per_second)
    axes.set_xlabel("requests a second")
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_ylim(0)
panels[0].set_yscale("log")
panels[0].set_ylim(5, 10_000)
panels[0].legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown] tags=["prediction"]
# The first token comes much sooner (the scale of the left chart is logarithmic) and throughput is higher at every
# load. But the longest gap is *longer*: here a running answer is held up by the prompts of newcomers, which never
# happens in a batch that nothing can join.
#
# ### TTFT against throughput: the size of the batch
#
# `orca` has a bound, too: `max_batch`, the requests in one iteration, which was 8 in these runs. Sixteen requests a
# second are more than small batches can serve. Predict: what does a larger bound buy, and what does it cost each
# running request?

# %%
bounds = [2, 4, 8, 16, 32]
crowd = workload(1 / 16)
by_bound = [play_llama("orca", crowd, max_batch=bound).metrics for bound in bounds]
rate = [one["throughput"]["tokens_per_s"] for one in by_bound]
ttft = [one["ttft_s"]["mean"] for one in by_bound]
assert rate == sorted(rate)
assert ttft == sorted(ttft, reverse=True)

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9))
left.plot(rate, ttft, "o-", color=BLUE)
right.plot(rate, [1e3 * one["tpot_s"]["mean"] for one in by_bound], "o-", color=GREEN)
for axes, unit, title in ((left, "s", "mean TTFT"), (right, "ms", "mean time for each further token")):
    for bound, x, point in zip(bounds, rate, axes.lines[0].get_ydata()):
        axes.annotate(f"{bound}", (x, point), xytext=(2, 6), textcoords="offset points", fontsize=8)
    axes.set_xlabel("tokens/s, of all requests")
    axes.set_ylabel(unit)
    axes.set_title(f"{title} (labels: max_batch)", loc="left", fontsize=9)
    axes.margins(0.12)
    axes.set_ylim(0, 1.2 * max(axes.lines[0].get_ydata()))
figure.tight_layout()
plt.show()

# %% [markdown] tags=["prediction"]
# Under load a larger batch is better for throughput *and* for TTFT, because waiting is most of TTFT. It costs running
# requests a little time for each token. What stops the batch from growing without end is memory, as the end of this
# chapter shows.
#
# ## One knob to turn: a token budget
#
# A prompt of 1,800 tokens joins six requests that are decoding. By hand, with the numbers of chapter 1: a decode
# iteration takes the time of reading the weights, about 8.5 ms. The arithmetic of 1,800 tokens, two operations for
# each of 6.6 billion weights, takes $2 \cdot 6.6 \cdot 10^9 \cdot 1800 \,/\, 312 \cdot 10^{12}$ s, about 76 ms. (The
# next cell prints all three numbers.) All six answers stand still meanwhile, because an iteration ends for all requests
# at once. Baton (section 1) says that the prefilling of a new query makes the decoding of the others *choke*.
#
# The option `token_budget` bounds the tokens of one iteration. Running requests take theirs first; a prompt gets what
# is left and goes on in the next iteration. Predict for a budget of 256: in how many iterations is the prompt
# computed? And what becomes of the long request's TTFT?

# %%
llama, a100 = preset("llama-2-7b"), hardware("a100-40g")
weights = llama.num_matrix_weights
print(f"{weights / 1e9:.1f} billion weights are read in {1e3 * 2 * weights / a100.bandwidth:.1f} ms")
print(f"the arithmetic of 1,800 tokens takes {1e3 * 2 * weights * 1800 / a100.flops:.0f} ms")
stalled = asks_llama(*[(32, 200)] * 6, (1800, 20), arrivals=[0.0] * 6 + [0.5])
budgets = [None, 1024, 512, 256, 128, 64]
runs = {}
for budget in budgets:
    options = {} if budget is None else {"batching__token_budget": budget}
    runs[budget] = play_llama("orca", stalled, **options)
prompt = [one.stop - one.start for one in pieces(runs[256], "r6") if one.start < 1800]
print("pieces of the prompt with a budget of 256:", prompt)
assert len(prompt) == -(-1800 // (256 - 6)) == 8

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8, 2.9))
for budget, colour, mark in ((None, ORANGE, "s-"), (512, GREEN, "^-"), (128, BLUE, "o-")):
    near = [(1e3 * gap.at_s, 1e3 * gap.seconds) for gap in gaps(runs[budget], "r0") if 0.45 < gap.at_s < 0.75]
    label = "no budget" if budget is None else f"{budget} tokens"
    axes.plot(*zip(*near), mark, color=colour, label=label, markersize=3, linewidth=1)
axes.set_yscale("log")
axes.set_yticks([10, 20, 50, 100], [10, 20, 50, 100])
axes.set_xlabel("ms of virtual time")
axes.set_ylabel("ms since the last token")
axes.set_title("One running answer while a prompt of 1,800 tokens joins at 500 ms", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, title="token budget", title_fontsize=8)
figure.tight_layout()
plt.show()

# %%
first = [1e3 * first_token_s(runs[one], "r6") for one in budgets]
worst = [1e3 * runs[one].metrics["latency_bound_s"] for one in budgets]
print(f"longest gap without a budget: {worst[0]:.1f} ms")
assert abs(worst[0] - 76) < 4
assert worst[0] > 5 * worst[3]
assert first[-1] > 2 * first[0]

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(6, 2.8))
axes.plot(worst, first, "o-", color=BLUE)
for budget, x, y in zip(budgets, worst, first):
    offset = (4, -12) if budget == 64 else (5, 5)
    axes.annotate("none" if budget is None else budget, (x, y), xytext=offset, textcoords="offset points", fontsize=8)
axes.set_xscale("log")
axes.set_xticks([10, 20, 50, 100], [10, 20, 50, 100])
axes.minorticks_off()
axes.set_xlabel("longest gap of a running answer, ms")
axes.set_ylabel("TTFT of the long prompt, ms")
axes.set_ylim(0, 350)
axes.set_title("What a token budget trades (labels: tokens)", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# The best budgets of this picture are where the curve turns: the longest gap falls to a fraction, and the long
# request's first token comes hardly later. Below that the prompt is cut so small that each piece takes as long as
# reading the weights, whatever it computes: the ridge of chapter 1's roofline again. A good budget lies near the
# number of tokens at which the machine's arithmetic begins to be the bound.
#
# ## Where this idea loses
#
# **Gaps.** The charts of *What a user notices* have shown it: at every load, `static` never has a gap as long as
# `orca`'s. Without a budget the gap grows with the longest prompt that may come.
#
# **Attention in many small pieces.** Requests of equal length that arrive together have nothing to gain: no padding,
# no finished rows, and all leave at once. What is left of the difference is attention: one product for all rows, or
# one for each request. The cost model of virtual time counts pairs and bytes, and starting a product is free there. So
# these measurements are by the clock of your machine. First attention alone, with random keys and values of texts of
# 32 tokens:


# %%
def attend(query, key, value):
    return (query @ key.transpose(-1, -2) / 32**0.5).softmax(-1) @ value


def row_after_row(queries, keys, values):
    return [attend(*one) for one in zip(queries, keys, values)]


def best_us(function, *tensors, repeat=15):
    function(*tensors)
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        function(*tensors)
        times.append(time.perf_counter() - begin)
    return 1e6 * min(times)


torch.set_num_threads(1)
requests, one_product, one_by_one = [1, 2, 4, 8, 16, 32, 64], [], []
for count in requests:
    query = torch.randn(count, 4, 1, 32)
    keys, values = torch.randn(2, count, 4, 32, 32)
    one_product.append(best_us(attend, query, keys, values))
    one_by_one.append(best_us(row_after_row, query, keys, values))
print(f"64 requests one by one take {one_by_one[-1] / one_product[-1]:.1f} times as long as in one product")

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(6, 2.8))
axes.plot(requests, one_product, "s-", color=ORANGE, label="one product")
axes.plot(requests, one_by_one, "o-", color=BLUE, label="request by request")
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xticks(requests, requests)
axes.set_xlabel("requests, each with one new token")
axes.set_ylabel("µs for one layer's attention")
axes.set_title("Attention alone, real time", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# Then whole iterations of the engine, sixteen equal requests under each technique:

# %%
equal = asks(*[(16, 40)] * 16)
ms = {}
for name in ("static", "orca"):
    play(name, equal, max_batch=16, kv_memory="2MiB", clock="real")  # once before it counts
    timed = [play(name, equal, max_batch=16, kv_memory="2MiB", clock="real") for _ in range(3)]
    assert {len(run.steps) for run in timed} == {40}
    ms[name] = min(1e3 * run.history.last_s for run in timed) / 40
for name, value in ms.items():
    print(f"{name:6} {value:.2f} ms for an iteration of 16 requests, real time")

# %% [markdown]
# Attention alone pays for every product that is started; in a whole iteration that cost matters much less, because
# attention is a small part of it. How much depends on the machine. Baton (section 2.2) holds against Orca that it
# "underutilizes the parallel computing capabilities of the GPU". FluidInfer (section 2) says that experiments show a
# minimal effect, compared with what joining brings. Chapters 9 and 11 are about two ways out: a rectangle that
# requests can join, and a *kernel*, a program that a device runs, that attends to all requests at once.
#
# **Memory.** Each request has a run of slots for the longest answer that it may give, from the moment it is admitted.
# Let all six requests come at once, with room for eight in the batch:

# %%
crowded = play("orca", asks(*texts), max_batch=8)
for one in reasons(crowded):
    print(f"iterations {one.steps[0]} to {one.steps[-1]}: {one.request} {one.text}")
kv = kv_in_use(crowded)[4]
print(f"in iteration 4: {kv.used} slots hold KV, {kv.reserved} are set aside, of {kv.capacity}")
assert kv.used < kv.reserved / 3
draw_memory(crowded, step=4)

# %% [markdown]
# Requests wait for memory that is set aside and empty. More than two thirds of what is reserved holds nothing yet, and
# most answers will end before they need it. A larger batch would fit if memory were given out when it is needed.
#
# ## Exercises
#
# 1. Eight requests are there from the beginning, with answers of 9, 2, 2, 2, 9, 2, 2 and 2 tokens, and there are four
#    places. How many iterations do `static` and `orca` take? Which order of the same requests is worst for `static`,
#    which is best? *Hint: `padded_iterations` and `joined_iterations`.*
#    <details><summary>Answer</summary>
#    static 9 + 9 = 18; orca 11: the second 9 gets a place that is free after 2 iterations. Both long ones in one batch
#    is the best order for static (9 + 2 = 11); one in each batch is the worst, as here.
#    </details>
# 2. Serve the six requests with `orca` and `max_batch=1`. Which technique of chapter 1 is that, and do the iterations
#    agree? *Hint: compare `run.history.iterations[i].work`.*
#    <details><summary>Answer</summary>
#    It is `serial`: the same work in the same iterations, 37 of them.
#    </details>
# 3. Six requests decode, and a prompt of 1,800 tokens comes. How many iterations compute it with a budget of 128, and
#    with a budget of 64? *Hint: the six tokens go first. Check with `pieces(runs[128], "r6")`.*
#    <details><summary>Answer</summary>
#    1800/122 rounded up is 15, 1800/58 rounded up is 32.
#    </details>
# 4. Why can a request not join in the middle of an iteration, say after layer 10 of 32? *Hint: which weights does the
#    newcomer need first?*
#    <details><summary>Answer</summary>
#    The layers have different weights. A newcomer needs layer 1 first, when the others are at layer 11, so no weights
#    would be shared, and sharing the reading of weights is what a batch is for.
#    </details>
# 5. Give `orca` the policy of chapter 2: `play("orca", six, max_batch=3, batching="static")`. How many tokens are
#    idle, how many iterations are there, and what does that tell about the two ideas of this chapter? *Hint:
#    `run.metrics["tokens"]["idle"]` and `len(run.steps)`.*
#    <details><summary>Answer</summary>
#    No token is idle, and there are as many iterations as under `static`, 21. Without padding and idle rows nothing
#    wasteful is computed, but the requests still wait for the whole batch: selective batching removes the waste,
#    scheduling the wait.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - None of the papers of this course is Orca's own. `orca` here follows what Baton (section 2.2) and FluidInfer
#   (section 2) say of it. The thesis of Pensieve (section 3.2.2) credits the idea of batching at the granularity of a
#   token to BatchMaker: chapter 7.
# - Baton writes that Orca replicates the self-attention modules for each request and so adds model parameters. The
#   projections that have parameters are token-wise, and act on the concatenated tokens; what is done for each request
#   here has no parameters, and nothing is copied.
# - FluidInfer (figure 3) recalls that Orca assumes iterations of about equal length. Ours take as long as their work
#   does.
# - A token budget is not Orca's. Prompts in pieces are Sarathi's; FluidInfer (section 2) names it as the one system
#   aware of the *bubbles*, the idle time that long prompts leave (chapter 10), though only in pipelines of several
#   devices. The option is off by default here.
# - Orca reserves memory for the longest possible answer (thesis, section 3.2.2; FluidInfer, section 2). So do we, in
#   `contiguous`.
#
# ## Further reading
#
# - Yu et al., *Orca: A Distributed Serving System for Transformer-Based Generative Models* (OSDI 2022).
# - Agrawal et al., *Sarathi* (2023): prompts in pieces, beside single tokens.
# - `minifuse explain orca`, `minifuse explain ttft`.
#
# **Next:** requests wait for slots that are reserved and empty; chapter 4 gives out memory block by block, when it is
# needed.
