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
# Every chapter so far compared techniques in *virtual time*, and took it on trust. This chapter opens it. A plan says
# everything that an iteration will do before it runs, so its duration can be computed from the plan and a few figures
# of a machine. The chapter computes it by hand, lets an A100 serve a 7B model on your laptop, calibrates the figures
# on your own machine, and then measures where the result is wrong.
#
# **You will be able to**
#
# - compute the seconds of any iteration from its plan and three figures of a machine, and check them against a run;
# - say for each iteration of a run what bounds it, and what a faster memory or a faster processor would change;
# - measure the three figures on your machine, and state the error of what they predict;
# - read a profile of recomputation costs (`minifuse calibrate`) and compute the cost of a chunk from it;
# - name five things that simulated time does not contain, and say of a comparison whether they matter.

# %%
import time
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from statistics import median

import matplotlib.pyplot as plt

from minifuse.clock import VirtualClock
from minifuse.errors import UsageError
from minifuse.execute.virtual import VirtualExecutor, placeholder_tokens
from minifuse.memory.profile import Profile
from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.notebook import asks, draw_lanes, play, replay, show_source
from minifuse.place import Extent
from minifuse.plan import Plan
from minifuse.serve.build import build_engine
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.calibration import contexts_of, measure
from minifuse.simulate.cost import HARDWARE, Hardware, Roofline, hardware
from minifuse.techniques import technique
from minifuse.trace import decisions
from minifuse.work import Work

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
figure, axes = plt.subplots()
for row, run in enumerate([*real, *virtual]):
    bars = [(one.start_s * 1e3, (one.end_s - one.start_s) * 1e3) for one in run.history.iterations if one.work]
    axes.broken_barh(
        bars, (row - 0.35, 0.7), facecolor=BLUE if run in real else GREEN, edgecolor="white", linewidth=0.4
    )
axes.set_yticks(range(7), [*[f"real, run {i + 1}" for i in range(5)], "virtual, run 1", "virtual, run 2"])
axes.invert_yaxis()
axes.set_xlabel("ms since the run began")
axes.set_title("Iterations of seven runs of the same requests", loc="left", fontsize=10)
figure.tight_layout()
# %%
for name, runs in (("real", real), ("virtual", virtual)):
    different = Counter(decisions(run.events) for run in runs)
    ends = ", ".join(f"{run.history.last_s * 1e3:.1f}" for run in runs)
    print(f"{name:8} {len(runs)} runs decided in {len(different)} different ways, and ended after {ends} ms")
assert len({decisions(run.events) for run in virtual}) == 1
assert virtual[0].history.last_s == virtual[1].history.last_s
assert len({str(run.answers) for run in [*real, *virtual]}) == 1, "the answers are the same in all of them"

# %% [markdown]
# The answers never differ. The durations do, from run to run, and mostly the decisions too: if an iteration takes a
# little longer, one more request has arrived when it ends, and the next batch is another one. A difference of a few
# percent between two techniques drowns in this, and on another machine all numbers are new.
#
# There is a second failure. The machines of the papers are not here. Chapter 12 counted the messages between ranks,
# and could only compute how long they would take between two GPUs. Even one GPU's model is too large for a laptop:

# %%
MODEL = "random:llama-2-7b"
llama = preset("llama-2-7b")
print(f"the weights of llama-2-7b take {2 * llama.num_parameters / 1e9:.1f} GB in float16")

# %% [markdown]
# ## The idea: a plan says what it will cost
#
# A *plan* (chapter 3) lists the work of one iteration: which tokens `[start, stop)` of which sequence, where their KV
# lies, what is copied. It is complete before anything is computed. So it can be handed to a function instead of a
# model:
#
# $$\text{seconds} = \text{cost}(\text{plan}).$$
#
# This function is the *cost model*. With it, the clock need not tick. The engine asks for the end of the plan that
# ends first, sets the clock forward to that moment, and goes on. That is a *discrete-event simulation*. The batching
# policy and the memory are the same objects as in a real run and cannot tell the difference: what is simulated is
# time, not the decisions.
#
# minifuse's cost model is the *roofline* of chapter 1. For an iteration that computes $n$ tokens, over sequences whose
# texts have $c$ tokens together at its end, with $W$ weights, $H$ of them in the head, and $L$ layers:
#
# $$\text{bytes} = 2W + c \cdot \text{KV of a token}, \qquad
# \text{operations} = 2 \left( (W - H) \cdot n + H \cdot s \right) + 4 L \cdot d \cdot \text{pairs},$$
#
# $$\text{seconds} = \max\left( \frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{operations}}{\text{rate}} \right) +
# \text{overhead}.$$
#
# Three details: the head, the last matrix, acts on one token for each of the $s$ sequences; $d$ is the number of query
# heads times their size; and a pair is a query with a key that it sees. A prompt of $n$ tokens has
# $n(n+1)/2$ pairs, a single token as many as its text has tokens. Three figures describe the machine: bandwidth, rate
# and overhead. The first two are in its data sheet.
#
# **A count by hand.** A prompt of 500 tokens for `llama-2-7b` on an A100, and then one token. The matrices have
# $6.6 \cdot 10^9$ weights, and a token's KV takes 512 KiB.
#
# | | bytes | at 1,555 GB/s | operations | at 312 T/s | seconds |
# |---|---|---|---|---|---|
# | prompt of 500 | 13.2 + 0.3 GB | 8.7 ms | 6.5 T | 21.0 ms | 21.0 ms, arithmetic |
# | one token | 13.2 + 0.3 GB | 8.7 ms | 0.013 T | 0.04 ms | 8.7 ms, memory |
#
# To both, 50 µs of overhead are added. The run has to say the same.

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

# %% [markdown]
# The note says how this fits on a laptop. No weights are made: in virtual time the model's *shape* is enough, and
# every token of an answer is a placeholder, which never ends an answer. So the length of each answer has to be given,
# as `asks((500, 2))` does. On the command line the same machine is `--clock virtual --hardware a100-40g`, with
# `--model random:llama-2-7b --dtype float16`.
#
# ## A prediction: an A100 on a laptop
#
# Six requests with prompts of 60 to 900 tokens arrive a twentieth of a second apart. Predict before the run:
#
# 1. Which iterations are bound by arithmetic, and which by reading?
# 2. Four requests decode together. How much longer does the iteration take than with one?
# 3. An H200 has about three times the bandwidth of the A100 and three times its rate. Will the time between two tokens
#    be a third? And the end of the whole run?
# 4. How long will your machine need to simulate one second of the A100?

# %%
six = asks((500, 40), (120, 60), (900, 30), (60, 80), (300, 50), (700, 20), every=0.05, model=MODEL)
with redirect_stderr(StringIO()):  # the note, again
    begin = time.perf_counter()
    on_a100 = play("orca", six, hardware="a100-40g", **llm)
    took = time.perf_counter() - begin
    on_h200 = play("orca", six, hardware="h200", **llm)
on_a100, on_h200 = replace(on_a100, name="orca, A100"), replace(on_h200, name="orca, H200")
print(on_a100, on_h200, sep="\n")
print(f"simulated {on_a100.history.last_s:.2f} s of the A100 in {took:.2f} s")
draw_lanes(on_a100, on_h200, by="time")

# %%
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
# %% [markdown]
# The iteration takes as long as the higher of its two points. The squares above the dots are the iterations with a
# long prompt in them. All others lie on the line of the dots, nearly level: it is the weights that are read. The
# squares rise with each request that decodes, from far below, and it costs nothing.

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
assert tpot[0] / tpot[1] > 2.5

# %% [markdown]
# The whole run gains less than the tokens do: the requests arrive when they arrive, and the faster machine waits for
# them. Step through both, the A100 as `orca 1` and the H200 as `orca 2`. Look for the iterations with a single
# request.

# %%
replay(on_a100, on_h200, address="i=24&b=orca 2&by=time", height=620)

# %% [markdown]
# The same question for all machines that minifuse knows by name. The memory has to hold the weights: where it does
# not, the run is refused.

# %%
ttft, tpot, machines = [], [], ["v100", "rtx-a6000", "rtx-4090", "a100-40g", "h200"]
for name in machines:
    with redirect_stderr(StringIO()):
        metrics = play("orca", six, hardware=name, **llm).metrics
    ttft.append(metrics["ttft_s"]["mean"] * 1e3)
    tpot.append(metrics["tpot_s"]["mean"] * 1e3)
try:
    play("orca", six, hardware="v100", **{**llm, "kv_memory": "10GiB"})
except UsageError as error:
    print(error)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
for axes, values, label in ((left, ttft, "mean TTFT, ms"), (right, tpot, "mean time for each output token, ms")):
    axes.barh(machines, values, color=BLUE if axes is left else GREEN)
    axes.set_xlabel(label)
    axes.invert_yaxis()
left.set_title("llama-2-7b, six requests", loc="left", fontsize=10)
figure.tight_layout()

# %% [markdown]
# The V100 and the RTX A6000 change places: one has the faster memory, the other the higher rate, and time to
# first token asks for arithmetic while time for each output token asks for bandwidth.
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

# %% [markdown]
# ## One knob to turn: the machine itself
#
# A machine is a value, so it can be one that does not exist. The next cell makes the A100's bandwidth, its rate, or
# its freedom from overhead two, four, ... times as good, and serves eight requests that are all there at the
# beginning. Which of the three is worth most? What happens at factors below one?

# %%
source = resolve(MODEL)


def simulated(name, requests, machine, of=source, dtype="float16", kv=2 * 2**30):
    """A run of a technique on a machine of our own. Returns what was served, and the (start, end) of its iterations."""
    settings = Settings(clock="virtual", hardware=machine, dtype=dtype, kv_memory=kv)
    engine = build_engine(technique(name), of, settings, of.outline(dtype, 0))
    served = serve(engine, requests)
    steps = [event["wall"] for event in served.trace.events() if event["event"] == "step"]
    return served, [(step["start_s"], step["end_s"]) for step in steps]


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
        curve.append(simulated("orca", burst, machine)[1][-1][1])
figure, axes = plt.subplots()
for (name, curve), colour, mark in zip(curves.items(), (BLUE, ORANGE, GREEN), "os^"):
    axes.plot(factors, [curve[2] / one for one in curve], mark + "-", color=colour, label=name)
axes.plot(factors, factors, ":", color=GREY, label="all of the time")
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_ylim(0.2, 8)
axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
axes.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
axes.set_xlabel("one figure of the A100 is so many times as good")
axes.set_ylabel("run is so many\ntimes as fast")
axes.legend(frameon=False, fontsize=8, title="figure", title_fontsize=8)
axes.set_title("Eight requests of llama-2-7b", loc="left", fontsize=10)
assert curves["bandwidth"][-1] < curves["rate"][-1] < curves["overhead (a part of it)"][-1]

# %% [markdown]
# Bandwidth is worth most, until the prompts' arithmetic is all that is left. A figure that bounds only a part of the
# iterations helps only that part. Overhead hardly counts for a model of this size; for `tiny` it is nearly everything.
#
# ## Calibration: the three figures of your machine
#
# `--hardware cpu` has round figures for a machine that is not yours. Yours can be measured with three short real runs:
#
# 1. *Overhead*: a single token of `tiny` is next to no work, so its iteration is overhead.
# 2. *Bandwidth*: an iteration with one token of a larger model reads all weights. Take the overhead off, and divide.
# 3. *Rate*: a prompt of 1,024 tokens is arithmetic. Take the overhead off, and divide.
#
# The larger model is `random:small`: four layers with random weights, 16 MB in float32.

# %%
SMALL = "random:small"
small = resolve(SMALL)
real_small = {"model": SMALL, "kv_memory": "64MiB", "clock": "real"}


def durations(run):
    return [(spans(one), one.end_s - one.start_s) for one in run.history.iterations if one.work]


overhead = median(took for _, took in durations(play("serial", asks((5, 40)), clock="real")))
probe = durations(play("serial", asks((1024, 2), (256, 40), model=SMALL), **real_small))
one_token = median(took for work, took in probe[3:])
prompt = probe[0][1]
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
# Now the test, with requests that were not measured. All are there at the beginning, so that no decision depends on
# the clock, and iteration $k$ of the real run and of both simulated ones is the same plan.

# %%
mix = asks((64, 24), (16, 32), (200, 16), (32, 24), (100, 16), (300, 20), (24, 40), (80, 30), model=SMALL)
measured = play("orca", mix, **real_small)
assumed = simulated("orca", mix, HARDWARE["cpu"], small, "float32")[1]
served, calibrated = simulated("orca", mix, mine, small, "float32")
plans = [[tuple(one[:3]) for one in event["work"]] for event in served.trace.events() if event["event"] == "step"]
assert plans == [[tuple(one[:3]) for one in step.work] for step in measured.history.iterations if step.work]
figure, axes = plt.subplots(figsize=(5, 3.6))
real_ms = [took * 1e3 for _, took in durations(measured)]
for label, steps, colour, mark in (("cpu, assumed", assumed, GREY, "s"), ("calibrated", calibrated, BLUE, "o")):
    axes.loglog([(end - start) * 1e3 for start, end in steps], real_ms, mark, color=colour, label=label, markersize=4)
ends = [0.4, 2 * max(real_ms)]
axes.loglog(ends, ends, "-", color="black", linewidth=0.8)
axes.set_xlabel("ms of an iteration, simulated")
axes.set_ylabel("ms of an iteration, measured")
axes.legend(frameon=False, fontsize=8)
axes.set_title("random:small under orca; on the line both agree", loc="left", fontsize=10)
figure.tight_layout()
# %%
whole = measured.history.last_s
for label, steps in (("assumed", assumed), ("calibrated", calibrated)):
    print(
        f"{label:11} the run takes {steps[-1][1] * 1e3:6.1f} ms, measured {whole * 1e3:.1f} ms: "
        f"{whole / steps[-1][1]:.2f} times as long"
    )

# %% [markdown]
# Three figures bring the points near the line. They do not bring them onto it: most iterations here have several
# single tokens, which the calibration has never seen together. Look at how far your points are away before you trust a
# difference between two simulated runs that is smaller than that.
#
# ### What `minifuse calibrate` measures
#
# One decision needs measured time even in a real run: which KV to drop when it can be computed again (chapter 8).
# Pensieve's answer (3.4.3.1) is a *profile*: the seconds of attention of a chunk of 32 tokens, by the context that the
# chunk ends, and a constant for everything else in the layers:
#
# $$\text{Cost}(l) = \text{Cost}_\text{attention}(l) + c.$$
#
# Attention is measured at powers of two and interpolated between them. The command `minifuse calibrate` does this and
# keeps the result in the cache folder, where `pensieve` finds it in its next real run. The function behind it:

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
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
left.plot(contexts, [one / profile.other for one in profile.attention], "o-", color=BLUE, label="measured")
expected = Roofline(small.config, "float32", mine).recomputation(32, contexts)
left.plot(contexts, [one / expected.other for one in expected.attention], "--", color=GREY, label="calibrated roofline")
long = [1 << n for n in range(5, 15)]
opt = Roofline(preset("opt-13b"), "float16", hardware("a100-80g")).recomputation(32, long)
right.plot(long, [one / opt.other for one in opt.attention], "s-", color=ORANGE)
for axes, title in ((left, "random:small on this machine"), (right, "opt-13b on an A100, roofline")):
    axes.set_xlabel("context of the chunk, tokens")
    axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=10)
right.set_xticks([0, 4096, 8192, 12288, 16384])
left.set_ylabel("attention / everything else")
left.legend(frameon=False, fontsize=8)
figure.tight_layout()

# %% [markdown]
# The thesis shows such a curve in its Figure 3.4, and draws from it that leading tokens are cheaper to compute again
# than trailing ones. The form is a straight line, which a busy machine bends. The slope belongs to the kernel and the
# machine. On the left, compare the measured line with that of the roofline with your machine's own figures: the
# roofline reads KV as fast as weights, and a kernel that gathers scattered blocks need not reach that.
#
# ## Where this idea loses, measured
#
# **1. One longest bound for a whole iteration.** The roofline sums all bytes, sums all operations, and takes the
# longer. A machine runs one layer's product after the other, and then attention. If products are bound by arithmetic
# and attention by memory, the true time is the *sum* of the two, and
#
# $$\max(a + b, \; x + y) \le \max(a, x) + \max(b, y) \le 2 \max(a + b, \; x + y).$$
#
# So a simulated iteration can be too fast, by a factor of two at most. When? With a prompt beside many long contexts:


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
figure, axes = plt.subplots()
axes.plot(prompts, [one * 1e3 for one in once], "o-", color=BLUE, label="one bound for the iteration")
axes.plot(prompts, [one * 1e3 for one in apart], "s-", color=ORANGE, label="products, then attention")
axes.set_xscale("log", base=2)
axes.set_xlabel("tokens of a prompt beside 64 requests with contexts of 2,000")
axes.set_ylabel("ms of the iteration")
axes.set_ylim(0)
axes.legend(frameon=False, fontsize=8)
axes.set_title("llama-2-7b on an H200", loc="left", fontsize=10)
print(f"at worst {max(two / one for one, two in zip(once, apart)):.2f} times as long")

# %% [markdown]
# This flatters every technique that puts prompts and single tokens into one iteration. (`Hardware.processors` gives
# attention a time of its own.)
#
# **2. The kernel is not in the plan.** A block table and one run of slots cost the same in the roofline, if they hold
# equally many tokens. The code that reads them differs. Here are six techniques with the requests above, all of which
# are there at the beginning, in real time and simulated with the calibrated figures.

# %%
names = ["orca", "pensieve", "vllm", "static", "baton", "fluid"]
rounds = [{name: play(name, mix, **real_small).history.last_s for name in names} for _ in range(3)]
wall = {name: median(one[name] for one in rounds) for name in names}
model = {name: simulated(name, mix, mine, small, "float32")[1][-1][1] for name in names}
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
assert abs(model["orca"] / model["pensieve"] - 1) < 0.01
assert abs(model["orca"] / model["vllm"] - 1) < 0.01

# %%
for times, label in ((model, "simulated"), (wall, "measured")):
    print(f"{label:10}", "  <  ".join(sorted(names, key=times.get)))
idle = {name: simulated(name, mix, mine, small, "float32")[0].metrics()["tokens"]["idle"] for name in names}
print("tokens computed idle", idle)
assert model["static"] > 1.2 * model["orca"]
assert idle["static"] > 0 == idle["orca"]

# %% [markdown]
# In virtual time `orca`, `pensieve` and `vllm` are equal, because their iterations hold the same work, and `fluid` is
# near them. On a CPU they need not be: `fluid` attends in lanes, the others request by request or over blocks, and
# each way is other code. What both columns agree on comes from *how much* is computed: `static` and `baton` compute
# idle tokens for this mix. A difference in counts survives simulation, a difference in code does not.
#
# **3. The host is free.** At each iteration the engine decides what to run, in Python. In a real run that time is part
# of the iteration; in virtual time it is not there. How long is it? A simulated run without weights is nothing else.

# %%
begin = time.perf_counter()
_, steps = simulated("orca", burst, a100)
host = (time.perf_counter() - begin) / len(steps)
device = median(end - start for start, end in steps)
print(
    f"deciding takes {host * 1e6:.0f} µs of this machine for each iteration; the simulated A100 takes {device * 1e3:.1f} ms"
)
print(f"an iteration of tiny takes {overhead * 1e6:.0f} µs here, deciding included")

# %% [markdown]
# Beside a large model it hardly counts. Beside a small one, or with hundreds of requests in each iteration, it does.
#
# **4. No answer ends by itself.** Where the model is only a shape, tokens are placeholders, so lengths must come from
# the workload. Chapter 2 showed how much depends on their spread.
#
# **5. A data sheet is a promise.** Bandwidth and rate are peaks. A product reaches a part of them, which differs with
# its shape. Your calibrated figures stand above, beside those assumed; the same is true of an A100, and this course
# has measured none.
#
# The rule that follows: use simulated time to compare *decisions* (what is batched, what is idle, what is copied, who
# waits), at differences well above the error of your calibration. Use the clock to compare *code*.
#
# ## Exercises
#
# 1. How many tokens must an iteration of `llama-2-7b` have on a V100 before its arithmetic takes longer than reading
#    the weights? And on an H200? *Hint: the ridge of chapter 1; two operations and two bytes for each weight.*
#    <details><summary>Answer</summary>
#    As many as the machine has operations for each byte: 125 T / 0.9 T = 139 on the V100, 989 / 4.8 = 206 on the H200.
#    (KV and the head shift it a little.)
#    </details>
# 2. A profile has c = 4 ms, and attention of 1 ms at context 1,024 and 2 ms at 2,048. Chunk A ends at token 1,536 and
#    was last used 10 s ago, chunk B ends at token 4,096 and was last used 16 s ago. Which one does Pensieve evict
#    first? *Hint: value is cost over idle time, chapter 8.*
#    <details><summary>Answer</summary>
#    A costs 4 + 1.5 = 5.5 ms, its value is 0.55 ms/s. B costs 4 + 4 = 8 ms (the line goes on), its value is 0.5 ms/s.
#    B goes first: it is dearer, but has been idle for longer.
#    </details>
# 3. Make a machine of which `tiny` is bound by arithmetic even for a single token, and check it with `simulated`.
#    *Hint: what must be small?*
#    <details><summary>Answer</summary>
#    The rate: with `Hardware(bandwidth=30e9, flops=1e9, overhead_s=0)` one operation takes as long as reading 30 bytes,
#    and an iteration has one operation for every two bytes (float32). Then batching gains nothing: eight requests take
#    eight times as long as one.
#    </details>
# 4. On which of these can two simulated runs not differ: the order of admission, the number of iterations, the idle
#    tokens, the host's time for a decision? *Hint: section 3 above.*
#    <details><summary>Answer</summary>
#    The host's time: it is zero in both. The other three are decisions and counts, made by the same code as in a real
#    run.
#    </details>
# 5. `mine` was measured with one sequence at a time. Fit the overhead anew so that the simulated run of `mix` ends
#    when the measured one did, and predict `static` with it. Is the error smaller than before? *Hint: the number of
#    iterations times the change of the overhead is what the end of the run changes by.*
#    <details><summary>Answer</summary>
#    `replace(mine, overhead_s=mine.overhead_s + (measured.history.last_s - calibrated[-1][1]) / len(calibrated))`. It
#    usually is, since most of the error is common to all iterations. It need not help with `fluid`, whose error is in
#    its code.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - FluidInfer (section 6) is evaluated by simulation alone: its simulator computes the theoretical execution time of
#   each step and suspends for so long. Here virtual time is not slept through, and the same stages also run for real,
#   so that a simulated claim can be tried (chapter 10).
# - Pensieve (3.4.3.1) profiles attention at powers of two and takes everything else as a constant. So does
#   `minifuse calibrate`. Where there is no profile, `pensieve` assumes one, and in virtual time it takes the
#   roofline's.
# - BatchMaker, Flover and Baton measure on GPUs only. Their figures can be reproduced here at three scales
#   (`minifuse reproduce`); those at the papers' scale are virtual time, with all of the reservations above.
# - With a tensor parallel size the real runs of chapter 12 count messages; virtual time has no cost model for
#   messages, and refuses such a run.
#
# ## Further reading
#
# - Williams, Waterman and Patterson, *Roofline* (2009): where the model comes from, and its ceilings below the roof.
# - Agrawal et al., *Vidur* (2024): a simulator of LLM serving with measured operators instead of a data sheet.
# - Kamath et al., *POD-Attention* (2024): a kernel that lets prefill and decode overlap, which is what a single bound
#   assumes.
# - `docs/architecture.md`, the paragraphs on time, and `minifuse calibrate --help`.
#
# **Next:** now that time is data, thousands of runs are cheap; chapter 14 sweeps all techniques over your workload,
# and shows that none of them wins everywhere.
