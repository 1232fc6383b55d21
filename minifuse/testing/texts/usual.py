"""Draws, with hypothesis, the workloads of texts on which the laws are tried."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from minifuse.batching.policy import QueuePolicy
from minifuse.contracts.fault import is_own
from minifuse.core.request import GREEDY, Request, Sampling
from minifuse.stages import stage
from minifuse.techniques import Technique
from minifuse.testing.drawn import draw_options
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB
from minifuse.testing.texts.scenario import KEPT, NOT_DRAWN, OF_OPTION, PLACES, QUEUE, TextScenario, one_of, shaped
from minifuse.testing.texts.special import SPECIAL, long

SELDOM = [False] * 5 + [True] + [False] * 5  # hypothesis draws the first and the last value more often than the rest
TOKEN = st.integers(0, VOCAB - 1)
SAMPLINGS = st.just(GREEDY) | st.builds(
    Sampling,
    temperature=one_of([0.7, 1.5]),
    top_k=one_of([0, 5]),
    top_p=one_of([1.0, 0.8]),
    seed=st.integers(0, 2**32),
)


def _usual(row: Technique) -> tuple[str, ...]:
    """Return the kinds of scenarios that show what the stages of `row` do."""
    memory = stage("memory", row.memory)
    displaces = getattr(stage("batching", row.batching), "displaces", None) not in (None, QueuePolicy.displaces)
    shares = "memory.share" in row.option_names or not is_own(memory)  # a plugin's memory may share without an option
    kinds = ["few", "crowd", "growing"]
    kinds += ["talk"] * 2 * memory.reclaims
    kinds += ["displacing"] * (displaces and shares)
    kinds += ["alike"] * shares
    kinds += ["growing"] * 2 * (memory.evicts and not is_own(memory))  # which shows what is evicted, and where it goes
    return tuple(kinds)


@st.composite
def text_scenarios(draw: st.DrawFn, row: Technique, kinds: tuple[str, ...] = ()) -> TextScenario:
    """Draw two to seven requests of one to twelve tokens; some begin alike.

    Args:
        kinds: the kinds to choose from. "few" has little memory and small batches. "crowd" has room for many at once,
            and requests that leave make holes. In "growing", all prompts fit, but hardly two of them with their
            answers. "long" and the others are strategies of `minifuse.testing.texts.special`.
    """
    memory = stage("memory", row.memory)
    kind = draw(one_of(kinds or _usual(row)))
    if kind in SPECIAL:
        return draw(SPECIAL[kind]())
    if kind == "long" or (not kinds and draw(one_of(SELDOM))):
        return draw(long(rows=1 if memory.apart else 2))
    crowd, growing = kind == "crowd", kind == "growing"
    arrivals = [0.0, 0.0, 0.005, 0.02, 0.055, 0.3]
    answers = [7, 10, 12] if growing else [1, 2, 3, 5, 7, 10] + [20] * (not crowd)
    count = draw(one_of({"few": [2, 3, 5], "crowd": [5, 7], "growing": [3, 5]}[kind]))
    beginning = tuple(draw(st.lists(TOKEN, min_size=1, max_size=8)))
    requests = tuple(
        Request(
            id=f"r{i}",
            prompt=_prompt(draw, beginning, 5 if growing else 12),
            max_new_tokens=draw(one_of(answers)),
            stop_ids=draw(one_of([(), (3,), (5, 11, 17)])),
            ignore_eos=draw(st.booleans()),
            sampling=draw(SAMPLINGS),
            arrival_s=draw(one_of(arrivals if kind == "few" else arrivals[:3])),
            priority=draw(one_of([0, 0, 1, 2, -1])),
            user=(None, "u0", "u1")[i % 3],
        )
        for i in range(count)
    )
    if draw(st.booleans()) and not growing:
        requests = _grouped(requests, draw(st.integers(0, count - 2)), draw(st.integers(2, 3)))
    capacity = draw(one_of({"few": [12, 25, 40], "crowd": [3 * CONTEXT], "growing": [18, 24, 31]}[kind]))
    options = draw_options(draw, QUEUE)
    options["batching.max_batch"] += 2 * (kind != "few")
    options["batching.instances"] += 2 * crowd
    options["memory.slots"] = draw(one_of([4, 6] if crowd else [1, 2, 3]))
    options |= draw_options(draw, PLACES)
    if memory.reclaims:  # drawn only for these, so that other scenarios stay as they are
        options |= draw_options(draw, KEPT)
    if memory.in_step:
        options |= shaped(draw)
    for option, own in OF_OPTION.items():
        if option in row.option_names:
            options |= draw_options(draw, own)
    if not growing and draw(one_of([True, True, False])):
        requests = _following(draw, requests)
    targets = [request.id for request in requests] + [r.after for r in requests if r.after is not None] * 2
    scenario = TextScenario(
        aborts=tuple(draw(st.lists(st.tuples(st.integers(1, 8), one_of(targets)), max_size=3))),
        model=draw(one_of(sorted(CONFIGS))),
        requests=requests,
        capacity=capacity,
        options=tuple(options.items()),
        shared=draw(st.booleans()),
        seconds_to_prepare=draw(one_of([0.003, 0.01, 0.025])),
        seconds_per_transfer=draw(one_of([0.0, 0.0003, 0.004])),
    )
    number = sum(len(request.prompt) for request in requests)
    chosen = {name: some[number % len(some)] for name, some in NOT_DRAWN.items() if name in row.option_names}
    return replace(scenario, options=(*scenario.options, *chosen.items()))


def _prompt(draw: st.DrawFn, beginning: tuple[int, ...], longest: int) -> tuple[int, ...]:
    """Draw a prompt, in half of the cases with a common beginning."""
    prompt = tuple(draw(st.lists(TOKEN, min_size=1, max_size=longest)))
    return (beginning + prompt)[: draw(st.integers(1, longest))] if draw(st.booleans()) else prompt


def _following(draw: st.DrawFn, requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Chain some of the requests into one conversation."""
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
    """Combine the requests [start, start + size) into one request of several prompts."""
    first = requests[start]
    return tuple(
        replace(request, group="g", arrival_s=first.arrival_s, priority=first.priority, user=first.user)
        if start <= i < start + size
        else request
        for i, request in enumerate(requests)
    )
