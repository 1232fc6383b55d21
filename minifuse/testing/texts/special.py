"""Workloads of texts made for one purpose each: conversations, displacement, sharing, long texts."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from minifuse.core.request import Request
from minifuse.testing.drawn import draw_options
from minifuse.testing.texts.models import CONFIGS, CONTEXT, LONG, LONG_CONTEXT, VOCAB
from minifuse.testing.texts.scenario import KEPT, TextScenario, one_of


def _any(rng: Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(count)]


@st.composite
def talk(draw: st.DrawFn) -> TextScenario:
    """Draw two or three conversations of up to four turns; most begin alike."""
    rng = Random(draw(st.integers(0, 99)))
    beginning = _any(rng, 6)
    requests: list[Request] = []
    same = rng.random() < 0.4  # all conversations go on alike, one perhaps further than the other
    for conversation in "cde"[: draw(one_of([2, 3]))]:
        after: str | None = None
        for turn in range(draw(one_of([2, 3, 4]))):
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
        **draw_options(draw, KEPT),
        "batching.max_batch": draw(st.integers(1, 4)),
        "memory.transfer": draw(one_of(["blocking", "overlapped"])),
        "memory.share": draw(st.booleans()),
        "memory.block_size": 3,
        "memory.slots": 2,
        "batching.window": 0.02,
        "batching.instances": 2,
        "batching.preprocess": draw(one_of(["worker", "inline"])),
        "batching.token_budget": draw(one_of([None, None, 4])),
    }
    targets = [request.id for request in requests]
    return TextScenario(
        model=draw(one_of(sorted(CONFIGS))),
        requests=tuple(requests),
        capacity=draw(one_of([24, 30, 40])),
        options=tuple(options.items()),
        aborts=tuple(draw(st.lists(st.tuples(st.integers(1, 12), one_of(targets)), max_size=2))),
        seconds_per_transfer=draw(one_of([0.0, 0.0003, 0.004])),
    )


@st.composite
def displacing(draw: st.DrawFn) -> TextScenario:
    """Draw running requests with long answers, and newcomers that displace them; some begin alike."""
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
    block = draw(one_of([1, 2, 3, 5]))
    swaps = draw(st.booleans())
    options = {
        "batching.order": "priority",
        "batching.preempt": True,
        "batching.max_batch": rng.choice([2, 2, 3]),
        "batching.quantum": rng.choice([0.005, 0.01]),
        "batching.levels": 4,
        "memory.share": draw(one_of([True, True, False])),
        "memory.block_size": block,
        "memory.chunk": block,
        "memory.preemption": "swap" if swaps else "recompute",
        "memory.transfer": "overlapped" if swaps and draw(st.booleans()) else "blocking",
        "memory.watermark": 0.0,
        "memory.ahead": draw(one_of([0.0, 0.25])),
        "memory.reserve": 0.0,
    }
    capacity = draw(one_of([CONTEXT, CONTEXT, 32 + 8 * block, 3 * CONTEXT]))
    return TextScenario(
        model=draw(one_of(sorted(CONFIGS))),
        requests=tuple(requests),
        capacity=capacity,
        options=tuple(options.items()),
        seconds_per_transfer=draw(one_of([0.0, 0.0003])),
    )


@st.composite
def alike(draw: st.DrawFn) -> TextScenario:
    """Draw texts that share a running text's beginning, up to about a block's end.

    In some scenarios, the first token differs, so that later blocks have the same tokens but other KV.
    """
    rng = Random(draw(st.integers(0, 999)))
    block = draw(one_of([2, 3, 5, 16]))
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
        "batching.token_budget": draw(one_of([None, None, 50])),
        "batching.window": 0.02,
        "batching.instances": 4,
        "memory.block_size": block,
        "memory.chunk": block,
        "memory.share": draw(one_of([True, True, False])),
        "memory.preemption": draw(one_of(["swap", "recompute"])),
    }
    return TextScenario(
        model=LONG, requests=tuple(requests), capacity=3 * LONG_CONTEXT, options=tuple(options.items()), replayed=True
    )


@st.composite
def long(draw: st.DrawFn, rows: int) -> TextScenario:
    """Draw two or three texts of 127 to 305 tokens; most begin alike.

    Answers are short: the oracle's work grows with the square of a text's length.
    """
    seed, count = draw(st.integers(0, 99)), draw(one_of([2, 3]))
    rng = Random(seed)
    beginning = _any(rng, draw(one_of([64, 131, 63])))
    requests = []
    for i in range(count):
        length, new = draw(one_of([127, 129, 150, 129, 305])), draw(one_of([1, 4, 4]))
        own = _any(rng, length)
        text = beginning + own if draw(one_of([True, True, False])) else own
        arrival_s = draw(one_of([0.0, 0.015, 0.015]))
        requests.append(Request(f"r{i}", tuple(text[:length]), new, ignore_eos=True, arrival_s=arrival_s))
    options = {
        "batching.order": "fcfs",
        "batching.max_batch": draw(st.integers(1, 3)),
        "batching.token_budget": draw(one_of([None, 50])),
        "batching.window": 0.02,
        "batching.instances": draw(st.integers(1, 3)),
        "batching.preprocess": draw(one_of(["worker", "inline"])),
        "memory.slots": 2,
        "memory.block_size": draw(one_of([3, 16])),
        "memory.preemption": draw(one_of(["swap", "recompute"])),
        "memory.share": draw(st.booleans()),
        "memory.rows": rows,
        "memory.prefill": 0.45,
    }
    capacity = draw(one_of([2 * LONG_CONTEXT, 3 * LONG_CONTEXT]))
    return TextScenario(model=LONG, requests=tuple(requests), capacity=capacity, options=tuple(options.items()))


SPECIAL = {  # by kind
    "talk": talk,  # for memories that keep conversations; the conversations hardly fit
    "displacing": displacing,
    "alike": alike,  # for memories that share; no model computes
}
