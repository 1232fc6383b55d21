"""Every kernel on a device, launched repeatedly and on several streams at once: always the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from gpu_cases import ON_GPU, REPEATS, Draw, batch_of
from torch import Tensor

from minifuse.kernels.launch import INTERPRETED

pytest.importorskip("triton", reason="Triton is for Linux only")

from minifuse.kernels.copy import gather_slots, move_slots, scatter_slots
from minifuse.kernels.lstm import lstm_cell
from minifuse.kernels.multi_token import multi_token_attention
from minifuse.kernels.rms_norm import rms_norm
from minifuse.kernels.rotary_write import rotate_and_write
from minifuse.kernels.sampling import argmax, gumbel_argmax
from minifuse.kernels.slots import slots_attention
from minifuse.kernels.split_kv import decode_attention
from minifuse.kernels.swiglu import silu_mul

pytestmark = ON_GPU


Job = Callable[[], tuple[Tensor, ...]]


def jobs(device: torch.device, dtype: torch.dtype, seed: int) -> dict[str, Job]:
    """Every kernel on inputs of its own. Kernels that write in place write into a copy."""
    rng = random.Random(seed)
    draw = Draw(rng, device, dtype)
    long = 80 if INTERPRETED else 3000
    shape = (4, 2, 16) if INTERPRETED else (8, 2, 128)
    chunk = batch_of(draw, [(5, long), (1, 33), (40, 40)], shape, 16)
    decode = batch_of(draw, [(1, long), (1, 1), (1, 600 if not INTERPRETED else 40)], shape, 16)
    x, other, weight, cell = (draw.normal(64, 256), draw.normal(64, 256), draw.normal(256), draw.normal(64, 64))
    q, k, v = draw.normal(64, 8, 32).split((4, 2, 2), 1)
    angle = draw.normal(64, 1, 32, dtype=torch.float32)
    slots = torch.tensor(draw.order(128)[:64]).to(device)
    keys, values = draw.normal(2, 128, 2, 32), draw.normal(2, 128, 2, 32)
    size = 2
    held = draw.int32([rng.randint(1, 40) for _ in range(size)])
    logits = draw.normal(4, 9000)
    seeds = torch.arange(4, device=device)
    apart = [(i * 32, i * 32 + 16, 16) for i in range(4)]

    def written(write: Callable[[Tensor, Tensor], Any]) -> Job:
        def job() -> tuple[Tensor, ...]:
            own = keys.clone(), values.clone()
            out = write(*own)
            return own if out is None else (*own, out)

        return job

    return {
        "multi_token": lambda: (chunk.attend(multi_token_attention),),
        "multi_token reference": lambda: (chunk.attend(multi_token_attention, reference=True),),
        "decode": lambda: (decode.attend(decode_attention, split=32),),
        "slots": lambda: (
            slots_attention(q[:size], keys[0], values[0], held, offset=1, size=size, width=40, split=32),
        ),
        "rms_norm": lambda: rms_norm(x, weight, 1e-5, other),
        "silu_mul": lambda: (silu_mul(x),),
        "lstm_cell": lambda: lstm_cell(x, cell),
        "rotate_and_write": written(
            lambda keys, values: rotate_and_write(q, k, v, keys[0], values[1], slots, (angle.cos(), angle.sin()))
        ),
        "move_slots": written(lambda keys, values: move_slots(keys, values, apart)),
        "gather and scatter": written(
            lambda keys, values: scatter_slots(gather_slots(keys, values, slots), keys, values, slots.flip(0))
        ),
        "argmax": lambda: (argmax(logits),),
        "gumbel_argmax": lambda: (gumbel_argmax(logits.float(), seeds, seeds),),
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def all_equal(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("name", list(jobs(torch.device("cpu"), torch.float32, 0)))
def test_repeated_launches_give_the_same_bits(device, dtype, name) -> None:
    job = jobs(device, dtype, 1)[name]
    want = job()
    for again in range(REPEATS):
        assert all_equal(job(), want), f"launch {again + 2} differs from the first"


@pytest.mark.parametrize("name", list(jobs(torch.device("cpu"), torch.float32, 0)))
def test_streams_do_not_interfere(device, dtype, name) -> None:
    """Threads with a stream each, all launching at once; on a CPU one after the other."""
    several = [jobs(device, dtype, seed)[name] for seed in range(2 if INTERPRETED else 6)]
    alone = [job() for job in several]
    synchronize(device)
    streams = [nullcontext() if device.type == "cpu" else torch.cuda.Stream() for _ in several]

    def launch(index: int) -> list[tuple[Tensor, ...]]:
        with streams[index] if device.type == "cpu" else torch.cuda.stream(streams[index]):
            return [several[index]() for _ in range(REPEATS)]

    with ThreadPoolExecutor(1 if INTERPRETED else len(several)) as threads:
        results = list(threads.map(launch, range(len(several))))
    synchronize(device)
    for index, (outs, want) in enumerate(zip(results, alone, strict=True)):
        for out in outs:
            assert all_equal(out, want), f"stream {index} did not get the bits that it gets alone"
