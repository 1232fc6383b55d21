"""What the laws are tried on: workloads of texts that hypothesis makes up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from minifuse.batching.policy import QueuePolicy
from minifuse.contracts.fault import is_own
from minifuse.core.plan import Plan
from minifuse.core.request import GREEDY, Phase, Request, Sampling
from minifuse.memory.tiered.profile import Profile
from minifuse.stages import COMPUTED_WHOLE, stage
from minifuse.techniques import Technique
from minifuse.testing.subject import Scenario
from minifuse.testing.texts.models import CONFIGS, CONTEXT, LONG, LONG_CONTEXT, VOCAB, model_config

STEEP = Profile(1.0, (2, 4, 8, 16, 32), (1.0, 2.0, 4.0, 8.0, 16.0)).text()  # short texts differ in cost, too
SELDOM = [False] * 5 + [True] + [False] * 5  # hypothesis draws what stands first, and last, more often than the rest


@dataclass(frozen=True, kw_only=True)
class TextScenario(Scenario):
    """Requests to one of the small models, in memory of `capacity` KV tokens."""

    model: str
    capacity: int
    seconds_per_step: float = 0.01
    seconds_to_prepare: float = 0.01  # for a step of pre-processing
    seconds_per_transfer: float = 0.0  # of one token's KV, between device and host

    def seconds(self, plan: Plan) -> float:
        return self.seconds_to_prepare if plan.phase is Phase.PREPROCESSING else self.seconds_per_step

    def settings(self, row: Technique) -> dict[str, Any]:
        """The options that the stages of `row` have, without those that they refuse together."""
        settings = super().settings(row)
        if stage("attention", row.attention).reads & COMPUTED_WHOLE:
            settings.pop("batching.token_budget", None)  # what is computed whole cannot keep one
        if settings.get("memory.preemption", "swap") != "swap":
            settings.pop("memory.host", None)  # there is none
            settings.pop("memory.transfer", None)
        if settings.get("memory.turns") == "layers":
            settings |= {"memory.layers": model_config(self.model).num_layers, "memory.buffer": None}
        return settings

    def with_requests(self, requests: tuple[Request, ...]) -> TextScenario:
        return replace(self, requests=requests)

    def alone(self, request: Request) -> TextScenario:
        return self.with_requests((replace(request, group=None),))


@st.composite
def text_scenarios(draw: st.DrawFn, row: Technique, kinds: tuple[str, ...] = ()) -> TextScenario:
    """Two to seven requests of one to twelve tokens; arrivals, stop tokens. Some prompts begin alike.

    Args:
        kinds: those to choose from. "few" are short of memory, with small batches; a "crowd" has room for many at once,
            where requests that leave make holes; the "growing" all fit with their prompts, and hardly two with their
            answers. A "long" scenario has two or three texts of 127 to 305 tokens, on a model with one KV head. A
            "talk" has conversations of several turns, for memories that keep them, and that can hardly keep these.
            "displacing": newcomers share the text of a running request, and others take its place. "alike": texts that
            are the same for some blocks less one token, at any length, for memories that share; no model computes.
    """
    memory = stage("memory", row.memory)
    token = st.integers(0, VOCAB - 1)
    samplings = st.just(GREEDY) | st.builds(
        Sampling,
        temperature=st.sampled_from([0.7, 1.5]),
        top_k=st.sampled_from([0, 5]),
        top_p=st.sampled_from([1.0, 0.8]),
        seed=st.integers(0, 2**32),
    )
    displaces = getattr(stage("batching", row.batching), "displaces", None) not in (None, QueuePolicy.displaces)
    shares = "memory.share" in row.option_names or not is_own(memory)  # one of a plugin may, unasked
    usual = ("few", "crowd", "growing", *["talk"] * 2 * memory.reclaims, *["displacing"] * (displaces and shares))
    usual += ("alike",) * shares
    usual += ("growing",) * 2 * (memory.evicts and not is_own(memory))  # which shows what is evicted, and where it goes
    kind = draw(st.sampled_from(kinds or usual))
    if kind == "talk":
        return draw(_talk())
    if kind == "displacing":
        return draw(_displacing())
    if kind == "alike":
        return draw(_alike())
    if kind == "long" or (not kinds and draw(st.sampled_from(SELDOM))):
        return draw(_long(rows=1 if memory.apart else 2))
    crowd, growing = kind == "crowd", kind == "growing"
    arrivals = [0.0, 0.0, 0.005, 0.02, 0.055, 0.3]
    count = draw(st.sampled_from({"few": [2, 3, 5], "crowd": [5, 7], "growing": [3, 5]}[kind]))
    beginning = tuple(draw(st.lists(token, min_size=1, max_size=8)))
    requests = tuple(
        Request(
            id=f"r{i}",
            prompt=_prompt(draw, token, beginning, 5 if growing else 12),
            max_new_tokens=draw(st.sampled_from([7, 10, 12] if growing else [1, 2, 3, 5, 7, 10] + [20] * (not crowd))),
            stop_ids=draw(st.sampled_from([(), (3,), (5, 11, 17)])),
            ignore_eos=draw(st.booleans()),
            sampling=draw(samplings),
            arrival_s=draw(st.sampled_from(arrivals if kind == "few" else arrivals[:3])),
            priority=draw(st.sampled_from([0, 0, 1, 2, -1])),
            user=(None, "u0", "u1")[i % 3],
        )
        for i in range(count)
    )
    if draw(st.booleans()) and not growing:
        requests = _grouped(requests, draw(st.integers(0, count - 2)), draw(st.integers(2, 3)))
    capacity = draw(st.sampled_from({"few": [12, 25, 40], "crowd": [3 * CONTEXT], "growing": [18, 24, 31]}[kind]))
    options = {
        "batching.order": draw(st.sampled_from(["fcfs", "priority"])),
        "batching.ageing": draw(st.sampled_from([None, 0.004, 0.03])),
        "batching.max_batch": draw(st.integers(1, 4)) + 2 * (kind != "few"),
        "batching.token_budget": draw(st.sampled_from([None, None, 4, 9])),
        "batching.window": draw(st.sampled_from([0.0, 0.02, 0.1])),
        "batching.instances": draw(st.integers(1, 3)) + 2 * crowd,
        "batching.preprocess": draw(st.sampled_from(["worker", "inline"])),
        "batching.preprocessors": draw(st.integers(1, 3)),
        "memory.slots": draw(st.sampled_from([4, 6] if crowd else [1, 2, 3])),
        "memory.shuffle": draw(st.sampled_from([True, True, False])),
        "memory.block_size": draw(st.sampled_from([1, 2, 3, 5])),
        "memory.preemption": draw(st.sampled_from(["swap", "recompute"])),
        "memory.host": draw(st.sampled_from([None, 6, 15])),
        "memory.transfer": draw(st.sampled_from(["blocking", "overlapped"])),
        "memory.watermark": draw(st.sampled_from([0.0, 0.2])),
        "memory.share": draw(st.booleans()),
    }
    if memory.reclaims:  # drawn for these alone, so that other scenarios stay as they are
        options |= _kept(draw)
    if memory.in_step:
        options |= _shaped(draw)
    if "memory.turns" in row.option_names:
        options |= _in_waves(draw)
    if "batching.quantum" in row.option_names:
        options |= _by_levels(draw)
    if "attention.lanes" in row.option_names:
        options["attention.lanes"] = draw(st.sampled_from([None, None, 1, 2]))
    if not growing and draw(st.sampled_from([True, True, False])):
        requests = _following(draw, requests)
    targets = [request.id for request in requests] + [r.after for r in requests if r.after is not None] * 2
    return TextScenario(
        aborts=tuple(draw(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(targets)), max_size=3))),
        model=draw(st.sampled_from(sorted(CONFIGS))),
        requests=requests,
        capacity=capacity,
        options=tuple(options.items()),
        shared=draw(st.booleans()),
        seconds_to_prepare=draw(st.sampled_from([0.003, 0.01, 0.025])),
        seconds_per_transfer=draw(st.sampled_from([0.0, 0.0003, 0.004])),
    )


def _in_waves(draw: st.DrawFn) -> dict[str, Any]:
    """Options of memories that attend in waves."""
    return {
        "memory.host": draw(st.sampled_from([None, 40, 90])),
        "memory.buffer": draw(st.sampled_from([0.0, 0.125, 0.5])),
        "memory.turns": draw(st.sampled_from(["rest", "rest", "sequences", "layers"])),
    }


def _by_levels(draw: st.DrawFn) -> dict[str, Any]:
    """Options of feedback queues; a step takes 0.01 s."""
    return {
        "batching.quantum": draw(st.sampled_from([0.005, 0.01, 0.03])),
        "batching.levels": draw(st.sampled_from([1, 2, 4])),
        "batching.starve": draw(st.sampled_from([0.0, 0.02, 0.1])),
        "batching.host_reserve": draw(st.sampled_from([0.0, 0.1, 0.5])),
    }


def _kept(draw: st.DrawFn) -> dict[str, Any]:
    """Options of memories that keep conversations, and of the policy that they are made for."""
    return {
        "batching.max_tokens": draw(st.sampled_from([2048, 6])),
        "batching.unify": draw(st.sampled_from([True, True, False])),
        "memory.chunk": draw(st.sampled_from([1, 2, 3, 5])),
        "memory.host": draw(st.sampled_from([None, 0, 6, 15])),
        "memory.keep": draw(st.sampled_from([True, True, True, False])),
        "memory.eviction": draw(st.sampled_from(["cost", "cost", "lru"])),
        "memory.profile": draw(st.sampled_from([None, STEEP])),
        "memory.ahead": draw(st.sampled_from([0.0, 0.25, 0.6])),
        "memory.reserve": draw(st.sampled_from([0.0, 0.1, 0.3])),
    }


def _shaped(draw: st.DrawFn) -> dict[str, Any]:
    """Options of the memories whose rows change hands, and of the policies that they are made for."""
    rows = draw(st.integers(1, 3))
    return {
        "batching.preempt": draw(st.sampled_from([True, True, False])),
        "batching.padding": draw(st.sampled_from([0.0, 0.1, 0.5])),
        "memory.rows": rows,
        "memory.insert": draw(st.sampled_from(["shape", "shape", "embed"])),
        "memory.threshold": draw(st.sampled_from([1.0, 0.6, 0.8])) if rows > 1 else 1.0,
        "memory.prefill": draw(st.sampled_from([0.4, 0.5])),
        "memory.host": draw(st.sampled_from([None, 0, 9])),
    }


def _any(rng: Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(count)]


@st.composite
def _talk(draw: st.DrawFn) -> TextScenario:
    """Two or three conversations of up to four turns each, most of which begin alike, and perhaps a request without."""
    rng = Random(draw(st.integers(0, 99)))
    beginning = _any(rng, 6)
    requests: list[Request] = []
    same = rng.random() < 0.4  # all conversations go on alike, one perhaps further than the other
    for conversation in "cde"[: draw(st.sampled_from([2, 3]))]:
        after: str | None = None
        for turn in range(draw(st.sampled_from([2, 3, 4]))):
            own = [(7 * turn + i) % VOCAB for i in range(4)] if same else _any(rng, rng.randint(1, 5))
            request = Request(
                id=f"{conversation}{turn}",
                prompt=tuple((beginning if turn == 0 and (same or rng.random() < 0.7) else []) + own),
                max_new_tokens=3 if same else rng.randint(1, 5),
                ignore_eos=True,
                arrival_s=rng.choice([0.0, 0.0, 0.03]),
                conversation=conversation,
                after=after,
                delay_s=rng.choice([0.0, 0.02, 0.08]) if after else 0.0,
            )
            requests.append(request)
            after = request.id
    if draw(st.booleans()):
        requests.append(Request("r", tuple(_any(rng, 9)), 6, ignore_eos=True, arrival_s=0.05))
    options = {
        **_kept(draw),
        "batching.max_batch": draw(st.integers(1, 4)),
        "memory.transfer": draw(st.sampled_from(["blocking", "overlapped"])),
        "memory.share": draw(st.booleans()),
        "memory.block_size": 3,
        "memory.slots": 2,
        "batching.window": 0.02,
        "batching.instances": 2,
        "batching.preprocess": draw(st.sampled_from(["worker", "inline"])),
        "batching.token_budget": draw(st.sampled_from([None, None, 4])),
    }
    targets = [request.id for request in requests]
    return TextScenario(
        model=draw(st.sampled_from(sorted(CONFIGS))),
        requests=tuple(requests),
        capacity=draw(st.sampled_from([24, 30, 40])),
        options=tuple(options.items()),
        aborts=tuple(draw(st.lists(st.tuples(st.integers(1, 12), st.sampled_from(targets)), max_size=2))),
        seconds_per_transfer=draw(st.sampled_from([0.0, 0.0003, 0.004])),
    )


@st.composite
def _displacing(draw: st.DrawFn) -> TextScenario:
    """Requests with long answers run; newcomers that go before them arrive together, and some begin as they do."""
    rng = Random(draw(st.integers(0, 999)))
    beginning = _any(rng, 14)
    requests = []
    for i in range(rng.choice([3, 4, 5])):
        running = i < rng.choice([1, 2])
        own = _any(rng, rng.randint(1, 7))
        begins_alike = running or rng.random() < 0.6
        requests.append(
            Request(
                id=f"r{i}",
                prompt=tuple((beginning[: rng.randint(4, 14)] if begins_alike else []) + own),
                max_new_tokens=20 if running else rng.randint(1, 6),
                ignore_eos=True,
                arrival_s=0.0 if running else 0.015 + 0.02 * rng.choice([0, 0, 0, 1]),
                priority=0 if running else rng.randint(1, 2),
            )
        )
    block = draw(st.sampled_from([1, 2, 3, 5]))
    swaps = draw(st.booleans())
    options = {
        "batching.order": "priority",
        "batching.preempt": True,
        "batching.max_batch": rng.choice([2, 2, 3]),
        "batching.quantum": rng.choice([0.005, 0.01]),
        "batching.levels": 4,
        "memory.share": draw(st.sampled_from([True, True, False])),
        "memory.block_size": block,
        "memory.chunk": block,
        "memory.preemption": "swap" if swaps else "recompute",
        "memory.transfer": "overlapped" if swaps and draw(st.booleans()) else "blocking",
        "memory.watermark": 0.0,
        "memory.ahead": draw(st.sampled_from([0.0, 0.25])),
        "memory.reserve": 0.0,
    }
    capacity = draw(st.sampled_from([CONTEXT, CONTEXT, 32 + 8 * block, 3 * CONTEXT]))
    return TextScenario(
        model=draw(st.sampled_from(sorted(CONFIGS))),
        requests=tuple(requests),
        capacity=capacity,
        options=tuple(options.items()),
        seconds_per_transfer=draw(st.sampled_from([0.0, 0.0003])),
    )


@st.composite
def _alike(draw: st.DrawFn) -> TextScenario:
    """Draw texts that share a running text's beginning, up to about a block's end.

    Some have another first token: their later blocks have the tokens of that text, and other KV.
    """
    rng = Random(draw(st.integers(0, 999)))
    block = draw(st.sampled_from([2, 3, 5, 16]))
    first = _any(rng, rng.choice([50, 120, 200]))
    requests = [Request("r0", tuple(first), 12, ignore_eos=True)]
    apart = rng.random() < 0.3
    for i in range(1, rng.choice([3, 4])):
        length = block * rng.randint(1, len(first) // block) + rng.choice([-1, -1, 0, 1])
        other = [(token + 1) % VOCAB for token in first[length : length + 1]]
        own = _any(rng, rng.randint(1, 2 * block))
        arrival_s = rng.choice([0.015, 0.015, 0.035])
        text = first[:length] + other + own
        if apart:
            text[0] = (text[0] + 1) % VOCAB
        requests.append(Request(f"r{i}", tuple(text), 4, ignore_eos=True, arrival_s=arrival_s))
    options = {
        "batching.max_batch": 4,
        "batching.token_budget": draw(st.sampled_from([None, None, 50])),
        "batching.window": 0.02,
        "batching.instances": 4,
        "memory.block_size": block,
        "memory.chunk": block,
        "memory.share": draw(st.sampled_from([True, True, False])),
        "memory.preemption": draw(st.sampled_from(["swap", "recompute"])),
    }
    return TextScenario(
        model=LONG, requests=tuple(requests), capacity=3 * LONG_CONTEXT, options=tuple(options.items()), replayed=True
    )


@st.composite
def _long(draw: st.DrawFn, rows: int) -> TextScenario:
    """Long prompts, most of which begin alike, and short answers: the oracle's work grows with the square of a text."""
    seed, count = draw(st.integers(0, 99)), draw(st.sampled_from([2, 3]))
    rng = Random(seed)
    beginning = [rng.randrange(VOCAB) for _ in range(draw(st.sampled_from([64, 131, 63])))]
    requests = []
    for i in range(count):
        length, new = draw(st.sampled_from([127, 129, 150, 129, 305])), draw(st.sampled_from([1, 4, 4]))
        own = [rng.randrange(VOCAB) for _ in range(length)]
        text = beginning + own if draw(st.sampled_from([True, True, False])) else own
        arrival_s = draw(st.sampled_from([0.0, 0.015, 0.015]))
        requests.append(Request(f"r{i}", tuple(text[:length]), new, ignore_eos=True, arrival_s=arrival_s))
    options = {
        "batching.order": "fcfs",
        "batching.max_batch": draw(st.integers(1, 3)),
        "batching.token_budget": draw(st.sampled_from([None, 50])),
        "batching.window": 0.02,
        "batching.instances": draw(st.integers(1, 3)),
        "batching.preprocess": draw(st.sampled_from(["worker", "inline"])),
        "memory.slots": 2,
        "memory.block_size": draw(st.sampled_from([3, 16])),
        "memory.preemption": draw(st.sampled_from(["swap", "recompute"])),
        "memory.share": draw(st.booleans()),
        "memory.rows": rows,
        "memory.prefill": 0.45,
    }
    capacity = draw(st.sampled_from([2 * LONG_CONTEXT, 3 * LONG_CONTEXT]))
    return TextScenario(model=LONG, requests=tuple(requests), capacity=capacity, options=tuple(options.items()))


def _prompt(
    draw: st.DrawFn, token: st.SearchStrategy[int], beginning: tuple[int, ...], longest: int
) -> tuple[int, ...]:
    """Any prompt, or one that begins as others do, or is the same."""
    prompt = tuple(draw(st.lists(token, min_size=1, max_size=longest)))
    return (beginning + prompt)[: draw(st.integers(1, longest))] if draw(st.booleans()) else prompt


def _following(draw: st.DrawFn, requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """The same, some of them turns of one conversation."""
    alone = [request.id for request in requests if request.group is None]
    turns = alone[draw(st.integers(0, 1)) :][: draw(st.integers(2, 3))]
    behind = dict(zip(turns[1:], turns, strict=False))
    delays = st.sampled_from([0.0, 0.0, 0.004, 0.03])
    return tuple(
        replace(request, conversation="c", after=behind.get(request.id), delay_s=draw(delays) * (request.id in behind))
        if request.id in turns
        else request
        for request in requests
    )


def _grouped(requests: tuple[Request, ...], start: int, size: int) -> tuple[Request, ...]:
    """The same, [start, start + size) being the prompts of one request."""
    first = requests[start]
    return tuple(
        replace(request, group="g", arrival_s=first.arrival_s, priority=first.priority, user=first.user)
        if start <= i < start + size
        else request
        for i, request in enumerate(requests)
    )
