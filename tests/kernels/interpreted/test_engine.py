"""The engine on the kernels: every technique serves, and in reference numerics all have the same bits."""

from __future__ import annotations

import copy
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Plan
from minifuse.core.report import StepReport
from minifuse.core.request import Request, Sampling, Sequence
from minifuse.execute import VirtualExecutor
from minifuse.execute.moving import MovingRunner
from minifuse.execute.texts import TorchRunner
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.execute.transfers import PlanTransfers
from minifuse.model.text.reader import TextReader
from minifuse.model.text.row_by_row import compute_row_by_row
from minifuse.model.text.transformer import Transformer
from minifuse.serve.assembly import choose
from minifuse.serve.engine import ServingEngine
from minifuse.techniques import TECHNIQUES, Technique, mix, serving
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB, expected_answer, small_model

TIGHT = {"memory.block_size": 2, "memory.share": True}
ROWS: dict[str, tuple[Technique, dict[str, object]]] = {
    **{name: (TECHNIQUES[name], {}) for name in serving("transformer")},
    "pensieve": (TECHNIQUES["pensieve"], {"memory.chunk": 3}),
    "vllm, swapping": (TECHNIQUES["vllm"], {**TIGHT, "memory.preemption": "swap"}),
    "vllm, recomputing": (TECHNIQUES["vllm"], {**TIGHT, "memory.preemption": "recompute"}),
    "orca in blocks": (mix(TECHNIQUES["orca"], memory="paged", attention="paged"), {"memory.block_size": 3}),
    "fusion without shuffle": (TECHNIQUES["fusion"], {"memory.shuffle": False}),
}
HEAD = (7, 1, 20)
REQUESTS = (
    Request("a", HEAD, 3, ignore_eos=True),
    Request("b", (*HEAD, 2), 3, ignore_eos=True, sampling=Sampling(temperature=1.5, seed=6)),
    Request("c", (28,), 2, stop_ids=(3,), sampling=Sampling(temperature=1.0, top_k=9, seed=5), arrival_s=0.02),
)
CAPACITY = {"vllm, swapping": 8, "vllm, recomputing": 8}
# Three models have one layer, and take half as long as the two of two layers, each of which meets one technique.
MODELS = dict(zip(ROWS, cycle(("opt", "one-kv-head", "three-a-head")), strict=False))
MODELS |= {"orca": "llama", "vllm, swapping": "gptj", "dynamic": "opt"}


class _Recording(TorchRunner):
    """Records the logits of every sampled token."""

    def __init__(self, model: Transformer, cache: TieredStorage, backend: object) -> None:
        super().__init__(model, cache, backend)
        self.recorded: dict[tuple[str, int], Tensor] = {}

    def logits(self, plan: Plan, sequences: dict[str, Sequence], attention: Any) -> tuple[tuple[str, ...], Tensor]:
        names, logits = super().logits(plan, sequences, attention)
        self.recorded.update(((name, len(sequences[name])), row) for name, row in zip(names, logits, strict=True))
        return names, logits


@cache
def _serve(name: str, model: str, numerics: str = "fast") -> tuple[ServingEngine, _Recording, list[StepReport]]:
    row, options = ROWS[name]
    options = {"attention.backend": "triton", **options}
    if "memory.slots" in row.option_names:
        options["memory.slots"] = 4
    weights = copy.deepcopy(small_model(model)).float()
    if numerics == "reference":
        compute_row_by_row(weights)
    stages = choose(row, options).stages(CAPACITY.get(name, 60))
    memory = stages.memory
    cache = TieredStorage(weights.config, memory.capacity, weights.dtype, weights.device, memory.host_capacity)
    for tier in (cache.keys, cache.values):
        tier.fill_(float("nan"))  # a read of a slot that has not been written shows
    run = _Recording(weights, cache, stages.attention.backend("cpu", "float32", numerics))
    clock = VirtualClock()
    executor = VirtualExecutor(
        clock, lambda plan: 0.01, MovingRunner(run, PlanTransfers(cache, run.attention.operators))
    )
    reader = TextReader(VOCAB, CONTEXT)
    engine = ServingEngine(stages.batching, memory, stages.attention, executor, clock, reader=reader)
    for request in REQUESTS:
        engine.submit(request)
    steps = list(engine.run())
    return engine, run, steps


def test_every_model_is_served() -> None:
    assert {*MODELS.values()} == {*CONFIGS}


@pytest.mark.parametrize(("name", "model"), MODELS.items())
def test_tokens_are_the_oracles(name: str, model: str) -> None:
    engine, _, steps = _serve(name, model)
    for request in REQUESTS:
        assert tuple(engine.finished[request.id].answer) == expected_answer(model, request)
    if name in CAPACITY:
        kinds = {move.kind for step in steps for move in step.plan.moves}
        assert any(step.plan.evicted for step in steps)
        assert ("swap_out" in kinds) == ("swap_in" in kinds) == (name == "vllm, swapping")


EVERY_LAYOUT = ("fusion", "vllm, swapping")  # buffers, blocks; test_living compares a rectangle


@pytest.mark.parametrize("names", [EVERY_LAYOUT, pytest.param(tuple(ROWS), marks=pytest.mark.long)])
def test_reference_logits_are_the_same_bits_under_every_technique(names: tuple[str, ...]) -> None:
    """One technique of each layout, or all of them; on torch, every mix is put to this law."""
    first, *others = names
    _, alone, _ = _serve(first, "one-kv-head", "reference")
    assert len(alone.recorded) >= 7
    for name in others:
        _, run, _ = _serve(name, "one-kv-head", "reference")
        assert run.recorded.keys() == alone.recorded.keys()
        for key, logits in run.recorded.items():
            assert torch.equal(logits, alone.recorded[key]), f"{name}: {key} differs"


def test_fast_logits_differ_between_techniques() -> None:
    """Otherwise the test of the reference numerics would prove nothing."""
    _, alone, _ = _serve("naive", MODELS["naive"])
    _, run, _ = _serve("dynamic", MODELS["dynamic"])
    assert any(not torch.equal(logits, alone.recorded[key]) for key, logits in run.recorded.items())
