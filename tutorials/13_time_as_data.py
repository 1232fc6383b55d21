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
# # 13. Time as data
#
# Nearly every chapter so far compared techniques in *virtual time*, and took it on trust. This chapter opens it up. The
# engine says what an iteration will do before it runs, so the iteration's duration can be computed from that and a few
# figures of a machine. You compute it by hand, let a simulated A100 serve a model of seven billion parameters on your
# laptop, measure the figures of your own machine, and then look for what is wrong with the result.
#
# **You will be able to**
#
# - compute the seconds of any iteration from its plan and three figures of a machine, and check them against a run;
# - say for each iteration of a run what bounds it, and what a faster memory or a faster processor would change;
# - measure the three figures on your machine, and state the error of what they predict;
# - read a profile of recomputation costs and compute the cost of a chunk from it;
# - name five ways in which simulated time differs from real time, and say of a comparison whether they matter.

# %%
import time
from collections import Counter
from dataclasses import replace
from statistics import median

import matplotlib.pyplot as plt

from minifuse.core.clock import VirtualClock
from minifuse.core.errors import UsageError
from minifuse.core.plan import Extent, Plan, Work
from minifuse.execute.virtual import VirtualExecutor, placeholder_tokens
from minifuse.memory.tiered.profile import Profile
from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.show.notebook import asks, draw_lanes, play, replay, show_source
from minifuse.simulate.chunk_cost import contexts_of, measure
from minifuse.simulate.cost import HARDWARE, Hardware, Roofline, hardware
from minifuse.trace.log import decisions

plt.rcParams.update({"figure.figsize": (7, 2.6), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"

# %% [markdown]
# ## The failure of the clock on the wall
#
# Six requests arrive two milliseconds apart and are served by `orca`. First five times with the clock of your machine,
# then twice in virtual time.

# %%
few = asks(*[(8 + 3 * i, 24) for i in range(6)], every=0.002)
real = [play("orca", few, clock="real") for _ in range(5)]
virtual = [play("orca", few) for _ in range(2)]
for name, runs in (("real", real), ("virtual", virtual)):
    different = Counter(decisions(run.events) for run in runs)
    ends = ", ".join(f"{run.history.last_s * 1e3:.1f}" for run in runs)
    print(f"{name:8} {len(runs)} runs decided in {len(different)} different ways, and ended after {ends} ms")
assert len({decisions(run.events) for run in virtual}) == 1
assert virtual[0].history.last_s == virtual[1].history.last_s
assert len({str(run.answers) for run in [*real, *virtual]}) == 1, "the answers are the same in all of them"

# %% tags=["plot"]
figure, axes = plt.subplots()
for row, run in enumerate([*real, *virtual]):
    bars = [(one.start_s * 1e3, (one.end_s - one.start_s) * 1e3) for one in run.history.iterations if one.work]
    axes.broken_barh(
        bars, (row - 0.35, 0.7), facecolor=BLUE if run in real else GREEN, edgecolor="white", linewidth=0.2
    )
axes.set_yticks(range(7), [*[f"real, run {i + 1}" for i in range(5)], "virtual, run 1", "virtual, run 2"])
axes.invert_yaxis()
axes.set_xlabel("ms since the run began")
axes.set_title("Iterations of seven runs of the same requests", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# The answers never differ. The durations do, from run to run, and usually the decisions, too: if an iteration takes a
# little longer, one more request has arrived when it ends, and the next batch is a different one. A difference of a few
# percent between two techniques drowns in this, and on another machine all numbers are new.
#
# There is a second failure. The machines of the papers are not here, and their models are too large for a laptop:

# %%
MODEL = "random:llama-2-7b"
llama = preset("llama-2-7b")
print(f"the weights of llama-2-7b take {2 * llama.num_parameters / 1e9:.1f} GB in float16")
for name in ("v100", "a100-40g", "h200"):
    one = hardware(name)
    print(f"{name:8} {one.bandwidth / 1e9:5,.0f} GB/s, {one.flops / 1e12:3.0f} T operations/s in float16")

# %% [markdown]
# ## The idea: a plan says what it will cost
#
# Before each iteration the engine makes a *plan* (chapter 5): the list of its work, which is tokens `[start, stop)` of
# sequences (chapter 1), with where their KV lies and what is copied. The plan is complete before anything is computed.
# So a function can take it in place of a model:
#
# $$\text{seconds} = \text{cost}(\text{plan}).$$
#
# This function is the *cost model*. With it, the clock need not tick. Several plans may run at once (chapter 5); the
# engine sets the clock forward to the moment at which the first of them ends, and goes on from there. That is a
# *discrete-event simulation*. The batching policy and the memory are the same objects as in a real run and cannot tell
# the difference: what is simulated is time, not the decisions.
#
# The cost model here is the *roofline* of chapter 1. Let an iteration compute $n$ tokens of $s$ sequences, whose
# texts have $c$ tokens in all at its end. Let the model have $W$ weights, $H$ of them in the head (the last matrix),
# and $L$ layers, whose query heads have $d$ numbers in all. A *pair* is a query with a key that it sees. For weights
# and KV of two bytes a number:
#
# $$\text{bytes} = 2W + c \cdot \text{KV of a token}, \qquad
# \text{operations} = 2 \left( (W - H) \cdot n + H \cdot s \right) + 4 L \cdot d \cdot \text{pairs},$$
#
# $$\text{seconds} = \max\left( \frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{operations}}{\text{rate}} \right) +
# \text{overhead}.$$
#
# The head acts on one token of each sequence, the one from which the next is chosen. And a pair costs $4d$
# operations in each layer: a multiplication and an addition for each number of the key, and the same for the value. A
# prompt of $n$ tokens has $n(n+1)/2$ pairs, a single token as many as its text has tokens. Three figures describe the
# machine: bandwidth, *rate* (operations per second) and *overhead* (what every iteration takes besides). The first two
# are in its data sheet.
#
# **A count by hand.** A prompt of 500 tokens for `llama-2-7b` on an A100, and then one token. The matrices have
# $6.6 \cdot 10^9$ weights, and a token's KV takes 512 KiB.
#
# | | bytes | at 1,555 GB/s | operations | at 312 T/s | seconds |
# |---|---|---|---|---|---|
# | prompt of 500 | 13.2 + 0.3 GB | 8.7 ms | 6.5 T | 21.0 ms | 21.0 ms, arithmetic |
# | one token | 13.2 + 0.3 GB | 8.7 ms | 0.013 T | 0.04 ms | 8.7 ms, memory |
#
# To both, 50 µs of overhead are added. The run must say the same.

# %%
a100 = hardware("a100-40g")


def bound(work, machine, shape=llama, element=2):
    """Seconds of reading, and of arithmetic, of an iteration with this work: spans (start, stop), one a sequence."""
    context = sum(stop for _, stop in work)
    tokens = sum(stop - start for start, stop in work)
    pairs = sum((stop - start) * (start + stop + 1) / 2 for start, stop in work)
    moved = element * (shape.num_matrix_weights + context * shape.kv_elements_per_token)
    inner = shape.num_matrix_weights - shape.head_weights
    done = 2 * (inner * tokens + shape.head_weights * len(work)) + 4 * shape.num_layers * shape.q_size * pairs
    return moved / machine.bandwidth, done / machine.rate(element)


def spans(iteration):
    return [(start, stop) for _, start, stop, *_ in iteration.work]


llm = {"model": MODEL, "dtype": "float16", "kv_memory": "2GiB"}
single = play("orca", asks((500, 2), model=MODEL), hardware="a100-40g", **llm)
for iteration in single.history.iterations:
    reading, computing = bound(spans(iteration), a100)
    took = iteration.end_s - iteration.start_s
    assert abs(max(reading, computing) + a100.overhead_s - took) < 1e-12
    print(
        f"{spans(iteration)}: reading {reading * 1e3:5.2f} ms, arithmetic {computing * 1e3:5.2f} ms; "
        f"in the run {took * 1e3:5.2f} ms"
    )

# %% [markdown] tags=["prediction"]
# How does this fit on a laptop? No weights are made. In virtual time the model's *shape* is enough, and every token of
# an answer is a placeholder, which never ends an answer. So the length of each answer has to be given, as
# `asks((500, 2))` does. On the command line the same machine is `--clock virtual --hardware a100-40g`, with `--model
# random:llama-2-7b --dtype float16`.
#
# ## A prediction: an A100 on a laptop
#
# Six requests with prompts of 60 to 900 tokens arrive a twentieth of a second apart. Predict before the run:
#
# 1. Which iterations are bound by arithmetic, and which by reading?
# 2. Four requests decode together. How much longer does the iteration take than with one?
# 3. An H200 has about three times the bandwidth of the A100 and three times its rate. Will the time between two tokens
#    be a third? And the end of the whole run?
# 4. How long will your machine need to simulate this run, which takes the A100 nearly a second?

# %%
six = asks((500, 40), (120, 60), (900, 30), (60, 80), (300, 50), (700, 20), every=0.05, model=MODEL)
begin = time.perf_counter()
on_a100 = play("orca", six, label="A100", hardware="a100-40g", **llm)
took = time.perf_counter() - begin
on_h200 = play("orca", six, label="H200", hardware="h200", **llm)
print(on_a100, on_h200, sep="\n")
print(f"simulated {on_a100.history.last_s:.2f} s of the A100 in {took:.2f} s")
draw_lanes(on_a100, on_h200, by="time")

# %%
dots = [(len(one.work), bound(spans(one), a100)) for one in on_a100.history.iterations if one.work]
assert {computing > reading for _, (reading, computing) in dots} == {True, False}
alone = median(reading for count, (reading, computing) in dots if count == 1 and computing < reading)
four = median(reading for count, (reading, computing) in dots if count == 4 and computing < reading)
tpot = [run.metrics["tpot_s"]["mean"] * 1e3 for run in (on_a100, on_h200)]
print(f"reading takes {alone * 1e3:.2f} ms for one request, and {four * 1e3:.2f} ms for four")
print(f"mean time for each output token: {tpot[0]:.1f} ms and {tpot[1]:.1f} ms, {tpot[0] / tpot[1]:.1f} times as fast")
print(f"the runs end {on_a100.history.last_s / on_h200.history.last_s:.1f} times as fast")
assert four < 1.2 * alone
for run in (on_a100, on_h200):
    each = sum(len(one.work) for one in run.history.iterations) / len(run.steps)
    print(f"{run.name}: {len(run.steps)} iterations, of {each:.1f} requests on average")
assert tpot[0] / tpot[1] > 2.5
assert on_a100.history.last_s / on_h200.history.last_s < tpot[0] / tpot[1]

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8, 2.8))
for iteration in on_a100.history.iterations:
    if iteration.work:
        reading, computing = bound(spans(iteration), a100)
        axes.plot(iteration.start_s * 1e3, reading * 1e3, "o", color=BLUE, markersize=4)
        axes.plot(iteration.start_s * 1e3, computing * 1e3, "s", color=ORANGE, markersize=4)
axes.plot([], [], "o", color=BLUE, label="reading weights and KV")
axes.plot([], [], "s", color=ORANGE, label="arithmetic")
axes.set_yscale("log")
axes.set_xlabel("ms of virtual time at which the iteration begins")
axes.set_ylabel("ms (logarithmic)")
axes.legend(frameon=False, fontsize=8, loc="center right")
axes.set_title("What each iteration would take if it only read, or only computed", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# An iteration takes as long as the higher of its two points says. A square above the dots is an iteration with a long
# prompt. In all others the dot is higher, and the dots are nearly level: it is mostly weights that are read. Their
# squares rise with each request that decodes. That costs nothing.
#
# The whole run gains less than the tokens do, because the requests arrive no faster. The one that ends last arrives at
# 150 ms on both machines. And what the H200 computes early it computes for fewer requests at once, so it needs more
# iterations.

# %% [markdown]
# Step through both runs at the same moments, and compare how many requests are in an iteration.

# %%
replay(on_a100, on_h200, address="i=8&b=H200&by=time", height=620)

# %% [markdown]
# Now the same requests on five of the machines that minifuse knows by name. *TTFT* is the time to the first token
# (chapter 3). A machine's memory must hold the weights and the KV, or the run is refused, as one is below.

# %%
ttft, tpot, machines = [], [], ["v100", "rtx-a6000", "rtx-4090", "a100-40g", "h200"]
for name in machines:
    metrics = play("orca", six, hardware=name, **llm).metrics
    ttft.append(metrics["ttft_s"]["mean"] * 1e3)
    tpot.append(metrics["tpot_s"]["mean"] * 1e3)
try:
    play("orca", six, hardware="v100", **{**llm, "kv_memory": "10GiB"})
except UsageError as error:
    print(error)

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
for axes, values, label in ((left, ttft, "mean TTFT, ms"), (right, tpot, "mean time for each output token, ms")):
    axes.barh(machines, values, color=BLUE if axes is left else GREEN)
    axes.set_xlabel(label)
    axes.invert_yaxis()
left.set_title("llama-2-7b, six requests", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# Look at the V100 and the RTX A6000, which swap places. The V100 has the faster memory, the A6000 the higher rate.
# TTFT depends on arithmetic, since prompts are computed; the time for each output token depends on bandwidth.
#
# ## The source that matters
#
# First the machine: a few numbers. Then the cost model. In `__call__` look at three cases: a rectangle of padded rows
# and a region of buffers are read and attended *whole* (that is how idle computation costs time in all chapters
# before), everything else by its own length. `_bound` is the formula above.

# %%
show_source(Hardware, Roofline.__call__, Roofline._bound)

# %% [markdown]
# The executor is what replaces the machine. `start` computes when the plan will end, `wait` sets the clock to the next
# end. `_run` gives the tokens; for `tiny` it really runs the model, and only the time is simulated.

# %%
show_source(VirtualClock, placeholder_tokens, VirtualExecutor.start, VirtualExecutor.wait)

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the machine itself
#
# A machine is a value, so it can be one that does not exist. The next cell makes the A100's bandwidth or its rate two,
# four, ... times as large, or its overhead a half, a quarter, ... of what it was, and serves eight requests that are
# all there at the beginning. Before you look: which of the three is worth most? And what changes more: a rate that is
# four times as good, or one that is a quarter?

# %%
burst = asks(*[(100 + 100 * i, 40) for i in range(8)], model=MODEL)
factors = [0.25, 0.5, 1, 2, 4, 8]
curves = {"bandwidth": [], "rate": [], "overhead (a part of it)": []}
for factor in factors:
    one_better = [
        replace(a100, bandwidth=factor * a100.bandwidth),
        replace(a100, flops=factor * a100.flops),
        replace(a100, overhead_s=a100.overhead_s / factor),
    ]
    for curve, machine in zip(curves.values(), one_better):
        curve.append(play("orca", burst, hardware=machine, **llm).history.last_s)
assert curves["bandwidth"][-1] < curves["rate"][-1] < curves["overhead (a part of it)"][-1]
for name in ("bandwidth", "rate"):
    quarter, as_it_is, four_times = (curves[name][factors.index(factor)] for factor in (0.25, 1, 4))
    slower, faster = quarter / as_it_is, as_it_is / four_times
    print(f"{name}: a quarter makes the run {slower:.1f} times as long, four times as much {faster:.1f} times as fast")
    assert slower > faster
for name, shape in (("llama-2-7b", llama), ("tiny", resolve("tiny").config)):
    share = a100.overhead_s / (max(bound([(100, 101)], a100, shape)) + a100.overhead_s)
    print(f"{name}: {share:.0%} of an iteration with one token is overhead")

# %% tags=["plot"]
figure, axes = plt.subplots()
for (name, curve), colour, mark in zip(curves.items(), (BLUE, ORANGE, GREEN), "os^"):
    axes.plot(factors, [curve[2] / one for one in curve], mark + "-", color=colour, label=name)
axes.plot(factors, factors, ":", color=GREY, label="as if it bounded everything")
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_ylim(0.2, 8)
axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
axes.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
axes.set_xlabel("one figure of the A100 is so many times as good")
axes.set_ylabel("run is so many\ntimes as fast")
axes.legend(frameon=False, fontsize=8, title="figure", title_fontsize=8)
axes.set_title("Eight requests of llama-2-7b", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Bandwidth is worth most, until the prompts' arithmetic is all that is left. A figure helps only those iterations that
# it bounds, so each curve flattens. To the left of 1, a figure that gets worse bounds more and more iterations, so a
# run loses more there than it gains on the right. Overhead hardly counts for a model of this size; for `tiny` it is
# nearly everything.
#
# ## Calibration: the three figures of your machine
#
# `--hardware cpu` has round figures for a machine that is not yours. Yours can be measured with three short real runs:
#
# 1. *Overhead*: a single token of `tiny` is next to no work, so its iteration is overhead.
# 2. *Bandwidth*: an iteration with one token of a larger model reads all weights. Take the overhead off, and divide.
# 3. *Rate*: a prompt of 1,024 tokens is arithmetic. Take the overhead off, and divide.
#
# The larger model is `random:small`, with random weights.

# %%
SMALL = "random:small"
small = resolve(SMALL)
print(f"{SMALL}: {small.config.num_layers} layers, {4 * small.config.num_parameters / 1e6:.0f} MB in float32")
in_small = {"model": SMALL, "kv_memory": "64MiB"}
real_small = {**in_small, "clock": "real"}


def durations(run):
    return [(spans(one), one.end_s - one.start_s) for one in run.history.iterations if one.work]


overhead = median(took for _, took in durations(play("serial", asks((5, 40)), clock="real")))
probe = durations(play("serial", asks(*[(1024, 2)] * 5, (256, 40), model=SMALL), **real_small))
one_token = median(took for [(start, stop)], took in probe if stop - start == 1 and start < 1024)
prompt = median(took for [(start, stop)], took in probe if stop - start == 1024)
moved, done = (
    bound([(256, 257)], Hardware(1, 1, 0), small.config, 4)[0],
    bound([(0, 1024)], Hardware(1, 1, 0), small.config, 4)[1],
)
mine = Hardware(moved / max(one_token - overhead, overhead / 10), done / (prompt - overhead), overhead)
for name, machine in (("assumed, cpu", HARDWARE["cpu"]), ("this machine", mine)):
    print(
        f"{name:13} {machine.bandwidth / 1e9:6.1f} GB/s  {machine.flops / 1e9:6.0f} G operations/s  "
        f"overhead {machine.overhead_s * 1e3:.2f} ms"
    )

# %% [markdown]
# (Where next to nothing is left when the overhead is taken off, the cell counts a tenth of the overhead.)
#
# Now the test, with requests that were not measured. All are there at the beginning, so that no decision depends on the
# clock. Then iteration $k$ of the real run and of both simulated runs is the same plan. The simulated ones differ in
# the machine: `cpu` as minifuse assumes it, and yours.

# %%
mix = asks((64, 24), (16, 32), (200, 16), (32, 24), (100, 16), (300, 20), (24, 40), (80, 30), model=SMALL)
measured = sorted((play("orca", mix, **real_small) for _ in range(3)), key=lambda run: run.history.last_s)[1]
assumed = play("orca", mix, **in_small, hardware="cpu")
calibrated = play("orca", mix, **in_small, hardware=mine)
for run in (assumed, calibrated):
    assert [work for work, _ in durations(run)] == [work for work, _ in durations(measured)]
whole = measured.history.last_s
for label, run in (("assumed", assumed), ("calibrated", calibrated)):
    end = run.history.last_s
    print(f"{label:10} takes {end * 1e3:6.1f} ms, measured {whole * 1e3:.1f} ms: {whole / end:.2f} times as long")

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(5, 3.6))
real_ms = [took * 1e3 for _, took in durations(measured)]
for label, run, colour, mark in (("cpu, assumed", assumed, GREY, "s"), ("calibrated", calibrated, BLUE, "o")):
    axes.loglog([took * 1e3 for _, took in durations(run)], real_ms, mark, color=colour, label=label, markersize=4)
ends = [0.4, 2 * max(real_ms)]
axes.loglog(ends, ends, "-", color="black", linewidth=0.8)
axes.set_xlabel("ms of an iteration, simulated")
axes.set_ylabel("ms of an iteration, measured")
axes.legend(frameon=False, fontsize=8)
axes.set_title("random:small under orca; on the line both agree", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# On the line a simulated iteration takes as long as a real one. Measured figures are no guarantee of that: each was
# measured at one point. Most iterations here have several single tokens, which the calibration has never seen
# together, and the first has eight prompts. A difference between two simulated runs that is smaller than the distance
# of your points from the line says nothing about your machine.
#
# ### What recomputing costs
#
# One decision needs measured time even in a real run: which KV to drop when it can be computed again (chapter 8).
# Pensieve (3.4.3.1) has a *profile*: the seconds of attention of a chunk of 32 tokens, for several contexts $l$ up to
# the chunk's end, and a constant $c$ for everything else in the layers:
#
# $$\text{Cost}(l) = \text{Cost}_\text{attention}(l) + c.$$
#
# Attention is measured at powers of two and interpolated between them, as in the next cell. The command `minifuse
# calibrate` measures every operator of a model and the host beside them, and keeps the times in the cache folder, where
# `pensieve` finds them in its next real run. `--clock virtual --hardware FILE` adds them up for each simulated
# iteration, and `minifuse reproduce simulator-error` tells how far that is from real runs.

# %%
weights = small.load("float32", "cpu", 0)
contexts = contexts_of(32, small.config.max_context, SMALL)
found = measure(weights, contexts, 32, rounds=9)
profile = found.profile
print("everything else", f"{profile.other * 1e3:.2f} ms")
for context, seconds in zip(profile.contexts, profile.attention):
    print(f"context {context:5}: attention {seconds * 1e3:6.2f} ms")

# %% [markdown]
# **A count by hand.** In a profile with $c = 2$, and attention 1, 2 and 4 at contexts of 32, 64 and 128, a chunk that
# ends at token 96 lies halfway between the last two: attention costs 3, the chunk 5. Beyond the last context the line
# goes on: at 256 attention costs 8, the chunk 10.

# %%
by_hand = Profile(2.0, (32, 64, 128), (1.0, 2.0, 4.0))
assert [by_hand.cost(context) for context in (96, 256)] == [5.0, 10.0]
expected = Roofline(small.config, "float32", mine).recomputation(32, contexts)
long = [1 << n for n in range(5, 15)]
opt = Roofline(preset("opt-13b"), "float16", hardware("a100-80g")).recomputation(32, long)
at_4096 = opt.attention[long.index(4096)] / opt.other
print(f"opt-13b, by the roofline: attention to 4,096 tokens takes {at_4096:.2f} of the time of everything else")

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
left.plot(contexts, [one / profile.other for one in profile.attention], "o-", color=BLUE, label="measured")
left.plot(contexts, [one / expected.other for one in expected.attention], "--", color=GREY, label="calibrated roofline")
right.plot(long, [one / opt.other for one in opt.attention], "s-", color=ORANGE)
for axes, title in ((left, "random:small on this machine"), (right, "opt-13b on an A100, roofline")):
    axes.set_xlabel("context of the chunk, tokens")
    axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=10)
right.set_xticks([0, 4096, 8192, 12288, 16384])
left.set_ylabel("attention / everything else")
left.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# The thesis shows such a curve in its Figure 3.4, and concludes that leading tokens are cheaper to compute again than
# trailing ones. The curve is a straight line, which a busy machine bends. The slope depends on kernel and machine. On
# the left, the dashed line is the roofline with your machine's own figures: it reads KV as fast as weights, and a
# kernel that gathers scattered blocks need not reach that. On the right, the roofline finds attention to 4,096 tokens
# cheap (the cell says how cheap); chapter 8 assumed that it costs as much as everything else. The thesis has no number.
#
# ## Where this idea loses, measured
#
# **1. One bound for a whole iteration.** The roofline adds up all bytes, adds up all operations, and takes the longer
# of the two times. But a machine runs the products of a layer, then attention, then the next products. Let the products
# take $a$ seconds of arithmetic and $x$ of reading, and attention $b$ and $y$. The roofline says $\max(a + b, x + y)$.
# A machine that does one after the other takes the sum of two bounds:
#
# $$\max(a + b, \; x + y) \le \max(a, x) + \max(b, y) \le 2 \max(a + b, \; x + y).$$
#
# So a simulated iteration can be too fast, by a factor of two at most: with a prompt beside many long contexts,
# products are bound by arithmetic and attention by memory.


# %%
def parts(prompt, others, context, machine):
    """Seconds of an iteration by one bound, and by a bound for the products and another for attention."""
    work = [(0, prompt)] + [(context - 1, context)] * others
    reading, computing = bound(work, machine)
    weights_s = 2 * llama.num_matrix_weights / machine.bandwidth
    pairs = prompt * (prompt + 1) / 2 + others * context
    attention_s = 4 * llama.num_layers * llama.q_size * pairs / machine.flops
    apart = max(weights_s, computing - attention_s) + max(reading - weights_s, attention_s)
    return max(reading, computing), apart


h200 = hardware("h200")
prompts = [1 << n for n in range(4, 13)]
once, apart = zip(*[parts(prompt, 64, 2000, h200) for prompt in prompts])
plan = Plan(0, 0, (Work("p", 0, 512), *(Work(f"r{i}", 1999, 2000) for i in range(64))), (Extent(0, 2000),) * 65)
assert abs(Roofline(llama, "float16", h200)(plan) - h200.overhead_s - once[prompts.index(512)]) < 1e-12
assert all(one <= two <= 2 * one for one, two in zip(once, apart))
print(f"at worst {max(two / one for one, two in zip(once, apart)):.2f} times as long")

# %% tags=["plot"]
figure, axes = plt.subplots()
axes.plot(prompts, [one * 1e3 for one in once], "o-", color=BLUE, label="one bound for the iteration")
axes.plot(prompts, [one * 1e3 for one in apart], "s-", color=ORANGE, label="products, then attention")
axes.set_xscale("log", base=2)
axes.set_xlabel("tokens of a prompt beside 64 requests with contexts of 2,000")
axes.set_ylabel("ms of the iteration")
axes.set_ylim(0)
axes.legend(frameon=False, fontsize=8)
axes.set_title("llama-2-7b on an H200", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# This flatters every technique that puts prompts and single tokens into one iteration.
#
# **2. The kernel is not in the plan.** A block table and one run of slots cost the same in the roofline, if they hold
# equally many tokens. The code that reads them differs. The next cell serves the requests of the test above under six
# techniques, in real time and simulated with the calibrated figures.

# %%
names = ["orca", "pensieve", "vllm", "static", "baton", "fluid"]
rounds = [{name: play(name, mix, **real_small).history.last_s for name in names} for _ in range(3)]
wall = {name: median(one[name] for one in rounds) for name in names}
in_model = {name: play(name, mix, **in_small, hardware=mine) for name in names}
model = {name: run.history.last_s for name, run in in_model.items()}
for times, label in ((model, "simulated"), (wall, "measured")):
    print(f"{label:10} from the shortest run:", ", ".join(sorted(names, key=times.get)))
idle = {name: run.metrics["tokens"]["idle"] for name, run in in_model.items()}
print("tokens computed idle", idle)
assert abs(model["orca"] / model["pensieve"] - 1) < 0.01
assert abs(model["orca"] / model["vllm"] - 1) < 0.01
assert model["static"] > 1.2 * model["orca"]
assert idle["static"] > 0 == idle["orca"]

# %% tags=["plot"]
figure, axes = plt.subplots()
for offset, times, colour, label in ((-0.2, model, GREEN, "simulated"), (0.2, wall, BLUE, "measured")):
    axes.bar(
        [i + offset for i in range(6)], [times[name] / times["orca"] for name in names], 0.38, color=colour, label=label
    )
axes.axhline(1, color=GREY, linewidth=1)
axes.set_xticks(range(6), names)
axes.set_ylabel("time / time of orca")
axes.legend(frameon=False, fontsize=8)
axes.set_title("The same requests under six techniques", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# In virtual time `orca`, `pensieve` and `vllm` are equal, because their iterations hold the same work, and `fluid` is
# near them. In real time they need not be, for each attends in code of its own. Where both orders agree, it comes from
# *how much* is computed: `static` and `baton` compute many idle tokens for this mix. A difference in counts survives
# simulation, a difference in code does not.
#
# **3. The host is free.** At each iteration the engine decides what to run, in Python. In a real run that time is part
# of the iteration; in virtual time it is not there, unless `minifuse calibrate` measured it. How long is it? A
# simulated run without weights does little else. The next cell gives the requests of the knob longer answers, and looks
# at how much longer the simulation takes.


# %%
def seconds(answer):
    """How long your machine simulates the eight requests with answers of so many tokens."""
    of_length = asks(*[(100 + 100 * i, answer) for i in range(8)], model=MODEL)
    begin = time.perf_counter()
    play("orca", of_length, hardware=a100, **llm)
    return time.perf_counter() - begin


host = (min(seconds(240) for _ in range(3)) - min(seconds(40) for _ in range(3))) / 200
device = median(took for _, took in durations(on_a100))
print(f"deciding on an iteration, and noting it in the trace, takes {host * 1e6:.0f} µs on this machine")
print(f"an iteration of the simulated A100 takes {device * 1e3:.1f} ms, of llama-2-7b")
print(f"an iteration of tiny takes {overhead * 1e6:.0f} µs here, deciding included")

# %% [markdown]
# Beside the time of a large model the host hardly counts; beside that of a small one it does.
#
# **4. No answer ends by itself.** Where the model is only a shape, tokens are placeholders, so lengths must come from
# the workload. Chapter 2 showed how much depends on their spread.
#
# **5. A data sheet is a promise.** Bandwidth and rate are peaks. A product reaches a part of them, which depends on its
# shape. Your own figures stand above, beside those assumed; this course has measured no A100.
#
# The rule that follows: use simulated time to compare *decisions* (what is batched, idle, copied, who waits), where
# differences are well above the error of your calibration. Use the clock to compare *code*.
#
# ## Exercises
#
# 1. How many tokens must an iteration of `llama-2-7b` have on a V100 before its arithmetic takes longer than reading
#    the weights? And on an H200? *Hint: the ridge of chapter 1; two operations and two bytes for each weight.*
#    <details><summary>Answer</summary>
#    As many as the machine has operations for each byte: 125 / 0.9 = 138.9 on the V100, so 139 tokens, and 989 / 4.8 =
#    206.04 on the H200, so 207. With <code>bound([(0, 1)] * n, hardware("v100"))</code> it is 140, and 208 on the H200,
#    since KV is read too. For one prompt of n tokens, <code>[(0, n)]</code>, it is 143 and 212: its head computes one
#    token.
#    </details>
# 2. A profile has c = 4 ms, and attention of 1 ms at context 1,024 and 2 ms at 2,048. Chunk A ends at token 1,536 and
#    was last used 10 s ago, chunk B ends at token 4,096 and was last used 16 s ago. Which one does Pensieve evict
#    first? *Hint: value is cost over idle time, chapter 8.*
#    <details><summary>Answer</summary>
#    A costs 4 + 1.5 = 5.5 ms, its value is 0.55 ms/s. B costs 4 + 4 = 8 ms (the line goes on), its value is 0.5 ms/s.
#    B goes first: it is dearer, but has been idle for longer.
#    </details>
# 3. Make a machine on which `tiny` is bound by arithmetic even for a single token, and check it with one request and
#    with eight, `play("orca", asks(*[(4, 20)] * 8), hardware=Hardware(...))`. *Hint: what must be small?*
#    <details><summary>Answer</summary>
#    The rate: with `Hardware(bandwidth=30e9, flops=1e9, overhead_s=0)` one operation takes as long as reading 30 bytes,
#    and an iteration of one token has one operation for every two bytes (float32). Then batching gains nothing: eight
#    requests take eight times as long as one, where they take twice as long on the machine <code>cpu</code>.
#    </details>
# 4. Two techniques are simulated on the same machine. In which of these can the two runs never differ: the order of
#    admission, the number of iterations, the idle tokens, the host's time for a decision? *Hint: section 3 above. Then
#    count: `play(name, mix, **in_small, hardware=mine, max_batch=2)` for `orca`, `static` and `vllm`.*
#    <details><summary>Answer</summary>
#    The host's time: it is zero in both. The other three are decisions and counts, made by the same code as in a real
#    run. The three techniques take 106, 116 and 108 iterations, and compute 0, 502 and 0 idle tokens.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - FluidInfer (section 6) is evaluated by simulation alone: its simulator computes the theoretical execution time of
#   each step and suspends for that long. Here nothing sleeps, and the same stages also run for real (chapter 10).
# - Pensieve (3.4.3.1) profiles attention at powers of two and takes everything else as a constant. Its profile here is
#   made in the same way, from what `minifuse calibrate` has measured. Where nothing was measured, `pensieve` assumes a
#   profile, and in virtual time it takes the simulated machine's.
# - BatchMaker, Flover and Baton measure on GPUs only. At the papers' scale, `minifuse reproduce` computes their figures
#   in virtual time, with all the reservations above.
# - Messages (chapter 12) are simulated in a ring, over a link with a latency and a bandwidth.
#
# ## Further reading
#
# - Williams, Waterman and Patterson, *Roofline* (2009): where the model comes from, and its ceilings below the roof.
# - Agrawal et al., *Vidur* (2024): a simulator of LLM serving with measured operators instead of a data sheet.
# - `docs/architecture.md`, the paragraphs on time, and `minifuse calibrate --help`.
#
# **Next:** now that time is data, thousands of runs are cheap; chapter 14 sweeps all techniques over your workload,
# and shows that none of them wins everywhere.
