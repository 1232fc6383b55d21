"""How a run is set up, whatever the technique and the kind of model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minifuse.errors import UsageError
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.parsing import INT64, did_you_mean, one_of
from minifuse.simulate.cost import Hardware

__all__ = ["Settings"]

CHOICES = {"dtype": tuple(DTYPE_BYTES), "clock": ("real", "virtual"), "numerics": ("fast", "reference")}
KV_BYTES, KV_SLOTS = 64 * 2**20, 4096  # the budget by default: the larger of the two


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is set up, whatever the technique.

    Raises:
        UsageError: a value is not one of those allowed.
    """

    dtype: str = "float32"
    device: str = "cpu"  # auto: the command line chooses when it loads the weights
    kv_memory: int | None = None  # bytes of memory's budget; None: as `kv_bytes` has it
    clock: Literal["real", "virtual"] = "real"
    hardware: str | Hardware = "cpu"  # the machine that virtual time simulates
    stage_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    tensor_parallel: int = 1  # ranks among which the model, and with it the KV memory, is divided
    numerics: Literal["fast", "reference"] = "fast"  # reference: a request's bits depend on neither technique nor batch
    why: bool = (
        False  # tell at every iteration of each waiting request why it was not admitted; slower with long queues
    )

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(
                    f"The setting {name} is {value!r}{did_you_mean(str(value), allowed)}: give {one_of(allowed)}."
                )
        if not isinstance(self.why, bool):
            raise UsageError(f"The setting why is {self.why!r}: give True or False.")
        if not (isinstance(self.device, str) and re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device)):
            raise UsageError(f"The setting device is {self.device!r}: give cpu, cuda, or cuda:0 and so on.")
        for name, least in (("kv_memory", 1), ("tensor_parallel", 1), ("seed", INT64[0])):
            value = getattr(self, name)
            by_default = name == "kv_memory" and value is None
            if not by_default and not (isinstance(value, int) and least <= value <= INT64[1]):
                raise UsageError(
                    f"The setting {name} is {value!r}: give a whole number"
                    + (f" of at least {least}" if least == 1 else "")
                    + (", in bytes." if name == "kv_memory" else ".")
                )

    def kv_bytes(self, slot_bytes: int) -> int:
        """Bytes of memory's budget: 64 MiB, or more if 4096 slots of so many bytes need it, unless it was given."""
        return max(KV_BYTES, KV_SLOTS * slot_bytes) if self.kv_memory is None else self.kv_memory
