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
# # 9. Re-batching
#
# A padded batch computes rows whose requests have ended, because nothing can be put into a rectangle. Baton puts
# something in. This chapter replaces a finished request while the others go on: first by *vector shaping*, which pads
# the others, then by *vector embedding*, which costs them nothing. It counts idle computation at each step, and
# compares with the padded batch of chapter 2 and with `orca` of chapter 3.
#
# > **Claim.** Baton has 1.29 to 1.75 times the throughput of Orca: `baton-pd` against `baton`, at a batch of 8, and of
# > 4 with all lengths doubled. Against padded batches it is 2.49 and 1.86 times as fast (Table 1). With 30 short
# > queries `baton` is 1.94 times as fast as padded batches at a batch of 2, and 1.31 times at 10 (Table 2), with a
# > comparable peak of KV memory (Fig. 8).
# >
# > **Setting.** Llama-2-7b-chat in half precision. Table 1: 120 queries, with long prompts or answers of about 4,000
# > words, on an A6000 of 48 GB. Table 2 and Figs. 6 to 8: 30 queries of a few dozen to 200 words, on an RTX 4090. The
# > baseline is transformers' padded batch.
# >
# > **What we measure.** `minifuse reproduce baton-table1 --scale paper`, `baton-table2`, `baton-fig6`, `baton-fig7`,
# > `baton-fig8`: virtual time by data sheets, five draws of the lengths. `orca` and `vllm` are in the tables, too.
# >
# > **Agreement.** A point agrees if all five draws lie within 10%, and is undecided if they differ. `baton-pd` over
# > `baton`: at 8 above (2.35 times), at 4 undecided (1.76). Over padded batches: above (3.74 and 2.94). Table 2: below
# > (1.25 at 2, 0.89 at 10); by embedding, where padded batches run on to 200 tokens (our guess), undecided
# > (1.80 at 2, 1.22 at 10). Fig. 6: above at 2, agrees at 10, undecided between. Fig. 7: agrees, at 10 undecided. Fig.
# > 8: the peak is 1.79 to 4.74 times that of padded batches with shaping, above, and 0.93 to 1.00 times with embedding,
# > undecided. All figures: `benchmarks/results/README.md`.
# >
# > **Errata.** No Orca was measured: `baton` stands for it (5.1). Orca needs no copies of parameters (2.2). At a batch
# > of 2 no lengths from 24 to 200 let refilling save more than 1.79 times the iterations, and Table 2 has 1.94: its
# > padded batches must have run past their longest answer. At 4 its seconds give 1.87 times, not 1.89. Minus infinity
# > under a mask gives NaN (4.1). Doubled to some 8,000 words, sequences exceed Llama 2's context of 4,096 tokens.
#
# **You will be able to**
#
# - place a newcomer in a running rectangle on paper, and write down the mask of each row;
# - count the idle tokens of an insertion from two numbers, and check the count against a run;
# - say which idle computation remains under `static`, `baton` and `baton-pd`, and why;
# - decide which prompts are computed together;
# - explain why a masked slot must hold a finite number;
# - name a workload for which shaping is slower than never refilling the batch, and what a padded window costs in
#   memory.

# %%
import random
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

from minifuse.batching.decoupled import Decoupled
from minifuse.core.errors import UsageError
from minifuse.core.plan import Proposal, Work
from minifuse.core.request import Phase
from minifuse.show.notebook import (
    asks,
    check,
    draw_lanes,
    draw_memory,
    draw_series,
    gaps,
    owner_colour,
    play,
    replay,
    show_source,
)
from minifuse.stages import register

plt.rcParams.update(
    {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, ORANGE, GREEN, GREY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#c4cad2", "#cc79a7"
COLOURS = {"static": GREY, "pd": PURPLE, "baton": ORANGE, "baton-pd": GREEN, "orca": BLUE}

# %% [markdown]
# ## The failure: rows that are free and cannot be used
#
# Chapter 2 ended with rows that are computed for nothing; here they are again, beside `orca`. Six requests, three
# rows. The pairs are the lengths of prompt and answer. The tokens are drawn at random: this chapter is about where
# tokens lie, and about when they are computed.

# %%
six = asks((4, 3), (2, 9), (3, 6), (3, 5), (5, 3), (2, 4))
padded = play("static", six, max_batch=3)
joined = play("orca", six, max_batch=3)
draw_lanes(padded, joined)

# %% [markdown]
# Under `static`, `r0` ends in iteration 2 and its row is hatched, that is, computed for nothing, until iteration 8.
# `orca` gives the place to `r3` at once. To do so it gives up the rectangle: tokens are concatenated, and attention
# runs request by request.
#
# Must the rectangle go? It has merits: attention over all rows is one product, and a library's model can be used as it
# is. Baton (section 3) keeps it and asks for two things only, padding and a mask, which such models have anyway.
#
# ## The idea: shape the newcomer and the others alike
#
# Let the batch have $B$ rows, and let one have ended. A newcomer has a prompt of $\ell_q$ tokens, and every running
# row has a single token to compute. A rectangle must be $\ell_q$ columns wide for the newcomer. So:
#
# - the *input* has $B \cdot \ell_q$ tokens: the others are padded **after** their token;
# - the *mask* of the others gets $\ell_q - 1$ zeros behind that token; in the newcomer's row all that was before is
#   masked, and its own $\ell_q$ columns are seen;
# - the others go on behind the newcomer's prompt, with a **gap** in their rows that the mask hides for ever.
#
# The next cells draw what a run did. Each box is a slot in which an iteration computed a token; the number in it is
# the iteration. `cells` reads the trace: a plan's shape, and the place of each piece of work. Under Baton the numbers
# of columns keep counting up as the batch runs.


# %%
def cells(run):
    """Of every iteration of the batch: its number, its shape, and {(row, column): request} of what it computes, and
    of the KV that was embedded for it."""
    known, found = set(), []
    for one in run.history.iterations:
        event = one.event
        if event["phase"] == "preprocessing" or not event["work"]:
            continue
        shape, here, brought = event["shape"], {}, {}
        for (name, start, stop), place in zip(event["work"], event["places"]):
            runs = place[0] if isinstance(place[0], list) else [place]
            slots = [first + i for first, length in runs for i in range(length)][:stop]
            for token, slot in enumerate(slots):
                row, within = divmod(slot - shape["offset"], shape["stride"])
                last = shape["stop"] - 1
                at = row, last - (last - within) % shape["stride"]
                if token >= start:
                    here[at] = name
                elif (name, token) not in known:
                    brought[at] = name
                known.add((name, token))
        found.append((one.step, shape, here, brought))
    return found


shaped = play("baton", six, max_batch=3)
assert shaped.tokens == joined.tokens == padded.tokens


# %% tags=["plot"]
def draw_columns(axes, run, last_step=99):
    """Columns from left to right, rows downwards: coloured, needed; hatched, idle; dotted, KV that was embedded."""
    boxes = {}  # (row, column): request, what is written in the box
    for step, shape, here, brought in cells(run):
        if step > last_step:
            break
        for row in {row for row, _ in brought}:  # the rest of a row that gets embedded KV is set to zero
            boxes = {at: box for at, box in boxes.items() if at[0] != row}
        boxes |= {at: (name, "") for at, name in brought.items()}
        for row in range(shape["rows"]):
            for column in range(shape["start"], shape["stop"]):
                boxes[row, column] = here.get((row, column)), step
    named = set()
    for (row, column), (name, text) in sorted(boxes.items(), key=lambda box: box[0]):
        colour = owner_colour(run, name) if name else "#f6e7c8"
        look = {
            "facecolor": colour,
            "edgecolor": "white",
            "alpha": 0.55 if name else 1,
            "hatch": "" if name else "////",
        }
        if text == "":
            look = {"facecolor": "white", "edgecolor": colour, "hatch": "..."}
        axes.add_patch(plt.Rectangle((column + 0.03, row - 0.25), 0.94, 0.6, **look))
        axes.text(column + 0.5, row + 0.05, text, ha="center", va="center", fontsize=7)
        if name and name not in named:
            axes.text(column + 0.1, row - 0.28, name, fontsize=7, va="bottom", color="black")
            named.add(name)
    last = max(column for _, column in boxes) + 1
    axes.set_xlim(0, last)
    axes.set_ylim(2.5, -0.75)
    axes.set_yticks(range(3), [f"row {row}" for row in range(3)])
    axes.set_xticks([column + 0.5 for column in range(0, last, 2)], range(0, last, 2), fontsize=7)


figure, (above, below) = plt.subplots(2, 1, figsize=(9, 4.4), sharex=True)
draw_columns(above, padded, last_step=8)
draw_columns(below, shaped)
above.set_xlim(0, 22)
above.set_title("static: its first batch, of r0, r1 and r2", loc="left", fontsize=10)
below.set_title("baton: one batch, into which r3, r4 and r5 are put while it runs", loc="left", fontsize=10)
below.set_xlabel("column (number: the iteration that computed it; hatched: idle)", fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# Look at iteration 3 of `baton`. Request `r0` has ended, and `r3` brings three tokens to row 0. Three columns are
# computed, in three rows. `r1` and `r2` have their token in the first of them, and two idle boxes behind it. In
# iteration 4 all rows go on in the next column. From iteration 9 on a single request is left, and a single row is
# computed: an iteration computes the rows from row 0 to the last one that a request has, and `r5` has row 0. In row 2
# it would have had two idle rows beside it to the end.
#
# ### The masks
#
# What does each token of iteration 3 see? The next cell makes the masks from the same boxes: a token sees those
# columns up to its own that hold tokens of its request, and each box sees itself.


# %%
def masks(run, step):
    """Of every row in an iteration: its name, and which keys (columns) its queries (new columns) see."""
    owners, result = {}, []
    until = [one for one in cells(run) if one[0] <= step]
    for _, _, here, brought in until:
        owners.update(brought | here)
    _, shape, here, _ = until[-1]
    begin, first, stop = shape.get("begin", 0), shape["start"], shape["stop"]
    for row in range(shape["rows"]):
        name = next(owner for (r, _), owner in here.items() if r == row)
        grid = torch.zeros(stop - first, stop - begin)
        for query in range(first, stop):
            for key in range(begin, query + 1):
                grid[query - first, key - begin] = owners.get((row, key)) == name or key == query
        result.append((name, grid, begin, first))
    return result


# %% tags=["plot"]
def draw_masks(run, step):
    rows = masks(run, step)
    figure, panels = plt.subplots(len(rows), 1, figsize=(6, 3.6), sharex=True)
    for axes, (name, grid, begin, first) in zip(panels, rows):
        queries, keys = grid.shape
        edges = (begin - 0.5, begin + keys - 0.5, first + queries - 0.5, first - 0.5)
        axes.imshow(grid, cmap="Blues", vmin=0, vmax=1.5, aspect="auto", extent=edges)
        axes.set_yticks(range(first, first + queries))
        axes.set_xticks(range(begin, begin + keys))
        axes.set_ylabel(f"{name}\nquery", fontsize=8)
    panels[-1].set_xlabel("key in column")
    figure.suptitle(f"iteration {step}: a query sees the dark keys", fontsize=10)
    figure.tight_layout()


draw_masks(shaped, 3)
plt.show()

# %% tags=["plot"]
draw_masks(shaped, 4)
plt.show()

# %% [markdown]
# In iteration 3 the first query of `r1` and of `r2` is their token. The two below are padding, which sees the row's
# tokens and itself and is seen by no later query of a request. The queries of `r3` form a triangle, as in any prompt.
# In iteration 4 the gap shows: `r1` and `r2` do not see columns 7 and 8, in which only padding was computed. (Column 0
# is missing from both pictures. No running request has a token there, and it has been given back: see *Release* below.)
#
# ### What lies under a mask must be finite
#
# Row 0 still holds the KV of `r0` when `r3` gets it. The mask gives it the weight 0. Baton (section 4.1) adds that it
# is better to set those keys and values to minus infinity. The next cell tries what a weight of 0 does with that.

# %%
weights = torch.tensor([2.0, 1.0, float("-inf")]).softmax(0)  # the third key is masked
print("weights", [round(weight, 2) for weight in weights.tolist()])
for value in (0.0, 1e30, float("-inf"), float("nan")):
    values = torch.tensor([5.0, 7.0, value])
    print(f"the masked value is {value:8g}: the sum is {(weights @ values).item():.3f}")
assert (weights @ torch.tensor([5.0, 7.0, float("-inf")])).isnan()

# %% [markdown]
# Zero times any finite number is zero, and zero times infinity is not a number. So minifuse sets columns
# to **zero** when they enter the window without KV: in a newcomer's row all but its own KV, in the other rows the gap.
# The paper writes the KV of padding there.
#
# ## A count by hand
#
# An insertion of one prompt of $\ell_q$ tokens computes $B\ell_q$ tokens. Of these $\ell_q$ are the newcomer's and one
# belongs to each other row, so
#
# $$\text{idle} = B\ell_q - \ell_q - (B - 1) = (B-1)(\ell_q - 1).$$
#
# With the padding of the first iteration, and rows that stay empty at the end because no request waits, that is all.

# %%
B = 3
opening = B * 4 - (4 + 2 + 3)  # three prompts in a rectangle of the longest
insertions = [(B - 1) * (length - 1) for length in (3, 5, 2)]  # r3, r4, r5
print("opening", opening, "insertions", insertions, "in all", opening + sum(insertions))
assert opening + sum(insertions) == shaped.metrics["tokens"]["idle"]

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# `static`, `orca` and `baton` have run. Before you look at the next cells, predict:
#
# 1. The pictures show that `baton` takes as many iterations as `orca`. Which of the two ends first, and by how much?
# 2. Are there more idle tokens under `baton` or under `static`?
# 3. How wide is the window of columns that memory holds in iteration 9 of `baton`? (Columns that no running request
#    needs are released.)

# %%
for run in (padded, shaped, joined):
    tokens = run.metrics["tokens"]
    print(
        f"{run.name:7} {len(run.steps)} iterations, {tokens['computed']} tokens computed, {tokens['idle']} idle, "
        f"{run.history.last_s * 1e3:.2f} ms"
    )
assert len(shaped.steps) == len(joined.steps) < len(padded.steps)
draw_series(padded, shaped, series=["computed", "idle", "kv"], by="iterations")

# %% [markdown]
# The iterations are those of `orca`: the same requests join at the same moments. `orca` ends first, but only just. The
# idle tokens have not gone. They have moved: from finished rows into insertions. In this example there are fewer, and
# each is cheap, because many share an iteration, and the weights are read once.
#
# ### Release
#
# The numbers of columns may grow for ever; memory cannot. Before an insertion the leading columns that no running
# request holds are given back (section 4.1, "Resources releasing"). Here is memory in three iterations.

# %%
draw_memory(shaped, step=[3, 8, 9])

# %% [markdown]
# In iteration 9 everything before the prompt of `r5` is released: three columns are left in use. A row is a *ring*:
# column $c$ lies in slot $c$ modulo the length of the row, so that released slots are used again and nothing is
# copied.

# %% [markdown] tags=["prediction"]
# ## The second idea: embed what was computed apart
#
# A newcomer with a single token to compute would cost the others nothing. So its prompt is computed **apart**, in an
# iteration of its own, together with prompts of similar length. When a row is free, the KV is copied to where it *ends
# with the others' token* (vector embedding, section 4.2). With a window of $\ell_{kv}$ columns
#
# - a shorter text ($\ell_q \leq \ell_{kv}$) has masked columns before it;
# - for a longer one the window is extended to the left by $\ell_q - \ell_{kv}$ columns.
#
# No row gets a gap. The technique is `baton-pd` (PD for *prefill and decode decoupled*). Predict: how many idle tokens
# do the six requests have now, and what causes them?

# %%
embedded = play("baton-pd", six, max_batch=3)
assert embedded.tokens == joined.tokens
causes = Counter()
for one in embedded.history.iterations:
    causes["padding of prompts" if one.preprocesses else "rows at the end"] += one.event["idle"]
apart = [one.requests for one in embedded.history.iterations if one.preprocesses]
print("computed apart, together:", apart)
print("idle:", dict(causes))
assert causes["padding of prompts"] == 1
assert sum(causes.values()) == embedded.metrics["tokens"]["idle"]

# %% tags=["plot"]
figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True)
draw_columns(above, embedded, last_step=4)
draw_columns(below, embedded)
above.set_title("baton-pd, after iteration 4", loc="left", fontsize=10)
below.set_title("after the last iteration", loc="left", fontsize=10)
below.set_xlabel("column (number: the iteration that computed it; dotted: embedded; hatched: idle)", fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# The insertions cost nothing. What is left is the padding of prompts that are computed together, at most a tenth of
# what is computed (the option `batching.padding`), and rows that no waiting request can fill at the end. `r4` was
# computed before `r2`, because its length is similar to that of `r0`. It also joined before `r2`: requests overtake
# each other here, which `orca` never does.
#
# ## See it move
#
# A is `baton-pd`, B is `baton`. The page stops where more requests wait than can join, and asks which are admitted.
# You have seen which; say why before you answer.

# %%
replay(embedded, shaped, address="run=baton-pd&b=baton&i=0&predict=admitted", height=760)

# %% [markdown]
# ## The source that matters
#
# `Window.enter` is both ideas in a few lines: look at `after`, which says how many columns are taken, and at `begin`,
# the release. `shaped` makes the gap. `slots_to_clear` is the rule about finite numbers. Nothing here knows a tensor.

# %%
from minifuse.attention.rectangle import slots_to_clear
from minifuse.memory.rows.window import Window
from minifuse.memory.rows.window import shaped as shaped_columns

show_source(Window.after, Window.enter, shaped_columns, slots_to_clear)

# %% [markdown]
# The stages have to fit. In an insertion every running row takes part, so a policy that leaves one out would leave a
# gap for which no room was kept:

# %%
for memory in ("shaped", "embedded"):
    try:
        play("vllm", six, memory=memory, attention="padded")
    except UsageError as error:
        print(error)

# %% [markdown]
# ## Your turn: which prompts are computed together
#
# Prompts that are computed apart share a rectangle, so their lengths should be alike. Write `together`, which chooses
# the next group from `self.waiting`. The first that waits is always in it. Of the others, in the order of arrival,
# each joins if then at most the part `self.options.padding` (a tenth) of the rectangle is padding; otherwise it is
# passed over. The group has at most `self.options.max_batch` prompts, and ends before the first for which
# `room.admit(one, growing=True)` returns a reason. Return the group, and a list with that reason, or an empty list.
# `len(one)` is the length of a prompt.


# %%
class Grouped(Decoupled):
    """The policy of `baton-pd`; `together` says which prompts are computed next."""

    def _prefill(self, memory):
        room = memory.room()
        group, reasons = self.together(room)
        if not group:
            return Proposal(reasons=tuple(reasons))
        for one in group:
            self.computing[one.id] = self.waiting.remove(one.id)
        work = tuple(Work(one.id, 0, len(one)) for one in group)
        return Proposal(work, tuple(group), phase=Phase.PREPROCESSING, growing=True, room=room)


# %% tags=["task"]
@register
class Mine(Grouped):
    """Computes prompts of similar length together."""

    name = "mine"

    def together(self, room):
        # BEGIN SOLUTION: the first prompt, and those behind it that keep the padding small
        group = []
        for one in self.waiting:
            if len(group) == self.options.max_batch:
                break
            lengths = [len(other) for other in (*group, one)]
            computed = len(lengths) * max(lengths)
            if computed - sum(lengths) > self.options.padding * computed:
                continue
            if (reason := room.admit(one, growing=True)) is not None:
                return group, [reason]
            group.append(one)
        return group, []
        # END SOLUTION


# %% [markdown]
# No group of the six requests is full, and no prompt is long, so the check serves fifteen others, with little memory
# and twice as much padding allowed.

# %%
short = (4, 3), (2, 9), (3, 6), (3, 5), (5, 3), (2, 4), (3, 7), (3, 4)
more = asks(*short, (12, 3), (9, 4), (7, 5), (10, 4), (8, 3), (11, 3), (6, 2))
check("baton-pd", more, batching="mine", max_batch=4, kv_memory="144KiB", batching__padding=0.2)

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the length of the newcomer
#
# Back to `llama-2-7b` on the simulated A100 of chapter 2. Seven requests decode, an eighth ends early, and a newcomer
# takes its place. Its prompt grows from 32 to 2,048 tokens. By hand, shaping computes $7(\ell_q - 1)$ idle tokens.
# Predict how the longest gap between two tokens of the requests that run grows: under `baton`, and under `orca`, where
# the newcomer's prompt is in the same iteration, too.

# %%
LLAMA = {"model": "random:llama-2-7b", "dtype": "float16", "hardware": "a100-40g", "kv_memory": "24GiB"}


def play_llama(technique, requests, **options):
    return play(technique, requests, **{**LLAMA, **options})


def asks_llama(*lengths, **options):
    return asks(*lengths, model=LLAMA["model"], **options)


def longest_gap(run, but=()):
    """The longest gap between two tokens of a request, of all requests but these."""
    return max(gap.seconds for name in run.history.stories if name not in but for gap in gaps(run, name))


lengths = [32, 128, 512, 1024, 2048]
names = ["baton", "baton-pd", "orca"]
swept = {
    name: [play_llama(name, asks_llama(*[(64, 200)] * 7, (64, 20), (one, 20)), max_batch=8) for one in lengths]
    for name in names
}
for one, run in zip(lengths, swept["baton"]):
    assert run.metrics["tokens"]["idle"] == 7 * (one - 1)
assert all(run.metrics["tokens"]["idle"] == 0 for run in swept["baton-pd"])
waits = {name: [longest_gap(run, but=["r8"]) for run in swept[name]] for name in names}
longest = {name: wait[-1] for name, wait in waits.items()}
own = swept["baton-pd"][-1].metrics["latency_bound_s"]
print(
    {name: f"{1e3 * gap:.0f} ms" for name, gap in longest.items()}, f"the newcomer under baton-pd: {1e3 * own:.0f} ms"
)
assert longest["baton"] > 6 * max(longest["orca"], longest["baton-pd"])
assert own > 1.5 * longest["baton-pd"]

# %% tags=["plot"]
figure, panels = plt.subplots(1, 3, figsize=(9.4, 2.9))
for name in names:
    idle = [run.metrics["tokens"]["idle"] for run in swept[name]]
    peaks = [run.metrics["kv"]["peak_used_tokens"] for run in swept[name]]
    for axes, values in zip(panels, (idle, [1e3 * wait for wait in waits[name]], peaks)):
        style = "s--" if name == "orca" else "o-"  # it lies on baton-pd in the first chart
        axes.plot(lengths, values, style, color=COLOURS[name], label=name, markersize=4 if name == "orca" else 6)
for axes, unit, title in zip(
    panels,
    ("tokens", "ms", "slots"),
    ("computed idle", "longest gap of those that run", "memory in use, at most"),
):
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, lengths, fontsize=7)
    axes.set_xlabel("prompt of the newcomer, tokens", fontsize=9)
    axes.set_ylabel(unit)
    axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=9)
panels[0].legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# Under `baton` the gap grows with $B \cdot \ell_q$, under the other two with $\ell_q$: the prompt that `baton-pd`
# computes apart delays the batch by an iteration of its own, on the same machine. The longest gap of all under
# `baton-pd` is the newcomer's: its prompt is computed, and its first token there, before a row is free; its second
# token waits for the row. The third chart shows what both of Baton's ideas cost: a window as wide as the longest text,
# in every row.
#
# ## The papers' measurement, again
#
# Baton's second data set has 30 requests, with prompts and answers of a few dozen to 200 words (section 5.1, table 2).
# The next cell draws lengths between 24 and 200 tokens and sweeps the size of the batch, as the table does. The paper
# compares one more technique, `pd`: it computes prompts apart like `baton-pd`, but no row is refilled before its batch
# has ended.

# %%
drawn = random.Random(5)
thirty = asks_llama(*[(drawn.randint(24, 200), drawn.randint(24, 200)) for _ in range(30)])
sizes = [2, 4, 6, 8, 10]
contest = {name: [play_llama(name, thirty, max_batch=size) for size in sizes] for name in COLOURS}
shares = {name: [100 * run.metrics["tokens"]["idle_share"] for run in runs] for name, runs in contest.items()}
times = {name: [run.history.last_s for run in runs] for name, runs in contest.items()}
for i in range(len(sizes)):
    assert times["orca"][i] < times["baton-pd"][i] < 1.01 * times["baton"][i]
    assert times["baton"][i] < times["static"][i]
    assert shares["baton-pd"][i] < shares["static"][i] < shares["baton"][i]
for name in ("static", "baton"):
    run = contest[name][3]
    idle = sum(one.event["idle"] > 0 for one in run.history.iterations)
    print(f"{name:6} with 8: {len(run.steps)} iterations, {idle} of them with idle tokens")

# %% tags=["plot"]
figure, panels = plt.subplots(1, 3, figsize=(9.4, 3))
for name, colour in COLOURS.items():
    panels[0].plot(sizes, shares[name], "o-", color=colour, label=name)
    panels[1].plot(sizes, times[name], "o-", color=colour)
for name in ("baton", "baton-pd"):
    panels[2].plot(sizes, [a / b for a, b in zip(times["static"], times[name])], "o-", color=COLOURS[name])
panels[2].plot(sizes, [1.94, 1.87, 1.66, 1.61, 1.31], "s--", color="black", markersize=4, label="Baton, table 2")
for axes, unit, title in zip(
    panels,
    ("% of the tokens computed", "s", "times as fast as static"),
    ("idle", "time for all 30", "gain over static"),
):
    axes.set_xticks(sizes)
    axes.set_xlabel("requests in a batch")
    axes.set_ylabel(unit)
    axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=9)
panels[0].legend(frameon=False, fontsize=7, loc="upper left")
panels[0].set_ylim(0, 110)
panels[2].legend(frameon=False, fontsize=8, loc="lower left")
figure.tight_layout()
plt.show()

# %% [markdown]
# Three things in these charts deserve a second look.
#
# - **Shaping computes more idle tokens than the padded batch**, in the whole sweep, and is faster all the same on
#   this simulated A100 (on the RTX 4090 of `baton-table2` it is slower at a batch of 10). An idle token is not a unit
#   of time. Finished rows idle in most iterations of `static`, and each iteration takes its time; insertions idle in
#   fewer, and save many.
# - With embedding, idle computation is a small rest, which grows with the batch: at the end of so few requests, rows
#   are empty. Baton (5.2.2) explains the falling gain in its table 2 in the same way.
# - `orca` is a little faster than both, in this cost model. The paper's headline, 1.29 to 1.75 times the throughput of
#   Orca, is `baton-pd` against `baton` in its table 1: it counts Orca as equal to its shaping variant and does not
#   run Orca's code (section 5.1). Here a technique without padding computes what is needed, and no more.
#
# ### Memory without the sawtooth
#
# Baton's figure 8 shows the memory of the padded batch as a sawtooth: it grows until the last row ends, and then
# falls.

# %%
tight = {name: play_llama(name, thirty, max_batch=8, kv_memory="3GiB") for name in ("static", "baton-pd")}
draw_series(*tight.values(), series=["kv", "batch"])

# %% [markdown]
# `static` has a tooth for each of its four batches. Under `baton-pd` rows are refilled, and as long as requests wait
# memory does not fall back to the level of prompts alone. Its highest level is near the peaks of `static`; Baton says
# so, too (5.2.2). With shaping gaps stay in use, and the peak is a multiple of that of `static` (`baton-fig8`).
#
# ## Interruption needs nothing new
#
# A sequence whose KV can be embedded can also be taken out and embedded again. So a request of higher priority takes a
# row at once (section 4.3). The KV of the interrupted one goes to the host, and comes back when a row is free. In the
# lower picture `r2` comes back to row 2, so that rows 0 and 1 are computed with it, idle.

# %%
hurried = [
    replace(one, priority=5 if one.id == "r3" else 0)
    for one in asks((4, 20), (3, 20), (3, 20), (3, 6), arrivals=[0, 0, 0, 0.004])
]
patient = play("baton", hurried, max_batch=3)
urgent = play("baton", hurried, max_batch=3, batching__order="priority", label="baton, by priority")
assert urgent.tokens == patient.tokens
draw_lanes(patient, urgent, by="time")

# %%
moves = urgent.metrics["moves"]
print("KV tokens to the host and back:", moves["swap_out"]["tokens"], moves["swap_in"]["tokens"])
assert moves["swap_out"]["tokens"] == moves["swap_in"]["tokens"] > 0
assert urgent.metrics["tokens"]["recomputed"] == 0
assert cells(urgent)[-1][1]["rows"] == 3

# %% [markdown] tags=["prediction"]
# ## Where this idea loses
#
# **Long prompts, short answers.** Sixteen requests with prompts of 1,000 tokens and answers of 4 to 16. `static`
# computes eight prompts in one rectangle without any padding. `baton` inserts eight prompts one by one, into $B\ell_q$
# tokens each.
#
# **One long text among short ones.** A request with 3,000 prompt tokens and 300 new ones, and 21 with (50, 40).
#
# Predict:
#
# 1. How many times as long as `static` does `baton` take for the long prompts?
# 2. How wide does the window get with the one long text under `baton-pd`?

# %%
drawn = random.Random(4)
long_short = asks_llama(*[(1000, drawn.randint(4, 16)) for _ in range(16)])
one_long = asks_llama((3000, 300), *[(50, 40)] * 21)
losing = {
    "long prompts": {name: play_llama(name, long_short, max_batch=8) for name in COLOURS},
    "one long text": {name: play_llama(name, one_long, max_batch=8) for name in COLOURS},
}
peak = {name: run.metrics["kv"]["peak_used_tokens"] for name, run in losing["one long text"].items()}
bars = [{name: run.history.last_s for name, run in runs.items()} for runs in losing.values()] + [peak]
print(f"long prompts: baton takes {bars[0]['baton'] / bars[0]['static']:.1f} times as long as static")
print(
    f"one long text, baton-pd: {peak['baton-pd'] // 8:,} slots in each of 8 rows; "
    f"all rows together hold {peak['baton-pd'] / peak['orca']:.1f} times the slots of orca"
)
assert bars[0]["baton"] > 2 * bars[0]["static"]
assert bars[0]["baton-pd"] < bars[0]["static"]
assert peak["baton-pd"] > 5 * peak["orca"]
assert bars[1]["orca"] < bars[1]["baton-pd"]

# %% tags=["plot"]
figure, panels = plt.subplots(1, 3, figsize=(9.4, 2.9))
titles = ("long prompts: time", "one long text: time", "one long text: memory at most")
for axes, values, unit, title in zip(panels, bars, ("s", "s", "slots"), titles):
    axes.bar(range(len(values)), values.values(), color=[COLOURS[name] for name in values])
    axes.set_xticks(range(len(values)), [name.replace("-", "-\n") for name in values], fontsize=8)
    axes.set_ylabel(unit)
    axes.set_xlabel("technique", fontsize=8)
    axes.set_title(title, loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# With these long prompts, refilling by shaping takes more than twice as long as never refilling. The paper has no such
# loss. In its table 1 (section 5.2.1), whose queries have long prompts, or long answers, or neither, shaping is always
# faster than the padded batch: 3,424 s against 6,619 with a batch of eight, and 20,549 s against 21,901 with a batch
# of four and all lengths doubled. The second loss is not in the paper either: a rectangle is as wide as its longest
# text. Each short row holds, and reads, masked columns for thousands of tokens. Embedding has removed idle
# *computation*; idle *memory* is still there.
#
# ## Exercises
#
# 1. Ten rows run, and three requests end in the same iteration. The three next prompts have 12, 30 and 30 tokens. How
#    many tokens does the shaping iteration compute, and how many are idle? *Hint: three rows are newcomers, and the
#    longest decides. Check with `asks(*[(4, 30)] * 7, *[(4, 3)] * 3, (12, 3), (30, 3), (30, 3))`, `max_batch=10` and
#    `kv_memory="4MiB"`: look at `run.history.iterations[3].event["idle"]`.*
#    <details><summary>Answer</summary>
#    10·30 = 300; needed are 12 + 30 + 30 + 7 = 79; idle 221.
#    </details>
# 2. In which order of arrival would the six requests have the fewest idle tokens under `baton`? Decide which three
#    should open the batch, and which should enter together. Then try all 720 orders. *Hint: `permutations` of
#    `itertools`; it takes about half a minute.*
#    <details><summary>Answer</summary>
#    8 tokens at best, where this order has 17 and the worst 32. One of the best is (3, 5), (4, 3), (5, 3), (3, 6),
#    (2, 4), (2, 9). The longest prompts open the batch, with 3 idle tokens. Two of them end together, so two newcomers
#    share an iteration: 9 - 3 - 2 - 1 = 3 are idle. The last prompt is short: 2 more. The worst orders leave the
#    longest answer alone in row 2, with two idle rows in every iteration to the end.
#    </details>
# 3. Run `play("baton", six, max_batch=3, memory__insert="embed")`: prompts are computed in the batch, but end where
#    the others' token goes. Do rows still get gaps? Is anything saved? *Hint: `cells(run)`, and
#    `run.metrics["tokens"]["idle"]`.*
#    <details><summary>Answer</summary>
#    No gaps: the others' token is the last column. The idle tokens of an insertion are as many, (B−1)(ℓ−1), because
#    the rectangle is still ℓ columns wide; what is saved are columns of the window.
#    </details>
# 4. Set `batching__padding=0` for `baton-pd` with the six requests. How many idle tokens are left, and what is paid?
#    *Hint: count the iterations with the phase `preprocessing`.*
#    <details><summary>Answer</summary>
#    None: no padding of prompts is left, and with the other order of joining no row before the last used one is empty
#    at the end either. Prompts are computed together only when their lengths are equal, so there are four iterations
#    with prompts and not three, 13 in all and not 12, and each reads the weights.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Baton (4.1) sets the KV of the finished row to minus infinity; the cell above shows why we set it to zero.
# - Baton concatenates and cuts tensors as the window grows and is released. Our rows are rings of slots that never
#   move; only embedding copies.
# - The paper's mask has $\ell_{am} + \ell_q - 1$ columns after an insertion. Ours has as many: `Window` begins to
#   count behind the release.
# - Baton's PD draws decoding batches at random from what was prefilled, and so does `pd`: the prompt's tokens are the
#   seed, so that a run can be repeated exactly.
# - The experiments decouple the prompts "asynchronously" (5.1). By default they are iterations of the same worker here,
#   and delay the batch: a prompt adds an iteration to the gaps of the running sequences. `batching.prompts=worker`
#   computes them on a worker of its own; in virtual time both share the device.
# - KV that waits on the host is "prefetchable" (4.2). `memory.prefetch` gives a part of the device to KV that is copied
#   there before its sequence joins; the paper does not measure it.
# - Interruption (in the paper *preemption*) and scaling of the batch are described (4.3) and not measured. Both are
#   built here; `memory.threshold` is the second.
#
# ## Further reading
#
# - Yu et al., *Orca* (OSDI 2022), for the other answer to the same question.
# - Zhong et al., *DistServe* (OSDI 2024): prompts and single tokens on different machines.
# - `minifuse explain baton`, `minifuse explain baton-pd`.
#
# **Next:** whatever fills the rows, how many requests run is still limited by how much KV the device holds; chapter 10
# gives up the batch size.
