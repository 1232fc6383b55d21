"""What serving asks of a model: the one place where texts and cell graphs differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from minifuse.core.errors import UsageError
from minifuse.core.stages import Clock, Reader
from minifuse.serve.assembly import Stages
from minifuse.serve.engine import ServingExecutor
from minifuse.serve.settings import Settings


def check_model(settings: Settings, **loaded: object) -> None:
    """Raise `UsageError` unless a model was loaded as the settings say: `check_model(settings, dtype=model.dtype)`."""
    for name, value in loaded.items():
        found, wanted = str(value).removeprefix("torch."), getattr(settings, name).partition(":")[0]
        if found != wanted:
            raise UsageError(
                f"The model was loaded with the {name} {found} and the settings have {wanted}: give both the same."
            )


class Offer(NamedTuple):
    """A value for an option of a stage, and where it comes from."""

    value: Any
    source: str


NOTHING_KNOWN = Offer(None, "assumed")


class ServedModel(Protocol):
    """A model as one run serves it. Virtual time may do without its weights.

    Making one raises `UsageError` if the model cannot be served in these settings, whatever the stages.
    """

    reader: Reader
    slot: str  # what a slot of memory holds: a token, or a state
    slot_bytes: int
    kv_bytes: int  # of memory's budget
    num_layers: int = 1  # layers that may take turns on the device; 1: they cannot
    cell_types: Collection[str]  # that a batching policy's options may name

    def offer(self, option: str, beside: Mapping[str, Any]) -> Offer:
        """Return a value for an option that was not given and that models may offer.

        Args:
            option: the option's name, without the stage's.
            beside: all options of the stage, by name.

        Raises:
            UsageError: what was stored about the option cannot be read.
        """
        return NOTHING_KNOWN

    def executor(self, stages: Stages) -> tuple[ServingExecutor, Clock]:
        """Make the executor and its clock; in virtual time, tokens may be placeholders.

        Raises:
            MachineError: the memory does not fit the device.
        """
        ...
