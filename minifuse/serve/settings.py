"""How a run is set up, whatever the technique and the kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minifuse.errors import UsageError
from minifuse.model.choices import NUMERICS, check_choice, check_device
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.parsing import INT64
from minifuse.simulate.cost import Hardware, hardware

__all__ = ["Settings"]

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
    why: bool = False  # tell why each waiting request was not admitted at an iteration; slow with long queues

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPE_BYTES)
        check_choice("clock", self.clock, ("real", "virtual"))
        check_choice("numerics", self.numerics, NUMERICS)
        check_device(self.device, "auto")
        hardware(self.hardware)
        if not isinstance(self.why, bool):
            raise UsageError(f"The setting why is {self.why!r}: give True or False.")
        options = self.stage_options
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise UsageError(f"The setting stage_options is {options!r}: give a dict, as {{'batching.max_batch': 4}}.")
        for name, least in (("kv_memory", 1), ("tensor_parallel", 1), ("seed", 0)):
            value = getattr(self, name)
            by_default = name == "kv_memory" and value is None
            if not by_default and not (isinstance(value, int) and least <= value <= INT64[1]):
                raise UsageError(
                    f"The setting {name} is {value!r}: give a whole number"
                    + (f" of at least {least} and at most {INT64[1]}" if least == 1 else "")
                    + (", in bytes." if name == "kv_memory" else ".")
                )

    def kv_bytes(self, slot_bytes: int) -> int:
        """Bytes of memory's budget: 64 MiB, or more if 4096 slots of so many bytes need it, unless it was given."""
        return max(KV_BYTES, KV_SLOTS * slot_bytes) if self.kv_memory is None else self.kv_memory
