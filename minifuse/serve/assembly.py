"""Parses the options of a technique's stages once, and makes the stages from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from minifuse.contracts.made import make_stage
from minifuse.core.errors import UsageError
from minifuse.options import parse_options
from minifuse.stages import KINDS, PROTOCOLS, Attention, Batching, Kind, Memory
from minifuse.techniques import Technique, check_fit


class Stages(NamedTuple):
    """A technique's stages, made and ready to be plugged in."""

    batching: Batching
    memory: Memory
    attention: Attention


@dataclass(frozen=True)
class Choices:
    """A technique with parsed options; makes its stages as often as needed."""

    row: Technique
    given: Mapping[str, Any]  # the typed options, as `stage.option: value`
    options: Mapping[Kind, Any]  # the `Options` of each stage, including the technique's values and the defaults

    @cached_property
    def policy(self) -> Batching:
        """Return a policy that is never run: its attributes, such as `workers`, are read."""
        policy: Batching = self._make("batching")
        return policy

    def stages(self, capacity: int, batching: Batching | None = None) -> Stages:
        """Make stages, with memory of `capacity` slots.

        Args:
            batching: the policy to use; by default, a new one is made.

        Raises:
            UsageError: an option asks for what another stage cannot do, or does not suit the capacity.
        """
        classes = {**self.row.classes, "batching": self.policy}
        check_fit(classes)
        memory = self._make("memory", capacity)
        check_fit({**classes, "memory": memory})
        return Stages(batching or self._make("batching"), memory, self._make("attention"))

    def _make(self, kind: Kind, *arguments: Any) -> Any:
        return make_stage(PROTOCOLS[kind], self.row.classes[kind], *arguments, self.options[kind])


def choose(row: Technique, given: Mapping[str, Any] | None = None, max_batch: int | None = None) -> Choices:
    """Parse options of stages (`stage.option: value`), which override the technique's own.

    Args:
        max_batch: the batch size of every stage that has one, unless `given` sets it. Both a batching policy and the
            memory slots may have a batch size: if slots kept their default of 8, at most 8 requests would ever run.

    Raises:
        UsageError: there is no such stage or option, a value is not allowed, or no stage has a batch size.
    """
    given = given or {}
    if max_batch is not None:
        sizes = row.batch_sizes
        if not sizes:
            raise UsageError(
                f"--max-batch is {max_batch}, and neither the batching {row.batching!r} nor the memory {row.memory!r} "
                f"of {row.name} has a batch size: leave it out, or choose another --technique, --batching or --memory."
            )
        if sizes[0] in given:
            raise UsageError(f"--max-batch and --set {sizes[0]} are both given: give one of them.")
        given = {**dict.fromkeys(sizes, max_batch), **given}
    values: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, value in {**row.options, **given}.items():
        kind, dot, option_name = name.partition(".")
        if kind not in values or not dot:
            raise UsageError(
                f"The setting {name!r} was given; write stage.option=value, the stage being {' or '.join(KINDS)}."
            )
        values[kind][option_name] = value
    options: dict[Kind, Any] = {
        kind: parse_options(f"{kind} stage {cls.name!r}", cls.Options, values[kind])
        for kind, cls in row.classes.items()
    }
    return Choices(row, given, options)
