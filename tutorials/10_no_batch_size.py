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
# # 10. No batch size
#
# So far the number of requests in an iteration was limited by the KV that the device holds. FluidInfer asks which part
# of a model needs that KV, and finds that only attention does. This chapter runs all requests in every iteration,
# brings their KV to the device in *waves*, and fills the gaps that long and short work leave in attention by *packing*.
# It also measures when waves pay, and what does where they do not. The author simulated the system; `fluid` implements
# it.
#
# > **Claim.** FluidInfer has 2 to 4 times the throughput of vLLM (Fig. 11), and a latency bound about 3 times lower
# > (Fig. 12); both gains are larger for larger models, and over Orca and FastServe (6.2, 6.3).
# >
# > **Setting.** A simulator of OPT-125M, 1.3B and 6.7B on one RTX 4090, on four, and on four A100s of 40 GB; first
# > rounds of ShareGPT's conversations; Poisson arrivals. The baselines vLLM, Orca and FastServe are simulated, too.
# >
# > **What we measure.** `minifuse reproduce fluidinfer-fig11 --scale paper`, `fluidinfer-fig12`, and `fluidinfer-short`
# > (a backlog where KV memory is short): virtual time by data sheets, part by part, and for OPT-6.7B also with a link
# > as fast as the device's memory, which the paper assumes. `--scale cpu` runs it for real, with the simulator's error
# > beside it.
# >
# > **Agreement.** Two rounds. Fig. 11, OPT-6.7B on one 4090: over `vllm` 1.35 times at equal latency, 1.90 with
# > attention on the host, 0.90 rotating, and 1.32 on four: all below. The other panels are below or undecided. Fig. 12:
# > OPT-6.7B agrees on four A100s at three rates, and is below on one 4090 where KV is short: a request that pauses has
# > a gap. A backlog: 1.07 to 1.14 times the tokens/s of `vllm`, with the host 1.31 to 2.95; rotating as the paper
# > assumed, 4.58 times `vllm` with batches of 16, and 0.87 times without. On GPUs: not measured. All figures:
# > `benchmarks/results/README.md`.
# >
# > **Errata.** KV of 2,048 tokens of OPT-6.7B takes 1.07 GB in 16 bits, not nearly 8 GB (section 1). A largest batch of
# > 16 (4.1) does not follow: 30% of 96 GB hold 3 such requests at 8 GB each, and 26 at 1.07. Over PCIe a swap takes
# > some thirty times as long as a decoding request's attention, not about as long (4.1). Throughput is the inverse of
# > time per token (6.1) only for requests served one by one. The system was not fully implemented (5, 7).
#
# **You will be able to**
#
# - say which layers need KV, and compute how many tokens saturate a machine;
# - write down the time of an iteration with waves, and count how often weights are read;
# - compute when the upload of a wave is hidden, and predict when it is not;
# - compute how much waves can gain, and choose between them, pausing, and attention by the host;
# - pack a wave by hand, and measure the bubbles before and after;
# - name a workload for which waves are slower than `orca`, and the two ratios that decide it.

# %%
import random
from dataclasses import replace
from itertools import permutations

import matplotlib.pyplot as plt

from minifuse.attention.packing import Bubbles, bubbles_of, pack, seconds_of
from minifuse.batching.fluid import Fluid
from minifuse.batching.growing import GrowingFill
from minifuse.core.errors import UsageError
from minifuse.core.plan import Reason
from minifuse.model.text.presets import preset
from minifuse.show.notebook import (
    asks,
    check,
    draw_lanes,
    draw_memory,
    draw_series,
    moves,
    play,
    replay,
    show_source,
)
from minifuse.simulate.cost import hardware
from minifuse.stages import register

plt.rcParams.update(
    {"figure.figsize": (7, 2.6), "figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, ORANGE, GREEN, GREY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#c4cad2", "#cc79a7"

# %% [markdown]
# ## The failure: memory is the batch size
#
# Thirty-two requests are there at once, on a model and a card of the paper: OPT-6.7B on an RTX 4090, simulated (virtual
# time, as in chapter 2). `orca` and `vllm` may run 64 requests together. What limits them is the memory for KV, here
# 2 GiB, that is 4,096 tokens.

# %%
OPT = {"model": "random:opt-6.7b", "dtype": "float16", "hardware": "rtx-4090", "kv_memory": "2GiB"}
ROTATE = {"memory__overflow": "rotate"}  # of `fluid`: KV that the device has no room for passes through it, in waves


def play_opt(technique, requests, **options):
    if technique != "fluid":
        options = {"max_batch": 64, **options}
    return play(technique, requests, **{**OPT, **options})


def asks_opt(*lengths, **options):
    return asks(*lengths, model=OPT["model"], **options)


drawn = random.Random(2)
crowd = asks_opt(*[(drawn.randint(50, 300), drawn.randint(50, 150)) for _ in range(32)])
tight = {name: play_opt(name, crowd) for name in ("orca", "vllm")}
draw_series(*tight.values(), series=["batch", "kv", "queue"])

# %% [markdown]
# Memory is full and requests wait. `vllm` reserves nothing, so more fit (chapter 4), but memory still decides how many
# run. Meanwhile each iteration reads all weights for its few tokens.
#
# ## The idea: who needs KV?
#
# A layer has three parts: what comes before attention, attention, and what comes after (FluidInfer, section 3). The
# first and the last are *token-wise*: they do not know which request a token belongs to, and read no KV. So "it is
# unnecessary to use the same upper bound" for both (section 1). FluidInfer puts the tokens of **all** requests
# through the token-wise layers at once, and lets only attention run in groups whose KV fits the device. With the
# times of group $i$
#
# $$T_\text{existing} = \sum_i T_{i,\text{pre}} + \sum_i T_{i,\text{attn}} + \sum_i T_{i,\text{post}}, \qquad
# T_\text{fluid} = T_\text{pre} + \sum_i T_{i,\text{attn}} + T_\text{post}.$$
#
# **A count by hand.** How many tokens does it take? Token-wise layers with $W$ weights of two bytes read $2W$ bytes
# and compute $2Wn$ operations for $n$ tokens. They are bound by memory as long as $2W / \text{bandwidth} > 2Wn /
# \text{flops}$, that is up to
#
# $$n = \text{flops} / \text{bandwidth}$$
#
# tokens, whatever the model. That is the ridge of chapter 1, in tokens.

# %%
gpu, opt = hardware("rtx-4090"), preset("opt-6.7b")
ridge = gpu.flops / gpu.bandwidth
counts = [2**k for k in range(13)]
weights = opt.num_matrix_weights
each = [max(2 * weights / gpu.bandwidth, 2 * weights * n / gpu.flops) / n for n in counts]
print(f"{ridge:.0f} tokens saturate the card")
assert 160 < ridge < 168

# %% tags=["plot"]
figure, axes = plt.subplots()
axes.loglog(counts, [1e3 * one for one in each], "o-", color=BLUE, base=2)
axes.axvline(ridge, color=ORANGE, linestyle="--")
axes.annotate(f" {ridge:.0f} tokens", (ridge, 1e3 * each[0]), fontsize=8, color="#8a5a00", va="top")
axes.axvline(16, color=GREY, linestyle="--")
axes.annotate(" 16 requests (4.1)", (16, 1e3 * each[-1]), fontsize=8, color="#5b6470")
axes.set_xlabel("tokens in the iteration")
axes.set_ylabel("ms for each token")
axes.set_title("Token-wise layers of OPT-6.7B on an RTX 4090", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Beyond the ridge more tokens gain nothing, so `fluid` bounds *tokens* and not requests: every request that decodes has
# its token in each iteration, and beside them come prompts in pieces (chapter 3), whose tokens have a budget. The paper
# takes 512 tokens for four of these cards, against at most 16 requests in a conventional batch (section 4.1). minifuse
# takes as many as saturate the machine, where its figures are known.

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# Six small requests, and a device with room for 32 tokens of KV, in blocks of 4. (Pairs: prompt and answer.) `fluid`
# does as the paper's figure 8: KV that does not fit *rotates* through the device (`memory.overflow=rotate`). Predict:
#
# 1. How many iterations does `fluid` take? Each gives every unfinished request one token.
# 2. At their ends the six need 66 slots of KV together. Does `orca` or `vllm` read the weights more often, and why?
# 3. Into how many waves is attention of the second iteration divided, if a wave has a quarter of the device?

# %%
six = asks((6, 8), (5, 7), (6, 6), (4, 8), (5, 5), (6, 6))
small = {
    "orca": play("orca", six, kv_memory="48KiB"),
    "vllm": play("vllm", six, kv_memory="48KiB", memory__block_size=4),
    "fluid": play("fluid", six, kv_memory="48KiB", memory__block_size=4, memory__buffer=0.25, **ROTATE),
}
fluid = small["fluid"]
for name, run in small.items():
    assert run.tokens == fluid.tokens
    print(
        f"{name:6} {run.capacity} slots, weights are read {len(run.steps):2} times, "
        f"{run.metrics['evictions']} evictions, {run.history.last_s * 1e3:5.2f} ms"
    )
assert sum(len(request.prompt) + len(fluid.tokens[request.id]) - 1 for request in six) == 66
print("waves in each iteration:", [len(one.event["waves"]) for one in fluid.history.iterations])
assert len(fluid.steps) == max(len(tokens) for tokens in fluid.tokens.values()) == 8
assert len(fluid.steps) < len(small["vllm"].steps) < len(small["orca"].steps)
draw_lanes(small["orca"], fluid)

# %% [markdown]
# As many iterations as the longest answer has tokens: no batch size is left. `orca` reads the weights most often,
# because it reserves the longest answer and so admits fewest; `vllm` admits more, and evicts what does not fit. In
# the picture of `fluid` no request ever waits. What runs there does not fit into the device at once, so it is
# attended in waves. A quarter of the device is two blocks, as much as one of these requests has, and yet there are five
# waves for six requests in iteration 1. Memory shows why.

# %%
draw_memory(fluid, step=1)

# %% [markdown]
# The device is drawn once for each wave, with the host below. The first requests of the iteration, `r0` and `r1`, stay
# on the device and are one wave.
# The others take turns: before a wave its KV is *uploaded* from the host, and after it only the **new** token's KV is
# *offloaded*, because what was copied once stays on the host as well. The next wave is uploaded while this one is
# attended.

# %%
second = fluid.history.iterations[1]
for wave, (start, stop) in enumerate(second.event["waves"]):
    work = [name for name, *_ in second.work[start:stop]]
    moved = {"upload": 0, "offload": 0}
    for move in moves(fluid, second.step):
        moved[move.kind] += move.tokens * (move.wave == wave)
    print(f"wave {wave}: {' '.join(work):6} uploaded {moved['upload']:2} tokens, offloaded {moved['offload']}")

# %% [markdown]
# ## See it move
#
# The page shows the waves of an iteration in the memory below. A is `fluid`, B is `orca`.

# %%
replay(fluid, small["orca"], address="run=fluid&b=orca&i=1", height=760)

# %% [markdown]
# ## The source that matters
#
# The policy has no rule against a newcomer: `admission` returns no reason. All of the idea is in memory, and
# `Rotation` is the part of it that rotates. Look in `place` for the loop over the work: a new wave begins where the
# blocks that it lacks exceed the limit.

# %%
from minifuse.memory.waves.rotation import Rotation

show_source(Fluid.admission, Fluid._missing, Rotation.place)

# %% [markdown]
# Attention still reads the whole context of a request at once, so one request must fit. And options that contradict
# each other are refused (`layers`: exercise 3).

# %%
too_long = play("fluid", asks((30, 20)), kv_memory="48KiB", memory__block_size=4)
try:
    play("fluid", six, memory__turns="layers", **ROTATE)
except UsageError as error:
    print(error)
assert list(too_long.refused) == ["r0"]

# %% [markdown]
# ## When is an upload hidden?
#
# **A second count by hand.** The KV of a token has $4H$ bytes in one layer ($H$ numbers a token, two bytes each, key
# and value). Attending to $x$ tokens with one query reads $4xH$ bytes from the device's own memory. Uploading them
# moves $4xH$ bytes over the link. A prompt of $L$ tokens computes $4L^2H$ operations (section 4.1). So
#
# $$\frac{\text{upload}}{\text{decode}} \approx \frac{\text{bandwidth}}{\text{link}}, \qquad
# \frac{\text{upload}}{\text{prompt}} = \frac{4LH / \text{link}}{4L^2H / \text{flops}}
# = \frac{\text{flops}}{L \cdot \text{link}}.$$

# %%
H = opt.hidden_size
lengths = [2**k for k in range(6, 15)]
rates = {"flops": gpu.flops, "bandwidth": gpu.bandwidth}
curves = {
    "uploading x tokens": [4 * x * H / gpu.link for x in lengths],
    "one query after x tokens": [seconds_of(1, x, hidden_size=H, **rates) for x in lengths],
    "a prompt of x tokens": [seconds_of(x, x, hidden_size=H, **rates) for x in lengths],
}
times_as_long, break_even = gpu.bandwidth / gpu.link, gpu.flops / gpu.link
print(
    f"an upload takes {times_as_long:.1f} times a decode; "
    f"a prompt hides its own length from {break_even:,.0f} tokens on"
)
assert 31 < times_as_long < 32

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 3))
for (name, values), colour in zip(curves.items(), (ORANGE, BLUE, GREEN)):
    axes.loglog(lengths, [1e6 * value for value in values], "o-", color=colour, label=name, base=2)
axes.set_xlabel("tokens x")
axes.set_ylabel("µs in one layer")
axes.set_title("OPT-6.7B on an RTX 4090, its link as in the data sheet", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# The two lines of the upload and of the single query never meet; the prompt's is twice as steep and crosses the upload
# at the printed length.
#
# ### A pipeline by hand
#
# Figure 8 of the paper is a pipeline of two machines, the device and the link, with room for two waves. Wave $k$ is
# attended when its upload has ended and the device is free. The upload of wave $k$ begins when the link is free and
# wave $k-2$ has been attended, because its blocks are taken. The next cell plays this rule with
# six waves of 4,000 tokens of KV each, in one layer: attended by four single tokens after 1,000 tokens each, or, in the
# lower picture, by 4,000 queries, a piece of a prompt, behind 4,000 tokens that are uploaded.


# %%
def pipeline(attend, upload, count=6):
    """Of each wave, when its upload begins and when it is attended, if these take so long."""
    uploads, attended = [], []
    for wave in range(count):
        free = attended[wave - 2] + attend if wave > 1 else 0.0
        uploads.append(max(free, uploads[-1] + upload if uploads else 0.0))
        attended.append(max(uploads[-1] + upload, attended[-1] + attend if attended else 0.0))
    return uploads, attended


upload = 4 * 4000 * H / gpu.link * 1e6  # in µs, as all times here
cases = {
    "four single tokens each": 4e6 * seconds_of(1, 1000, hidden_size=H, **rates),
    "4,000 queries of a prompt each": 1e6 * seconds_of(4000, 8000, hidden_size=H, **rates),
}
played = {title: pipeline(attend, upload) for title, attend in cases.items()}
waiting = [1 - 6 * attend / (played[title][1][-1] + attend) for title, attend in cases.items()]
print("the device waits for", " and ".join(f"{share:.0%}" for share in waiting), "of the time")
assert waiting[0] > 0.9
assert waiting[1] < 0.2

# %% tags=["plot"]
figure, panels = plt.subplots(2, 1, figsize=(7, 3.4))
for axes, (title, attend) in zip(panels, cases.items()):
    uploads, attended = played[title]
    for wave, (up, at) in enumerate(zip(uploads, attended)):
        axes.barh(1, upload, left=up, color=ORANGE, edgecolor="white")
        axes.barh(0, attend, left=at, color=GREEN, edgecolor="white")
        axes.text(up + upload / 2, 1, wave, ha="center", va="center", fontsize=8)
    axes.set_yticks([0, 1], ["attention", "upload"])
    axes.set_title(f"six waves attended by {title}", loc="left", fontsize=9)
panels[-1].set_xlabel("µs in one layer (the number is the wave)")
figure.tight_layout()
plt.show()

# %% [markdown]
# The upper picture is bound by the link in every wave. In the lower one the device waits for the first upload alone:
# all others are hidden. Token-wise layers help: while they are computed, uploads for the waves go on.
#
# Single tokens cannot hide an upload of their own size: it takes more than thirty times as long. The paper says that
# swapping takes a time "approximately equal to or slightly larger than" that of a decode iteration (section 4.1); with
# the numbers of the data sheets we could not confirm that. Long prompts hide much, because their time grows with the
# square. The next runs measure both, and single tokens once more on a link as fast as the device's memory.

# %%
fast_link = replace(gpu, link=gpu.bandwidth)  # a machine of our own
prompts = asks_opt(*[(2000, 2)] * 6)
runs = {
    "prompts": play_opt("fluid", prompts, batching__token_budget=4096, kv_memory="4GiB", **ROTATE),
    "tokens": play_opt("fluid", crowd, **ROTATE),
    "tokens,\nfast link": play_opt("fluid", crowd, hardware=fast_link, **ROTATE),
}
split = {name: [run.metrics["transfers"][key] for key in ("hidden_s", "exposed_s")] for name, run in runs.items()}
shares = {
    name: (100 * hidden / (hidden + exposed), 100 * exposed / (hidden + exposed))
    for name, (hidden, exposed) in split.items()
}
print({name.replace("\n", " "): f"hidden {one[0]:.3f} s, exposed {one[1]:.3f} s" for name, one in split.items()})
assert shares["prompts"][0] > 90 and shares["tokens"][1] > 90 and shares["tokens,\nfast link"][0] > 80

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7.4, 2.6))
axes.barh(range(3), [one for one, _ in shares.values()], color=GREEN, label="hidden")
axes.barh(
    range(3),
    [one for _, one in shares.values()],
    left=[one for one, _ in shares.values()],
    color=ORANGE,
    label="exposed",
)
axes.set_yticks(range(3), shares)
axes.set_xlabel("% of the seconds of transfers")
axes.legend(frameon=False, fontsize=8, ncol=2, loc="lower center", bbox_to_anchor=(0.8, 1))
axes.set_title("Hidden beside computing, or waited for", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# Whole prompts hide nearly all of their transfers, single tokens next to nothing on this link. On the fast link they
# hide most.

# %% [markdown] tags=["prediction"]
# ## Back-pressure, and attention where the KV lies
#
# **A third count by hand.** How much can rotating gain? An iteration of single tokens reads the weights, $W$ bytes, and
# a device full of KV, $M$ bytes. Meanwhile the link uploads $(W + M) \cdot \text{link} / \text{bandwidth}$ bytes. So
# an iteration that does not wait for the link attends, beside $M$, at most this part of $M$:
#
# $$\frac{\text{link}}{\text{bandwidth}} \left(1 + \frac{W}{M}\right).$$
#
# Two other ways need less of the link:
#
# - **Back-pressure**, the default of `fluid` (`memory.overflow=pause`): the newest requests pause, with their KV on the
#   host, until there is room again.
# - **Attention where the KV lies** (`memory.turns=host`): the host attends the KV in its own memory, while the device
#   attends its own. With `memory.passes=2` the device computes one half of the batch while the host attends the other.
#
# Predict the order of these three ways, and of `vllm`, at 2 GiB.

# %%
WAYS = {
    "vllm": ("vllm", {}, ORANGE),
    "rotate": ("fluid", ROTATE, GREY),
    "pause": ("fluid", {}, GREEN),
    "host": ("fluid", {"memory__turns": "host", "memory__passes": 1}, BLUE),
    "host, 2 passes": ("fluid", {"memory__turns": "host", "memory__passes": 2}, PURPLE),
}
short = [1.5, 2, 3, 4]
ways = {
    name: [play_opt(technique, crowd, kv_memory=f"{1024 * size:.0f}MiB", **options) for size in short]
    for name, (technique, options, _) in WAYS.items()
}
gains = [gpu.link / gpu.bandwidth * (1 + 2 * weights / (size * 2**30)) for size in short]
print("rotating can add", ", ".join(f"{gain:.0%}" for gain in gains))
took = {name: [run.history.last_s for run in runs_of] for name, runs_of in ways.items()}
crossed = {}
for name, (_, run, *_) in ways.items():  # with 2 GiB
    transfers, host = run.metrics["transfers"], run.metrics["on_host"]
    crossed[name] = (transfers["to_host"]["bytes"] + transfers["to_device"]["bytes"]) / 1e9
    print(f"{name:14} {run.history.last_s:.2f} s, {crossed[name]:5.1f} GB of KV over the link, ", end="")
    print(f"{run.metrics['evictions']:2} evictions, {host['awaited_s']:.2f} s waited for the host")
print("pausing against vllm:", ", ".join(f"{one / other - 1:+.1%}" for one, other in zip(took["pause"], took["vllm"])))
for vllm, rotate, pause, host, twice in [*zip(*took.values())][:3]:
    assert host < 0.85 * pause and pause < 0.97 * vllm and rotate > 1.3 * vllm and twice > 1.15 * host
assert 0.2 < gpu.host.bandwidth / gpu.bandwidth < 0.21 and 6 < gpu.host.bandwidth / gpu.link < 7
assert crossed["rotate"] > 50 * crossed["pause"]
assert ways["pause"][1].metrics["latency_bound_s"] > 5 * ways["rotate"][1].metrics["latency_bound_s"]

# %% tags=["plot"]
titles = {
    "time for all 32": lambda run: run.history.last_s,
    "time to first token, mean": lambda run: run.metrics["ttft_s"]["mean"],
    "longest gap of an answer": lambda run: run.metrics["latency_bound_s"],
}
figure, panels = plt.subplots(1, 3, figsize=(10.4, 2.9))
for axes, (title, seconds_in) in zip(panels, titles.items()):
    for name, (*_, colour) in WAYS.items():
        axes.plot(short, [seconds_in(run) for run in ways[name]], "o-", color=colour, label=name)
    axes.set_xticks(short)
    axes.set_xlabel("GiB for KV")
    axes.set_ylabel("s")
    axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=9)
panels[2].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
figure.tight_layout()
plt.show()

# %% [markdown]
# Rotating moves a hundred times as many bytes as pausing, over a link with a thirtieth of the memory's bandwidth: it is
# the slowest where memory is short. Pausing leads `vllm` by about as much as with 4 GiB, where everything fits. Its
# price is in the right chart: a gap of 0.7 s or more, where rotating has at most 0.1 s. The host reads a fifth as fast
# as the GPU, but six times as fast as the link, and beside the device: with one pass this is the fastest. With two the
# device hardly waits for the host, but reads the weights twice: that is slower here, with 3 GiB even than pausing.
#
# ## Your turn: who pauses
#
# The requests that run may lack room for their next tokens. Write `pausing`, which makes room. For each of
# `self.running`, the oldest first, `room.extend(one)` sets aside what its next token needs and returns None, or else
# the reason why it cannot. Then the newest that still runs (the last of `[*self.running]`) pauses, `room.evict` frees
# its blocks, and the same request asks again; if it is itself the newest, it pauses. Return the requests that pause.


# %%
class MakingRoom(GrowingFill):
    """Fills an iteration as for `fluid`; the policy's `pausing` says who makes room."""

    def make_room(self):
        self.room = self.memory.room()
        self.evicted = {one.id: one for one in self.policy.pausing(self.room)}
        self.reasons = [Reason("evicted", name, "paused: the others lack room") for name in self.evicted]
        self.running = [pair for pair in self.running if pair[0].id not in self.evicted]


class BackPressure(Fluid):
    def _fill(self, now, memory, running):
        return MakingRoom(self, now, memory, running).propose()


# %% tags=["task"]
@register
class Mine(BackPressure):
    """The newest requests pause when memory is short."""

    name = "mine"

    def pausing(self, room):
        # BEGIN SOLUTION: the newest pause, one by one, until all others have room for their next tokens
        left, paused = [*self.running], []
        asking = 0
        while asking < len(left):
            refused = room.extend(left[asking])
            if refused is None:
                asking += 1
                continue
            newest = left.pop()
            room.evict(newest)
            paused.append(newest)
        return paused
        # END SOLUTION


# %%
check("fluid", six, batching="mine", kv_memory="48KiB", memory__block_size=4)

# %% [markdown] tags=["prediction"]
# ## Packing: the bubbles of attention
#
# Attention runs the pieces of a wave side by side, and ends with the longest. Until then shorter ones leave a
# **bubble**: type A beside a longer prompt, type B where a single token stands beside a prompt (section 4.2). Packing
# puts several short pieces behind each other in one *lane*. **By hand**, with figure 9: two prompts of 5 tokens, one
# of 2, and three single tokens cost about $25, 4, 25, 1, 1, 1$ if a prompt costs $L^2$. Before you run the next cell,
# fill lanes up to 25, the longest first: which pieces share a lane?

# %%
names, seconds, is_prompt = [1, 2, 3, 4, 5, 6], [25, 4, 1, 25, 1, 1], [True, True, False, True, False, False]
one_each, packed = tuple((piece,) for piece in range(6)), pack(seconds)
print("lanes:", [[names[piece] for piece in lane] for lane in packed])
assert packed == ((0,), (3,), (1, 2, 4, 5))  # figure 9b: [1], [4], [2, 3, 5, 6]


# %% tags=["plot"]
def draw_packing(axes, lanes, title):
    for row, lane in enumerate(lanes):
        start = 0
        for piece in lane:
            colour = GREEN if is_prompt[piece] else BLUE
            axes.barh(row, seconds[piece], left=start, color=colour, edgecolor="white", height=0.7)
            axes.text(
                start + seconds[piece] / 2, row, names[piece], ha="center", va="center", color="white", fontsize=8
            )
            start += seconds[piece]
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), [f"lane {row}" for row in range(len(lanes))])
    axes.set_xlabel("time of attention")
    idle = bubbles_of(seconds, is_prompt, lanes).idle
    axes.set_title(f"{title}: {idle:.0%} idle", loc="left", fontsize=9)


figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.5))
draw_packing(left, one_each, "a lane for each")
draw_packing(right, packed, "packed")
figure.tight_layout()
plt.show()

# %%
show_source(pack)

# %% [markdown]
# The green pieces are prompts. The four short pieces share a lane.

# %% [markdown]
# This is *first-fit decreasing*, a known rule for packing boxes: take the longest, put it where it fits first. In
# `pack`, `bisect_right` finds the longest piece left that still fits: a binary search, so that thousands of pieces cost
# little. How far is the rule from the best? The next cell tries all orders of six pieces, and then one case of seven.


# %%
def fewest(seconds):
    """The fewest lanes, none longer than the longest piece: lanes are filled one by one, in every order of pieces."""
    best = len(seconds)
    for order in permutations(seconds):
        lanes, end = 1, 0
        for one in order:
            lanes, end = (lanes, end + one) if end + one <= max(seconds) else (lanes + 1, one)
        best = min(best, lanes)
    return best


drawn = random.Random(0)
cases = [[drawn.randint(1, 20) for _ in range(6)] for _ in range(200)]
more = [len(pack(case)) - fewest(case) for case in cases]
print(f"{more.count(0)} of {len(cases)} packings have the fewest lanes; at most {max(more)} lane more")
assert max(more) == 0

unlucky = [12, 6, 5, 4, 4, 3, 2]
print("of", unlucky, "it makes", len(pack(unlucky)), "lanes, and", fewest(unlucky), "would do")
assert (len(pack(unlucky)), fewest(unlucky)) == (4, 3)

# %% [markdown]
# Six pieces are packed best in all these cases. With seven there are cases in which a lane too many is opened: the sums
# 6 + 4 + 2 and 5 + 4 + 3 would fill two lanes of 12, but the rule puts 5 behind 6. It never takes more than 11/9 of the
# fewest lanes plus 6/9 (Dósa, 2007).
#
# ### What executes the lanes
#
# On a GPU one program walks the list of each lane. On a CPU the pieces of a lane are one call, and as many lanes run at
# once as torch has threads; with one thread, or with single tokens alone, all lanes are one call:

# %%
from minifuse.attention.packed import PackedAttention

show_source(PackedAttention.attention, PackedAttention.attend_lane)

# %% [markdown]
# ### Bubbles in a run
#
# A trace says which lanes each wave had. With requests that arrive one by one, prompts and single tokens are in the
# same waves. The next cell computes the bubbles with a lane for each piece, and with the lanes of the run.

# %%
drawn = random.Random(7)
stream = asks_opt(*[(drawn.choice([60, 150, 400]), drawn.randint(40, 80)) for _ in range(40)], every=0.04)
mixed = play_opt("fluid", stream, kv_memory="8GiB")


def bubbles(run, lanes_too):
    total = Bubbles(0, 0, 0, 0)
    for one in run.history.iterations:
        work = [(stop - start, stop) for _, start, stop in one.event["work"]]
        spent = [seconds_of(new, context, hidden_size=H, **rates) for new, context in work]
        is_prompt = [new > 1 for new, _ in work]
        for start, stop in one.event["waves"] or [(0, len(work))]:
            lanes = [lane for lane in one.event["lanes"] if start <= lane[0] < stop] if lanes_too else []
            lanes = [[piece - start for piece in lane] for lane in lanes] or [[i] for i in range(stop - start)]
            if any(is_prompt[start:stop]):
                total += bubbles_of(spent[start:stop], is_prompt[start:stop], lanes)
    return total


before, after = bubbles(mixed, False), bubbles(mixed, True)
print(f"waves with a prompt: {before.idle:.0%} of the lanes' time is idle, packed {after.idle:.0%}")
assert after.idle < before.idle / 2

# %% tags=["plot"]
kinds = {"type A": "prompts_s", "type B": "tokens_s", "others": "others_s", "busy": "busy_s"}
figure, axes = plt.subplots(figsize=(7, 2))
for row, found in enumerate((before, after)):
    left = 0
    for (kind, field), colour in zip(kinds.items(), (ORANGE, PURPLE, GREY, GREEN)):
        value = 1e3 * getattr(found, field)
        axes.barh(row, value, left=left, color=colour, label=kind if not row else None)
        left += value
axes.set_yticks(range(2), ["a lane for each", "packed"])
axes.invert_yaxis()
axes.set_xlabel("ms of all lanes together, in one layer")
axes.set_title(f"Waves with a prompt: {before.idle:.0%} idle, packed {after.idle:.0%}", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, ncol=2, loc="upper right", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# Nearly all bubbles of this run are of type B: single tokens beside a prompt. Packed, all lanes together take about
# half of the time. Where the machine runs as many lanes at once as there are pieces, a wave still ends
# with its longest piece, and packing only frees processors. With more pieces than lanes it saves time: in the next cell
# each of the card's 128 processors attends one of the 32 heads of a lane, so four lanes run at once.

# %%
in_lanes = {"kv_memory": "8GiB", "hardware": replace(gpu, processors=128)}
apart, together = (
    play_opt("fluid", stream, attention=attention, **in_lanes).metrics["normalized_latency_s"]["mean"]
    for attention in ("paged", "packed")
)
print(f"{1e3 * apart:.2f} ms a token with a lane for each piece, {1e3 * together:.2f} packed")
assert 0.95 * apart < together < apart

# %% [markdown] tags=["prediction"]
# ## One knob to turn: the token budget
#
# The budget bounds the tokens of prompts in an iteration, and so the longest gap between two tokens of a request: the
# *latency bound*. FluidInfer claims one about 3 times lower than vLLM's (6.3, figure 12). A small budget cuts prompts
# into many pieces. Predict which rise with the budget, and which fall: the number of iterations, the mean time to the
# first token, the longest gap.

# %%
budgets = [32, 64, 128, 256, 512, 1024]
by_budget = [play_opt("fluid", stream, kv_memory="8GiB", batching__token_budget=one).metrics for one in budgets]
assert by_budget[0]["ttft_s"]["mean"] > by_budget[-1]["ttft_s"]["mean"]
assert by_budget[0]["latency_bound_s"] < by_budget[-1]["latency_bound_s"] == by_budget[-2]["latency_bound_s"]

# %% tags=["plot"]
figure, panels = plt.subplots(1, 3, figsize=(9.4, 2.7))
for axes, values, unit, title in zip(
    panels,
    (
        [m["iterations"] for m in by_budget],
        [m["ttft_s"]["mean"] for m in by_budget],
        [1e3 * m["latency_bound_s"] for m in by_budget],
    ),
    ("iterations", "s", "ms"),
    ("weights are read", "time to first token, mean", "longest gap between two tokens"),
):
    axes.plot(budgets, values, "o-", color=GREEN)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, budgets, fontsize=7)
    axes.set_ylim(0)
    axes.set_xlabel("token budget")
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown] tags=["prediction"]
# Beyond the ridge the left and the middle curve are almost flat, and the gap keeps growing for almost no gain, until no
# iteration has as many tokens of prompts as the budget allows: 512 and 1,024 are the same run.
#
# ## Where this idea loses
#
# The crowd of the beginning, with 2, 4 and 8 GiB for KV, and `fluid` rotating. Predict: where does it win, and where
# not?

# %%
sizes = [2, 4, 8]
rivals = {"orca": ({}, BLUE), "vllm": ({}, ORANGE), "fluid": (ROTATE, GREEN)}
contest = {
    name: [play_opt(name, crowd, kv_memory=f"{size}GiB", **options) for size in sizes]
    for name, (options, _) in rivals.items()
}
fast = play_opt("fluid", crowd, hardware=fast_link, **ROTATE)
took = {name: [run.history.last_s for run in runs_of] for name, runs_of in contest.items()}
for name, machine in (("as in the data sheet", gpu), ("as fast as the memory", fast_link)):
    print(f"2 GiB, link {name}: rotating can add {machine.link / machine.bandwidth * (1 + 2 * weights / 2**31):.0%}")
assert took["fluid"][0] > 1.3 * took["orca"][0]
assert took["fluid"][2] < took["vllm"][2]
assert fast.history.last_s < 0.8 * took["vllm"][0]

# %% tags=["plot"]
figure, panels = plt.subplots(1, 2, figsize=(8.4, 2.9))
for name, (_, colour) in rivals.items():
    panels[0].plot(sizes, [run.history.last_s for run in contest[name]], "o-", color=colour, label=name)
    panels[1].plot(sizes, [run.metrics["ttft_s"]["mean"] for run in contest[name]], "o-", color=colour)
panels[0].plot([2], [fast.history.last_s], "^", color=GREEN, label="fluid, fast link")
panels[1].plot([2], [fast.metrics["ttft_s"]["mean"]], "^", color=GREEN)
for axes, title in zip(panels, ("time for all 32", "time to first token, mean")):
    axes.set_xticks(sizes)
    axes.set_xlabel("GiB for KV")
    axes.set_ylabel("s")
    axes.set_ylim(0)
    axes.set_title(title, loc="left", fontsize=9)
panels[0].legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# Where everything fits, nothing moves, and `fluid` is the fastest of the three and answers first. Where it does not
# fit, each iteration uploads anew the KV that does not stay, over a link that is thirty times as slow as the device's
# memory: `fluid` then takes longer than `orca`, which lets requests wait. With a link as fast as the memory the same
# run is faster than both. So the idea stands or falls with two ratios: of link and bandwidth, and of weights and KV
# memory. The crowd fits 4 GiB, so beside 2 GiB it needs at most 100% more; compare the printed bounds. Note the right
# chart: even where it is slow overall, first tokens come early: no request waits for memory.
#
# ## Exercises
#
# 1. A machine has 300 T operations/s, 1.5 TB/s and a link of 450 GB/s. How many tokens saturate it? How many times as
#    long as its attention does the upload of a decoding request take? How much can rotating add to 2 GiB, and is it
#    faster than `vllm` there, with the crowd? *Hint: the counts by hand; then
#    `replace(gpu, flops=300e12, bandwidth=1.5e12, link=450e9)` is the machine, to be given as `hardware`.*
#    <details><summary>Answer</summary>
#    200 tokens; 1500/450, about 3.3 times. 0.3 (1 + 13.3 / 2.1), more than 200%. It is: 2.0 s against 2.8 s, and 2.5 s
#    with pausing. An upload need not be hidden entirely to be worthwhile; here two thirds of the seconds of
#    transfers are waited for.
#    </details>
# 2. Pack pieces of 10, 7, 6, 4, 3, 3, 2 by hand, then with `pack`. Which lanes are there, and how large is the idle
#    part? *Hint: no lane is longer than 10.*
#    <details><summary>Answer</summary>
#    [10], [7, 3], [6, 4], [3, 2]: only the last has a bubble, 5 of 40, an eighth.
#    </details>
# 3. Play the six requests with `**ROTATE, memory__turns="sequences"`, and with `memory__turns="layers"` and a
#    `memory__buffer` of 0.25 and of 1. How many waves are there, and how many bytes go up? *Hint:
#    `run.metrics["transfers"]["to_device"]["bytes"]`; slots of the buffer hold one layer, of all layers in turn.*
#    <details><summary>Answer</summary>
#    `sequences`: 403,968 bytes, in up to six waves; nothing stays on the device. `layers` with 0.25: 218,112, in up to
#    five; three quarters of the device keep their KV. With 1: 403,968, in two waves in every iteration; one layer at a
#    time has all of the device, with room for three times as many tokens here.
#    </details>
# 4. Why is KV that was uploaded and attended not copied back to the host? How many tokens go down in the run with
#    `**ROTATE, memory__turns="sequences"`, and how many more would, if it were? *Hint: count first; then
#    `run.metrics["transfers"]`, at 1,536 bytes a token.*
#    <details><summary>Answer</summary>
#    The host still has it. KV of a token never changes once it is written; only the new token's KV has to go down: each
#    of 66 tokens once, 101,376 bytes. The 403,968 bytes that go up are 263 tokens; all would go down again.
#    </details>
# 5. Draw 64 requests as the crowd was, and play them with 1.5 GiB and the host, in one pass and in two. Which is
#    faster, and why not with 32? *Hint: `run.metrics["on_host"]`, the iterations, and $W / \text{bandwidth}$.*
#    <details><summary>Answer</summary>
#    Two passes: 5.3 s against 6.3 s. In an iteration the host attends for 16.8 ms, and reading the weights once more
#    takes 13.2 ms. With 32 requests the host attends for 6.2 ms.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - FluidInfer (figure 8) moves KV to and fro, so that everything takes turns. We keep a copy on the host, and the
#   first requests on the device (`memory.turns`). The default, pausing, and attention by the host are our additions.
# - FluidInfer takes swapping to be about as fast as a decode (4.1). The figures in `benchmarks/results` are drawn for
#   such a link, and for that of the data sheet, which is some thirty times as slow.
# - The packing is the greedy rule of 4.2, read literally. The cost of a piece is the longer of its arithmetic and its
#   bytes, because a cut prompt lies between the paper's two formulas.
# - We refuse no number of requests, but the host's memory is finite too: a request waits when the host has no room
#   for its longest answer.
# - The paper's gains over vLLM (figures 11 and 12) are simulated, with arrivals over time and four cards; this chapter
#   does not repeat them.
#
# ## Further reading
#
# - `docs/fluidinfer.md`: what the paper fixes, and what was decided here, with reasons.
# - Sheng et al., *FlexGen* (2023): weights and KV from host memory, for throughput alone. Jiang et al., *NEO* (2024):
#   attention by the host.
# - Agrawal et al., *Sarathi-Serve* (OSDI 2024): the token budget. `minifuse explain fluid`.
#
# **Next:** waves, blocks and pieces of prompts all end in one attention call; chapter 11 writes the kernel that
# computes it.
