"""A rectangle whose rows have gaps and wrap around, served on the kernels."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import asks, run_all
from torch import Tensor

from minifuse.attention.layouts import PaddedStage
from minifuse.attention.stage import PerSequenceStage
from minifuse.batching import Iteration
from minifuse.core.clock import VirtualClock
from minifuse.core.places import Runs
from minifuse.core.plan import Plan
from minifuse.core.request import Sequence
from minifuse.execute import VirtualExecutor
from minifuse.execute.moving import MovingRunner
from minifuse.execute.texts import TorchRunner
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.execute.transfers import PlanTransfers
from minifuse.memory import Contiguous, Shaped
from minifuse.model.text.reader import TextReader
from minifuse.model.text.row_by_row import compute_row_by_row
from minifuse.serve.engine import ServingEngine
from minifuse.testing.texts.models import CONTEXT, VOCAB, expected_answer, small_model

REQUESTS = [asks("a", 2, 5, ignore_eos=True), asks("b", 1, 2), asks("c", 5, 2, ignore_eos=True)]
CAPACITY = 20
MODEL = "one-kv-head"  # has one layer: the interpreter is slow


class _Recording(TorchRunner):
    """Records the logits of every sampled token."""

    recorded: dict[tuple[str, int], Tensor]

    def logits(self, plan: Plan, sequences: dict[str, Sequence], attention: Any) -> tuple[tuple[str, ...], Tensor]:
        names, logits = super().logits(plan, sequences, attention)
        self.recorded.update(((name, len(sequences[name])), row) for name, row in zip(names, logits, strict=True))
        return names, logits


def _serve(memory: Any, layout: Any, numerics: str) -> tuple[ServingEngine, dict[tuple[str, int], Tensor], list[Plan]]:
    weights = copy.deepcopy(small_model(MODEL)).float()
    if numerics == "reference":
        compute_row_by_row(weights)
    cache = TieredStorage(weights.config, CAPACITY, weights.dtype, weights.device)
    cache.keys.fill_(float("nan"))  # a read of a slot that has not been written shows
    cache.values.fill_(float("nan"))
    run = _Recording(weights, cache, layout.backend("cpu", "float32", numerics))
    run.recorded = {}
    clock = VirtualClock()
    executor = VirtualExecutor(
        clock, lambda plan: 0.01, MovingRunner(run, PlanTransfers(cache, run.attention.operators))
    )
    engine = ServingEngine(Iteration(), memory, layout, executor, clock, reader=TextReader(VOCAB, CONTEXT))
    return engine, run.recorded, [step.plan for step in run_all(engine, REQUESTS)]


OPTIONS = PaddedStage.Options(backend="triton")


@pytest.mark.parametrize(
    ("insert", "numerics"),
    [("shape", "fast"), pytest.param("shape", "reference", marks=pytest.mark.long), ("embed", "fast")],
)
def test_rows_with_gaps_are_served_on_the_kernels(insert: str, numerics: str) -> None:
    """Tokens are the oracle's, and in reference numerics logits are the bits of sequences in consecutive slots."""
    engine, logits, plans = _serve(
        Shaped(CAPACITY, Shaped.Options(rows=2, insert=insert)), PaddedStage(OPTIONS), numerics
    )
    for request in REQUESTS:
        assert tuple(engine.finished[request.id].answer) == expected_answer(MODEL, request)
    assert any(isinstance(place, Runs) for plan in plans for place in plan.places)
    if numerics == "reference":
        _, wanted, _ = _serve(Contiguous(CAPACITY), PerSequenceStage(OPTIONS), numerics)
        assert logits.keys() == wanted.keys()
        assert all(torch.equal(logits[key], wanted[key]) for key in wanted)
