"""A technique's stages, made from its row in the table and from settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minifuse.contracts.seams import make_stage
from minifuse.errors import UsageError
from minifuse.options import parse_options
from minifuse.stages import COMPUTED_WHOLE, KINDS, Attention, Batching, Kind, Memory, stage
from minifuse.techniques import Technique

__all__ = ["Stages", "check_settings", "make_batching"]


@dataclass(frozen=True, slots=True)
class Stages:
    """A technique's stages, made and ready to be plugged in."""

    batching: Batching
    memory: Memory
    attention: Attention

    @classmethod
    def of(
        cls,
        row: Technique,
        capacity: int,
        settings: Mapping[str, Any] | None = None,
        batching: Batching | None = None,
    ) -> Stages:
        """Make the stages of `row`, with memory of `capacity` slots.

        Args:
            settings: `stage.option` -> value, over the row's own.
            batching: what `make_batching` has made of the same.

        Raises:
            UsageError: a setting names no stage or no option, or has a bad value.
        """
        options = check_settings(row, settings)
        classes = {kind: stage(kind, getattr(row, kind)) for kind in KINDS}
        return cls(
            batching or make_batching(row, settings),
            make_stage("memory", classes["memory"], capacity, options["memory"], policy=classes["batching"]),
            make_stage("attention", classes["attention"], options["attention"]),
        )


def make_batching(row: Technique, settings: Mapping[str, Any] | None = None) -> Batching:
    """The batching policy of `row`, which says how many workers there are, and what a node of a cell graph is.

    Raises:
        UsageError: a setting names no stage or no option, has a bad value, or asks for what the other stages cannot do.
    """
    options = check_settings(row, settings)["batching"]
    policy: Batching = make_stage("batching", stage("batching", row.batching), options)
    if policy.token_budget is not None and stage("attention", row.attention).reads & COMPUTED_WHOLE:
        raise UsageError(
            f"The token_budget of the batching {row.batching!r} is {policy.token_budget}, and the attention "
            f"{row.attention!r} computes a whole rectangle or region, however few of its tokens are needed: choose the "
            "attention 'per_sequence', or no budget (a policy that always has one declares cuts = True)."
        )
    if stage("memory", row.memory).one_plan and policy.workers * policy.depth > 1:
        raise UsageError(
            f"The memory {row.memory!r} may use all of the device for one plan, and the batching {row.batching!r} has "
            f"{policy.workers * policy.depth} at once: choose one worker with one plan, or another memory."
        )
    return policy


def check_settings(row: Technique, settings: Mapping[str, Any] | None = None) -> dict[Kind, Any]:
    """The `Options` of every stage of `row`, from `stage.option` -> value, over the row's own.

    Raises:
        UsageError: a setting names no stage or no option, or has a bad value.
    """
    given: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, value in {**row.options, **(settings or {})}.items():
        kind, dot, option_name = name.partition(".")
        if kind not in given or not dot:
            raise UsageError(
                f"The setting {name!r} was given; write stage.option=value, the stage being {' or '.join(KINDS)}."
            )
        given[kind][option_name] = value
    classes = {kind: stage(kind, getattr(row, kind)) for kind in KINDS}
    return {
        kind: parse_options(f"{kind} stage {cls.name!r}", cls.Options, given[kind]) for kind, cls in classes.items()
    }
