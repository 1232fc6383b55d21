"""The profile of a machine: what `minifuse calibrate` has measured there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from minifuse.core.errors import UsageError
from minifuse.io.lines import misfit, read_bounded
from minifuse.io.parsing import all_of
from minifuse.simulate.cost import Hardware
from minifuse.simulate.grid import Grid

T = TypeVar("T")
FORMAT: Literal["minifuse machine profile 4"] = "minifuse machine profile 4"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AttentionTables(_Part):
    """Seconds of one attention stage.

    `decode` and `prefill` are of one layer, writing of KV included: `rows` sequences with one query each, and one
    sequence with several `queries`, after `earlier` tokens. `index_decode` and `index_prefill` are of making the
    tensors of an iteration. Attending n prompts together saves n - 1 times `shared`; making their tensors saves n - 1
    times `index_shared`. In a profile each table has a first axis, the model's width.
    """

    decode: Grid  # kv_size, rows, context
    prefill: Grid  # q_size, queries, earlier
    index_decode: Grid  # kv_size, rows, context
    index_prefill: Grid  # kv_size, queries, earlier
    shared: Grid  # q_size
    index_shared: Grid  # kv_size
    ragged: NonNegativeFloat  # rows of unequal contexts cost as rows of mean + ragged * (longest - mean)


class LayerTables(_Part):
    """Seconds of models with one kind of layer: LLaMA's, GPT-J's, or GPT's and OPT's."""

    heads: tuple[tuple[PositiveInt, PositiveInt], ...]  # of the models: query heads for each KV head, numbers in a head
    embed: Grid  # hidden_size, tokens: of an iteration
    layers: Grid  # weights, tokens: of one layer, without attention
    head: Grid  # weights, rows: of sampling
    attention: dict[str, AttentionTables]  # by stage


class Rates(_Part):
    """What data sheets tell, measured."""

    bandwidth: PositiveFloat  # bytes per second, reading memory
    flops: PositiveFloat  # operations per second, in a large product
    memory: PositiveFloat  # bytes


class CopyTimes(_Part):
    """Copies in one direction, between device and host."""

    bandwidth: PositiveFloat  # bytes per second
    copy_s: NonNegativeFloat  # of each copy, besides its bytes


class TransferTimes(_Part):
    """Copies between device and host."""

    to_host: CopyTimes
    to_device: CopyTimes
    both_ways: Annotated[float, Field(gt=0, le=1)]  # part of its rate that each direction keeps while both are busy


class MessageTables(_Part):
    """Seconds of collectives, by the number of ranks and the bytes that each has."""

    sums: Grid  # ranks, bytes
    gathers: Grid  # ranks, bytes


class Host(_Part):
    """The host's part of an iteration under one mix of stages."""

    seconds: dict[str, NonNegativeFloat]  # of each term that a cost counts (`MeasuredCost.terms`)
    # By the weights of a layer: the seconds of one worker over those of several at once. None: there was one at a time.
    together: Grid | None = None

    def speed_of_several(self, weights: int) -> float:
        """Return the speed of several workers at once, as a multiple of one worker's.

        Beyond the models that were measured, that of the nearest holds.
        """
        if self.together is None:
            return 1.0
        return self.together(min(weights, self.together.axes["weights"][-1]))


class MachineProfile(_Part):
    """Holds the times of one machine, device and dtype."""

    format: Literal["minifuse machine profile 4"] = FORMAT
    machine: str
    device: str
    dtype: str
    torch: str
    models: dict[str, PositiveInt]  # the models measured, with torch's number of threads for each
    rounds: PositiveInt
    spread: NonNegativeFloat  # interquartile range of an iteration's rounds, over their median; median of iterations
    others: NonNegativeFloat  # cores that other processes used meanwhile
    slow: PositiveFloat = 1.0  # everything takes so many times as long as the tables tell
    rates: Rates
    kinds: dict[str, LayerTables] = {}  # by kind of layer
    cells: dict[str, Grid] = {}  # seconds of a step of each type of cell, by its weights and the rows
    host: dict[str, dict[str, Host]]  # by kind of model, then by the names of the stages, joined by +
    transfers: TransferTimes | None = None  # None: they are among the host's terms, as copies within the device are
    messages: MessageTables | None = None

    @classmethod
    def read(cls, path: str, advice: str = "give a file made by minifuse calibrate") -> MachineProfile:
        """Read a profile.

        Raises:
            UsageError: it cannot be read, or is none; the message ends with `advice`.
        """
        try:
            with Path(path).open(encoding="utf-8") as file:
                return cls.model_validate_json(read_bounded(file, path))
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror or error}): {advice}.") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is no profile of a machine (it is not UTF-8): {advice}.") from None
        except ValidationError as error:
            raise UsageError(f"{path} is no profile of a machine ({misfit(error)}): {advice}.") from None

    def host_of(self, kind: str, mix: str) -> Host:
        """Return the host's part. Raise `UsageError` if it was not measured."""
        return known(known(self.host, kind, "stages with models of the kind"), mix, "stages")

    @property
    def sheet(self) -> Hardware:
        """Return the measured rates as hardware; all else is in the tables."""
        rates = self.rates
        return Hardware(rates.bandwidth, rates.flops, 0.0, memory=rates.memory, link=math.inf)


def check_profile(machine: object, dtype: str) -> MachineProfile:
    """Return the profile. Raise `UsageError` if it was measured in another dtype."""
    assert isinstance(machine, MachineProfile)
    if machine.dtype != dtype:
        raise UsageError(
            f"The profile of {machine.machine} was measured in {machine.dtype}, and --dtype is {dtype}: give both the "
            "same."
        )
    return machine


def known(tables: Mapping[str, T], name: str, what: str) -> T:
    """Return a table of a profile. Raise `UsageError` if it was not measured."""
    if name not in tables:
        others = f", only of {all_of(list(tables))}" if tables else ""
        raise UsageError(
            f"The profile tells nothing of the {what} {name!r}{others}: measure them, too, with minifuse calibrate."
        )
    return tables[name]


def at_width(grid: Grid, width: float, unit: str) -> Grid:
    """Return a table at a model's width. Raise `UsageError` if no measured models enclose it."""
    points = next(iter(grid.axes.values()))
    if not points[0] <= width <= points[-1]:
        raise UsageError(
            f"The model has {width:,} {unit}, and the profile was measured with {points[0]:,.0f} to "
            f"{points[-1]:,.0f}: measure this model with minifuse calibrate --model, its ranks with --ranks."
        )
    return grid.at(width)
