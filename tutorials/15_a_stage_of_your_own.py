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
# # 15. A stage of your own, and the laws that judge it
#
# All techniques of this course are made of three *stages*: a batching policy, a memory and an attention. In this
# chapter you write a policy. You register it, play it, and measure what it gains and what it costs. Then you let it
# promise more than it keeps, and a program finds a small set of requests that shows it.
#
# **You will be able to**
#
# - write a batching policy in a notebook cell and play it with the memories and attentions that are there;
# - say which methods of a policy are called, when, and what they must not do;
# - read a verdict of the laws: the law, the scenario, the method to look at;
# - tell three kinds of mistakes apart: those that stop a run at once, those that a law finds in one run, and those that
#   only a second run shows;
# - name what a search that finds nothing does not prove;
# - bound how often a request is overtaken, and measure the price of the bound.

# %%
import linecache
import random
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import torch

from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.core.errors import LawBroken, StageFault, UsageError
from minifuse.core.plan import Proposal, Reason, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import option
from minifuse.show.notebook import asks, draw_lanes, owner_colour, play, replay, show_source
from minifuse.stages import Memory, register
from minifuse.techniques import mix, technique
from minifuse.testing import LAWS, TEXTS
from minifuse.testing.mixes import mixes_of
from minifuse.testing.overtaking import _overtaken_by, check_overtaking
from minifuse.testing.search import Search
from minifuse.testing.statements import names_of, statement

plt.rcParams.update({"figure.figsize": (7, 2.6), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#c4cad2"
torch.set_num_threads(1)  # the models of the laws are so small that threads only delay them

# %% [markdown]
# ## The failure that is left: no technique knows what you know
#
# Chapter 14 compares techniques under many loads. Those of the five papers are made for any requests, so they use
# nothing that you may know about yours. Suppose that every request says how many tokens it wants at most
# (`max_new_tokens`), and that the numbers are honest. The next cell serves six requests with `orca`, two at a time:
# first come, first served. They arrive a millionth of a second apart, which is enough to give them an order.

# %%
lengths = [24, 20, 3, 4, 3, 5]
requests = asks(*[(3, length) for length in lengths], every=1e-6)
in_order = play("orca", requests, label="first come", max_batch=2)
draw_lanes(in_order, by="iterations")


# %% [markdown]
# Four short answers wait behind two long ones. Nothing is wasted here: both places are used in nearly all iterations.
# What is wrong is the *order*.
#
# ## The idea: the shortest answer first
#
# A policy is a class. Its base class `QueuePolicy` fills an iteration by itself: first the sequences that run, then
# newcomers from the queue. (A *sequence* is a request with its text so far, chapter 1.) You write two methods that it
# calls, its *hooks*. `rank` says where a sequence stands in the queue, the lowest first. `admission` returns None to
# let a newcomer in, or a `Reason` why not. `joining` is how many newcomers this iteration has already. `@register`
# makes the class known by its `name`. `Options` are what `--set batching.max_batch=2` sets on the command line; an
# option with `batch_size=True` is also what `play(max_batch=2)` sets.


# %%
@register
class Shortest(QueuePolicy):
    """The requests that ask for the fewest tokens are admitted first."""

    name = "shortest"

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)

    def rank(self, sequence: Sequence) -> int:
        return sequence.request.max_new_tokens

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        if len(self.running) + joining >= self.options.max_batch:
            return Reason("batch-full", sequence.id, "not admitted: the batch is full")
        return None


# %% [markdown]
# That is all of it. `play("orca", ..., batching="shortest")` takes memory and attention of `orca`, and this policy. A
# choice of stages that has no name of its own, like this one, is called a *mix*. You may change a class and run its
# cell again: the class replaces itself.
#
# **A count by hand.** Take a batch of one request, and requests that all wait already. Each new token takes one
# iteration, and the first iteration computes the prompt and the first token. With lengths $n_1, n_2, \ldots, n_k$ in
# the order of service, request $i$ ends after $n_1 + \ldots + n_i$ iterations. The sum over all requests is
#
# $$k\,n_1 + (k-1)\,n_2 + \ldots + 1 \cdot n_k.$$
#
# The first length counts $k$ times, the last once. So the sum is smallest when the lengths increase.

# %%
now = asks(*[(3, length) for length in lengths])  # all arrive at 0
alone = {name: play("orca", now, max_batch=1, batching=name) for name in ("iteration", "shortest")}


def ends(run):
    """The iteration, counted from 1, in which each request ends."""
    steps = [one for one in run.history.iterations if one.work]
    return {story.id: sum(one.start_s < story.ended_s for one in steps) for story in run.history.by_arrival}


def by_hand(order):
    return sum((len(order) - i) * length for i, length in enumerate(order))


for name, order in (("iteration", lengths), ("shortest", sorted(lengths))):
    in_the_run = sum(ends(alone[name]).values())
    print(f"{name:9} by hand {by_hand(order)}, in the run {in_the_run}: mean {in_the_run / len(order):.1f} iterations")
    assert by_hand(order) == in_the_run

# %% [markdown] tags=["prediction"]
# ## A prediction
#
# Now with two places, and `r0` arriving an instant before `r1`, `r1` before `r2`, and so on. Before you run the next
# cell, predict:
#
# 1. Does the run take fewer iterations in all?
# 2. Which requests end earlier than under first come, first served, and which later?
# 3. `r0` arrives first, when nothing runs. Is it overtaken?

# %%
by_length = play("orca", requests, label="shortest first", max_batch=2, batching="shortest")
assert by_length.tokens == in_order.tokens, "the answers are the same"
draw_lanes(in_order, by_length, by="iterations")

# %%
mean = {run.name: sum(ends(run).values()) / len(lengths) for run in (in_order, by_length)}
print({name: round(value, 1) for name, value in mean.items()})
assert mean[by_length.name] < mean[in_order.name]
assert ends(by_length)["r0"] == ends(in_order)["r0"], "r0 was admitted when it was alone"
assert max(ends(by_length).values()) > max(ends(in_order).values())

# %% tags=["plot"]
figure, axes = plt.subplots()
for offset, run, colour in ((-0.2, in_order, GREY), (0.2, by_length, BLUE)):
    places = [number + offset for number in range(len(lengths))]
    axes.bar(places, list(ends(run).values()), 0.38, color=colour, label=run.name)
axes.set_xticks(range(len(lengths)), [f"{one.id}: {one.max_new_tokens}" for one in requests])
axes.set_xlabel("request: tokens of its answer")
axes.set_ylabel("iteration in which it ends")
axes.set_ylim(0, 1.35 * max(ends(by_length).values()))
axes.set_title("The last end is later, the mean is earlier", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
plt.show()

# %% [markdown]
# `r0` runs from the start, since nothing else was there, and a policy of this kind takes no place away. `r1`, which is
# long too, is now the last one. The run as a whole becomes longer: at its end one place is empty while `r1` goes on
# alone. The many gain, at the cost of one.

# %% [markdown]
# The replay begins with the iteration in which `r2` has its first token under `shortest first` (B), while it waits
# under `first come` (A). Step on, and see in B how often `r1`, the selected request, is overtaken.

# %%
replay(in_order, by_length, address="i=1&b=shortest first&request=r1", height=700)

# %% [markdown]
# ## The source that matters
#
# `QueuePolicy` makes a `Fill` for every iteration: schedule the running sequences within the token budget (chapter 3),
# admit waiting ones. A policy with `grows = True` has a `GrowingFill`, which makes room for the running ones first
# (chapter 4). `admit` goes through the queue in the order of `rank`. For each newcomer it asks for a refusal: by
# `admission`, by the budget, by memory. It ends with the first that is refused. So a request that does not fit is not
# overtaken by a smaller one behind it. That is a rule about *fairness*, and it stands here so that every queue policy
# has it.

# %%
show_source(Fill.propose, Fill.admit, Fill.refusal)

# %% [markdown]
# When is a policy called? The next cell keeps a diary: the same policy, whose methods first write down their names.

# %%
diary = []


@register
class Diary(Shortest):
    """The shortest first; writes down when each of its methods is called."""

    name = "diary"

    def receive(self, sequence: Sequence) -> None:
        diary.append(("receive", sequence.id))
        super().receive(sequence)

    def rank(self, sequence: Sequence) -> int:
        diary.append(("rank", sequence.id))
        return super().rank(sequence)

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        diary.append(("admission", sequence.id))
        return super().admission(sequence, joining, now)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        diary.append(("propose", ""))
        return super().propose(worker, now, memory)

    def commit(self, plan: Any, now: float) -> None:
        diary.append(("commit", ""))
        super().commit(plan, now)

    def release(self, sequence: Sequence) -> None:
        diary.append(("release", sequence.id))
        super().release(sequence)


few = asks((3, 5), (3, 3), (3, 2), every=1e-6)
diary.clear()  # `play` tries the stages out before the run
told = play("orca", few, max_batch=2, batching="diary")
print(f"{len(diary)} calls; the first: {', '.join(f'{method} {name}'.strip() for method, name in diary[:8])}")
assert [name for method, name in diary if method == "release"] == sorted(ends(told), key=ends(told).get)

# %% tags=["plot"]
methods = ["receive", "rank", "propose", "admission", "commit", "release"]
figure, axes = plt.subplots(figsize=(8, 2.6))
for place, (method, name) in enumerate(diary):
    colour = owner_colour(told, name) if name else GREY
    axes.scatter(place, methods.index(method), color=colour, s=40)
    if name:
        axes.annotate(name, (place, methods.index(method)), (0, 6), textcoords="offset points", ha="center", fontsize=7)
axes.set_yticks(range(len(methods)), methods)
axes.set_ylim(len(methods) - 0.5, -0.9)
axes.set_xlabel("call, in the order in which they are made")
axes.set_title("The methods that are called in a run of three requests", loc="left", fontsize=10)
axes.grid(axis="x", color="#eef0f3")
axes.set_axisbelow(True)
plt.show()

# %% [markdown]
# `receive` and `rank` come once for each request, at its arrival (and `rank` again after an eviction). `propose` comes
# before every iteration and asks `admission` for the next in the queue. `commit` says that a plan has run, and
# `release` that a request has ended. No method may read a clock, draw a random number, or change a sequence: the engine
# alone writes sequences, and `now` is the only time there is.
#
# ## What the engine checks at once: the seam
#
# Where the engine takes what a stage returns, there is a *seam*. The stages of minifuse are trusted there. Yours is
# checked, and a wrong value ends the run with one sentence. Here `admission` returns True, as one may easily think it
# should.


# %%
@register
class Yes(Shortest):
    """A policy that says yes."""

    name = "yes"

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        return True  # type: ignore[return-value]


try:
    play("orca", few, batching="yes")
except StageFault as error:
    print(error)
    assert error.law == "contract"

# %% [markdown]
# The sentence begins with the law that is broken, *contract*. It names the method, the line (a cell counts as a file,
# with a number for a name), the value and what is allowed. You will meet two other sentences: a class that lacks a
# method is refused before anything runs, and so is a second class with the name of another.

# %%
try:

    @register
    class Shortest2(Shortest):
        """Another class with a name that is taken."""

        name = "shortest"

except UsageError as error:
    print(error)

# %% [markdown]
# ## The laws
#
# The seam sees one returned value at a time. Whether a stage is *right* is for the *laws*: sentences that must hold in
# every run. Every stage of minifuse keeps them. They are tried on *scenarios*: small random workloads in small
# memories, drawn so that memory runs out, requests arrive together, and some are *aborted* (taken back by their user).
# These are the laws for requests that are texts (requests that are graphs, chapter 7, have others), and two of them in
# words.

# %%
laws = names_of(TEXTS)
print(f"{len(laws)} laws: {', '.join(laws)}")
for law in ("pure", "overtaking"):
    print(f"\n{law}: {statement(law).says}")

# %% [markdown]
# The next cell puts `shortest` through those laws that a single run can break, and through *pure*, whose function is
# called `reproducible`: it makes a second run, and compares the decisions of both. `Search` tries scenarios on one mix.
# To try all laws on all mixes takes some minutes. `check_laws(batching="shortest")` of `minifuse.testing` does that; it
# is what you put into a test.


# %%
def judge(name, scenarios=12, seed=1):
    """Try scenarios on a policy with orca's memory and attention. Returns the broken law, or None, and how many."""
    row = mix(technique("orca"), batching=name)
    search = Search(TEXTS, row, [LAWS["reproducible"]])
    try:
        search.run(scenarios, seed)
    except LawBroken as broken:
        return broken, search.number
    return None, search.number


print(f"shortest is in {len(mixes_of('shortest'))} mixes")
broken, tried = judge("shortest")
assert broken is None
print(f"orca's memory and attention with shortest: {tried} scenarios, and no law is broken")

# %% [markdown]
# ## Where this idea loses, measured
#
# A long request arrives, and short ones keep coming. The next cell lets a number of short requests arrive, faster than
# they can be served, and measures how long the single long one, `r3`, waits. Time is virtual, so the numbers are the
# same on every machine.

# %%
step_s = in_order.history.last_s / len(in_order.steps)


def stream(count):
    """A long request among short ones: three arrive before it, the others one by one behind it."""
    arrivals = [0, 0, 0, step_s, *[(2 + 1.5 * i) * step_s for i in range(count)]]
    return asks((3, 4), (3, 4), (3, 4), (3, 16), *[(3, 4)] * count, arrivals=arrivals)


def waits(run):
    """Seconds from the arrival of each request to its admission."""
    return {story.id: story.admitted_s - story.arrival_s for story in run.history.by_arrival}


counts = [0, 4, 8, 12, 16, 20, 24]
curves = {
    name: [play("orca", stream(count), max_batch=2, batching=name, kv_memory="1MiB") for count in counts]
    for name in ("iteration", "shortest")
}
worst = curves["shortest"][-1]
print(f"{worst.metrics['most_overtaken']} requests overtook the long one")
assert worst.metrics["most_overtaken"] > 0.8 * counts[-1]

# %% tags=["plot"]
figure, axes = plt.subplots()
for name, colour, label in (("iteration", GREY, "first come, first served"), ("shortest", BLUE, "shortest first")):
    axes.plot(counts, [waits(run)["r3"] * 1e3 for run in curves[name]], "o-", color=colour, label=label)
axes.set_xlabel("short requests that arrive behind the long one")
axes.set_ylabel("ms until it is admitted")
axes.set_ylim(0)
axes.set_title("How long the long request waits", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# The wait has no bound. As long as short requests come, the long one *starves*. Why did no law say so? A policy may
# *claim* a bound: an attribute of the class, `overtaken_at_most`, says how many later requests may be admitted before
# one that waits. `QueuePolicy` claims 0. But a class with a rank of its own makes no claim, unless it says so. So the
# law *overtaking* had nothing to hold against `shortest`.

# %%
for policy in (QueuePolicy, Shortest):
    print(f"{policy.__name__} claims {policy.overtaken_at_most}")
assert QueuePolicy.overtaken_at_most == 0 and Shortest.overtaken_at_most is None

# %% [markdown]
# ## A promise that is not kept
#
# Let the policy claim that each request is overtaken by one later request at most. Nothing else changes yet.


# %%
@register
class Promise(Shortest):
    """The shortest first, and a promise that the code does not keep."""

    name = "promise"
    overtaken_at_most: ClassVar[int | None] = 1


# %% [markdown] tags=["prediction"]
# How many requests does it take, at least, to show that this is false? Before you run the next cell, write down a
# number, and what each of them does.

# %%
not_kept, tried = judge("promise", scenarios=100)
assert not_kept is not None and not_kept.law == "overtaking"
print(not_kept.what)
smallest = not_kept.seen
who = {request.id: request for request in smallest.case.requests}
settings = smallest.case.settings
print(f"found on scenario {tried}; what is left of it:")
print(f"{len(who)} requests, max_batch={settings['batching.max_batch']}, memory of {smallest.case.capacity} slots")
assert len(who) <= 4

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 0.8 + 0.4 * len(who)))
hues = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"]
for row, (name, request) in enumerate(who.items()):
    ran = [step for step in smallest.steps if name in {work.sequence for work in step.plan.work}]
    for step in ran:
        begin, end = step.started_s * 1e3, step.ended_s * 1e3
        axes.barh(row, end - begin, 0.6, left=begin, color=hues[row % len(hues)], edgecolor="white")
    if ran:
        begin = request.arrival_s * 1e3
        axes.barh(row, ran[0].started_s * 1e3 - begin, 0.3, left=begin, color=GREY)
    axes.plot(request.arrival_s * 1e3, row, "k|", markersize=14)
labels = [f"{name}: at {one.arrival_s * 1e3:g} ms, answer {one.max_new_tokens}" for name, one in who.items()]
axes.set_yticks(range(len(who)), labels, fontsize=8)
axes.invert_yaxis()
axes.set_xlabel("ms of virtual time (black: arrival, grey: waits, coloured: an iteration)")
axes.set_title("The smallest scenario that was found", loc="left", fontsize=10)
axes.set_xlim(-3)  # so that an arrival at 0 is seen
plt.show()

# %% [markdown]
# Four requests: one that runs and has taken the memory, one that is overtaken, and two that overtake it. With fewer,
# this policy keeps the promise, so the search has found a minimum. Read such a picture from the right: who is admitted
# last, and which requests that arrived later were admitted before it?
#
# This is not the scenario on which the mistake was found. When a law breaks, the search makes the scenario smaller for
# as long as the *same* law breaks: it leaves out requests and aborts, sets options to their defaults, and shortens
# prompts and answers. (The requests keep their names, so numbers are missing.)

# %% [markdown]
# The law itself is short. It does not trust the policy's books. `_overtaken_by` counts anew, from the plans that were
# run: for each request, those that arrived after it and began while it waited.

# %%
show_source(check_overtaking, _overtaken_by)

# %% [markdown]
# ## Mended
#
# To keep the promise, the policy must count. Then the order of the queue changes with every admission, and a fixed
# `rank` is not enough. So the next class starts from `Batching`, which has no queue, and writes `propose` itself. Three
# rules of `docs/stages.md` matter:
#
# - `memory.room()` is a *trial* of what fits. `room.admit(sequence)` sets aside what a newcomer needs, or returns the
#   reason why it does not fit. What was not tried may not fit.
# - The work of a sequence is what `memory.missing(sequence)` returns (chapter 1).
# - `propose` returns a `Proposal` of tuples: the work, the newcomers, the reasons.
#
# The cell has imports of its own, so that its text can later be a file.

# %%
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.plan import Proposal, Reason, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import option
from minifuse.stages import Batching, Memory, register


@register
class Patient(Batching):
    """The shortest answer first, but no request lets more than so many later ones pass."""

    name = "patient"
    overtaken_at_most: ClassVar[int | None] = 1

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting: dict[str, Sequence] = {}
        self.running: dict[str, Sequence] = {}
        self.passed: dict[str, int] = {}  # how many later arrivals have overtaken each that waits

    def receive(self, sequence: Sequence) -> None:
        self.waiting[sequence.id] = sequence
        self.passed[sequence.id] = 0

    def release(self, sequence: Sequence) -> None:
        for books in (self.waiting, self.running, self.passed):
            books.pop(sequence.id, None)

    def first(self, waiting: dict[str, Sequence]) -> Sequence:
        """The next to be admitted: the first whose patience has ended, or else the one with the shortest answer."""
        for sequence in waiting.values():
            if self.overtaken_at_most is not None and self.passed[sequence.id] >= self.overtaken_at_most:
                return sequence
        return min(waiting.values(), key=lambda one: one.request.max_new_tokens)

    def admit(self, sequence: Sequence) -> None:
        self.running[sequence.id] = self.waiting.pop(sequence.id)
        for other in self.waiting.values():
            self.passed[other.id] += other.request.arrival_s < sequence.request.arrival_s

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        room, newcomers, reasons = memory.room(), [], []
        while self.waiting:
            sequence = self.first(self.waiting)
            if len(self.running) == self.options.max_batch:
                reason = Reason("batch-full", sequence.id, "not admitted: the batch is full")
            else:
                reason = room.admit(sequence)
            if reason is not None:  # the others wait until this one fits
                reasons.append(reason)
                break
            newcomers.append(sequence)
            self.admit(sequence)
        return self.proposal(newcomers, reasons, memory)

    def proposal(self, newcomers: list[Sequence], reasons: list[Reason], memory: Memory) -> Proposal:
        work = tuple(Work(one.id, *span) for one in self.running.values() for span in memory.missing(one))
        return Proposal(work, tuple(newcomers), tuple(reasons))


# %%
broken, tried = judge("patient", scenarios=25)
assert broken is None
print(f"{tried} scenarios, and no law is broken")
patiently = play("orca", stream(24), max_batch=2, batching="patient", kv_memory="1MiB")
for name, run in (("first come", curves["iteration"][-1]), ("shortest", worst), ("patient", patiently)):
    wait_ms = 1e3 * waits(run)["r3"]
    print(f"{name:10} most overtaken {run.metrics['most_overtaken']:2}, the long one waits {wait_ms:4.1f} ms")
assert patiently.metrics["most_overtaken"] == 1
two_ways = [play("orca", stream(6), label=name, max_batch=2, batching=name) for name in ("shortest", "patient")]
draw_lanes(*two_ways, by="time")

# %% [markdown] tags=["prediction"]
# `r3` now lets one later request pass, `r4`, and then it is next. That no law was broken is no proof: it says that so
# many scenarios were tried, and that none of them showed a mistake. Exercise 2 has a mistake that hides.
#
# ## One knob to turn: the patience
#
# The bound is a number that you choose. With 0 the policy is first come, first served; without a bound it is shortest
# first. The next cell makes a class for each number, and serves 60 requests of which one in six is long. Predict what
# happens to the mean wait, and to the longest wait, as the bound grows.


# %%
def register_bound(bound):
    @register
    class Bounded(Patient):
        """The same, with another bound."""

        name = f"patient-{bound}"
        overtaken_at_most: ClassVar[int | None] = bound


bounds = [0, 1, 2, 4, 8, 16, None]
for bound in bounds:
    register_bound(bound)
rng = random.Random(5)
mixed = [(3, 24) if i % 6 == 1 else (3, rng.randint(2, 6)) for i in range(60)]
moments = [0.0]
while len(moments) < len(mixed):
    moments.append(moments[-1] + rng.expovariate(1 / (1.5 * step_s)))
crowd = asks(*mixed, arrivals=moments)
of_bound = {bound: play("orca", crowd, max_batch=4, batching=f"patient-{bound}", kv_memory="1MiB") for bound in bounds}
for bound, run in of_bound.items():
    assert bound is None or run.metrics["most_overtaken"] <= bound
for bound, name in ((0, "iteration"), (None, "shortest")):
    assert ends(of_bound[bound]) == ends(play("orca", crowd, max_batch=4, batching=name, kv_memory="1MiB"))
mean_ms = {bound: 1e3 * sum(waits(run).values()) / len(crowd) for bound, run in of_bound.items()}
longest_ms = {bound: 1e3 * max(waits(run).values()) for bound, run in of_bound.items()}
for bound in bounds:
    print(f"overtaken at most: {bound!s:4}  mean wait {mean_ms[bound]:4.1f} ms, longest {longest_ms[bound]:5.1f} ms")
assert mean_ms[4] < 2 / 3 * mean_ms[0]
assert longest_ms[4] < 1.05 * longest_ms[0]
assert longest_ms[None] > 1.3 * longest_ms[0]

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
labels = ["none" if bound is None else str(bound) for bound in bounds]
left.plot(labels, [*mean_ms.values()], "o-", color=BLUE)
right.plot(labels, [*longest_ms.values()], "o-", color=ORANGE)
for axes, title in ((left, "mean wait"), (right, "longest wait")):
    axes.set_xlabel("overtaken at most")
    axes.set_ylabel("ms until admitted")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_title(title, loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# Up to a bound of 4 the mean falls by more than a third, and the longest wait hardly changes. With larger bounds the
# long requests pay: the longest wait grows, and the mean has little left to gain. Which point is right is no question
# for a law, since laws say what must never happen. What you prefer is a question for measurements, as in chapter 14.
#
# ## Five mistakes, and the law that names each
#
# Five wrong policies can be made from `Patient`, without its claim. Each is an easy mistake to make:
#
# - `lists` returns a list where a tuple is meant;
# - `whole` computes each text anew, although its KV is there;
# - `no_room` admits without asking memory;
# - `loses` takes a request out of its queue, finds that memory has no room for it, and forgets it;
# - `lottery` chooses at random who is next.


# %%
def lists(self, newcomers, reasons, memory):
    """Returns a list where a tuple is meant."""
    return replace(Patient.proposal(self, newcomers, reasons, memory), admit=list(newcomers))


def whole(self, newcomers, reasons, memory):
    """Computes each text anew, although its KV is there."""
    return Proposal(tuple(Work(one.id, 0, len(one)) for one in self.running.values()), tuple(newcomers), ())


def no_room(self, worker, now, memory):
    """Admits without asking memory."""
    newcomers = []
    while self.waiting and len(self.running) < self.options.max_batch:
        newcomers.append(self.first(self.waiting))
        self.admit(newcomers[-1])
    return self.proposal(newcomers, [], memory)


def loses(self, worker, now, memory):
    """Takes a request out of its queue, then finds that memory has no room, and forgets it."""
    room, newcomers = memory.room(), []
    while self.waiting and len(self.running) < self.options.max_batch:
        sequence = self.waiting.pop(self.first(self.waiting).id)
        if room.admit(sequence) is None:
            newcomers.append(sequence)
            self.running[sequence.id] = sequence
    return self.proposal(newcomers, [], memory)


def lottery(self, waiting):
    """Chooses at random."""
    return random.choice(list(waiting.values()))


# %% [markdown] tags=["prediction"]
# Each breaks a different law. In alphabetical order, they are *budget* (memory is never overfull), *contract* (the form
# of what is returned), *counting* (what is computed is what must be), *pure* (the same run decides alike), and
# *reasons* (where nothing runs and a request waits, there is a reason). Predict which mistake breaks which law.

# %%
mistakes = {"proposal": (lists, whole), "propose": (no_room, loses), "first": (lottery,)}
verdicts = {}
for method, wrong in mistakes.items():
    for function in wrong:
        body = {"name": function.__name__, "__doc__": function.__doc__, method: function, "overtaken_at_most": None}
        body["__module__"] = __name__  # this notebook, so that the cell can be run again
        register(type(function.__name__.capitalize(), (Patient,), body))
        broken, tried = judge(function.__name__, scenarios=30)
        verdicts[function.__name__] = (broken, tried)
        print(f"{function.__name__:8} {broken.law:9} {textwrap.shorten(broken.what, 96, placeholder=' ...')}")
assert [broken.law for broken, _ in verdicts.values()] == ["contract", "counting", "budget", "reasons", "pure"]
roomy = play("orca", crowd, max_batch=4, batching="loses", kv_memory="1MiB")
print(f"in a large memory, loses serves {len(roomy.tokens)} of {len(crowd)} requests")
assert roomy.tokens == of_bound[None].tokens

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.4))
for row, (broken, tried) in enumerate(verdicts.values()):
    count = 0 if broken.seen is None else len(broken.seen.case.requests)
    axes.barh(row - 0.2, tried, 0.36, color=BLUE, label="scenarios until a law broke" if not row else None)
    axes.barh(row + 0.2, count, 0.36, color=ORANGE, label="requests of the smallest one" if not row else None)
axes.set_yticks(range(len(verdicts)), [f"{name}: {broken.law}" for name, (broken, _) in verdicts.items()], fontsize=8)
axes.set_xticks(range(round(axes.get_xlim()[1]) + 1))
axes.invert_yaxis()
axes.set_xlabel("number")
axes.set_title("What it took to find each mistake", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# The mistakes are of three kinds. Some stop a run at once, at the seam: a value of the wrong form (*contract*), work
# that is not what is missing (*counting*), newcomers for whom memory has no room (*budget*). Some show in one run, to a
# law that looks at it as a whole: a request waits for no reason (*reasons*). And a decision that depends on chance can
# look right in every single run; only a second run, compared with the first, shows it (*pure*).
#
# Note `loses`. Where memory is large, it serves all of `crowd`, as the last line of the cell says. The scenarios have
# small memories, which often run out.
#
# ## From the notebook to a file
#
# A *plugin* is a file that registers stages. The cell of `Patient` has its own imports, so its text is such a file.
# With it the command line knows the policy: `minifuse --plugin FILE.py run --batching patient`, and `minifuse check
# --plugin FILE.py patient`. The next cell writes a file with the mistake of `loses` after the text of `Patient`, and
# checks it.

# %%
text = "".join(linecache.getlines(Patient.propose.__code__.co_filename))
defect = '''

@register
class Forgetful(Patient):
    """The same, but a request that does not fit is forgotten."""

    name = "forgetful"

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        room, newcomers = memory.room(), []
        while self.waiting and len(self.running) < self.options.max_batch:
            sequence = self.waiting.pop(self.first(self.waiting).id)
            if room.admit(sequence) is None:
                newcomers.append(sequence)
                self.running[sequence.id] = sequence
        return self.proposal(newcomers, [], memory)
'''
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "mine.py").write_text(text + defect)
    command = [sys.executable, "-m", "minifuse", "check", "--plugin", "mine.py", "forgetful", "--quick"]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=folder)
print(checked.stdout)
assert checked.returncode not in (0, 2) and "BROKEN" in checked.stdout

# %% [markdown]
# Read a verdict from top to bottom. *The law* says what must hold, *happened* what did happen, *where* in which mix and
# with which settings. Then comes the run as a timeline, and the last decisions. *Look at* names the methods of your
# class in which this law is kept or broken, *read* where it is explained, and *found* ends with the command that finds
# the same scenario again. In a test, all of this is one line: `check_laws(batching="patient")`.
#
# ## Exercises
#
# 1. Write a policy `longest` that admits the longest answer first. Which mean do you expect for the six requests of the
#    count by hand? *Hint: one sign in `rank`.*
#    <details><summary>Answer</summary>
#    <code>return -sequence.request.max_new_tokens</code>. With a batch of one the sum is 6·24 + 5·20 + 4·5 + 3·4 + 2·3
#    + 1·3 = 285, a mean of 47.5 iterations: the largest that any order has.
#    </details>
# 2. In `Patient.propose`, the first request that does not fit ends the loop. Write a policy `skips` that goes on with
#    the next request instead. Which claim is in danger? Try `judge("skips", 25)`, then `judge("skips", 1500, seed=7)`,
#    which takes about a minute. *Hint: take the candidates out of a copy of `self.waiting`.*
#    <details><summary>Answer</summary>
#    The claim on overtaking: small requests pass the one that does not fit, for as long as they come. The loop becomes
#    <pre>left = dict(self.waiting)
#    while left and len(self.running) &lt; self.options.max_batch:
#        sequence = left.pop(self.first(left).id)
#        reason = room.admit(sequence)
#        if reason is None:
#            newcomers.append(sequence)
#            self.admit(sequence)
#        else:
#            reasons.append(reason)</pre>
#    On 25 scenarios no law is broken. The longer search finds <i>overtaking</i> broken on scenario 344. It takes a
#    memory in which one request does not fit while two later ones do, and few scenarios have that. A search that finds
#    nothing proves nothing; the longer it was, the more it is worth.
#    </details>
# 3. `Patient` looks at all that wait for each newcomer. How does that grow with the length of the queue, and what does
#    `QueuePolicy` do instead? Count: write a subclass of `Patient` whose `first` adds `len(waiting)` to a counter, and
#    play 500, 1,000 and 2,000 requests `(3, 1)`, all there at the beginning, with `max_batch=1`. *Hint: how often is
#    `first` called in an iteration? And see `Ranked` in `minifuse/batching/queue.py`.*
#    <details><summary>Answer</summary>
#    With the square: 250,000, 1,000,000 and 4,000,000 looks. While k wait, an iteration looks at k to find the next,
#    and at k - 1 before it sees that the batch is full; the sum of 2k - 1 for k from 1 to n is n squared.
#    <code>Ranked</code> keeps the queue sorted, so that the first is found at once.
#    </details>
# 4. `max_new_tokens` is what a request asks for. Could a policy sort by the length that the answer will really have?
#    Which law speaks of that? *Hint: `statement(law).says`.*
#    <details><summary>Answer</summary>
#    No: where an answer ends is not known beforehand. The law <i>blind</i> says that later arrivals and unknown answer
#    lengths change no earlier decision. It is checked by comparing runs that differ in nothing else.
#    </details>
# 5. In how many mixes is `patient`? Play it on `crowd` with the memory and attention of `vllm` (chapter 4). Does any
#    request end in another iteration than with those of `orca`? *Hint: `mixes_of`, `ends`.*
#    <details><summary>Answer</summary>
#    In 14. <code>play("vllm", crowd, max_batch=4, batching="patient", kv_memory="1MiB")</code> has the same answers,
#    and each request ends in the same iteration: memory is large in both, so the policy alone decides who runs.
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - The papers present a policy, a memory and an attention as one system, measured as a whole (Orca and vLLM as
#   FluidInfer tells them in its section 2, Baton, Pensieve). Here they are three stages, so that one of them can be
#   changed alone.
# - FluidInfer (section 2) names *shortest remaining processing time first*, and FastServe's feedback queue, which comes
#   near it where lengths are not known. Both take places away from requests that run; the policy of this chapter never
#   does. `minifuse compare srpt fastserve orca` shows the three ways.
# - None of the five papers promises how often a request is overtaken at most. The claim is a decision of this code.
# - No paper has laws. They come from property-based testing: state what must hold for every input, and let a program
#   search for an input that breaks it.
#
# ## Further reading
#
# - `docs/stages.md`: the contract of each method, with a whole policy, a whole memory and a whole attention.
# - `docs/laws.md`: what each law says, and who checks it.
# - Claessen and Hughes, *QuickCheck* (2000): properties, random inputs, and making them smaller.
# - Smith, *Various Optimizers for Single-Stage Production* (1956): why the shortest first has the smallest mean.
#
# **Next:** your own workload: a stage that is registered can be played, compared and swept by its name, as in chapter
# 14. And chapter 16 is about ideas that appeared alongside the five papers and after them.
