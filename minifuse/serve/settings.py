"""How a run is set up, whatever the technique and the kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minifuse.simulate.cost import Hardware

__all__ = ["Settings"]

KV_BYTES, KV_SLOTS = 64 * 2**20, 4096  # the budget by default: the larger of the two


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is set up, whatever the technique."""

    dtype: str = "float32"
    device: str = "cpu"
    kv_memory: int | None = None  # bytes of memory's budget; None: as `kv_bytes` has it
    clock: Literal["real", "virtual"] = "real"
    hardware: str | Hardware = "cpu"  # the machine that virtual time simulates
    stage_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    tensor_parallel: int = 1  # ranks among which the model, and with it the KV memory, is divided
    numerics: Literal["fast", "reference"] = "fast"  # reference: a request's bits depend on neither technique nor batch

    def kv_bytes(self, slot_bytes: int) -> int:
        """Bytes of memory's budget: 64 MiB, or more if 4096 slots of so many bytes need it, unless it was given."""
        return max(KV_BYTES, KV_SLOTS * slot_bytes) if self.kv_memory is None else self.kv_memory
