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
# # 16. What followed
#
# The five papers ask which work runs next, where its KV lies, and how attention reads it. Other ideas appeared beside
# and after them, and today's servers have most of them. This chapter goes through six, under the names that you will
# meet. Each is shown by a run or a count as far as minifuse can. One that minifuse does not have, speculative
# decoding, you find here as thirty lines of code. Where only a GPU could show something, we say so.
#
# **You will be able to**
#
# - say of six ideas of today's servers what each saves, what it costs, and which part of it minifuse has;
# - count what a prefix cache finds in a workload, for several ways of keeping KV;
# - compute from model, machine and link what it costs to compute prompts on another machine;
# - read speculative decoding as code, and predict its speed-up from the acceptance rate, the draft and the batch;
# - compute the bytes and the largest error of KV in 8 bits;
# - say what CUDA graphs take away, and which idle rows they bring back.

# %%
import random
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from statistics import mean
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minifuse.attention.backend import TorchPerSequence
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.storage import KVStorage
from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.request import Request, Sequence
from minifuse.execute.int8_storage import Int8Storage, quantise
from minifuse.execute.texts import TorchRunner, forward, in_turn
from minifuse.memory.tiered.owners import Owners
from minifuse.model.source import resolve
from minifuse.model.text.presets import preset
from minifuse.naive import oracle
from minifuse.serve.engine import ServingEngine
from minifuse.show.notebook import (
    asks,
    draw_memory,
    first_token_s,
    gaps,
    pieces,
    play,
    replay,
    show_source,
    turns,
)
from minifuse.simulate.cost import Roofline, hardware
from minifuse.techniques import TECHNIQUES

plt.rcParams.update({"figure.figsize": (7, 2.6), "figure.dpi": 100})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#c4cad2", "#cc79a7"
LLAMA = {"model": "random:llama-2-7b", "dtype": "float16", "hardware": "a100-40g", "kv_memory": "16GiB"}
llama, a100 = preset("llama-2-7b"), hardware("a100-40g")
weight_bytes = 2 * llama.num_matrix_weights


def play_llama(technique, requests, **options):
    return play(technique, requests, **{**LLAMA, **options})


def asks_llama(*lengths, **options):
    return asks(*lengths, model=LLAMA["model"], **options)


# %% [markdown]
# ## Chunked prefill: prompts in pieces
#
# Chapter 3 cut long prompts with `token_budget`. The usual name is **chunked prefill**. Sarathi-Serve fills an
# iteration as you did: single tokens first, then pieces of prompts, as many tokens as the budget leaves, so that no
# answer stalls (*stall-free batching*). DeepSpeed-FastGen calls it *Dynamic SplitFuse*, and vLLM does it by default
# since its V1 engine. Which techniques of minifuse have the option? `fluid` always cuts; with `vllm` one changes the
# policy, since that technique is vLLM as the papers knew it: prompts run alone.

# %%
has_budget = [
    name
    for name, row in TECHNIQUES.items()
    if any(one["name"] == "batching.token_budget" for one in row.described_options())
]
print("batching.token_budget:", ", ".join(has_budget))
stream = asks_llama(*[(32, 150)] * 6, *[(1500, 20)] * 3, arrivals=[0.0] * 6 + [0.2, 0.5, 0.8])
mixed = {"batching": "iteration", "max_batch": 16}
ways = {
    "alone": play_llama("vllm", stream, max_batch=16),
    "mixed, whole": play_llama("vllm", stream, **mixed),
    "mixed, in pieces": play_llama("vllm", stream, batching__token_budget=256, **mixed),
}
for name, run in ways.items():
    print(
        f"prompts {name:16}: longest gap {run.metrics['latency_bound_s'] * 1e3:5.1f} ms, first token of a long prompt "
        f"after {first_token_s(run, 'r6') * 1e3:5.1f} ms"
    )
assert {"orca", "vllm", "fluid"} <= {*has_budget} and "pensieve" not in has_budget
assert ways["mixed, in pieces"].metrics["latency_bound_s"] < ways["alone"].metrics["latency_bound_s"] / 2

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8, 2.6))
for (name, run), colour, mark in zip(ways.items(), (GREY, ORANGE, BLUE), "s^o"):
    at = [(1e3 * gap.at_s, 1e3 * gap.seconds) for gap in gaps(run, "r0")]
    axes.plot(*zip(*at), mark + "-", color=colour, label=f"prompts {name}", markersize=3, linewidth=1)
axes.set_xlabel("ms of virtual time")
axes.set_ylabel("ms since the last token")
axes.set_ylim(0)
axes.set_title("One running answer, while three prompts of 1,500 tokens come", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
figure.tight_layout()
plt.show()

# %% [markdown]
# Computed whole, a long prompt makes a gap of 65 ms beside the answers, and of 74 ms alone; in pieces the longest gap
# is 11 ms, and the prompt's own first token comes hardly later.
#
# **A count by hand: what cutting costs.** A piece attends to all pieces before it, so their KV is read once more.
# Pieces of $c$ tokens of a prompt of $n$ read
#
# $$c + 2c + \ldots + (n - c) = \frac{n}{2}\left(\frac{n}{c} - 1\right)$$
#
# tokens of KV again. Beside six single tokens a budget of 256 leaves 250.

# %%
cut = [one for one in pieces(ways["mixed, in pieces"], "r6") if one.start < 1500]
again = sum(one.start for one in cut)
print(f"{len(cut)} pieces read {again:,} tokens of KV again, ", end="")
print(f"{again * llama.kv_bytes_per_token('float16') / weight_bytes:.0%} of the bytes of the weights")
assert again == 1500 * (1500 / 250 - 1) / 2

# %% [markdown]
# ## Prefix caching: the same beginning, later
#
# With `memory.share` a request of `vllm` shares blocks with one that *runs* (chapter 4); when the last reader ends,
# they are free. `pensieve` keeps KV, but by conversation (chapter 8). **Prefix caching** keeps the KV of every text
# until its place is needed, and finds it by the text itself. vLLM's *automatic prefix caching* names each full block
# by a hash of its tokens and of all before them. SGLang's *RadixAttention* keeps texts in a radix tree, in which common
# beginnings are one path, and gives up the leaves that were unused for longest.
#
# In minifuse, `memory.share` of `pensieve` looks up whole chunks by such a hash, but only conversations keep theirs.
# If every request is given a conversation of its own, that is a prefix cache in blocks.

# %%
facts = [
    "given ann 17, bob 4, dan 21, lily 9, paul 3, rosa 12: what is",
    "given tom 8, kate 30, otto 14, nina 6, leo 25, emma 2: what is",
]
readers = ["bob", "dan", "ann", "lily"], ["otto", "tom", "emma", "leo"]
singles = [f"{facts[document]} {readers[document][i]}?" for i in range(4) for document in (0, 1)]
office = asks(*singles, arrivals=[0.012 * (i // 4) + 0.0007 * (i % 4) for i in range(8)])
for i, user in enumerate(("carl", "ida")):
    office += turns(user, f"{facts[0]} paul?", "sort 7 2 5", "recall rosa", start=0.03 + 0.01 * i, pause=0.003)
alone = [one if one.conversation else replace(one, conversation=one.id) for one in office]
chunks, room = {"memory__chunk": 8, "kv_memory": "1MiB"}, {"memory__block_size": 8, "kv_memory": "1MiB"}
caches = {
    "nothing": play("vllm", office, **room),
    "shared while both run": play("vllm", office, memory__share=True, **room),
    "conversations kept": play("pensieve", office, **chunks),
    "and their chunks found by hash": play("pensieve", office, memory__share=True, **chunks),
    "all texts kept, found by hash": play("pensieve", alone, memory__share=True, label="prefix cache", **chunks),
}
assert len({str(run.answers) for run in caches.values()}) == 1
plain = caches["nothing"]
texts = [(story.prompt_tokens, plain.engine.finished[story.id].tokens) for story in plain.history.by_arrival]
print(f"{len(texts)} prompts, {sum(prompt for prompt, _ in texts)} tokens with their histories")

# %% [markdown]
# The tree is counted with a *trie*, nested dictionaries: a text is a path of pieces, and what is found of a prompt is
# the path that exists. (The last token is computed in any case, and the last token of an answer has no KV.)


# %%
def computed_with_trie(texts, size):
    """Prompt tokens computed if the KV of every earlier text is kept, and found in pieces of `size` tokens."""
    root, computed = {}, 0
    for prompt, text in texts:
        whole = [tuple(text[at : at + size]) for at in range(0, len(text) - size, size)]
        node, found = root, 0
        while found + size < prompt and whole[found // size] in node:
            node = node[whole[found // size]]
            found += size
        computed += prompt - found
        node = root
        for piece in whole:
            node = node.setdefault(piece, {})
    return computed


# %% [markdown] tags=["prediction"]
# The two documents have about two dozen tokens. In bursts of four, two requests for each document are near each other
# in time; later come two conversations of three turns about the first document. Predict:
#
# 1. Which of the five runs compute the document again for a request that comes after all its readers have ended?
# 2. What is the difference between a tree in single tokens and hashes of blocks of 8, for each request at most?

# %%
counts = {name: run.metrics["tokens"]["prefill"] for name, run in caches.items()}
counts["a tree of tokens, counted"] = computed_with_trie(texts, 1)
for name, count in counts.items():
    print(f"{name:32} {count:4} prompt tokens computed")
print("the trie in pieces of 8 tokens:", computed_with_trie(texts, 8))
assert [*counts.values()] == sorted(counts.values(), reverse=True)

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.3))
colours = [GREY, ORANGE, BLUE, BLUE, BLUE, GREEN]
bars = axes.barh([*counts], [*counts.values()], color=colours)
axes.bar_label(bars, fontsize=8, padding=3)
axes.invert_yaxis()
axes.set_xlabel("prompt tokens computed")
axes.set_title("What is kept, and how it is found", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# All but the last compute a document again when its readers have ended; the fourth finds it once a conversation has
# read it. A tree of tokens finds up to seven tokens more for each request than blocks of 8. (The trie in pieces of 8
# finds four tokens fewer than the run, in which a conversation also finds its own last chunk, though it is not full.)

# %% [markdown]
# A real tree also gives an order: SGLang's paper serves the waiting requests with the longest
# beginning in the tree first. What is kept fills the memory; the dotted blocks below are there for a text that may
# come. Where texts do not begin alike, keeping is worth nothing (chapter 8).

# %%
draw_memory(caches["all texts kept, found by hash"], step=caches["all texts kept, found by hash"].steps[-1])

# %%
show_source(Owners.found, Owners._digest)

# %% [markdown] tags=["prediction"]
# ## Disaggregation: prompts on machines of their own
#
# A prompt is bound by arithmetic, a single token by reading (chapter 1). **Disaggregation**, as in DistServe and
# Splitwise, computes prompts and single tokens on different machines, and sends the KV over. Flover and Baton compute
# prompts apart, too, but on the *same* device (chapters 5 and 9): `fusion`, and `baton-pd` with a worker for prompts.
# They serve the requests of the first section. Predict: are their gaps shorter than those of `orca` with whole prompts?
# And shorter than with pieces?

# %%
apart = {
    "orca": play_llama("orca", stream, max_batch=16),
    "orca, budget 256": play_llama("orca", stream, max_batch=16, batching__token_budget=256),
    "fusion": play_llama("fusion", stream, memory__slots=9),
    "baton-pd, worker": play_llama("baton-pd", stream, max_batch=16, batching__prompts="worker"),
}
gap = {name: 1e3 * run.metrics["latency_bound_s"] for name, run in apart.items()}
first = {name: 1e3 * mean(first_token_s(run, long) for long in ("r6", "r7", "r8")) for name, run in apart.items()}
for name in apart:
    print(f"{name:16} longest gap {gap[name]:5.1f} ms, mean TTFT of the long prompts {first[name]:5.1f} ms")
for name in ("fusion", "baton-pd, worker"):
    assert gap["orca, budget 256"] < gap[name] < gap["orca"] / 2
    assert first[name] > 1.5 * first["orca, budget 256"]
small = asks((6, 14), (5, 16), (60, 6), (8, 10), every=0.001)
beside = play("baton-pd", small, label="apart", kv_memory="512KiB", batching__prompts="worker")
inside = play("orca", small, label="together", kv_memory="512KiB")
assert beside.tokens == inside.tokens
replay(beside, inside, address="run=apart&b=together&i=3&by=time", height=620)

# %% [markdown]
# In the replay `apart` has two workers. While a prompt is computed beside them, all answers go on, but slowly: virtual
# time gives each of two plans half of the device, and so the prompt, too, takes twice as long. On one device pieces are
# better on both counts. With two machines neither side would notice the other. That is what minifuse cannot show: it
# has one device, or several ranks of one model (chapter 12), and no second machine with a memory of its own.

# %% [markdown]
# **A count by hand: the link.** Sending the KV takes $n \cdot \text{kv} / \text{link}$ seconds, computing the prompt
# about $2 W n / \text{rate}$. Both grow with $n$, so one number decides:
#
# $$\frac{\text{transfer}}{\text{prompt}} = \frac{\text{kv} \cdot \text{rate}}{2 W \cdot \text{link}}.$$

# %%
links = {"10 Gb/s": 1.25e9, "100 Gb/s": 12.5e9, "PCIe 4, 32 GB/s": 32e9, "400 Gb/s": 50e9, "300 GB/s": 300e9}
shapes = ["llama-2-7b", "llama-3-8b", "llama-2-70b"]


def transfer_share(shape, link):
    """Seconds of sending a prompt's KV, over those of computing it on an A100."""
    return shape.kv_bytes_per_token("float16") * a100.flops / (2 * shape.num_matrix_weights * link)


for name in shapes:
    shares = [f"{transfer_share(preset(name), link):.3f}" for link in links.values()]
    print(f"{name:12}", ", ".join(f"{link}: {share}" for link, share in zip(links, shares)))
assert 0.3 < transfer_share(llama, 32e9) < 0.5 < 9 < transfer_share(llama, 1.25e9)

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.8))
rates = [1.25e9 * 1.3**i for i in range(22)]
for name, colour in zip(shapes, (BLUE, GREEN, PURPLE)):
    for at, look in ((rates, {"linestyle": "-"}), ([*links.values()], {"linestyle": "", "marker": "o", "label": name})):
        axes.loglog([one / 1e9 for one in at], [transfer_share(preset(name), one) for one in at], color=colour, **look)
axes.axhline(1, color=GREY, linestyle="--")
axes.set_xlabel("GB/s of the link (dots: those of the table)")
axes.set_ylabel("transfer / prompt")
axes.set_title("Sending KV, over computing the prompt on an A100", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# Below the dashed line a transfer can hide behind the computing: sent layer by layer, as by Splitwise, only the last
# layer's part is left (chapter 8, *Recovery*). The largest model needs the link least: it has ten times the arithmetic
# of the smallest, and less KV (chapter 1). What is gained is freedom: each side has its own batches, and as many
# machines as its bound of latency needs (DistServe counts goodput, chapter 14). What is lost: both sides hold the
# weights, and if the mix of prompts and answers changes, one side idles.
#
# ## Speculative decoding: several tokens from one reading
#
# An iteration with one token reads all weights, and the machine's arithmetic has nothing to do. It could as well
# compute five tokens of *one* text, if it knew four of them. **Speculative decoding** guesses: a *draft* of $k$ tokens
# is put behind the text, and one forward pass computes them all. The logits after each say which token the model itself
# would have chosen there. Drafted tokens are accepted up to the first that differs; in its place comes the model's
# own. So a pass gives at least one token.
#
# Who guesses? In the papers of 2023 a smaller model of the same vocabulary, later also small heads that are trained on
# the model's own states (Medusa, EAGLE). Simpler is **prompt lookup**, or *n-gram* drafting: find where the last words
# stood before, and copy what followed there.
#
# minifuse has no speculation, but its forward pass takes spans of any length, and that is all it needs. `Reader` keeps
# the KV of one text. A rejected token's KV stays in its slot until the next pass writes over it.


# %%
model = resolve("tiny").load("float32", "cpu", 0)
tokenizer = resolve("tiny").tokenizer()


class Reader:
    """A model with the KV of one text."""

    def __init__(self, model, most=512):
        self.model, self.attention, self.place = model, TorchPerSequence(), Extent(0, most)
        self.cache = KVStorage(model.config, most, torch.float32, torch.device("cpu"))

    @torch.inference_mode()
    def logits(self, tokens, start):
        """Compute tokens[start:] in one forward pass; return the logits after each of them."""
        plan = Plan(0, 0, (Work("r0", start, len(tokens)),), (self.place,))
        sequence = Sequence(Request("r0", tuple(tokens)), list(tokens))
        batch = self.attention.batch(plan, {"r0": sequence}, self.cache)
        every = replace(batch, last_tokens=torch.arange(len(tokens) - start))
        return in_turn([forward(self.model, every, self.cache, self.attention)])


class Pass(NamedTuple):
    drafted: int
    accepted: int


def speculate(request, guess, k):
    """Decode greedily, verifying up to k guessed tokens in each forward pass. Returns the answer and the passes."""
    reader, tokens, passes, cached = Reader(model), list(request.prompt), [], 0
    while True:
        draft = guess(tokens, min(k, request.max_length - len(tokens) - 1))
        told = reader.logits(tokens + draft, cached)[-len(draft) - 1 :].argmax(-1).tolist()
        accepted = next((i for i, token in enumerate(draft) if token != told[i]), len(draft))
        passes.append(Pass(len(draft), accepted))
        cached = len(tokens) + accepted  # the token behind these has no KV yet
        for token in told[: accepted + 1]:
            tokens.append(token)
            is_end = token in request.stop_ids and not request.ignore_eos
            if is_end or len(tokens) == request.max_length:
                return tokens[len(request.prompt) :], passes


def look_up(tokens, k, longest=3):
    """What followed the last words where they stood before: the longest match, and the earliest of these."""
    for size in range(longest, 0, -1):
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + k]
    return []


# %%
def behind(first, second):
    """The second question, behind the first and its answer."""
    asked = asks(first, max_new_tokens=60)[0]
    history = [*asked.prompt, *oracle.answer(model, asked)]
    return replace(asked, prompt=(*history, *tokenizer.encode(second, continues=True)))


questions = {
    "count, once more": behind("count from 20 to 60", "list the numbers from 20 to 60"),
    "repeat": asks("repeat owl 12 times")[0],
    "recall": asks("given ann 17, bob 4, dan 21: recall bob")[0],
    "sort": asks("sort 41 7 88 12 5 60")[0],
    "reverse": asks("reverse cat moon tree owl king")[0],
    "nonsense": asks((8, 60))[0],
}

# %% [markdown] tags=["prediction"]
# ### A prediction
#
# These are six questions to `tiny`. The first is asked behind a conversation in which the model has counted the same
# numbers already; its answer has 42 tokens, the end included. Plain decoding takes one forward pass for each token of
# an answer. With prompt lookup and drafts of 8, predict:
#
# 1. How many passes does the second counting take at least?
# 2. Which of the six answers take fewer than half as many passes as tokens, and which gain next to nothing?
# 3. Can a bad guess change an answer?

# %%
truth = {name: oracle.answer(model, request) for name, request in questions.items()}
looked_up = {}
for name, request in questions.items():
    answer, looked_up[name] = speculate(request, look_up, k=8)
    assert answer == truth[name], "speculation never changes an answer"
    drafted, accepted = (sum(column) for column in zip(*looked_up[name]))
    print(
        f"{name:16} {len(answer):2} tokens in {len(looked_up[name]):2} passes, "
        f"{accepted:2} of {drafted:3} drafted tokens accepted"
    )
assert len(truth["count, once more"]) == 42
took = {}
for k in (0, 8):
    begin = time.perf_counter()
    speculate(questions["count, once more"], look_up, k)
    took[k] = time.perf_counter() - begin
print(f"the first answer in real time: {took[0] * 1e3:.0f} ms without drafts, {took[8] * 1e3:.0f} ms with them")

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.4))
each = [len(truth[name]) / len(passes) for name, passes in looked_up.items()]
bars = axes.barh([*looked_up], each, color=BLUE)
axes.bar_label(bars, [f"{one:.1f}" for one in each], fontsize=8, padding=3)
axes.axvline(1, color=GREY, linestyle="--")
axes.invert_yaxis()
axes.set_xlabel("tokens in a forward pass (dashed: plain decoding)")
axes.set_title("Prompt lookup with drafts of 8", loc="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# Every answer is the oracle's, token by token: a bad guess is rejected. (Only rounding could differ, where two logits
# are nearly equal.) Text that quotes what was there before gains most; for an answer whose
# words are new, or in a new order, the lookup has nothing to offer.

# %% [markdown]
# **A count by hand.** Let each drafted token be right with probability $\alpha$, whatever the others are. Then the
# first $i$ are right with $\alpha^i$, and a pass gives, with the model's own token,
#
# $$1 + \alpha + \ldots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha}$$
#
# tokens on average (Leviathan et al.). To check that, take a guesser that knows the answer and lies.
#
# ### One knob: the length of the draft
#
# The next cell turns $k$, with liars of $\alpha$ = 0.5, 0.8 and 0.95. The right chart divides by the time of a pass, by
# the cost model of chapter 13: `llama-2-7b` on an A100, one request alone, 32, and 128, with texts of 150 tokens.


# %%
def liar(request, answer, alpha, seed):
    """A guesser that knows the answer; each token that it drafts is right with probability alpha."""
    drawn, before = random.Random(seed), len(request.prompt)

    def guess(tokens, k):
        coming = answer[len(tokens) - before :][:k]
        return [token if drawn.random() < alpha else (token + 1) % model.config.vocab_size for token in coming]

    return guess


def expected(alpha, k):
    """Tokens of a pass, in the mean."""
    return sum(alpha**i for i in range(k + 1))


def pass_s(batch, tokens, context=150):
    """Seconds of an iteration in which each request computes so many tokens."""
    work = tuple([Work(f"r{i}", context, context + tokens) for i in range(batch)])
    return Roofline(llama, "float16", a100)(Plan(0, 0, work, (Extent(0, context + tokens),) * batch))


def speed_up(alpha, k, batch):
    """Times as many tokens a second as without drafts; making a draft takes no time."""
    return expected(alpha, k) * pass_s(batch, 1) / pass_s(batch, k + 1)


drafts, rights = [1, 2, 4, 8, 16], [0.5, 0.8, 0.95]
long = asks((8, 150), (8, 150), (9, 150))
answers = [oracle.answer(model, request) for request in long]
measured = {}
for alpha in rights:
    for k in drafts:
        tokens = passes = 0
        for seed, (request, answer) in enumerate(zip(long, answers)):
            told, taken = speculate(request, liar(request, answer, alpha, seed), k)
            assert told == answer
            tokens, passes = tokens + len(told), passes + len(taken)
        measured[alpha, k] = tokens / passes
for (alpha, k), value in measured.items():
    assert abs(value / expected(alpha, k) - 1) < 0.2
print(f"alpha = 0.8, drafts of 4: {measured[0.8, 4]:.2f} tokens a pass, by hand {expected(0.8, 4):.2f}")

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.8))
for alpha, colour in zip(rights, (GREY, BLUE, GREEN)):
    left.plot(range(17), [expected(alpha, k) for k in range(17)], "--", color=colour, linewidth=1)
    left.plot(drafts, [measured[alpha, k] for k in drafts], "o", color=colour, label=rf"$\alpha$ = {alpha}")
left.set_ylabel("tokens of a pass")
left.set_title("counted (dashed: the formula)", loc="left", fontsize=9)
for batch, colour in ((1, BLUE), (32, ORANGE), (128, PURPLE)):
    of_batch = [speed_up(0.8, k, batch) for k in range(17)]
    right.plot(range(17), of_batch, "o-", color=colour, markersize=3, label=f"{batch} at once")
right.axhline(1, color="black", linewidth=0.8)
right.set_ylabel("speed-up")
right.set_title(r"llama-2-7b on an A100, $\alpha$ = 0.8", loc="left", fontsize=9)
for axes in (left, right):
    axes.set_xlabel("length of the draft")
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# A longer draft never gives fewer tokens, but each further token of it is less likely to count. With many requests
# there is a best length: about seven for 32 of them, two for 128.

# %% [markdown] tags=["prediction"]
# ### Where speculation loses
#
# It spends arithmetic that would lie idle. With $b$ requests an iteration computes $b (k + 1)$ tokens; from the ridge
# on, 201 tokens on this machine, arithmetic is the bound and rejected tokens cost time. (KV that is read moves that
# point up.) Drafts have 4 tokens. Predict: with how many requests or more is a guesser of $\alpha$ = 0.3 a loss? And
# one of 0.8?

# %%
batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
by_batch = {alpha: [speed_up(alpha, 4, batch) for batch in batches] for alpha in (0.3, 0.5, 0.8)}
for alpha, values in by_batch.items():
    loses = next((str(batch) for batch, value in zip(batches, values) if value < 1), "none of these")
    print(f"alpha = {alpha}: {values[0]:.2f} times as fast alone; slower from {loses} requests on")
assert by_batch[0.3][0] > 1.3 and by_batch[0.3][-1] < 0.7
assert by_batch[0.8][0] > 3 and by_batch[0.8][-1] > 1 > by_batch[0.3][batches.index(128)]
best = {batch: max(range(17), key=lambda k, batch=batch: speed_up(0.8, k, batch)) for batch in (32, 128)}
assert 6 <= best[32] <= 7 and best[128] == 2

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(7, 2.8))
for (alpha, values), colour in zip(by_batch.items(), (GREY, ORANGE, BLUE)):
    axes.plot(batches, values, "o-", color=colour, label=rf"$\alpha$ = {alpha}")
axes.axhline(1, color="black", linewidth=0.8)
axes.axvline(a100.flops / a100.bandwidth / 5, color=GREY, linestyle="--")
axes.set_xscale("log", base=2)
axes.set_xticks(batches, batches)
axes.set_xlabel("requests in the iteration (dashed: five tokens of each reach the ridge)")
axes.set_ylabel("speed-up")
axes.set_ylim(0)
axes.set_title("Drafts of 4 tokens", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# The worst guesser loses from 128 requests on, the best not even with 256, for which memory must hold 40,000 tokens. So
# servers speculate while few requests run, and shorten the draft, or stop, when many do. In a batch there is one
# more loss that the model leaves out: the requests accept different numbers of tokens, which memory and attention must
# be able to follow. Rectangles (chapters 2 and 9) could not.
#
# ## KV in fewer bits
#
# An iteration with long texts reads mostly KV, and memory for KV limits the batch. Both shrink with the bits of a
# number. `memory.host_dtype=int8` of `fluid` keeps *copies on the host* in 8 bits, so that less crosses the link;
# servers also keep KV on the device in 8 bits (FP8 or INT8), and research goes down to 2 (KIVI).
#
# **A count by hand.** For each token, layer and KV head, the $d$ numbers of a key share a *scale*, their largest value
# $m$ over 127, in 4 bytes; those of a value, too. A number becomes the nearest multiple of it, so its error is at
# most $m / 254$. Of two-byte numbers, $(d + 4) / 2d$ of the bytes are left: 52% for $d = 128$.

# %%
text = [*questions["count, once more"].prompt, *truth["count, once more"]]
exact, rough = Reader(model), Reader(model)
logits = exact.logits(text, 0)
n, every = len(text), slice(None)
copy = Int8Storage(model.config, n, torch.device("cpu"))
copy.store(every, slice(0, n), exact.cache.keys[:, :n], exact.cache.values[:, :n])
copy.restore(every, slice(0, n), rough.cache.keys[:, :n], rough.cache.values[:, :n])
off = (rough.cache.keys[:, :n] - exact.cache.keys[:, :n]) / copy.scales[0]
assert off.abs().max() < 0.501
before = rough.logits(text, n - 1)[0]
difference = (before - logits[-1]).abs().max()
print(f"largest error {off.abs().max():.3f} of a step; the last logits differ by {difference:.3f} at most")
rotating = {"kv_memory": "48KiB", "memory__block_size": 4, "memory__overflow": "rotate"}
six = asks((6, 8), "repeat duck 4 times", "sort 7 2 5 1", "count from 3 to 9", (5, 9), (6, 6))
copies = {dtype: play("fluid", six, memory__host_dtype=dtype, **rotating) for dtype in ("auto", "int8")}
up = {dtype: run.metrics["transfers"]["to_device"]["bytes"] for dtype, run in copies.items()}
same = sum(copies["auto"].tokens[one.id] == copies["int8"].tokens[one.id] for one in six)
print(f"uploaded: {up['auto']:,} bytes, {up['int8']:,} in 8 bits; {same} of {len(six)} answers are the same")
assert up["int8"] / up["auto"] == (32 + 4) / (4 * 32)

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
left.hist(off.flatten().tolist(), bins=41, color=BLUE)
left.set_xlabel("error of a key, in steps of its scale")
left.set_yticks([])
left.set_title("A text of tiny, rounded to 8 bits", loc="left", fontsize=9)
sizes = {"tiny, 4 bytes": 36 / 128, "llama-2-7b, 2 bytes": 132 / 256, "head of 64, 2 bytes": 68 / 128}
bars = right.barh([*sizes], [*sizes.values()], color=GREEN)
right.bar_label(bars, [f"{one:.0%}" for one in sizes.values()], fontsize=8, padding=3)
right.set_xlim(0, 1)
right.set_xlabel("bytes in 8 bits / bytes before")
right.set_title("scales included", loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %%
show_source(quantise)

# %% [markdown]
# (The peak at zero: the largest number of each head is kept exactly.) Rounding is the first idea of this course that
# changes what is computed, so answers may differ. `tiny`, a trained model, is nearly certain of most tokens, and kept
# its answers where we tried it; of models with random weights, whose logits lie close together, about half of the
# answers changed (`benchmarks/results/int8-copies.md`). Quality is measured on tasks, never on one answer.
#
# ## CUDA graphs: the cost of the host
#
# Between two iterations the host decides, lays out tensors, and starts operators one by one. On a GPU the last goes on
# beside the computing: each start, a *launch*, takes some microseconds of the host, and if operators are shorter than
# that, the GPU waits. First the shares on your CPU, where one thread does it all, in seconds of that thread:


# %%
@contextmanager
def timed(cls, method, seconds):
    """Add how long each call of a method takes to `seconds`."""
    whole = getattr(cls, method)

    def clocked(*arguments):
        begin = time.thread_time()
        result = whole(*arguments)
        seconds.append(time.thread_time() - begin)
        return result

    setattr(cls, method, clocked)
    try:
        yield
    finally:
        setattr(cls, method, whole)


class Launches(TorchDispatchMode):
    """Counts operators that compute; views only say where numbers lie."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if not function.is_view:
            self.counts[str(function)] += 1
        return function(*arguments, **(named or {}))


torch.set_num_threads(1)
host = {}
for count in (1, 8):
    requests = asks(*[(8, 60)] * count)
    found = []
    for _ in range(5):
        turns_s, computing, laying_out = [], [], []
        with (
            timed(ServingEngine, "turn", turns_s),
            timed(TorchRunner, "compute", computing),
            timed(PerSequenceAttention, "batch", laying_out),
        ):
            run = play("orca", requests, kv_memory="2MiB", clock="real")
        parts = [sum(turns_s) - sum(computing), sum(laying_out), sum(computing) - sum(laying_out)]
        found.append([1e6 * one / len(run.steps) for one in parts])
    host[count] = min(found, key=sum)
    each = [round(one) for one in host[count]]
    print(f"{count} at once: µs of an iteration for deciding, tensors and the model: {each}")

# %%
per_model = {}
for name in ("tiny", "random:small"):
    one = Reader(resolve(name).load("float32", "cpu", 0))
    one.logits([5, 6, 7], 0)
    with Launches() as launches:
        one.logits([5, 6, 7, 8], 3)
    per_model[name] = launches.counts.total()
per_layer = per_model["random:small"] - per_model["tiny"]  # four layers, and three
launches_7b = per_model["tiny"] + (llama.num_layers - 3) * per_layer
devices = ("v100", "a100-40g", "h100", "h200")
reading = {name: 1e3 * weight_bytes / hardware(name).bandwidth for name in devices}
launching = {us: launches_7b * us / 1e3 for us in (2, 5)}
print(f"operators of a pass with one token: {per_model}, so {per_layer} a layer, {launches_7b} for llama-2-7b")
print("ms of reading the weights:", {name: round(one, 1) for name, one in reading.items()})
print("ms of launching, if each takes 2 or 5 µs:", launching)
assert per_layer > 5

# %% tags=["plot"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.6))
floor = [0.0, 0.0]
for i, (part, colour) in enumerate((("deciding", ORANGE), ("tensors", GREY), ("the model", BLUE))):
    values = [host[1][i], host[8][i]]
    left.bar(["1 request", "8 requests"], values, 0.6, bottom=floor, color=colour, label=part)
    floor = [low + value for low, value in zip(floor, values)]
left.set_ylabel("µs of an iteration")
left.set_title("tiny on this CPU, measured", loc="left", fontsize=9)
left.set_ylim(0, 1.5 * max(floor))
left.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", handlelength=1, columnspacing=1)
right.bar([*reading], [*reading.values()], 0.6, color=BLUE)
for us, took in launching.items():
    right.axhline(took, color=ORANGE, linestyle="--")
    right.text(3.5, took, f"{us} µs", fontsize=8, ha="left", va="center")
right.set_ylabel("ms")
right.set_title("llama-2-7b: reading, and launches (assumed)", loc="left", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown] tags=["prediction"]
# On the left the host's part is measured. On the right it is assumed: this notebook has no GPU, and **what graphs save
# is not measured here**. If launching takes longer than the bars, the machine waits for Python. Three remedies are
# common. Fused operators are fewer: minifuse's kernels (chapter 11), or `torch.compile`, which generates them. Plans
# submitted ahead hide the host, as BatchMaker's MaxTasksToSubmit does (chapter 7). And a **CUDA graph** records all
# launches of a pass once, and replays them with a single one.
#
# A recording has fixed addresses and *fixed shapes*. So a server records a pass for some batch sizes, and pads a batch
# to the next of them: chapter 2's idle rows again. Take a run whose batch grows and shrinks, up to 64. Predict: which
# share of the rows is idle with seven graphs, for 1, 2, 4, ... 64 requests? And with eleven, for multiples of 8 from 8
# on?

# %%
drawn = random.Random(3)
times = [*accumulate(drawn.expovariate(25) for _ in range(160))]
visitors = asks_llama(*[(drawn.randint(50, 300), drawn.randint(20, 200)) for _ in range(160)], arrivals=times)
busy = play_llama("vllm", visitors, max_batch=64)
rows = [len(one.work) for one in busy.history.iterations if one.work and one.tokens_of(one.work[0][0]) == 1]
recorded = {
    "64": [64],
    "1, 2, 4, ... 64": [2**i for i in range(7)],
    "1, 2, 4, 8, 16, 24, ... 64": [1, 2, 4, *range(8, 65, 8)],
    "each size": [*range(1, 65)],
}
padded = {name: [min(size for size in sizes if size >= row) for row in rows] for name, sizes in recorded.items()}
idle = {name: 1 - sum(rows) / sum(sizes) for name, sizes in padded.items()}
for name, share in idle.items():
    print(f"{len(recorded[name]):2} graphs, for {name:26}: {share:.0%} of the rows are idle")
assert [round(100 * share) for share in idle.values()] == [60, 28, 11, 0]

# %% tags=["plot"]
figure, axes = plt.subplots(figsize=(8, 2.4))
axes.stairs(padded["1, 2, 4, ... 64"], fill=True, color=ORANGE, label="padded to a power of 2")
axes.stairs(padded["1, 2, 4, 8, 16, 24, ... 64"], fill=True, color=GREEN, label="padded to a multiple of 8")
axes.stairs(rows, fill=True, color=BLUE, label="requests")
axes.set_xlabel("iteration with single tokens")
axes.set_ylabel("rows")
axes.set_title("Rows that a graph computes", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
figure.tight_layout()
plt.show()

# %% [markdown]
# 28% with seven graphs, 11% with eleven. Below the ridge idle rows cost next to nothing, so this padding is cheap; a
# graph costs time to record, and memory. Iterations with pieces of prompts have many more shapes: servers run those
# without a graph, or record the parts between two attentions only.
#
# ## Exercises
#
# 1. A prompt of 4,096 tokens of `llama-3-8b` is cut into pieces of 512. How many bytes of KV are read again? *Hint: the
#    formula; chapter 1 has the KV of a token.*
#    <details><summary>Answer</summary>
#    4096 / 2 · 7 = 14,336 tokens of 128 KiB: 1.9 GB, an eighth of the weights.
#    </details>
# 2. All prompts begin with the same 30 tokens. What do hashes of blocks of 16 find, and what a tree of tokens? Check
#    with `computed_with_trie`. *Hint: only whole blocks have a name.*
#    <details><summary>Answer</summary>
#    16 and 30. <code>texts = [(40, [*range(30), *range(100 * i, 100 * i + 15)]) for i in range(1, 4)]</code> computes
#    120 - 2·16 = 88 tokens, and 120 - 2·30 = 60.
#    </details>
# 3. Requests of `llama-2-7b` have prompts of 1,000 tokens and answers of 200. Machines for answers run 32 at once. How
#    many A100s for answers does one for prompts feed? *Hint: seconds of machine for each request, on both sides.*
#    <details><summary>Answer</summary>
#    A prompt takes 42 ms. An iteration reads 13.2 GB of weights and 32 · 1,100 tokens of KV, 18.5 GB: 20.4 ms; 200 of
#    these, shared by 32, are 127 ms. Three.
#    </details>
# 4. A draft model takes 0.1 of a pass for each token that it drafts, and is right with probability 0.8. Which $k$ is
#    best for one request? *Hint: divide the tokens of a pass by 1 + 0.1 k.*
#    <details><summary>Answer</summary>
#    <code>max(range(1, 20), key=lambda k: expected(0.8, k) / (1 + 0.1 * k))</code> is 6, with 2.47 times the tokens a
#    second. Prompt lookup costs nothing, so it may be wrong more often.
#    </details>
# 5. In minifuse a sampled token depends on its logits, the request's seed and its position alone. What has to change in
#    `speculate` for temperatures above 0? *Hint: where is the model's own token chosen?*
#    <details><summary>Answer</summary>
#    Only <code>argmax</code>: draw the token of each position with its own noise, and compare. Without such noise one
#    accepts a drafted token with the probability min(1, p/q), p and q being its probabilities by the model and by the
#    draft, and corrects the rest, so that the <i>distribution</i> stays the same (Leviathan et al.; Chen et al.).
#    </details>
#
# ## How the papers tell it, and what we do differently
#
# - Pensieve (3.4.2) computes prompts and single tokens together, and cuts no prompt. FluidInfer (4.1) bounds tokens by
#   what saturates the machine; so does its `token_budget` here.
# - Flover (V) and Baton (4.2) compute prompts apart, on the device of the answers.
# - BatchMaker has a set of supported batch sizes, at which each cell is prepared before requests arrive
#   (`batching.batch_sizes`): the idea behind a list of recorded graphs.
# - No technique of minifuse speculates. Copies in 8 bits are our addition to `fluid` (`docs/fluidinfer.md`).
# - Facts about other systems are from their papers and manuals; minifuse has run none of these systems.
#
# ## Further reading
#
# - Agrawal et al., *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve* (OSDI 2024).
# - Zheng et al., *SGLang: Efficient Execution of Structured Language Model Programs* (NeurIPS 2024).
# - Zhong et al., *DistServe* (OSDI 2024); Patel et al., *Splitwise: Efficient Generative LLM Inference Using Phase
#   Splitting* (ISCA 2024).
# - Leviathan, Kalman and Matias, *Fast Inference from Transformers via Speculative Decoding* (ICML 2023); Chen et al.,
#   *Accelerating Large Language Model Decoding with Speculative Sampling* (2023); Saxena, *Prompt Lookup Decoding*
#   (2023).
# - Liu et al., *KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache* (ICML 2024).
# - Ansel et al., *PyTorch 2* (ASPLOS 2024): `torch.compile`.
# - `docs/glossary.md`, *Which paper is which option*: more names, each with the command that runs it here.
#
# **Next:** take a paper that is not in this list, and ask chapter 15's question: which stage would it change?
