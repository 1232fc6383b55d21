"""What the laws are tried on: every technique, every valid mix of stages, and workloads that hypothesis makes up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from minifuse.errors import UsageError
from minifuse.plan import Plan
from minifuse.request import GREEDY, Phase, Request, Sampling, by_request
from minifuse.stages import Kind, stage, stages
from minifuse.techniques import TECHNIQUES, Technique, mix
from minifuse.testing.models import CONFIGS, CONTEXT, VOCAB

__all__ = ["Scenario", "mixes", "scenarios"]


@dataclass(frozen=True)
class Scenario:
    """A workload, a budget and settings, all small enough that every corner is met often."""

    model: str
    requests: tuple[Request, ...]
    capacity: int  # KV tokens
    options: tuple[tuple[str, Any], ...]  # as `--set` takes them; those a mix does not have are left out
    seconds_per_step: float = 0.01
    seconds_to_prepare: float = 0.01  # for a step of pre-processing

    def seconds(self, plan: Plan) -> float:
        return self.seconds_to_prepare if plan.phase is Phase.PREPROCESSING else self.seconds_per_step

    def settings(self, row: Technique) -> dict[str, Any]:
        """The options that the stages of `row` have."""
        known = row.option_names
        if "rectangle" in stage("attention", row.attention).reads:
            known.discard("batching.token_budget")  # a rectangle cannot keep one, and says so
        if dict(self.options).get("memory.preemption") != "swap":
            known.discard("memory.host")  # there is none, and memory says so
        return {name: value for name, value in self.options if name in known}

    def asked(self) -> list[tuple[Request, ...]]:
        """The requests, each as its prompts: neighbours of one group are one request."""
        return [tuple(prompts) for prompts in by_request(self.requests)]

    def with_requests(self, requests: tuple[Request, ...]) -> Scenario:
        return replace(self, requests=requests)


def mixes(**only: str) -> Iterator[Technique]:
    """Every technique that serves transformers, then every valid mix of stages; `batching="mine"` keeps those with it.

    Those for models of cells are `minifuse.testing.cell_scenario.cell_mixes`.
    """
    seen = set()
    rows = [row for row in TECHNIQUES.values() if "transformer" in row.serves]
    for batching in _serving("batching"):
        for memory in _serving("memory"):
            for attention in _serving("attention"):
                try:
                    rows.append(mix(TECHNIQUES["orca"], batching=batching, memory=memory, attention=attention))
                except UsageError:
                    continue  # the memory does not keep KV the way this attention reads it
    for row in rows:
        key = (*row.stages.values(), *row.options.items())
        if key not in seen and all(getattr(row, kind) == name for kind, name in only.items()):
            seen.add(key)
            yield row


def _serving(kind: Kind) -> list[str]:
    return [name for name, cls in stages(kind).items() if "transformer" in cls.serves]


@st.composite
def scenarios(draw: st.DrawFn, sampled: bool = True, kind: str | None = None) -> Scenario:
    """Two to seven requests of one to twelve tokens; arrivals, stop tokens. Some prompts begin alike.

    Args:
        sampled: let some requests draw their tokens at random instead of greedily.
        kind: "few" are short of memory, with small batches; a "crowd" has room for many at once, where those who leave
            leave holes behind; the "growing" all fit with their prompts, and hardly two with their answers.
    """
    token = st.integers(0, VOCAB - 1)
    samplings = st.just(GREEDY)
    if sampled:
        drawn = st.builds(
            Sampling,
            temperature=st.sampled_from([0.7, 1.5]),
            top_k=st.sampled_from([0, 5]),
            top_p=st.sampled_from([1.0, 0.8]),
            seed=st.integers(0, 2**32),
        )
        samplings = samplings | drawn
    kind = kind or draw(st.sampled_from(["few", "crowd", "growing"]))
    crowd, growing = kind == "crowd", kind == "growing"
    arrivals = [0.0, 0.0, 0.005, 0.02, 0.055, 0.3]
    count = draw(st.sampled_from({"few": [2, 3, 5], "crowd": [5, 7], "growing": [3, 5]}[kind]))
    beginning = tuple(draw(st.lists(token, min_size=1, max_size=8)))
    requests = tuple(
        Request(
            id=f"r{i}",
            prompt=_prompt(draw, token, beginning, 5 if growing else 12),
            max_new_tokens=draw(st.sampled_from([7, 10, 12] if growing else [1, 2, 3, 5, 7, 10])),
            stop_ids=draw(st.sampled_from([(), (3,), (5, 11, 17)])),
            ignore_eos=draw(st.booleans()),
            sampling=draw(samplings),
            arrival_s=draw(st.sampled_from(arrivals if kind == "few" else arrivals[:3])),
        )
        for i in range(count)
    )
    if draw(st.booleans()) and not growing:
        requests = _grouped(requests, draw(st.integers(0, count - 2)), draw(st.integers(2, 3)))
    capacity = draw(st.sampled_from({"few": [12, 25, 40], "crowd": [3 * CONTEXT], "growing": [18, 24, 31]}[kind]))
    options = {
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
        "memory.watermark": draw(st.sampled_from([0.0, 0.2])),
        "memory.share": draw(st.booleans()),
    }
    return Scenario(
        model=draw(st.sampled_from(sorted(CONFIGS))),
        requests=requests,
        capacity=capacity,
        options=tuple(options.items()),
        seconds_to_prepare=draw(st.sampled_from([0.003, 0.01, 0.025])),
    )


def _prompt(
    draw: st.DrawFn, token: st.SearchStrategy[int], beginning: tuple[int, ...], longest: int
) -> tuple[int, ...]:
    """Any prompt, or one that begins as others do, or is the same."""
    prompt = tuple(draw(st.lists(token, min_size=1, max_size=longest)))
    return (beginning + prompt)[: draw(st.integers(1, longest))] if draw(st.booleans()) else prompt


def _grouped(requests: tuple[Request, ...], start: int, size: int) -> tuple[Request, ...]:
    """The same, those of [start, start + size) being the prompts of one request."""
    arrival = requests[start].arrival_s
    return tuple(
        replace(request, group="g", arrival_s=arrival) if start <= i < start + size else request
        for i, request in enumerate(requests)
    )
