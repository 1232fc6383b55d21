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
# # 12. Many ranks
#
# A kernel makes good use of one device. It does not help where the model does not fit on one, or where reading its
# weights takes too long. This chapter cuts the matrices of a layer into parts, one for each of several processes, and
# lets them compute every iteration together. The price is messages. You will count them, and their bytes, before they
# are sent.
#
# **You will be able to**
#
# - cut the two matrices of a feed-forward layer so that two processes need one message, and say why other cuts need
#   more;
# - write that with `torch.distributed`, and measure what a message costs on your machine;
# - compute the number of messages and bytes of an iteration from the model's shape, and check both against a run;
# - say how batching, idle rows and the memory shuffle change the messages;
# - tell from two numbers of a connection from how many ranks on the messages take longer than the computing.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle
from torch.nn.functional import silu

from minifuse.core.errors import UsageError
from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.show.notebook import asks, draw_lanes, play, replay, show_source
from minifuse.show.timeline import columns_of
from minifuse.simulate.cost import hardware

plt.rcParams.update({"figure.figsize": (7, 2.6), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"
torch.set_num_threads(1)  # so that one rank and two are compared with one core each

# %% [markdown]
# ## The failure to begin with: one device is not enough
#
# In virtual time, a run is refused if the simulated machine cannot hold the model. Here is one with 70 billion
# parameters, on one A100.

# %%
try:
    large = "random:llama-2-70b"
    play("orca", asks((8, 8), model=large), model=large, dtype="float16", hardware="a100-40g", kv_memory="1GiB")
except UsageError as error:
    print(error)

a100 = hardware("a100-40g")
names = ["opt-13b", "llama-2-7b", "llama-3-8b", "llama-2-70b"]
weights = {name: 2 * preset(name).num_parameters for name in names}
assert weights["llama-2-70b"] > a100.memory > weights["opt-13b"]

# %% tags=["plot"]
figure, axes = plt.subplots()
axes.barh(names, [weights[name] / 1e9 for name in names], color=BLUE)
axes.axvline(a100.memory / 1e9, color=ORANGE, linestyle="--")
axes.annotate("memory of an A100", (a100.memory / 1e9, -0.62), xytext=(5, 0), textcoords="offset points", fontsize=8)
for row, name in enumerate(names):
    read_ms = weights[name] / a100.bandwidth * 1e3
    right = max(weights[name], a100.memory) / 1e9
    axes.text(right + 2, row, f"{read_ms:.0f} ms to read", va="center", fontsize=8)
axes.set_xlim(0, 170)
axes.set_ylim(3.5, -0.8)
axes.set_xlabel("GB of weights, 2 bytes each")
axes.set_title("Weights, and how long one A100 takes to read them once", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Two failures in one picture. The model of the longest bar does not fit. The others fit, but none of their iterations
# can be shorter than the time it takes to read the weights once (chapter 1), whatever kernel computes it. Several
# devices have several memories *and* several bandwidths.
#
# ## The idea: two ways to cut a matrix
#
# A linear layer computes $y = W x$, with one row of $W$ for each output. There are two ways to cut it in two:
#
# - **by output**: each part has half of the rows. It needs all of $x$, and has half of $y$;
# - **by input**: each part has half of the columns. It needs half of $x$, and has a *summand* of all of $y$.
#
# A layer of a transformer has its matrices in pairs. What lies between the two treats every feature (a number of the
# first matrix's output), or every head of attention, by itself. So cut the first of a pair by output and the second by
# input. What the first leaves on a process is what the second needs there, and nothing is sent in between. At the end
# of the pair the summands are added: one message.

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(9, 2.8))


def block(x, y, wide, high, colour, text):
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=colour, edgecolor="white", linewidth=2))
    ink = "white" if colour == BLUE else "black"
    axes.text(x + wide / 2, y + high / 2, text, ha="center", va="center", fontsize=8, color=ink)


def arrow(start, end):
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#5b6470"})


block(0, 1.4, 0.9, 1.2, GREY, "inputs")
for rank, colour in enumerate((BLUE, ORANGE)):
    middle = 3.0 - 2 * rank
    block(1.6, middle - 0.9, 1.3, 1.8, colour, f"rank {rank}\nfirst matrix:\nhalf of its\nrows")
    block(3.5, middle - 0.5, 1.1, 1.0, colour, "half of the\nfeatures")
    block(5.2, middle - 0.6, 1.9, 1.2, colour, f"rank {rank}\nsecond matrix: half\nof its columns")
    block(7.7, middle - 0.5, 1.1, 1.0, colour, "summand")
    for left, right in ((2.95, 3.45), (4.65, 5.15), (7.15, 7.65)):
        arrow((left, middle), (right, middle))
    arrow((0.95, 2.0), (1.55, middle))
    arrow((8.85, middle), (9.45, 2.0))
block(9.5, 1.4, 1.15, 1.2, GREY, "sum, on\nevery rank")
axes.set_xlim(-0.1, 10.8)
axes.set_ylim(0, 4)
axes.set_axis_off()
axes.set_title("A pair of matrices: the first cut by output, the second by input", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# A **rank** is one of the processes, numbered from 0; its part of the model is its **shard**. An **all-reduce** is a
# message in which every rank gives a tensor, and gets the sum of all. An **all-gather** gives every rank all parts
# side by side. Both are *collectives*: each rank must call them, in the same order.
#
# Try it on a feed-forward layer of `tiny`. Its first matrix is two: a *gate* and an *up* matrix, one above the other,
# and what lies between the pair is `silu(gate) * up`, feature by feature.

# %%
source = resolve("tiny")
model, config = source.load("float32", "cpu", 0), source.config
layer, inner = model.layers[0], config.intermediate_size
gate, up = layer.gate_up.weight[:inner], layer.gate_up.weight[inner:]
torch.manual_seed(0)
x = torch.randn(5, config.hidden_size)


def feed_forward(gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


with torch.inference_mode():
    whole = feed_forward(gate, up, layer.down.weight)
    summands = [
        feed_forward(gate.chunk(2)[rank], up.chunk(2)[rank], layer.down.weight.chunk(2, 1)[rank]) for rank in (0, 1)
    ]
    print(
        f"sum of two ranks against the whole: {(sum(summands) - whole).abs().max():.1e} at most, "
        f"of values up to {whole.abs().max():.1f}"
    )
assert torch.allclose(sum(summands), whole, atol=1e-4)

# %% [markdown]
# Note that gate and up were *each* cut in two. Cutting the stacked matrix through the middle would give rank 0 all of
# the gate and rank 1 all of up, and neither could compute a product.
#
# **A count by hand.** What would other cuts of a pair send? Let the pair have $h$ inputs and outputs and $f$ features
# in between, $T$ tokens and two ranks. If both are cut by output, the second matrix needs all features: an all-gather
# of them, to which each rank gives $Tf/2$ numbers, and another all-gather of the outputs, $Th/2$. If both are cut by
# input, the features are sums of two summands: an all-reduce of $Tf$ numbers before `silu`, and one of $Th$ at the
# end.

# %%
wide = preset("llama-2-7b")
h, f = wide.hidden_size, wide.intermediate_size
cuts = {"output, input": (1, h), "output, output": (2, f / 2 + h / 2), "input, input": (2, f + h)}
for name, (count, numbers) in cuts.items():
    print(f"{name:14} {count} message{'s' * (count > 1):1} {2 * numbers / 1024:5.1f} KiB from each rank for a token")
assert cuts["output, input"] == min(cuts.values())

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2))
axes.barh(list(cuts), [2 * numbers / 1024 for _, numbers in cuts.values()], color=[BLUE, GREY, GREY])
for row, (count, numbers) in enumerate(cuts.values()):
    axes.text(2 * numbers / 1024 + 0.3, row, f"in {count} message{'s' * (count > 1)}", va="center", fontsize=8)
axes.set_xlim(0, 36)
axes.set_ylim(2.5, -0.5)
axes.set_xlabel("KiB that each of two ranks gives for each token (float16)")
axes.set_title("A feed-forward layer of llama-2-7b, cut in three ways", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# The first cut, which is that of Megatron-LM (further reading), has one message where the others have two, and the
# fewest bytes.
#
# ## With two processes
#
# Now for real: `torch.distributed` runs this program twice, with the backend *gloo* for CPUs. Each process has its own
# half of the weights. The program also measures all-reduces of various sizes.

# %%
program = """
import json, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
up, down, x = torch.randn(512, 128), torch.randn(128, 512), torch.randn(5, 128)
my_up, my_down = up.chunk(size)[rank], down.chunk(size, 1)[rank]   # by output, by input
y = torch.relu(x @ my_up.T) @ my_down.T
dist.all_reduce(y)                                                 # the only message
whole = torch.relu(x @ up.T) @ down.T
error, largest = (y - whole).abs().max().item(), whole.abs().max().item()

took = {}
for count in [2**k for k in range(4, 21, 2)]:
    numbers, times = torch.zeros(count), []
    for _ in range(12):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(numbers)
        times.append(time.perf_counter() - begin)
    took[4 * count] = min(times)
if rank == 0:
    told = {"error": error, "largest": largest, "took": took, "mine": list(my_up.shape)}
    json.dump(told, open(sys.argv[1], "w"))
dist.destroy_process_group()
"""
with tempfile.TemporaryDirectory() as folder:
    script, result = Path(folder, "two.py"), Path(folder, "result.json")
    script.write_text(program)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([*launch, script, result], check=True, capture_output=True)
    measured = json.loads(result.read_text())
print(
    f"rank 0 had a part of shape {measured['mine']} of 512 x 128; "
    f"the sum differs by {measured['error']:.1e} at most, of values up to {measured['largest']:.0f}"
)
sizes, times_ms = [int(one) for one in measured["took"]], [1e3 * one for one in measured["took"].values()]
print(f"an all-reduce of {sizes[0]} bytes took {times_ms[0]:.3f} ms, one of {sizes[-1]:,} bytes {times_ms[-1]:.2f} ms")
assert measured["error"] < 1e-3
assert times_ms[-1] > times_ms[0]

# %% tags=["plot"]
figure, axes = plt.subplots()
axes.plot(sizes, times_ms, "o-", color=BLUE)
axes.set_xscale("log")
axes.set_ylim(0)
axes.set_xlabel("bytes of the message")
axes.set_ylabel("ms")
axes.set_title("One all-reduce between two processes on this machine", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Expect the shape that all connections have: flat at first, then rising. (A busy machine adds bumps.) A message costs a
# fixed time, its *latency*, and then a time for each byte. Below the bend it hardly matters how much a message holds;
# it matters *how many* there are.
#
# ## Which layer is cut how
#
# minifuse's `part_of` says which part of a matrix a rank has, as Megatron-LM does; each rank reads that part alone
# from the checkpoint. Look for the three cases: matrices by output (gate and up are each cut separately, and so are
# queries, keys and values), matrices by input (`RowParallel`, which calls the all-reduce), and the *head*, the last
# matrix, which gives the logits and is cut by vocabulary.

# %%
from minifuse.parallel.communicator import Communicator
from minifuse.parallel.config import shard_config
from minifuse.parallel.order import Ledger, Order
from minifuse.parallel.shard import GatheredHead, RowParallel, part_of

show_source(part_of, RowParallel.forward, GatheredHead.forward)

# %% [markdown] tags=["prediction"]
# Attention is cut by heads: a rank has some of the heads, the KV of these, and nothing of the others. No layer of the
# model and no kernel of chapter 11 knows about ranks: each sees a smaller model.
#
# **A count by hand.** What is cut is divided by the number of ranks $N$; embeddings and norms are whole on every
# rank. KV is divided, too: a rank has $1/N$ of the bytes of every token. The next cell adds up what a rank of
# `llama-2-70b` holds, with 16 long texts. Before you run it: how many A100s does it take, two, four or eight?

# %%
big = preset("llama-2-70b")
held = {}  # GB on each rank: weights that are cut, those that are copied, KV
for count in (1, 2, 4, 8):
    part = shard_config(big, count)
    cut = 2 * (part.num_matrix_weights - big.head_weights + big.head_weights / count) / 1e9
    copied = 2 * (big.num_parameters - big.num_matrix_weights) / 1e9
    kv = 16 * 4096 * part.kv_bytes_per_token("float16") / 1e9
    held[count] = (cut, copied, kv)
    total = sum(held[count])
    print(f"N = {count}: {part.num_heads} heads, {part.num_kv_heads} KV heads, {total:6.1f} GB on each rank")
assert sum(held[4]) > a100.memory / 1e9 > sum(held[8])

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.8))
looks = (
    (BLUE, "weights that are cut"),
    ("#d55e00", "embeddings and norms: whole"),
    (GREEN, "KV of 16 texts of 4,096 tokens"),
)
for row, sizes_gb in enumerate(held.values()):
    left = 0.0
    for size, (colour, label) in zip(sizes_gb, looks):
        axes.barh(row, size, left=left, color=colour, label=label if row == 0 else None)
        left += size
axes.axvline(a100.memory / 1e9, color="black", linestyle="--", linewidth=1)
axes.annotate("an A100", (a100.memory / 1e9, 3.3), xytext=(4, 0), textcoords="offset points", fontsize=8)
axes.set_yticks(range(4), ["1 rank", "2 ranks", "4 ranks", "8 ranks"])
axes.set_ylim(3.6, -0.6)
axes.set_xlabel("GB on each rank")
axes.set_title("llama-2-70b in float16", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, loc="lower right")
plt.show()

# %% [markdown]
# Four are not quite enough. Eight are, and leave room for more texts.
#
# ## Messages by hand
#
# A layer has two pairs: queries, keys, values and the output of attention; gate, up and down. Each pair ends with an
# all-reduce of the hidden states of *all tokens* of the iteration. The head needs one all-gather, of the logits of
# those tokens from which a next one is chosen. Let $L$ be the layers, $h$ the hidden size, $V$ the vocabulary and $b$
# the bytes of a number. An iteration that computes $T$ tokens and has $S$ sequences with a next token sends, from
# each rank,
#
# $$2L + 1 \text{ messages}, \qquad 2 L \, T h b + S \left\lceil V / N \right\rceil b \text{ bytes}.$$
#
# The number of messages depends on neither the tokens nor the ranks. (Where no sequence has a next token, the
# all-gather would be empty, and is left out.) The engine is on rank 0 alone: clock, policy, memory's books, and
# *sampling*, the choice of the next tokens. It sends each plan to the other ranks, as an `Order`, with the tokens that
# are new to them, which its `Ledger` knows. These orders are small, and are not counted here. A **communicator** is a
# group of ranks that call collectives in the same order. Look at `_counted`, which counts what they send.

# %%
show_source(Order, Ledger._update, Communicator.all_reduce, Communicator._counted)

# %% [markdown]
# ## A prediction
#
# On the command line, `--tensor-parallel` says how many ranks there are, and the last lines of a run say how many
# messages each sent:
#
#     minifuse run --technique orca --tensor-parallel 2 --clock real "sort 7 2 5 1"
#
# `play` does the same with `tensor_parallel=2`: it starts one more process, and serves on both. Time is real here, so
# the counts below are the same everywhere, and the times are not.

# %%
print(f"L = {config.num_layers}, h = {config.hidden_size}, V = {config.vocab_size}, b = 4")
four = asks("count from 3 to 9", "sort 7 2 5 1", "sort 3 1 2", "repeat duck 4 times")
print("tokens of the prompts:", [len(one.prompt) for one in four])

# %% [markdown] tags=["prediction"]
# All four arrive at once, and `orca` computes all prompts in the first iteration. Predict, for two ranks:
#
# 1. How many messages does a rank send in each iteration?
# 2. How many bytes in the first iteration? And in the second?
# 3. Does a run on two ranks take more iterations than one on a single rank? Are the answers the same?

# %%
on_two = {"tensor_parallel": 2, "clock": "real", "kv_memory": "1MiB"}
one = play("orca", four, label="orca, 1 rank", clock="real", kv_memory="1MiB")
two = play("orca", four, label="orca, 2 ranks", **on_two)
print(two.answers)
assert two.answers == one.answers and len(two.steps) == len(one.steps)
draw_lanes(one, two)


# %%
def by_hand(run, ranks, shape=config, element=4):
    """The messages and bytes of each iteration."""
    for iteration in run.history.iterations:
        tokens, chosen = iteration.event["computed"], len(iteration.event["tokens"])
        head = chosen * -(-shape.vocab_size // ranks) * element
        reduced = 2 * shape.num_layers * tokens * shape.hidden_size * element
        yield 2 * shape.num_layers + 1, reduced, head


counted = [(step.event["wall"]["messages"], step.event["wall"]["message_bytes"]) for step in two.history.iterations]
expected = [*by_hand(two, 2)]
print("messages and bytes of each iteration:", counted)
assert counted == [(calls, reduced + head) for calls, reduced, head in expected]

# %% tags=["plot"]
figure, axes = plt.subplots()
steps = range(len(counted))
reduced_kib, head_kib = ([one[part] / 1024 for one in expected] for part in (1, 2))
axes.bar(steps, reduced_kib, color=BLUE, label="by hand: all-reduces")
axes.bar(steps, head_kib, bottom=reduced_kib, color=ORANGE, label="by hand: all-gather")
axes.plot(steps, [size / 1024 for _, size in counted], "k_", markersize=26, label="in the run")
axes.set_xlabel("iteration")
axes.set_ylabel("KiB from each rank")
axes.set_title("orca on two ranks", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# The lanes are the same: no policy, memory or attention knows how many ranks there are. The answers are the same, too.
# Each iteration has $2 \cdot 3 + 1$ messages.

# %% [markdown]
# A sum over ranks adds in another order, so the logits need not agree in every *bit*. *Reference numerics*, which fix
# the order of all sums (chapter 11), are therefore refused. Here are two settings that are refused with a reason, and
# the same run in virtual time:

# %%
for options in (
    {"tensor_parallel": 3, "clock": "real"},
    {"tensor_parallel": 2, "clock": "real", "numerics": "reference"},
):
    try:
        play("orca", four, **options)
    except UsageError as error:
        print(error)
simulated = play("orca", four, tensor_parallel=2, clock="virtual", kv_memory="1MiB")
print("simulated ranks send:", simulated.metrics["messages"])
assert simulated.metrics["messages"] == two.metrics["messages"] and simulated.answers == two.answers

# %% [markdown]
# The first is a matter of heads: four of them cannot be shared out equally among three ranks.

# %% [markdown] tags=["prediction"]
# ## One knob to turn: what shares an iteration
#
# One of Flover's arguments for its single main stream is about messages (section V-D). Concurrent instances (chapter
# 5) need a communicator each, and each sends the messages of its own iterations. And a collective covers a whole region
# of buffers, with its holes; the memory shuffle of chapter 6 closes them. Six requests with answers of 3 to 24 tokens
# run on two ranks, in five ways. Before you look: some of the five compute nothing idle. Is their number of messages
# the same, or their number of bytes?

# %%
six = asks((4, 3), (4, 12), (4, 5), (4, 16), (4, 8), (4, 24))
runs = {name: play(name, six, **on_two) for name in ("orca", "fusion", "instances", "static")}
runs["no shuffle"] = play("fusion", six, label="no shuffle", memory__shuffle=False, **on_two)
token = 2 * config.num_layers * config.hidden_size * 4  # bytes that a token adds to the all-reduces
for name, run in runs.items():
    sent, idle = run.metrics["messages"], run.metrics["tokens"]["idle"]
    print(
        f"{name:10} {len(run.steps):3} iterations, {sent['count']:4} messages, "
        f"{idle:3} idle tokens, {sent['bytes']:8,} bytes"
    )
needed = runs["orca"].metrics["messages"]["bytes"]
for run in runs.values():
    assert run.metrics["messages"]["bytes"] == needed + run.metrics["tokens"]["idle"] * token
assert runs["static"].metrics["messages"]["count"] == runs["orca"].metrics["messages"]["count"]
assert runs["instances"].metrics["messages"]["count"] > 1.5 * runs["fusion"].metrics["messages"]["count"]
assert runs["no shuffle"].metrics["tokens"]["idle"] > 0 == runs["fusion"].metrics["tokens"]["idle"]

# %% tags=["plot"]
figure, charts = plt.subplots(1, 2, figsize=(8.6, 2.8))
for axes, key, scale, unit in ((charts[0], "count", 1, "messages"), (charts[1], "bytes", 1024, "KiB")):
    values = [run.metrics["messages"][key] / scale for run in runs.values()]
    axes.bar(range(len(runs)), values, color=[BLUE, GREEN, "#d55e00", ORANGE, "#cc79a7"])
    axes.set_xticks(range(len(runs)), runs, fontsize=8)
    axes.set_ylabel(f"{unit} from each rank")
charts[0].set_title("messages", loc="left", fontsize=10)
charts[1].set_title("bytes", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# The bytes are those of the tokens, whichever iteration computes them: `orca`, `fusion` and `instances` send equally
# many. Every idle token costs the same as a real one, $2Lhb$ bytes. What batching changes is the *number* of
# messages, since a message covers all requests of an iteration. `instances` sends a set of messages for each request
# and token. `fusion` has more iterations than `orca`, because it computes prompts apart (chapter 5). `static`
# needs as few messages as `orca`, and pays with bytes for its finished rows; without the shuffle `fusion` pays for
# the holes of its region.
#
# Flover measures what holes cost where messages are expensive: on two GPUs, the shuffle makes it 1.51 times as fast
# within a machine and 1.64 times between machines (section VI-E; `minifuse reproduce flover-fig10`).

# %% [markdown]
# ## See it move
#
# `fusion` on two ranks, without the shuffle (A) and with it (B). The page begins where the region of A has its first
# hole: its row is computed on both ranks, and is in every message, until the hole is gone. B stands where it has made
# as many tokens. Step on from there.

# %%
holes = runs["no shuffle"].history
first = next(i for i, column in enumerate(columns_of(holes)) if holes.iterations[column.iteration].event["idle"])
replay(runs["no shuffle"], runs["fusion"], address=f"i={first}&b=fusion&by=token", height=700)

# %% [markdown]
# ## Where this idea loses, measured
#
# The first loss is the run of the prediction. Compare the time of its decoding iterations on one rank and on two.

# %%
per_step = [sum(step.end_s - step.start_s for step in run.history.iterations[1:]) for run in (one, two)]
messages = two.metrics["messages"]["count"] // len(two.steps)
print(
    f"with {messages} messages, an iteration on two ranks takes {per_step[1] / per_step[0]:.1f} times as long "
    "as on one, on this machine"
)

# %% [markdown] tags=["prediction"]
# For a model as small as `tiny` the cut saves next to nothing, and each of the seven messages costs its latency. What
# about a large one? Take the two numbers of a connection, a latency $\alpha$ and a bandwidth $\beta$. All-reduces are
# often made in a *ring*: each rank sends to the next one only. In a ring of $N$ ranks, each sends $2(N-1)/N$ times the
# bytes that it gives to an all-reduce. We leave out the bytes of the all-gather, which are few, and take $\alpha$ as
# the same for any $N$. Then an iteration takes about
#
# $$\max\left(\frac{\text{bytes of weights}}{N \cdot \text{memory bandwidth}}, \frac{\text{operations}}{N \cdot
# \text{rate}}\right) + (2L+1)\,\alpha + \frac{2(N-1)}{N} \cdot \frac{2L\,T h b}{\beta}.$$
#
# The picture assumes two connections: a fast one of 10 µs and 300 GB/s, and a slow one of 30 µs and 25 GB/s. These
# four are round numbers, not measurements. Before you look: which of the two numbers decides for one token, and which
# for a prompt of 2,048?

# %%
seven = preset("llama-2-7b")
connections = {"fast: 10 µs, 300 GB/s": (10e-6, 300e9, BLUE), "slow: 30 µs, 25 GB/s": (30e-6, 25e9, ORANGE)}


def parts_of(tokens, ranks, alpha, beta):
    """Seconds of an iteration on A100s: for the layers, and for the messages."""
    reading = 2 * seven.num_matrix_weights / a100.bandwidth
    computing = 2 * seven.num_matrix_weights * tokens / a100.flops
    size = 2 * seven.num_layers * tokens * seven.hidden_size * 2
    sending = (2 * seven.num_layers + 1) * alpha + 2 * (ranks - 1) / ranks * size / beta
    return max(reading, computing) / ranks, sending if ranks > 1 else 0.0


ranks = [1, 2, 4, 8, 16, 32]
for name, (alpha, beta, _) in connections.items():
    for tokens in (1, 2048):
        parts = {n: parts_of(tokens, n, alpha, beta) for n in ranks}
        longer = next((n for n, (layers, sending) in parts.items() if sending > layers), "no")
        print(f"{name}, {tokens:4} tokens: the messages take longer than the layers from {longer} ranks on")
slow = connections["slow: 30 µs, 25 GB/s"][:2]
slow_1, slow_2048 = ([sum(parts_of(tokens, n, *slow)) for n in ranks] for tokens in (1, 2048))
assert slow_1[3] > slow_1[0] / 4, "eight ranks on the slow connection are less than four times as fast as one"
assert min(slow_2048) > 0.9 * slow_2048[0], "next to nothing is gained for a prompt"

# %% tags=["plot"]
figure, charts = plt.subplots(1, 2, figsize=(8.6, 3))
for axes, tokens, title in ((charts[0], 1, "1 token"), (charts[1], 2048, "a prompt of 2,048 tokens")):
    layers = [parts_of(tokens, n, 0, 1e15)[0] * 1e3 for n in ranks]
    axes.plot(ranks, layers, ":", color="black", label="without messages")
    for name, (alpha, beta, colour) in connections.items():
        axes.plot(ranks, [sum(parts_of(tokens, n, alpha, beta)) * 1e3 for n in ranks], "o-", color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, ranks)
    axes.set_xlabel("ranks")
    axes.set_ylabel("ms of an iteration")
    axes.set_title(title, loc="left", fontsize=10)
charts[0].legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# For one token the latency decides: the dotted line falls with every rank, and the others approach the time of $2L + 1$
# latencies. For a prompt the bytes decide: on the slow connection, the messages cost as much as the computing saves.
# That is why tensor parallelism is used within a machine, over its fastest connection. Flover, too, reports that at
# eight GPUs the overhead of synchronization shows (section VI-E).
#
# ## Exercises
#
# 1. `llama-2-7b` in float16 runs on 2 ranks with 32 running requests, each with one token. How many messages and
#    bytes does a rank send for an iteration? The vocabulary has 32,000 tokens. *Hint: $L$ = 32, $h$ = 4096.*
#    <details><summary>Answer</summary>
#    65 messages. 2·32·32·4096·2 = 16,777,216 bytes of all-reduces, and 32·16,000·2 = 1,024,000 of the all-gather.
#    </details>
# 2. Two devices could also each serve half of the requests with a whole copy of the model (*data parallel*). Which
#    messages are needed then, and which of the two failures at the beginning of this chapter is left? *Hint: what
#    does each device read for a token?*
#    <details><summary>Answer</summary>
#    No messages at all. Both failures are left: the model must fit on one device, and a token waits until one device
#    has read all weights. What doubles is the number of requests served.
#    </details>
# 3. Into how many ranks can `llama-3-8b` be divided? *Hint: `shard_config(preset("llama-3-8b"), 3)` tells you.*
#    <details><summary>Answer</summary>
#    1, 2, 4 or 8: it has 8 KV heads, and a rank must have at least one whole KV head.
#    </details>
# 4. Serve two requests with the model `random:small` on 4 ranks: `play("orca", asks((4, 3), (4, 12),
#    model="random:small"), model="random:small", tensor_parallel=4, clock="real")`. Check the number of messages of an
#    iteration against the formula. *Hint: `step.event["wall"]["messages"]`, as above.*
#    <details><summary>Answer</summary>
#    The model has 4 layers: 9 messages in each of 12 iterations, on 4 ranks as on 2.
#    </details>
# 5. The *sampler* chooses the next token from the logits. On which ranks could it run, and what could go wrong if each
#    rank sampled for itself? *Hint: what does every rank have after the all-gather?*
#    <details><summary>Answer</summary>
#    Every rank has all logits then, and could sample. But all must choose the same token. If they draw at random, or
#    their logits differ in a bit, one rank may choose another token, and from then on it computes another text: the
#    sums are of different texts. In minifuse rank 0 samples and sends the tokens with the next plan.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Flover, sections V-D and VI-E: one communicator for the main stream, messages as large as the region of buffers.
#   It counts "two Allreduce operations and one Allgather operation" an iteration of GPT-J. We count them for every
#   layer: two each, and one gather.
# - The thesis of BatchMaker and Pensieve runs its larger models on 4 GPUs, cut as in Megatron-LM (3.6), and
#   notes that all GPUs compute the same plan, so that cellular batching needs no change (4.1.1).
# - In Megatron-LM the embedding is cut as well. Ours is whole on every rank: it costs memory, and saves a message.
# - Our ranks follow: they have no policy and no clock. All decisions are made once, on rank 0.
#
# ## Further reading
#
# - Shoeybi et al., *Megatron-LM* (2019): the cut by output, then by input.
# - Pope et al., *Efficiently Scaling Transformer Inference* (2022): which cuts pay for which batch, and why.
# - Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication Operations in MPICH* (2005): what a ring
#   sends.
#
# **Next:** the times of the last picture were computed, not measured; chapter 13 asks what computed times are worth.
