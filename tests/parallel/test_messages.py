"""The messages of simulated ranks, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import asks, make_engine, run_all

from minifuse.core.measured import measured_of
from minifuse.core.report import StepReport
from minifuse.model.text.load import resolve_text
from minifuse.parallel.config import computed_share
from minifuse.parallel.messages import SimulatedMessages
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, Roofline
from minifuse.simulate.ring import Ring
from minifuse.techniques import technique
from minifuse.testing.texts.models import CONFIGS

TOY = replace(CONFIGS["llama"], vocab_size=29, hidden_size=8, num_layers=2)


def test_messages_by_hand() -> None:
    """Four sums of T rows of 8 features, and of S rows the 15 or 8 logits of a rank, in 4 bytes."""
    two, four = (SimulatedMessages(TOY, size, 4, Ring(size, bandwidth=100.0, latency_s=3.0)) for size in (2, 4))
    assert two.of(5, 2) == (5, 4 * 160 + 120, pytest.approx(4 * 2 * (3 + 0.8) + (3 + 1.2)))
    assert four.of(5, 2) == (5, 4 * 160 + 64, pytest.approx(4 * 6 * (3 + 0.4) + 3 * (3 + 0.64)))
    assert two.of(5, 0) == (4, 4 * 160, pytest.approx(4 * 2 * (3 + 0.8)))  # nothing is gathered


def test_a_rank_computes_its_share_of_everything() -> None:
    whole = CONFIGS["llama"]
    share = computed_share(whole, 2)
    assert share.num_matrix_weights - share.head_weights == (whole.num_matrix_weights - whole.head_weights) // 2
    assert share.kv_elements_per_token * 2 == whole.kv_elements_per_token
    assert share.q_size * 2 == whole.q_size
    assert share.vocab_size == -(-whole.vocab_size // 2)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_plan_takes_its_ranks_time_and_its_messages(shuffle: bool) -> None:
    """Three requests, the middle one short: without shuffle its row stays in the messages."""
    machine = Hardware(1e6, 1e9, 1e-3, memory=1e9, peer_bandwidth=1e5, peer_latency_s=1e-4, row_s=1e-5)
    source = resolve_text("random:small")
    options = {"memory.slots": 3, "memory.shuffle": shuffle, "batching.preprocess": "inline"}
    steps: list[StepReport] = []
    settings = Settings("float32", kv_memory=2**22, clock="virtual", hardware=machine, stage_options=options)
    engine = build_engine(resolve_run(technique("fusion"), source, replace(settings, tensor_parallel=2)))
    serve(engine, [asks(f"r{i}", 3, new, ignore_eos=True) for i, new in enumerate((6, 2, 6))], on_step=steps.append)
    cost = Roofline(computed_share(source.config, 2), "float32", machine)
    rule = SimulatedMessages(source.config, 2, 4, Ring(2, 1e5, 1e-4))
    for step in steps:
        sent = rule(step.plan, len(step.tokens))
        assert step.ended_s - step.started_s == pytest.approx(cost(step.plan) + sent.seconds)
        assert (measured_of(step).num_messages, measured_of(step).message_bytes) == sent[:2]
    idle = sum(step.plan.num_idle for step in steps)
    assert idle == (0 if shuffle else 4)


def test_without_simulated_ranks_there_are_no_messages() -> None:
    steps = run_all(make_engine(cost=lambda plan: 1.0), [asks("r0")])
    assert not any(measured_of(step).num_messages for step in steps)


def test_ranks_have_the_memory_of_all_machines() -> None:
    one = Settings(clock="virtual", hardware="a100-40g")
    two = replace(one, tensor_parallel=2)
    assert two.kv_bytes(2**17, 10**9) - one.kv_bytes(2**17, 10**9) == int(0.9 * 40e9)
