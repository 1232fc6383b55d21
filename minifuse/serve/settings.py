"""How a run is set up, whatever the technique and the kind of model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minifuse.core.errors import UsageError
from minifuse.core.submitted import INT64
from minifuse.model.choices import NUMERICS, check_choice, check_device
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.simulate.cost import HARDWARE, Machine, hardware

CLOCKS = ("real", "virtual")
KV_BYTES, KV_SLOTS = 64 * 2**20, 4096  # the default budget is the larger of the two
SHARE = 0.9  # share of a simulated machine's memory for weights and KV together: vLLM's gpu_memory_utilization
MOST_SLOTS = 2**20  # default limit on a simulated machine: the host's records grow with the slots


def find_machine(name: Machine) -> Machine:
    """Check a machine's name, or read the profile at this path.

    A path ends with .json, or is there and no machine's name.

    Raises:
        UsageError: there is no machine of this name, or the file is no profile.
    """
    if isinstance(name, str) and (name.endswith(".json") or (name not in HARDWARE and Path(name).exists())):
        from minifuse.simulate.machine_profile import MachineProfile  # imports pydantic, which `--help` does not need

        return MachineProfile.read(name)
    hardware(name)
    return name


def simulated(named: Machine | None, clock: str) -> Machine:
    """Return the simulated machine. Raise `UsageError` if real time is given a machine."""
    if named is not None and clock == "real":
        raise UsageError(
            f'--hardware is "{named}" and the clock is real: add --clock virtual, or leave --hardware out.'
        )
    return named or "cpu"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is set up, whatever the technique.

    Raises:
        UsageError: a value is not allowed.
    """

    dtype: str = "float32"
    device: str = "cpu"  # "auto" is replaced when the run is resolved
    kv_memory: int | None = None  # memory's budget in bytes; if None, see `kv_bytes`
    clock: Literal["real", "virtual"] = "real"
    hardware: Machine = "cpu"  # the machine that virtual time simulates; a path of a profile is read
    stage_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    tensor_parallel: int = 1  # ranks among which the model and its KV memory are divided
    numerics: Literal["fast", "reference"] = "fast"  # reference: bits depend on neither technique nor batch
    why: bool = False  # report at each iteration why each waiting request is not admitted; slow if queues are long

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPE_BYTES)
        check_choice("clock", self.clock, CLOCKS)
        check_choice("numerics", self.numerics, NUMERICS)
        check_device(self.device, "auto")
        object.__setattr__(self, "hardware", find_machine(self.hardware))
        if not isinstance(self.why, bool):
            raise UsageError(f"The setting why is {self.why!r}: give True or False.")
        for name, least in (("kv_memory", 1), ("tensor_parallel", 1), ("seed", 0)):
            value = getattr(self, name)
            by_default = name == "kv_memory" and value is None
            if not by_default and not (isinstance(value, int) and least <= value <= INT64[1]):
                unit = ", in bytes" if name == "kv_memory" else ""
                allowed = f"a whole number of at least {least} and at most {INT64[1]}{unit}"
                raise UsageError(f"The setting {name} is {value!r}: give {allowed}.")

    @property
    def memory(self) -> float:
        """Return the bytes of memory of all simulated ranks."""
        return self.tensor_parallel * hardware(self.hardware).memory

    def kv_bytes(self, slot_bytes: int, weights: int | None = None) -> int:
        """Return memory's budget in bytes, of all ranks: `kv_memory` if given, otherwise a default.

        The default is the larger of 64 MiB and 4096 slots. In virtual time, if `weights` and the size of the machine's
        memory are known, the default is what the weights leave of 90% of that size, but at least 4096 slots and at most
        1,048,576.

        Args:
            slot_bytes: bytes of a token's KV, or of a node's states.
            weights: bytes of the simulated weights; None if KV is really stored, or if the weights are unknown.
        """
        if self.kv_memory is not None:
            return self.kv_memory
        memory = self.memory
        if self.clock == "real" or weights is None or memory == math.inf:
            return max(KV_BYTES, KV_SLOTS * slot_bytes)
        return max(KV_SLOTS * slot_bytes, min(MOST_SLOTS * slot_bytes, int(SHARE * memory) - weights))
