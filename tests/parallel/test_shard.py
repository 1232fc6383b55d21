"""Shards compute together what the whole model computes: every rank is a thread, in a real gloo group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from helpers import layers_logits, random_model, refusal

from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.attention.storage import KVStorage
from minifuse.core.errors import UsageError
from minifuse.core.measured import NOTHING_MEASURED
from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.request import Request, Sequence
from minifuse.execute.texts import forward, in_turn
from minifuse.kernels.operators import TORCH
from minifuse.model.linear import pack
from minifuse.model.text.transformer import Transformer
from minifuse.naive import oracle
from minifuse.parallel.communicator import Communicator, RankLost
from minifuse.parallel.config import shard_config
from minifuse.parallel.shard import shard, with_communicator

T = TypeVar("T")

# Every family, in shapes that four ranks can share; the vocabulary of 37 is uneven for two and for four.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "llama, tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "llama, 5 tokens": {
        "num_key_value_heads": 4,
        "vocab_size": 5,
        "eos_token_id": 3,
    },  # the last of four ranks has none
    "gptj": {"n_head": 4, "rotary_dim": 4},
    "gpt2": {},
    "opt": {},
    "opt, no bias": {"enable_bias": False},
}


def whole_model(name: str, dtype: str = "float64") -> Transformer:
    return random_model(name.partition(",")[0], dtype, **MODELS[name])


def counts(comm: Communicator) -> tuple[int, int]:
    """Messages and bytes since the last call."""
    measured = comm.take(NOTHING_MEASURED)
    return measured.num_messages, measured.message_bytes


@contextmanager
def ranks(size: int, timeout_s: float = 20.0) -> Iterator[Callable[[Callable[[int, Communicator], T]], list[T]]]:
    """Yields a function that calls another one on every rank at once, each with its communicator: results by rank."""
    store = dist.HashStore()

    def group(rank: int) -> Communicator:
        return Communicator(dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s)))

    with ThreadPoolExecutor(size) as threads:
        communicators = list(threads.map(group, range(size)))
        yield lambda call: list(threads.map(call, range(size), communicators))


TOKENS = [2, 0, 4, 1, 1, 3, 0]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_shards_together_compute_the_logits_of_the_whole_model(name: str, size: int) -> None:
    whole = whole_model(name)
    with ranks(size) as on_every_rank:
        logits = on_every_rank(lambda rank, comm: layers_logits(shard(whole, rank, size, comm), TOKENS))
    for of_rank in logits:  # the gathered logits are on every rank
        torch.testing.assert_close(of_rank, oracle.logits(whole, TOKENS), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_caches_its_own_heads_and_attention_does_not_depend_on_ranks(size: int) -> None:
    """Two texts through the serving path, prompts and then one more token, with KV of the shard's shape."""
    whole = whole_model("llama")
    sequences = {name: Sequence(Request(name, tuple(TOKENS[:n]))) for name, n in (("a", 5), ("b", 3))}
    attention = PerSequenceAttention(TORCH)

    def plan(step: int, a: tuple[int, int], b: tuple[int, int]) -> Plan:
        return Plan(step, 0, (Work("a", *a), Work("b", *b)), (Extent(0, 9), Extent(9, 9)))

    def serve(model: Transformer) -> torch.Tensor:
        cache = KVStorage(model.config, 18, model.dtype, model.device)
        assert cache.keys.shape[2] == model.config.num_kv_heads
        steps = (plan(0, (0, 4), (0, 2)), plan(1, (4, 5), (2, 3)))
        return [in_turn([forward(model, attention.batch(step, sequences, cache), cache, attention)]) for step in steps][
            -1
        ]

    with ranks(size) as on_every_rank:
        logits = on_every_rank(lambda rank, comm: serve(shard(whole, rank, size, comm)))
    assert shard_config(whole.config, size).num_kv_heads == 4 // size
    for of_rank in logits:
        torch.testing.assert_close(of_rank, serve(whole), rtol=0, atol=1e-12)


def test_shards_of_packed_weights() -> None:
    """Float32 on CPU: a shard does not use the packed weights of the whole model."""
    whole = whole_model("gpt2", "float32")
    pack(whole)

    def compute(rank: int, comm: Communicator) -> torch.Tensor:
        part = shard(whole, rank, 2, comm)
        pack(part)
        return layers_logits(part, TOKENS)

    with ranks(2) as on_every_rank:
        for logits in on_every_rank(compute):
            torch.testing.assert_close(logits, oracle.logits(whole, TOKENS), rtol=1e-4, atol=1e-4)


def test_a_shard_holds_its_part_of_the_weights_and_all_workers_share_it() -> None:
    whole = whole_model("llama")
    with ranks(2) as on_every_rank:
        first, second = on_every_rank(lambda rank, comm: shard(whole, rank, 2, comm))
    with ranks(2) as on_every_rank:
        other = on_every_rank(lambda rank, comm: with_communicator(first, comm))[0]
    assert first.config.num_heads == 4
    assert all(layer.config is first.config for layer in first.layers)
    for layer in first.layers:
        split = {name: module for name, module in layer.named_modules() if name in ("qkv", "gate_up", "out", "down")}
        ours = sum(p.numel() for module in split.values() for p in module.parameters() if p.dim() == 2)
        assert ours == (whole.config.num_matrix_weights - whole.config.head_weights) // 2 // whole.config.num_layers
    torch.testing.assert_close(first.embedding.weight, second.embedding.weight, rtol=0, atol=0)  # replicated
    assert [p.data_ptr() for p in other.parameters()] == [p.data_ptr() for p in first.parameters()]
    found = [[m.communicator for m in part.modules() if hasattr(m, "communicator")] for part in (first, other)]
    assert [len(set(communicators)) for communicators in found] == [1, 1]
    assert found[0][0] is not found[1][0]
    assert len(found[0]) == 2 * whole.config.num_layers + 1
    assert whole.config.num_heads == 8
    assert type(whole.lm_head).__name__ == "Linear"


@pytest.mark.parametrize("name", ["llama", "gptj", "opt"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_two_all_reduces_a_layer_and_one_all_gather(name: str, size: int) -> None:
    whole = whole_model(name)

    def sent(rank: int, comm: Communicator) -> tuple[int, int]:
        layers_logits(shard(whole, rank, size, comm), TOKENS)
        first = counts(comm)
        assert counts(comm) == (0, 0)
        return first

    rows, layers, share = len(TOKENS), whole.config.num_layers, -(-whole.config.vocab_size // size)
    with ranks(size) as on_every_rank:
        for messages in on_every_rank(sent):
            assert messages == (2 * layers + 1, rows * (2 * layers * whole.config.hidden_size + share) * 8)


def test_an_empty_message_is_not_sent() -> None:
    def gather(rank: int, comm: Communicator) -> tuple[torch.Size, tuple[int, int]]:
        return comm.all_gather(torch.zeros(0, 3)).shape, counts(comm)

    with ranks(2) as on_every_rank:
        assert on_every_rank(gather) == [((0, 6), (0, 0))] * 2


def test_a_rank_that_does_not_answer() -> None:
    def reduce(rank: int, comm: Communicator) -> None:
        if rank == 0:
            with refusal(RankLost, "cannot be reached", "start again"):
                comm.all_reduce(torch.ones(2))

    with ranks(2, timeout_s=0.5) as on_every_rank:
        on_every_rank(reduce)


@pytest.mark.parametrize(
    ("changes", "size", "parts"),
    [
        ({}, 0, ("0", "at least 1")),
        ({}, -2, ("-2", "at least 1")),
        ({"num_attention_heads": 6, "num_key_value_heads": 2}, 4, ("6 attention heads", "by 4 ranks", "1 or 2.")),
        ({"num_attention_heads": 4, "num_key_value_heads": 1}, 2, ("1 KV heads", "by 2 ranks", "of 1.")),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 42},
            4,
            ("42 intermediate", "1 or 2."),
        ),
        ({"num_attention_heads": 8, "num_key_value_heads": 8}, 3, ("8 attention heads", "1, 2, 4 or 8.")),
    ],
)
def test_a_shape_that_cannot_be_split_is_refused(changes: dict[str, int], size: int, parts: tuple[str, ...]) -> None:
    with refusal(UsageError, *parts):
        shard_config(random_model("llama", **changes).config, size)
