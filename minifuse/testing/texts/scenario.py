"""Defines workloads of texts in a small memory, and the options to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from minifuse.core.plan import Plan
from minifuse.core.request import Phase, Request
from minifuse.memory.tiered.profile import Profile
from minifuse.stages import COMPUTED_WHOLE, stage
from minifuse.techniques import Technique
from minifuse.testing.subject import Scenario
from minifuse.testing.texts.models import model_config

STEEP = Profile(1.0, (2, 4, 8, 16, 32), (1.0, 2.0, 4.0, 8.0, 16.0)).text()  # short texts differ in cost, too
one_of = st.sampled_from
QUEUE = {
    "batching.order": one_of(["fcfs", "priority"]),
    "batching.ageing": one_of([None, 0.004, 0.03]),
    "batching.max_batch": st.integers(1, 4),
    "batching.token_budget": one_of([None, None, 4, 9]),
    "batching.window": one_of([0.0, 0.02, 0.1]),
    "batching.instances": st.integers(1, 3),
    "batching.preprocess": one_of(["worker", "inline"]),
    "batching.preprocessors": st.integers(1, 3),
}
PLACES = {
    "memory.shuffle": one_of([True, True, False]),
    "memory.block_size": one_of([1, 2, 3, 5]),
    "memory.preemption": one_of(["swap", "recompute"]),
    "memory.host": one_of([None, 6, 15]),
    "memory.transfer": one_of(["blocking", "overlapped"]),
    "memory.watermark": one_of([0.0, 0.2]),
    "memory.share": st.booleans(),
}
KEPT = {  # options of memories that keep conversations, and of the policy made for them
    "batching.max_tokens": one_of([2048, 6]),
    "batching.unify": one_of([True, True, False]),
    "memory.chunk": one_of([1, 2, 3, 5]),
    "memory.host": one_of([None, 0, 6, 15]),
    "memory.keep": one_of([True, True, True, False]),
    "memory.eviction": one_of(["cost", "cost", "lru"]),
    "memory.profile": one_of([None, STEEP]),
    "memory.ahead": one_of([0.0, 0.25, 0.6]),
    "memory.reserve": one_of([0.0, 0.1, 0.3]),
}
WAVES = {
    "memory.host": one_of([None, 40, 90]),
    "memory.buffer": one_of([0.0, 0.125, 0.5]),
    "memory.turns": one_of([None, "host", "layers", "rest", "sequences"]),
    "memory.beyond": one_of([None, 9, 20]),
    "memory.split": one_of([None, 1, 12]),
}
FEEDBACK = {  # a step takes 0.01 s
    "batching.quantum": one_of([0.005, 0.01, 0.03]),
    "batching.levels": one_of([1, 2, 4]),
    "batching.starve": one_of([0.0, 0.02, 0.1]),
    "batching.host_reserve": one_of([0.0, 0.1, 0.5]),
}
OF_OPTION: dict[str, Mapping[str, st.SearchStrategy[Any]]] = {  # drawn only for stages with this option
    "batching.compose": {
        "batching.compose": one_of(["together", "together", "random"]),
        "memory.shrink": one_of([True, True, False]),
    },
    "batching.prompts": {"batching.prompts": one_of(["inline", "inline", "worker"])},
    "memory.prefetch": {"memory.prefetch": one_of([0.0, 0.1, 0.2])},
    "memory.turns": WAVES,
    "batching.quantum": FEEDBACK,
    "attention.lanes": {"attention.lanes": one_of([None, None, 1, 2])},
}
NOT_DRAWN = {"batching.prompt_tokens": [None, 3, None, 8]}  # chosen by the requests, so that all draws stay as they are


def shaped(draw: st.DrawFn) -> dict[str, Any]:
    """Draw options of the memories that give rows to newcomers, and of their policies."""
    rows = draw(st.integers(1, 3))
    return {
        "batching.preempt": draw(one_of([True, True, False])),
        "batching.padding": draw(one_of([0.0, 0.1, 0.5])),
        "memory.rows": rows,
        "memory.insert": draw(one_of(["shape", "shape", "embed"])),
        "memory.threshold": draw(one_of([1.0, 0.6, 0.8])) if rows > 1 else 1.0,
        "memory.prefill": draw(one_of([0.4, 0.5])),
        "memory.host": draw(one_of([None, 0, 9])),
    }


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
        """Return the options that the stages of `row` accept together."""
        settings = super().settings(row)
        if stage("attention", row.attention).reads & COMPUTED_WHOLE:
            settings.pop("batching.token_budget", None)  # attention that computes whole rectangles cannot keep a budget
        if settings.get("memory.preemption", "swap") != "swap":
            settings.pop("memory.host", None)  # there is no host tier
            settings.pop("memory.transfer", None)
        if settings.get("memory.shuffle"):
            settings.pop("memory.shrink", None)  # the shuffle gathers the region anyway
        if settings.get("memory.host") == 0:
            settings.pop("memory.prefetch", None)  # there is nothing to fetch from
        if settings.get("batching.prompts") == "worker":
            settings |= {"memory.threshold": 1.0, "batching.preempt": False}  # no sequence is evicted
        if "memory.turns" in settings:
            settings |= self._of_turns(settings)
        return settings

    def _of_turns(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of waves that suit what takes turns."""
        turns = settings["memory.turns"]
        if turns in ("rest", "sequences"):
            return {"memory.overflow": "rotate", "memory.beyond": None, "memory.split": None}
        fitting: dict[str, Any] = {"memory.buffer": None}
        if turns != "host":
            fitting["memory.split"] = None
        if turns is None:
            fitting["memory.beyond"] = None
        if turns == "layers":
            fitting |= {"memory.layers": model_config(self.model).num_layers}
            fitting["memory.buffer"] = max(0.25, settings.get("memory.buffer") or 0.75)
        return fitting

    def with_requests(self, requests: tuple[Request, ...]) -> TextScenario:
        return replace(self, requests=requests)

    def alone(self, request: Request) -> TextScenario:
        return self.with_requests((replace(request, group=None),))
