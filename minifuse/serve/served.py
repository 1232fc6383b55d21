"""Says what serving asks of a model: only here do texts and cell graphs differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from minifuse.core.errors import UsageError
from minifuse.core.stages import Clock, Reader
from minifuse.serve.assembly import Stages
from minifuse.serve.engine import ServingExecutor
from minifuse.serve.settings import Settings


def check_model(settings: Settings, **loaded: object) -> None:
    """Raise `UsageError` unless the `loaded` properties, such as `dtype=model.dtype`, match the settings."""
    for name, value in loaded.items():
        found, wanted = str(value).removeprefix("torch."), getattr(settings, name).partition(":")[0]
        if found != wanted:
            raise UsageError(
                f"The model was loaded with the {name} {found} and the settings have {wanted}: give both the same."
            )


class Offer(NamedTuple):
    """A value for an option of a stage, and where the value comes from."""

    value: Any
    source: str


NOTHING_KNOWN = Offer(None, "assumed")


class ServedModel(Protocol):
    """A model as one run serves it. In virtual time its weights may be missing.

    Its constructor raises `UsageError` if no stages could serve the model in these settings.
    """

    reader: Reader
    slot: str  # what a slot of memory holds: a token, or a state
    slot_bytes: int
    kv_bytes: int  # memory's budget
    num_layers: int = 1  # layers that may take turns on the device; 1 if they cannot
    cell_types: Collection[str]  # cell types that a batching policy's options may name

    def offer(self, option: str, beside: Mapping[str, Any]) -> Offer:
        """Return the value that this model offers for an option that was not given.

        Args:
            option: the option's name, without the stage's name.
            beside: all options of the stage, by name.

        Raises:
            UsageError: a stored value for the option cannot be read.
        """
        return NOTHING_KNOWN

    def executor(self, stages: Stages) -> tuple[ServingExecutor, Clock]:
        """Make the executor and its clock; in virtual time, tokens may be placeholders.

        Raises:
            MachineError: the memory does not fit the device.
        """
        ...
