"""What is timed of a chunk: which tokens attend to what, in which layers. Never how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from helpers import refusal

from minifuse.attention.paged import PagedAttention
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Plan, Work
from minifuse.memory.tiered.profile import Profile, powers_of_two
from minifuse.simulate import chunk_cost, operators
from minifuse.simulate.chunk_cost import Measured, contexts_of, measure
from minifuse.testing.texts.models import CONFIGS, small_model

LAYERS = CONFIGS["llama"].num_layers


@pytest.fixture
def run_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every computation is run once, in the order given, and takes 1, 2, 3, ... seconds."""
    names: list[str] = []

    def in_turns(runs: Mapping[str, Callable[[], object]], rounds: int, device: str) -> dict[str, tuple[float, ...]]:
        taken = {}
        for name, run in runs.items():
            names.append(f"begin {name}")
            run()
            taken[name] = (float(len(taken) + 1),) * rounds
        return taken

    monkeypatch.setattr(chunk_cost, "time_in_turns", in_turns)
    return names


@pytest.mark.parametrize("family", CONFIGS)
def test_the_last_tokens_of_every_context_attend_to_it_in_every_layer(
    family: str, run_once: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    reads, attention = PagedAttention.reads, PagedAttention.attention

    def seen_reads(self: Any, plan: Plan, *rest: Any) -> Any:
        plans.append(plan)
        return reads(self, plan, *rest)

    def seen_attention(self: Any, q: torch.Tensor, cache: Any, layer: int, index: Any) -> torch.Tensor:
        assert len(q) == 4
        run_once.append(f"layer {layer}")
        return attention(self, q, cache, layer, index)

    monkeypatch.setattr(PagedAttention, "reads", seen_reads)
    monkeypatch.setattr(PagedAttention, "attention", seen_attention)
    measured = measure(small_model(family), (4, 8, 16), chunk=4, rounds=2)
    assert [plan.work for plan in plans] == [(Work("s0", at - 4, at),) for at in (4, 8, 16)]
    for plan in plans:
        (place,) = plan.places
        assert isinstance(place, Pages)
        assert (len({*place.blocks}), place.size) == (1, 16)
    layers = [f"layer {i}" for i in range(CONFIGS[family].num_layers)]
    assert run_once == ["begin other", *(x for at in (4, 8, 16) for x in (f"begin {at}", *layers))]
    assert measured == Measured({4: (2.0, 2.0), 8: (3.0, 3.0), 16: (4.0, 4.0)}, (1.0, 1.0))


def test_the_rest_is_both_halves_of_every_layer_for_a_chunk(
    run_once: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    halves: Counter[str] = Counter()
    model = small_model("llama")
    for name in ("pre_attention", "post_attention"):
        for index, layer in enumerate(model.layers):
            half = getattr(type(layer), name)

            def seen(
                x: Any, *rest: Any, name: str = name, index: int = index, half: Any = half, own: Any = layer
            ) -> Any:
                if run_once:  # and not what is prepared before
                    assert len(x) == 4
                    halves[f"{name} {index}"] += 1
                return half(own, x, *rest)

            monkeypatch.setattr(layer, name, seen)
    measure(model, (4, 8), chunk=4)
    assert halves == {f"{name}_attention {i}": 1 for name in ("pre", "post") for i in range(LAYERS)}


def test_medians_make_the_profile() -> None:
    measured = Measured({32: (1.0, 9.0, 2.0), 64: (4.0, 3.0, 3.5)}, (7.0, 5.0, 6.0))
    assert measured.profile == Profile(6.0, (32, 64), (2.0, 3.5))


def test_the_tokens_that_saturate(run_once: list[str]) -> None:
    """The halves of all layers for each count; they take 4, 5, 6 and 7 s here: 16 tokens are the fewest within 10% of
    the most tokens per second."""
    measured = measure(small_model("llama"), (4, 8), chunk=4, counts=(1, 8, 16, 18))
    assert [name for name in run_once if "tokens" in name] == [f"begin {n} tokens" for n in (1, 8, 16, 18)]
    assert measured.layers_s == {1: (4.0,), 8: (5.0,), 16: (6.0,), 18: (7.0,)}
    assert measured.saturating_tokens == 16


def test_where_kv_of_all_layers_is_too_large_layers_share_it(
    run_once: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "MOST_KV", 1)
    layers: list[int] = []
    attend = PagedAttention.attend
    monkeypatch.setattr(PagedAttention, "attend", lambda *given: (layers.append(given[4]), attend(*given))[1])
    measure(small_model("llama"), (4, 8), chunk=4)
    assert layers == [0] * 2 * LAYERS


@pytest.mark.parametrize("problem", [RuntimeError("out of memory"), MemoryError()])
def test_kv_that_does_not_fit(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(operators, "KVStorage", refuse)
    with refusal(MachineError, "KV of 64 tokens", "cpu", "shorter context"):
        measure(small_model("llama"), (4, 8), chunk=4)


@pytest.mark.parametrize(
    ("chunk", "longest", "contexts"),
    [(32, 256, (32, 64, 128, 256)), (48, 300, (64, 128, 256)), (1, 4, (1, 2, 4)), (33, 63, ()), (5, 4, ())],
)
def test_powers_of_two(chunk: int, longest: int, contexts: tuple[int, ...]) -> None:
    assert powers_of_two(chunk, longest) == contexts


@pytest.mark.parametrize(("chunk", "most"), [(33, 32), (64, 32), (200, 32)])
def test_a_chunk_too_large_for_the_model(chunk: int, most: int) -> None:
    with refusal(UsageError, f"{chunk} tokens", "toy is 100", f"at most {most}"):
        contexts_of(chunk, 100, "toy")
    assert len(contexts_of(most, 100, "toy")) == 2
