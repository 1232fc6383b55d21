"""What serving asks of a model, whatever its kind: the one place where texts and cell graphs differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from minifuse.core.errors import UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.core.stages import Reader, RunPlan
from minifuse.execute.link import Link
from minifuse.serve.assembly import Stages
from minifuse.serve.settings import Settings
from minifuse.stages import Memory

__all__ = ["NOTHING_KNOWN", "Offer", "PlanRunner", "ServedModel", "check_model"]


def check_model(settings: Settings, **loaded: object) -> None:
    """Raise `UsageError` unless a model was loaded as the settings say: `check_model(settings, dtype=model.dtype)`."""
    for name, value in loaded.items():
        found, wanted = str(value).removeprefix("torch."), getattr(settings, name).partition(":")[0]
        if found != wanted:
            raise UsageError(
                f"The model was loaded with the {name} {found} and the settings have {wanted}: give both the same."
            )


class PlanRunner(NamedTuple):
    """What computes plans, as `RealExecutor` takes it."""

    run: RunPlan
    issue: Callable[[Plan, dict[str, Sequence]], Callable[[], Ran]] | None = None  # returns what waits for the plan
    threads: int | None = None  # plans computed at the same time; None: one for each worker
    close: Callable[[], None] | None = None  # what to stop in the end
    behind: Callable[[Plan], Future[Ran]] | None = None  # begins with a plan of moves alone; done when they have landed


class Offer(NamedTuple):
    """A value for an option of a stage, and where it comes from."""

    value: Any
    source: str


NOTHING_KNOWN = Offer(None, "assumed")


class ServedModel(Protocol):
    """A model in the settings of one run: loaded, or only described, as virtual time needs no weights."""

    reader: Reader
    slot: str  # what a slot of memory holds: a token, or a state
    slot_bytes: int
    kv_bytes: int  # of memory's budget
    num_layers: int  # those that may have the device in turn; 1 where none can
    cell_types: Collection[str]  # that a batching policy's options may name
    shares_device: bool  # whether the workers of virtual time share one device, or have one each

    def check(self) -> None:
        """Raise `UsageError` if the model cannot be served in these settings, whatever the stages."""
        ...

    def offer(self, option: str, beside: Mapping[str, Any]) -> Offer:
        """A value for an option that its stage lets a model offer, and that was not given.

        Args:
            option: its name, without the stage's.
            beside: all options of the stage, by name.

        Raises:
            UsageError: what is known of it cannot be read.
        """
        ...

    def runner(self, stages: Stages) -> PlanRunner:
        """What computes plans, on memory of its own; in virtual time perhaps only placeholders.

        Raises:
            MachineError: the memory does not fit the device.
        """
        ...

    def cost(self) -> Callable[[Plan], float]:
        """The seconds of a plan's computing on the simulated hardware."""
        ...

    def link(self, memory: Memory) -> Link:
        """What carries a plan's moves between the tiers on the simulated hardware."""
        ...
