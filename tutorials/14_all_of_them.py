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
# # 14. All of them on your workload
#
# Most chapters so far compared their technique with one or two others, on requests that were chosen to show it. This
# chapter puts all of them on one workload, and then on seven. It sweeps the rate at which requests arrive, finds where
# each technique saturates, counts the answers that are in time, and looks for the cause of every difference.
#
# **You will be able to**
#
# - write your workload down as data, and resample requests from a file of your own;
# - compute the rate at which a server saturates from its places and the seconds of an iteration, and check it;
# - read a sweep: the knee, utilisation, and what the numbers beyond the knee do not mean;
# - say what goodput counts, and recompute it from a table of requests;
# - choose a technique for a workload by a cause that is counted, and say how sure the choice is.

# %%
import json
import random
from dataclasses import dataclass, replace
from statistics import mean, median

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from minifuse.io.parsing import parse_goodput
from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.notebook import play, replay, show_source
from minifuse.simulate.cost import hardware
from minifuse.techniques import technique
from minifuse.trace.lives import Life
from minifuse.trace.running import RunningMetrics
from minifuse.workload.conversations import as_requests
from minifuse.workload.files import read_jsonl
from minifuse.workload.laws import Arrival, parse_lengths
from minifuse.workload.synthetic import RequestDefaults, arrive, synthetic

plt.rcParams.update({"figure.figsize": (7, 2.8), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#8a929b", "#cc79a7"
SKY, RED = "#56b4e9", "#d55e00"
LOOK = {  # of each technique in all pictures: colour and marker
    "static": (GREY, "s"),
    "dynamic": (PURPLE, "D"),
    "baton": (RED, "^"),
    "baton-pd": (ORANGE, "v"),
    "orca": (BLUE, "o"),
    "pensieve": (SKY, "x"),
    "vllm": (GREEN, "P"),
    "fusion": ("black", "d"),
    "srpt": (GREY, "1"),
    "fastserve": (PURPLE, "*"),
    "fluid": (RED, "h"),
}

# %% [markdown]
# ## A workload is data
#
# Replace this cell with your own. A workload is how long prompts and answers are, and how requests arrive: in
# conversations or alone, evenly or in bursts, with a common beginning or without. `cv` is the standard deviation of the
# gaps between arrivals, divided by their mean. It is 0 where gaps are constant and 1 where arrivals do not depend on
# each other, which is called *Poisson*; above 1 they come in bursts. Laws are written as for `minifuse run
# --prompt-length`. The *rate* is not part of it; the sweep chooses that.


# %%
@dataclass(frozen=True)
class Workload:
    prompts: str = "lognormal:200:0.8:max=1000"  # tokens of a prompt
    answers: str = "uniform:20:140"  # tokens of an answer
    cv: float = 1.0  # of the gaps between arrivals: 0 constant, 1 Poisson, above 1 in bursts
    turns: int = 1  # requests of a conversation
    think_s: float = 0.5  # on average, from an answer to the next turn
    shared: int = 0  # tokens with which all prompts begin
    lines: tuple[str, ...] = ()  # requests of your own, as JSON lines: their lengths replace the laws

    def requests(self, rate=None, count=96, seed=0):
        """`count` requests at so many a second; without a rate all are there at the beginning."""
        arrival = Arrival(self.turns / rate if rate else 0, self.cv)
        if self.lines:
            drawn = random.Random(seed).choices(read_jsonl(self.lines, words, EXACT), k=count)
            alone = [replace(one, id=f"r{i}", conversation=None, after=None, delay_s=0) for i, one in enumerate(drawn)]
            return arrive(alone, arrival, seed)
        laws = parse_lengths(self.prompts), parse_lengths(self.answers)
        alone = synthetic(count, *laws, 32_000, arrival, seed, EXACT)
        alone = [replace(one, prompt=tuple(range(self.shared)) + one.prompt) for one in alone]
        if self.turns == 1:
            return alone
        pairs = [(one.prompt, one.max_new_tokens) for one in alone]
        talks = [pairs[i : i + self.turns] for i in range(0, count, self.turns)]
        return as_requests(talks, self.think_s, arrival, seed)


EXACT = RequestDefaults(ignore_eos=True)  # answers have the length that was drawn: chapter 13


def words(text, continues=False):
    """Tokens for a text, where there is no tokenizer: four for three words, whichever they are."""
    return [1] * round(len(text.split()) * 4 / 3)


chat = Workload()

# %% [markdown]
# Requests of your own are JSON lines, as for `minifuse run --prompts`; from a file, `open(...).readlines()`. A hundred
# are enough to begin with: each run *resamples* them, which keeps prompt and answer of a request together. The times in
# the file are dropped, because a sweep needs many rates.

# %%
LINES = (
    json.dumps({"prompt": "Summarise this in one line: " + "word " * 400, "max_new_tokens": 30}),
    json.dumps({"prompt": "Is this rude? " + "word " * 40, "max_new_tokens": 2}),
    json.dumps({"prompt": "Write a story about a fish.", "max_new_tokens": 300}),
)
mine = Workload(lines=LINES, cv=2.0)
for one in mine.requests(rate=4, count=5):
    print(f"{one.id} arrives at {one.arrival_s:.2f} s, {len(one.prompt)} tokens, answer of {one.max_new_tokens}")

# %%
many = chat.requests(count=600)
times = {cv: [one.arrival_s for one in replace(chat, cv=cv).requests(10, 80)] for cv in (0.0, 1.0, 4.0)}
print(f"chat: prompts of {mean(len(one.prompt) for one in many):.0f} tokens on average, ", end="")
print(f"answers of {mean(one.max_new_tokens for one in many):.0f}")

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 2.8), width_ratios=[1, 1.4])
left.hist([len(one.prompt) for one in many], bins=range(0, 1001, 40), color=BLUE, label="prompt")
left.hist([one.max_new_tokens for one in many], bins=range(0, 1001, 40), histtype="step", color="black", label="answer")
left.set_xlabel("tokens")
left.set_ylabel("requests of 600")
left.legend(frameon=False, fontsize=8)
left.set_title("lengths of `chat`", loc="left", fontsize=10)
for row, arrivals in enumerate(times.values()):
    right.plot(arrivals, [row] * len(arrivals), "|", color=(GREY, BLUE, ORANGE)[row], markersize=16)
right.set_yticks(range(3), ["constant, cv 0", "Poisson, cv 1", "bursts, cv 4"])
right.set_ylim(2.6, -0.6)
right.set_xlabel("s")
right.set_title("80 arrivals, 10 a second on average", loc="left", fontsize=10)
figure.tight_layout()

# %% [markdown]
# Runs are in virtual time, with the shape of `llama-2-7b` on an A100 (chapter 13). `RunningMetrics` counts while a run
# goes on and keeps no trace, so a run of a hundred requests takes a fraction of a second. All techniques that have a
# batch size get the same number of *places* (chapter 3): requests served at once, at most.

# %%
MODEL, GPU, GiB = "random:llama-2-7b", "a100-40g", 1 << 30
source = resolve(MODEL)
BOUNDS = parse_goodput("ttft:500,tpot:25")  # milliseconds


def once(name, requests, places=16, memory=24 * GiB, **options):
    """The metrics of a run."""
    row = technique(name)
    options = {key.replace("__", "."): value for key, value in options.items()}
    options |= dict.fromkeys(row.batch_sizes, places)
    settings = Settings(clock="virtual", hardware=GPU, dtype="float16", kv_memory=memory, stage_options=options)
    counted = RunningMetrics(BOUNDS)
    serve(build_engine(resolve_run(row, source, settings), into=counted.read), requests)
    return counted.result()


def ms(metrics, name, which="p50"):
    return 1e3 * metrics[name][which] if metrics[name] else float("nan")


# %% [markdown]
# ## The failure: one comparison can say whatever you like
#
# Four techniques of chapters 2 and 9, two mixes of lengths, several rates. The measure is a request's whole time,
# divided by the tokens of its answer (*normalized latency*). Each panel alone would make a fine figure in a paper.

# %%
spread = Workload("uniform:8:32", "lognormal:100:0.9:max=400")
documents = Workload("uniform:600:1400", "uniform:4:32")
cases = {
    "short prompts, 1 a second": (spread, 1),
    "short prompts, 16 a second": (spread, 16),
    "documents, 4 a second": (documents, 4),
    "documents, 16 a second": (documents, 16),
}
padded = ["static", "dynamic", "baton", "baton-pd"]
orders = {}
for title, (workload, rate) in cases.items():
    found = {name: ms(once(name, workload.requests(rate, 48)), "normalized_latency_s") for name in padded}
    orders[title] = {name: found[name] for name in sorted(padded, key=found.get)}
    print(f"{title:28}", " < ".join(orders[title]))
assert len({tuple(order) for order in orders.values()}) == 4

# %% tags=["plot"]
figure, panels = plt.subplots(1, 4, figsize=(10, 2.6))
for axes, (title, order) in zip(panels, orders.items()):
    axes.barh(range(4), [*order.values()], color=[LOOK[name][0] for name in order])
    axes.set_yticks(range(4), order)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("ms a token, median", fontsize=8)
figure.tight_layout()

# %% [markdown]
# Four panels, four orders. When the load changes, neighbours swap places; when the lengths change, `baton` goes from
# first to last. Nothing here is wrong, and nothing is an answer. An answer needs all rates, and your mix.
#
# ## The idea: sweep the rate until it breaks
#
# At a low rate every request is served alone, and the latency is that of the machine. At a high rate requests arrive
# faster than they can leave, and the latency is that of the queue, which grows as long as the run lasts. Between the
# two lies the *knee*. A technique is better if its knee is further to the right.
#
# **A count by hand: where is the knee?** A server has $B$ places. A request holds one for as many iterations as its
# answer has tokens, $n$ on average, and an iteration takes $s$ seconds. So in one second at most
#
# $$\lambda_\text{max} = \frac{B}{n \cdot s}$$
#
# requests can leave. This is *Little's law* ($L = \lambda W$: the number of requests inside is the rate times the time
# that each is inside), with $L = B$ places and $W = n s$. For `chat` with 16 places: $n = 80$. An iteration reads 13.2
# GB of weights and the KV of 16 texts, which have 200 + 40 tokens in the middle of their answers; at 512 KiB a token,
# that is 2.0 GB. So $s = 15.2 / 1555 + 0.05 \text{ ms} = 9.8$ ms, and
# $\lambda_\text{max} = 16 / (80 \cdot 9.8 \text{ ms}) = 20$ requests a second.
#
# This leaves out what prompts add: an iteration that also computes a prompt is bound by arithmetic if the prompt is
# long. The cell adds that excess. For `static`, a batch of $B$ lasts as long as its *longest* answer, in a window as
# wide as its longest prompt and answer together.

# %%
llama, a100 = preset("llama-2-7b"), hardware(GPU)
weights = 2 * llama.num_matrix_weights
kv = 2 * 2 * llama.num_layers * llama.num_kv_heads * llama.head_dim  # bytes of a token: keys and values, two each
lengths = [(len(one.prompt), one.max_new_tokens) for one in chat.requests(count=384)]


def seconds(tokens, context):
    """An iteration that computes so many tokens, over texts of so many together (chapter 13, attention left out)."""
    return max((weights + context * kv) / a100.bandwidth, weights * tokens / a100.flops) + a100.overhead_s


B = 16
prompt, answer = (mean(one) for one in zip(*lengths))
s = seconds(B, B * (prompt + answer / 2))
excess = mean(max(0, seconds(p + B - 1, 0) - s) for p, _ in lengths)
knees = {"orca, by hand": B / (answer * s), "orca, with prompts": 1 / (answer * s / B + excess)}
batches = [lengths[i : i + B] for i in range(0, len(lengths), B)]
lasts = []
for batch in batches:
    p, n = (max(one) for one in zip(*batch))
    lasts.append(seconds(B * p, B * p) + (n - 1) * seconds(B, B * (p + n)))
knees["static"] = B / mean(lasts)
saturated = {name: once(name, chat.requests(count=384)) for name in ("orca", "static")}
full = {name: run["throughput"]["requests_per_s"] for name, run in saturated.items()}
print(f"an iteration takes {s * 1e3:.1f} ms, a prompt adds {excess * 1e3:.1f} ms")
for name, rate in knees.items():
    print(f"{name:20} {rate:5.1f} a second; the run: {full[name.split(',')[0]]:.1f}")
for name in ("orca, with prompts", "static"):
    assert abs(knees[name] / full[name.split(",")[0]] - 1) < 0.1, name

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# The next cell serves `chat` with eleven techniques at six rates. Two of them are new. `srpt` runs those requests that
# have the fewest tokens left, and is told how many. `fastserve` does not know that, and runs those that have computed
# least so far (FluidInfer, section 2). Both evict a running request (chapter 4) for one that should go first.
#
# The two knees are known: predict the shape of the curves between them. Then:
#
# 1. `pensieve` (chapter 8), `srpt` and `fastserve` have the iterations of `orca` as long as nothing waits. Where do
#    they depart from it?
# 2. `fluid` (chapter 10) has no places. Where is its knee?
# 3. Which technique has the shortest time to the first token beyond the knee, and what does it pay?

# %%
RATES = [5, 10, 15, 20, 25, 30]
sweep = {name: [once(name, chat.requests(rate)) for rate in RATES] for name in LOOK}
print("at 30 a second          batch   first token p99   a further one p99")
for name in ("orca", "vllm", "srpt", "fastserve", "fluid"):
    one = sweep[name][-1]
    first, further = ms(one, "ttft_s", "p99"), ms(one, "tpot_s", "p99")
    print(f"{name:22} {one['mean_batch_size']:6.1f} {first:14.0f} ms {further:16.1f} ms")
assert all(one["ttft_s"] == two["ttft_s"] for one, two in zip(sweep["orca"], sweep["pensieve"])), "nothing to keep"
assert sweep["fluid"][-1]["mean_batch_size"] > 16

# %% tags=["plot"]
groups = (
    ["static", "dynamic", "baton", "baton-pd", "fusion"],
    ["orca", "pensieve", "vllm", "srpt", "fastserve", "fluid"],
)
rows = (
    ("normalized_latency_s", "p50", "ms a token,\nmedian"),
    ("ttft_s", "p99", "ms to the first\ntoken, p99"),
    ("tpot_s", "p99", "ms a further\ntoken, p99"),
)
figure, panels = plt.subplots(3, 2, figsize=(9.4, 7.6), sharex=True, sharey="row")
for column, names in enumerate(groups):
    for line, (metric, which, label) in enumerate(rows):
        axes = panels[line, column]
        for name in names:
            colour, mark = LOOK[name]
            axes.plot(RATES, [ms(one, metric, which) for one in sweep[name]], mark + "-", color=colour, label=name)
        for rate in (knees["static"], knees["orca, with prompts"]):
            axes.axvline(rate, color="black", linewidth=0.8, linestyle=":")
        axes.set_yscale("log")
        if column == 0:
            axes.set_ylabel(label)
    panels[2, column].legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.32))
    panels[2, column].set_xlabel("requests a second, offered")
panels[0, 0].set_title("padded batches, and fusion", loc="left", fontsize=10)
panels[0, 1].set_title("join and leave at every iteration", loc="left", fontsize=10)
figure.suptitle("chat, 16 places; dotted: the knees of static and orca as computed", fontsize=10)
figure.tight_layout()

# %% [markdown]
# `orca` and `pensieve` are equal: requests that come alone leave nothing to keep. `srpt` and `fastserve` lie on the
# same line as long as hardly anything waits, since the order of the queue then changes nothing. Beyond the knee
# `fastserve` has first tokens almost at once, and pays with the gaps between later ones, in which requests are evicted.
# `fluid` has no knee here, because its batch goes on growing: at 30 a second it serves more than 16 on average. That is
# not yet a better idea; it is a larger batch. A later cell turns that knob for all.
#
# ### Utilisation
#
# Divide the rate by the knee and you have the *utilisation* $\rho$: the part of the time that the places would be
# taken, if requests came evenly. Little's law also counts those that wait: the number in the system is the rate times
# the time from arrival to end.

# %%
inside, working = {}, {}
for name in ("orca", "static"):
    inside[name] = [one["throughput"]["requests_per_s"] * one["e2e_s"]["mean"] for one in sweep[name]]
    working[name] = [one["throughput"]["requests_per_s"] * one["computing_s"]["mean"] for one in sweep[name]]
    print(f"{name}: at most {max(working[name]):.1f} of {B} places are in service, on average")
    assert all(one <= B + 1e-6 for one in working[name])

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8.6, 2.8))
for name, knee in (("orca", knees["orca, with prompts"]), ("static", knees["static"])):
    colour, mark = LOOK[name]
    rho = [rate / knee for rate in RATES]
    axes.plot(rho, inside[name], mark + "-", color=colour, label=f"{name}: in the system")
    axes.plot(rho, working[name], mark + ":", color=colour, label=f"{name}: in service")
axes.axhline(B, color="black", linewidth=0.8)
axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
axes.text(3.1, B + 1.5, "16 places", fontsize=8)
axes.set_xlabel("utilisation: rate / knee as computed")
axes.set_ylabel("requests, on average")
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
axes.set_title("Little's law: rate of leaving times time inside", loc="left", fontsize=10)
figure.tight_layout()

# %% [markdown]
# The places of `static` are never all in service: the rows of finished requests are computed idle (chapter 2), and no
# other request gets them.
#
# ## Goodput: answers in time
#
# Throughput does not say whether the answers are of any use. *Goodput* is the number of requests in a second whose
# first token and whose later tokens both come within bounds. Here: 500 ms to the first token (TTFT), 25 ms for each
# further one on average (TPOT).
#
# ### The source that matters
#
# `parse_goodput` reads the bounds of `minifuse run --goodput ttft:500,tpot:25`. A request is in time if none of its
# `latencies` exceeds its bound. `Arrival.times` draws the gaps of all workloads above, from a *gamma* law: look at what
# becomes of `cv`.

# %%
show_source(parse_goodput, Life.latencies.fget, Arrival.times)

# %% [markdown] tags=["prediction"]
# **A prediction.** At 30 requests a second, one and a half times the knee, `orca` still serves as many requests as it
# can. Before you look: what is its goodput, about as high as at the knee, half of it, or next to nothing? And what
# becomes of `fastserve`, whose first tokens come early?

# %%
good = {name: [one["goodput"]["requests_per_s"] for one in runs] for name, runs in sweep.items()}
for name in ("orca", "fastserve", "fluid"):
    print(f"{name:10} at best {max(good[name]):4.1f} in time a second, at {RATES[-1]} a second {good[name][-1]:4.1f}")
print("in time, % of all requests, at", RATES)
for name, runs in sweep.items():
    print(f"{name:10}", *[f"{100 * one['goodput']['requests'] / one['requests']['total']:4.0f}" for one in runs])

# %% tags=["plot"]
figure, panels = plt.subplots(1, 2, figsize=(9.4, 3), sharey=True)
for axes, names in zip(panels, groups):
    for name in names:
        colour, mark = LOOK[name]
        axes.plot(RATES, good[name], mark + "-", color=colour, label=name)
    axes.set_xlabel("requests a second, offered")
    axes.legend(frameon=False, fontsize=8, ncols=2)
panels[0].set_ylabel("answers in time, a second")
figure.suptitle("Goodput of chat: 500 ms to the first token, 25 ms a further one", fontsize=10)
figure.tight_layout()

# %% [markdown]
# Goodput falls beyond the knee, where throughput only stops growing: a server that makes all wait their turn answers
# all of them late. In 96 requests the queue has little time to grow, and `orca` loses a fifth or so; a longer run loses
# more. `fastserve` loses too, but misses the other bound. A technique can be chosen by that.

# %% [markdown]
# The goodput of one run by hand, from the table of its requests (`docs/library.md`):

# %%
table = play("orca", chat.requests(25), model=MODEL, dtype="float16", hardware=GPU, kv_memory="24GiB", max_batch=16)
in_time = [row["ttft_s"] <= BOUNDS["ttft"] and (row["tpot_s"] or 0) <= BOUNDS["tpot"] for row in table.served.rows()]
print(sum(in_time), "of", len(in_time))
assert sum(in_time) == sweep["orca"][RATES.index(25)]["goodput"]["requests"]

# %% [markdown]
# ## What each one pays
#
# Times say *that* a technique is slower. Counts say *why*. Here are conversations of four turns, with 4 GiB of memory.

# %%
talks = Workload("uniform:100:600", "uniform:20:140", turns=4)
paid = {name: once(name, talks.requests(12, 48), memory=4 * GiB) for name in LOOK}
columns = {
    "refused": lambda one: one["requests"]["refused"],
    "iterations": lambda one: one["iterations"],
    "batch,\nmean": lambda one: one["mean_batch_size"],
    "idle\ntokens": lambda one: one["tokens"]["idle"],
    "computed\nagain": lambda one: one["tokens"]["recomputed"],
    "evicted": lambda one: one["evictions"],
    "tokens\nmoved": lambda one: sum(move["tokens"] for move in one["moves"].values()),
    "waits,\nms mean": lambda one: 1e3 * one["queueing_s"]["mean"],
    "longest\ngap, ms": lambda one: 1e3 * one["latency_bound_s"],
    "in time": lambda one: one["goodput"]["requests"],
}
values = {name: [count(one) for count in columns.values()] for name, one in paid.items()}


# %% tags=["plot"]
def heat(axes, values, shades, across, form="{:,.0f}", **look):
    """Numbers in boxes, darker where `shades` are larger."""
    axes.imshow(shades, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            ink = "white" if shades[y][x] > 0.8 else "black"
            axes.text(x, y, form.format(value), ha="center", va="center", fontsize=8, color=ink)
    axes.set_yticks(range(len(values)), look["names"])
    axes.set_xticks(range(len(across)), across, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


figure, axes = plt.subplots(figsize=(9.4, 3.8))
most = [max(column) or 1 for column in zip(*values.values())]
shades = [[value / top for value, top in zip(line, most)] for line in values.values()]
heat(axes, [*values.values()], shades, columns, names=values)
axes.xaxis.tick_top()
figure.tight_layout()

# %% [markdown]
# Read a line as a bill. `static`, `dynamic` and `baton` pay in idle tokens. `fusion` refuses what is longer than a
# buffer (chapter 5). `pensieve` computes nothing again and copies instead. `baton-pd` copies most, `fastserve`
# evicts most. The last three columns are what the bill comes to here.

# %% [markdown] tags=["prediction"]
# ## Two of them at the knee
#
# Twenty requests with answers of 21 tokens on average, four places, iterations of about 9 ms: they arrive at the rate
# of that knee, $4 / (21 \cdot 9 \text{ ms})$. Here are `orca` and `fastserve`, iteration by iteration. Before you press
# play: which requests of `orca` wait longest, and what do others pay under `fastserve` so that these need not wait?

# %%
few = Workload("uniform:40:200", "uniform:6:36").requests(4 / (21 * 0.009), 20)
llama_run = {"model": MODEL, "dtype": "float16", "hardware": GPU, "kv_memory": "24GiB", "max_batch": 4}
at_knee = [play(name, few, **llama_run) for name in ("orca", "fastserve")]
for run in at_knee:
    rows_of = run.served.rows()
    print(
        f"{run.name:10} first token: median {1e3 * median(row['ttft_s'] for row in rows_of):4.0f} ms, "
        f"at most {1e3 * max(row['ttft_s'] for row in rows_of):4.0f}; whole answer: median "
        f"{1e3 * median(row['e2e_s'] for row in rows_of):4.0f} ms; {run.metrics['evictions']} evictions"
    )
    waits = sorted(rows_of, key=lambda row: -row["ttft_s"])[:3]
    print(f"{'':10} the latest first tokens:", *[f"{row['id']} ({1e3 * row['ttft_s']:.0f} ms)" for row in waits])
replay(*at_knee)

# %% [markdown]
# Under `orca`, the requests that arrive when the queue is longest wait longest, however short their answers are. Under
# `fastserve` a first token hardly waits, and each eviction is a pause in the middle of another answer.

# %% [markdown] tags=["prediction"]
# ## One knob: places
#
# More places let more requests share the reading of the weights, and each iteration takes longer for all. Predict what
# happens to goodput at a fixed rate, and to the 99th percentile of TPOT, when the places double, and double again.

# %%
PLACES = [8, 16, 32, 64]
turned = ["static", "baton-pd", "fusion", "vllm", "orca", "fastserve"]
knob = {name: [once(name, chat.requests(24), places) for places in PLACES] for name in turned}
fluid = once("fluid", chat.requests(24))
for places, one in zip(PLACES, knob["orca"]):
    first, further, in_time = ms(one, "ttft_s", "p99"), ms(one, "tpot_s", "p99"), one["goodput"]["requests"]
    print(f"orca with {places:2}: first token {first:6.0f} ms, a further one {further:4.1f} ms, {in_time} in time")

# %% tags=["plot"]
figure, panels = plt.subplots(1, 3, figsize=(10.4, 2.9))
rows = (
    ("first token, ms, p99", lambda one: ms(one, "ttft_s", "p99")),
    ("a further token, ms, p99", lambda one: ms(one, "tpot_s", "p99")),
    ("answers in time, a second", lambda one: one["goodput"]["requests_per_s"]),
)
for axes, (title, value) in zip(panels, rows):
    for name in turned:
        colour, mark = LOOK[name]
        axes.plot(PLACES, [value(one) for one in knob[name]], mark + "-", color=colour, label=name)
    axes.axhline(value(fluid), color=RED, linestyle="--", linewidth=1, label="fluid, no places")
    axes.set_xscale("log", base=2)
    axes.set_xticks(PLACES, PLACES)
    axes.set_xlabel("places")
    axes.set_title(title, loc="left", fontsize=9)
for axes in panels[:2]:
    axes.set_yscale("log")
panels[2].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
figure.suptitle("chat, 24 requests a second", fontsize=10)
figure.tight_layout()

# %% [markdown]
# With 32 places `orca` is level with `fluid`: what the sweep showed was the knob, not the idea. A comparison in which
# one side has a better setting measures the setting. From here on all have 32.
#
# ## Which technique for which workload
#
# Seven workloads, each at a rate at which some techniques still keep up and others do not, with three seeds. A seed
# draws other lengths and other arrivals from the same laws. `vllm` and `pensieve` share common beginnings here
# (`memory.share`, off unless it is asked for).

# %%
many_kinds = {  # workload, rate, memory, requests
    "spread answers": (spread, 80, 24 * GiB, 96),
    "equal, in bursts": (Workload("fixed:100", "fixed:80", cv=4.0), 32, 24 * GiB, 48),
    "documents": (documents, 16, 24 * GiB, 48),
    "chat in bursts": (replace(chat, cv=4.0), 32, 24 * GiB, 48),
    "conversations": (talks, 48, 24 * GiB, 96),
    "one beginning": (Workload("uniform:20:100", shared=800), 32, 24 * GiB, 48),
    "small memory": (Workload("uniform:50:250", "uniform:50:350"), 8, 2 * GiB, 48),
}
asked = ["static", "baton", "baton-pd", "fusion", "vllm", "orca", "pensieve", "fastserve", "fluid"]
found = {}
for kind, (workload, rate, memory, count) in many_kinds.items():
    for name in asked:
        share = {"memory__share": True} if name in ("vllm", "pensieve") else {}
        found[kind, name] = [once(name, workload.requests(rate, count, seed), 32, memory, **share) for seed in range(3)]
parts = {
    key: [100 * one["goodput"]["requests"] / one["requests"]["total"] for one in runs] for key, runs in found.items()
}
contenders = ["fusion", "vllm", "orca", "pensieve", "fastserve", "fluid"]
for kind in many_kinds:
    order = sorted(contenders, key=lambda name: -mean(parts[kind, name]))
    kept = [
        all(a >= b for a, b in zip(parts[kind, one], parts[kind, other])) and parts[kind, one] != parts[kind, other]
        for one, other in zip(order, order[1:])
    ]
    print(f"{kind:17}", order[0], *[f"{'>' if sure else '~'} {name}" for name, sure in zip(order[1:], kept)])

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(9.4, 3.6))
grid = [[mean(parts[kind, name]) for name in asked] for kind in many_kinds]
heat(axes, grid, [[value / 100 for value in line] for line in grid], asked, names=many_kinds)
axes.set_title("requests in time, % of all, mean of three seeds", loc="left", fontsize=10)
figure.tight_layout()

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(9.4, 3))
for x, kind in enumerate(many_kinds):
    for i, name in enumerate(contenders):
        colour, mark = LOOK[name]
        at = x + (i - 2.5) * 0.13
        axes.plot([at] * 3, parts[kind, name], mark, color=colour, label=None if x else name, markersize=5)
        axes.plot([at, at], [min(parts[kind, name]), max(parts[kind, name])], "-", color=colour, linewidth=0.8)
axes.set_xticks(range(len(many_kinds)), [kind.replace(" ", "\n", 1) for kind in many_kinds], fontsize=8)
axes.set_ylabel("% in time")
axes.set_ylim(-4, 104)
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
axes.set_title("each seed a mark", loc="left", fontsize=10)
figure.tight_layout()

# %% [markdown]
# In the printed lines, `>` stands where no seed has it the other way round, `~` where one has, or where the two are
# equal with all seeds.
#
# No column is dark from top to bottom. `fluid` leads in five rows of seven, alone or level with `fastserve` or
# `pensieve`, and falls behind where a beginning is shared. `fastserve` leads where it is first tokens that are late,
# and is no help where prompts take most of the time. `baton-pd` is at home where prompts are equally long: it computes
# them together, before a row is free (chapter 9). `static` is late everywhere at these rates. `fusion` pays for prompts
# beside the main stream, and for buffers of equal width, in which nothing fits with small memory. That `fusion` reads
# adjacent buffers is a difference in code, which virtual time does not know.
#
# ### The causes
#
# A winner without a cause is luck. Each of these counts belongs to one row of the map.

# %%
causes = {
    "documents:\nlongest gap, ms": ("documents", lambda one: 1e3 * one["latency_bound_s"]),
    "conversations:\nprompt tokens computed": ("conversations", lambda one: one["tokens"]["prefill"]),
    "one beginning:\nprompt tokens computed": ("one beginning", lambda one: one["tokens"]["prefill"]),
    "small memory:\nrequests in a batch": ("small memory", lambda one: one["mean_batch_size"]),
}
shown = ["vllm", "orca", "pensieve", "fastserve", "fluid"]
counted = {title: [mean(map(count, found[kind, one])) for one in shown] for title, (kind, count) in causes.items()}

# %% tags=["plot"]
figure, panels = plt.subplots(1, 4, figsize=(10, 2.8), sharey=True)
for axes, (title, lengths_of_bars) in zip(panels, counted.items()):
    axes.barh(range(5), lengths_of_bars, color=[LOOK[name][0] for name in shown])
    axes.set_yticks(range(5), shown)
    axes.set_title(title, loc="left", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter("{x:,.0f}")
panels[0].invert_yaxis()
figure.tight_layout()

# %% [markdown]
# - *Documents*: a prompt of a thousand tokens takes an iteration that everyone waits for. `fluid` cuts it.
# - *Conversations*: only `pensieve` still has the history. *One beginning*: those that share it compute it once, the
#   others for each request.
# - *Small memory*: `orca` reserves room for the longest possible answer, so fewer run at once. The others take room as
#   needed. When there is none, `vllm` computes KV again; `pensieve`, `fastserve` and `fluid` copy it.
#
# Are the leads of `fluid` its own? `orca` has a bound on the tokens of an iteration too, which is off unless it is set.
# And in the rows of spread answers and bursts, `fluid` has no 32 places to fill.

# %%
cut = [once("orca", documents.requests(16, 48, seed), 32, batching__token_budget=256) for seed in range(3)]
for label, runs in (("orca", found["documents", "orca"]), ("orca, cut", cut), ("fluid", found["documents", "fluid"])):
    good, gap, steps = (
        mean(map(count, runs)) for count in (columns["in time"], columns["longest\ngap, ms"], columns["iterations"])
    )
    print(f"{label:9} {100 * good / 48:3.0f}% in time, longest gap {gap:3.0f} ms, {steps:.0f} iterations")
for kind in ("spread answers", "chat in bursts"):
    workload, rate, memory, count = many_kinds[kind]
    wide = [once("orca", workload.requests(rate, count, seed), 96)["goodput"]["requests"] for seed in range(3)]
    print(f"orca with 96 places, {kind}: {100 * mean(wide) / count:.0f}% in time")
for one, two in zip(cut, found["documents", "fluid"]):
    assert abs(one["latency_bound_s"] / two["latency_bound_s"] - 1) < 0.03

# %% [markdown]
# The gaps are the same to within 3%: the budget of `fluid` does not count single tokens. What wins on documents is
# cutting prompts, and in the other two rows it is places, under whichever name.
#
# ## Where a sweep loses
#
# **1. Beyond the knee the numbers depend on how long you look.** The queue grows until the last request has come.

# %%
COUNTS = [50, 100, 200, 300]
grown = {}
for rho in (0.7, 1.0, 1.4):
    rate = rho * knees["orca, with prompts"]
    grown[rho] = [ms(once("orca", chat.requests(rate, count)), "ttft_s", "p99") for count in COUNTS]
    print(f"{rho:g} of the knee, runs of {COUNTS}: first token p99", *[f"{one:6.0f} ms" for one in grown[rho]])

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.6))
for (rho, line), colour, mark in zip(grown.items(), (GREEN, ORANGE, RED), "os^"):
    axes.plot(COUNTS, line, mark + "-", color=colour, label=f"{rho:g} of the knee")
axes.set_yscale("log")
axes.set_xticks(COUNTS)
axes.set_xlabel("requests in the run")
axes.set_ylabel("ms to the first\ntoken, p99")
axes.legend(frameon=False, fontsize=8)
axes.set_title("orca, chat, 16 places", loc="left", fontsize=10)
figure.tight_layout()

# %% [markdown]
# Compare knees and goodput, and latencies before the knee. A ratio of two latencies beyond it can be made as large as
# you like, by a longer run.
#
# **2. Workloads drift.** Chat is measured, and then some of the requests are documents.


# %%
def drifted(part, rate, count, seed=0):
    """Requests of chat, of which a part is replaced by documents at the same times."""
    chosen = random.Random(seed)
    pairs = zip(chat.requests(rate, count, seed), documents.requests(rate, count, seed))
    return [replace(long, id=short.id) if chosen.random() < part else short for short, long in pairs]


PARTS = [0, 0.15, 0.3, 0.45, 0.6]
after = {}
print("in time, % of all requests, where so many are documents:", PARTS)
for name in ("static", "baton-pd", "fusion", "vllm", "orca", "fluid"):
    after[name] = [once(name, drifted(part, 20, 80), 32)["goodput"]["requests"] / 0.8 for part in PARTS]
    print(f"{name:10}", *[f"{value:4.0f}" for value in after[name]])

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.8))
for name, line in after.items():
    colour, mark = LOOK[name]
    axes.plot([100 * part for part in PARTS], line, mark + "-", color=colour, label=name)
axes.set_xlabel("% of the requests that are documents")
axes.set_ylabel("% in time")
axes.set_ylim(0, 104)
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
axes.set_title("chat drifts, 20 requests a second", loc="left", fontsize=10)
figure.tight_layout()

# %% [markdown]
# `static` was late from the start. `orca` loses little, and `vllm`, whose long prompts run alone and hold up everyone's
# next token, loses more. Sweep the mix as well as the rate.
#
# **3. Seeds.** In the map, marks of one technique lie tens of points apart. Where three seeds do not agree, draw more,
# or take the simpler technique.
#
# **4. What virtual time leaves out** (chapter 13): kernels, the host, the stop token. `orca`, `pensieve` and `fusion`
# read KV through different code, and `fluid` decides more for each iteration than `orca`. A difference in counts is
# one that you may expect to see again; one of a few percent in time is not. Cells (chapter 7) are missing here, because
# `cellular` serves other models: its rivals are graphs, not rectangles.
#
# ## Rules, and the cell that each comes from
#
# 1. Compute the knee first: places / (tokens of an answer × seconds of an iteration). Below half of it, take the
#    simplest technique whose requests join and leave (*the count by hand; the sweep*).
# 2. Do not run batches to completion where requests arrive one by one (*the sweep; the map*).
# 3. Turn the knobs before you change the technique: places, then the tokens of an iteration (*one knob; the causes*).
# 4. Long prompts beside answers that stream: cut the prompts (*the causes; drift*).
# 5. Texts that are computed again, in conversations or behind one beginning: keep or share KV (*the causes*).
# 6. Memory for fewer requests than there are places: blocks instead of reservation, and evict (*the map*).
# 7. First tokens matter most, beyond the knee: `fastserve`, and watch the longest gap (*the replay; the sweep*).
# 8. A difference that another seed flips is no difference (*each seed a mark*).
#
# ## Exercises
#
# 1. Compute the knee of `orca` for `chat` with 32 places. Why is it less than twice that of 16, and what does the run
#    say? *Hint: the iteration reads twice as much KV, and twice as many prompts must be computed in a second.*
#    <details><summary>Answer</summary>
#    KV: 32 · 240 · 512 KiB = 4.0 GB, so s = 11.1 ms and 32 / (80 · 11.1 ms) = 36 a second without prompts. The run:
#    `once("orca", chat.requests(count=384), 32)["throughput"]` has 30.5, where 16 places have 18.6.
#    </details>
# 2. Let all answers have 80 tokens (`answers="fixed:80"`): the mean is as before. Predict the saturated throughput of
#    `static` and `orca`, with 16 places. *Hint: what is the longest of 16 answers now?*
#    <details><summary>Answer</summary>
#    `static` goes from 7.7 to 11.3 a second: its batches last 80 iterations instead of 130 or so. `orca` goes from 18.6
#    to 17.5: requests that joined together now leave together, so many prompts meet in one iteration.
#    </details>
# 3. Which technique has the most requests in time at 25 a second if the bounds are 50 ms to the first token and 50 ms
#    for each further one? And with 2 s and 15 ms? *Hint: assign to `BOUNDS`.*
#    <details><summary>Answer</summary>
#    With 50 and 50: `fastserve` and `fluid`, with 91 of 96; `orca` has 50. With 2 s and 15 ms `fastserve` has 59, and
#    `orca`, `vllm` and `fluid` have all 96. The bounds choose the winner.
#    </details>
# 4. Sweep `batching__token_budget` of `orca` over 64, 128, 256, 512, 1024 and 4096 for `documents` at 16 a second, 32
#    places. What goes wrong at either end? *Hint: how many documents can be computed in a second?*
#    <details><summary>Answer</summary>
#    In time: 4, 60, 96, 96, 68, 53 of 96. With 64 tokens in an iteration prompts are computed at 7 requests a second
#    and queue; with 4,096 the longest gap between two tokens is 174 ms, with 256 it is 11.
#    </details>
# 5. Serve 300 requests of `chat` at 12 a second with cv 0, 1, 2 and 4, under `orca` with 16 places, and two seeds. What
#    is the 99th percentile of the time to the first token? *Hint: the utilisation is 0.6 in each.*
#    <details><summary>Answer</summary>
#    About 40 ms, 110 to 190, 350 to 580, and 2 s or more. And the utilisation is not 0.6 in each: with cv 4 the same
#    law gave 7.8 requests a second with one seed, and 15.7 with the other. A mean rate is not a description of bursts.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Flover (VI-B to VI-D) serves up to 32 requests of 512 tokens at constant gaps or Poisson, and compares with
#   concurrent instances. Long answers without long prompts, and a rival that reads the weights for each request
#   separately: the setting in which sharing the stream gains most. Its answers of unequal length are uniform.
# - Baton (5.1) has no arrivals: 120 queries of three kinds, or 30 without long ones, and the
#   measure is the time for all. That measures throughput; a first token that comes late costs nothing. Its batches have
#   2 to 10 places.
# - Pensieve (3.6.1) takes turns and lengths from ShareGPT, a collection of chats, draws arrivals as Poisson, and lets
#   users think for a minute on average. It also shows conversations of five turns and more (3.6.4), its best case, as
#   such, and other thinking times (3.6.5).
# - FluidInfer (6.1) takes the first turn of ShareGPT's conversations only, Poisson, in simulation. `pensieve` could
#   keep nothing there.
# - BatchMaker (2.7) sweeps the rate and plots latency against throughput, and tries equal lengths, where its rivals
#   do better (Figure 2.11).
# - None of the five counts goodput, and none gives a spread over seeds. `minifuse reproduce` runs their workloads;
#   `minifuse compare` makes the table of this chapter for one rate.
#
# ## Further reading
#
# - Zhong et al., *DistServe* (OSDI 2024): goodput as the aim, with bounds on TTFT and TPOT.
# - Agrawal et al., *Sarathi-Serve* (OSDI 2024): prompts cut into pieces, and what that does to the gaps.
# - Agrawal et al., *Vidur* (2024): a search for the best setting in simulation.
# - Harchol-Balter, *Performance Modeling and Design of Computer Systems* (2013): queues, Little's law, heavy tails.
#
# **Next:** no technique of this table was made for what you know about your own requests; chapter 15 writes a stage
# that is, and lets laws judge it.
