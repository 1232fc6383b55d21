"""Copies of KV: moves within the device, gather and scatter, and the swap to the host and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .case import BF16, Case, Contender, Trial, Work, normal, permuted
from .measure import BESIDE, COMPUTE

__all__ = ["Storage", "moves", "staged", "swaps"]

COPY_TARGET = ">= 90% of copy"
SWAP_TARGET = ">= 90% of the link, exposed time reported"
EXACT = 0.0
SIDE = 8192  # of the matrices multiplied beside a swap
PRODUCTS = 12


@dataclass(frozen=True)
class Storage:
    layers: int = 32
    kv_heads: int = 8
    dim: int = 128

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, in all layers."""
        return 2 * self.layers * self.kv_heads * self.dim * BF16

    def normal(self, slots: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        shape = (self.layers, slots, self.kv_heads, self.dim)
        return normal(shape, device, dtype, 1), normal(shape, device, dtype, 2)

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.kv_heads} KV heads of {self.dim}"


def moves(count: int, run: int, storage: Storage, name: str) -> Case:
    """Move `count` runs of `run` tokens from the even places of the storage to the odd places, in a random order."""
    targets = permuted(count).tolist()
    jobs = [(2 * source * run, (2 * target + 1) * run, run) for source, target in enumerate(targets)]

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.copy import move_slots, move_slots_torch

        keys, values = storage.normal(2 * count * run, device, dtype)

        def contender(function: Callable[..., None]) -> Contender:
            return Contender(lambda: function(keys, values, jobs), lambda _: [keys, values])

        def expected() -> list[Tensor]:
            after = [keys.clone(), values.clone()]
            move_slots_torch(after[0], after[1], jobs)
            return after

        return Trial({"move_slots": contender(move_slots), "torch": contender(move_slots_torch)}, expected, EXACT)

    size = f"{name}: {count} runs of {run} tokens, {storage}"
    work = Work(moved=2 * count * run * storage.token_bytes)
    return Case("move_slots", size, COPY_TARGET, work, ("move_slots", "torch"), prepare)


def _scattered(blocks: int, block: int, device: torch.device) -> Tensor:
    """The slots of `blocks` blocks, a random half of all, in a random order."""
    chosen = permuted(2 * blocks)[:blocks, None] * block
    return (chosen + torch.arange(block)).flatten().to(device)


def staged(kernel: str, blocks: int, block: int, storage: Storage) -> Case:
    """gather_slots or scatter_slots of scattered blocks."""

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.copy import (
            gather_slots,
            gather_slots_torch,
            scatter_slots,
            scatter_slots_torch,
        )

        keys, values = storage.normal(2 * blocks * block, device, dtype)
        slots = _scattered(blocks, block, device)
        if kernel == "gather_slots":
            gathers = {kernel: gather_slots, "torch": gather_slots_torch}
            return Trial(
                {name: Contender(lambda f=f: f(keys, values, slots)) for name, f in gathers.items()},
                lambda: [gather_slots_torch(keys, values, slots)],
                EXACT,
            )
        staging = normal((2, storage.layers, len(slots), storage.kv_heads, storage.dim), device, dtype, 3)

        def expected() -> list[Tensor]:
            after = [keys.clone(), values.clone()]
            scatter_slots_torch(staging, after[0], after[1], slots)
            return after

        scatters = {kernel: scatter_slots, "torch": scatter_slots_torch}
        return Trial(
            {
                name: Contender(lambda f=f: f(staging, keys, values, slots), lambda _: [keys, values])
                for name, f in scatters.items()
            },
            expected,
            EXACT,
        )

    tokens = blocks * block
    work = Work(moved=2 * tokens * storage.token_bytes + 8 * tokens)
    size = f"{blocks} scattered blocks of {block} tokens, {storage}"
    return Case(kernel, size, COPY_TARGET, work, (kernel, "torch"), prepare)


def swaps(kind: str, blocks: int, block: int, storage: Storage) -> Case:
    """A swap of scattered blocks to or from adjacent slots of pinned memory, as the engine does it.

    Exposed time: the time that the swap, on a stream of its own, adds to matrix products that run at the same time.
    """

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.core.plan import Move
        from minifuse.execute.tiered_storage import TieredStorage
        from minifuse.kernels.triton_operators import TritonOperators
        from minifuse.model.text.config import ModelConfig

        tokens, heads, dim = blocks * block, storage.kv_heads, storage.dim
        config = ModelConfig("llama", 8, heads * dim, storage.layers, heads, heads, dim, 8, tokens)
        cache = TieredStorage(config, 2 * tokens, dtype, device, tokens)
        for kv, drawn in zip((cache.keys, cache.values), storage.normal(2 * tokens, device, dtype), strict=True):
            kv.copy_(drawn)
        slots = _scattered(blocks, block, torch.device("cpu"))
        out = kind == "swap_out"
        ends = [(int(slots[i * block]), i * block) for i in range(blocks)]
        jobs = [
            Move("swap_out", slot, number, block, target_tier="host")
            if out
            else Move("swap_in", number, slot, block, "host")
            for slot, number in ends
        ]
        host = (cache.tiers["host"].keys, cache.tiers["host"].values)
        for kv, seed in zip(host, (4, 5), strict=True):
            kv.copy_(normal(kv.shape, torch.device("cpu"), dtype, seed))
        flat = torch.empty(2 * host[0].numel(), dtype=dtype, device=device)
        pinned = torch.empty(flat.shape, dtype=dtype, pin_memory=device.type == "cuda")
        side = SIDE if device.type == "cuda" else 8
        a, b = (normal((side, side), device, dtype, seed) for seed in (6, 7))
        operators = TritonOperators()

        def swap() -> None:
            operators.move(cache, jobs)

        def memcpy() -> None:
            target, source = (pinned, flat) if out else (flat, pinned)
            target.copy_(source, non_blocking=True)

        def compute() -> None:
            for _ in range(PRODUCTS):
                a @ b

        def beside() -> None:
            main, other = torch.cuda.current_stream(), torch.cuda.Stream()
            other.wait_stream(main)
            with torch.cuda.stream(other):
                swap()
            compute()
            main.wait_stream(other)

        def swapped() -> list[Tensor]:
            if device.type == "cuda":
                torch.cuda.synchronize()
            return [*host] if out else [kv[:, slots.to(device)] for kv in (cache.keys, cache.values)]

        def expected() -> list[Tensor]:
            if out:
                return [kv[:, slots.to(device)].cpu() for kv in (cache.keys, cache.values)]
            return [kv.to(device) for kv in host]

        def unchanged(_: Any) -> list[Tensor]:  # these contenders do not swap: an earlier swap is compared
            return swapped()

        contenders = {
            kind: Contender(swap, lambda _: swapped()),
            "one copy of as many bytes": Contender(memcpy, unchanged),
            COMPUTE: Contender(compute, unchanged),
            BESIDE: Contender(beside, unchanged),
        }
        return Trial(contenders, expected, EXACT)

    amount = blocks * block * storage.token_bytes
    on_device = 2 * amount + 8 * blocks * block  # gathered or scattered on the way
    work = Work(moved=on_device, to_host=amount) if kind == "swap_out" else Work(moved=on_device, to_device=amount)
    size = f"{blocks} scattered blocks of {block} tokens, {storage}"
    return Case(kind, size, SWAP_TARGET, work, (kind, "one copy of as many bytes", COMPUTE, BESIDE), prepare)
