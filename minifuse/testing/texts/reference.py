"""Law "batch of one", to the bit: other requests do not change reference logits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from minifuse.core.errors import LawBroken
from minifuse.core.request import Request
from minifuse.stages import stage
from minifuse.techniques import technique
from minifuse.testing.observation import Observation
from minifuse.testing.observed import observe
from minifuse.testing.texts.case import TextCase
from minifuse.testing.texts.scenario import TextScenario

if TYPE_CHECKING:
    from torch import Tensor


def same_bits(case: TextCase, seen: Observation) -> None:
    """Check that `reference` logits are the same as if `serial` served the request alone.

    Nothing is checked if the attention lacks the `reference` numerics.
    """
    import torch

    if case.scenario.replayed or not stage("attention", case.row.attention).reference:
        return
    runner = case.runner("reference")
    observe(case, run=runner)
    for request in case.requests:
        if request.id not in seen.answers or not seen.answers[request.id].num_new:
            continue
        before = None if request.after is None else seen.answers[request.after]
        whole = replace(case.whole(request, before), group=None, arrival_s=0.0)
        alone = _logits_alone(case.scenario.model, whole)
        for position in range(len(whole.prompt), len(whole.prompt) + seen.answers[request.id].num_new):
            if not torch.equal(runner.logits[request.id, position], alone[position]):
                raise LawBroken("batch of one", f"{request} has other logits at {position} than alone")


@lru_cache(maxsize=4096)
def _logits_alone(model: str, request: Request) -> dict[int, Tensor]:
    """Return the logits from which each token of the answer is sampled, by position."""
    scenario = TextScenario(model=model, requests=(request,), capacity=request.max_cached, options=())
    case = TextCase(technique("serial"), scenario)
    runner = case.runner("reference")
    observe(case, run=runner)
    return {position: logits for (_, position), logits in runner.logits.items()}
