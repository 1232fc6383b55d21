"""From what was typed to values, each refused by name before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from minifuse.assembly import check_settings
from minifuse.cli.asked import CLOCKS, DEVICES, DTYPES, NUMERICS, Asked
from minifuse.errors import UsageError
from minifuse.model.cells.source import CellSource, resolve_cells
from minifuse.parsing import did_you_mean, one_of, parse_float, parse_goodput, parse_int, parse_size
from minifuse.request import Sampling
from minifuse.simulate.cost import hardware
from minifuse.techniques import Technique
from minifuse.workload.laws import Arrival, Lengths, parse_arrival, parse_lengths

__all__ = ["Checked", "check", "check_trace", "has_batch_size", "settings_for"]

MANY = 2**31 - 1
BATCH_SIZES = ("batching.max_batch", "batching.instances", "memory.slots")  # what --max-batch may mean


@dataclass(frozen=True, slots=True)
class Checked:
    """`Asked` as values. None is what was not typed and has a default only later."""

    model: str
    cells: CellSource | None  # the model, where it is one of cells
    dtype: str
    numerics: Literal["fast", "reference"]
    device: str
    tensor_parallel: int | None
    kv_memory: int | None
    prompts: str | None
    requests: int | None
    workload: str | None
    prompts_per_request: int | None
    prompt_length: Lengths | None
    output_length: Lengths | None
    arrival: Arrival
    max_new_tokens: int | None
    ignore_eos: bool
    sampling: Sampling  # its seed is that of the run
    max_batch: int | None
    settings: Mapping[str, str]
    clock: Literal["real", "virtual"]
    hardware: str
    goodput: dict[str, float] | None

    @property
    def kind(self) -> str:
        """The kind of the model, as `minifuse.techniques.MODELS` calls it."""
        return "transformer" if self.cells is None else "cells"


def check(asked: Asked) -> Checked:
    """The values of all options that `run` and `compare` share.

    Raises:
        UsageError: one of them is not what it may be, or two of them do not go together.
    """
    clock = _choice("--clock", asked.clock, CLOCKS)
    if asked.hardware is not None:
        hardware(asked.hardware)
        if clock == "real":
            raise UsageError(
                f'--hardware is "{asked.hardware}" and the clock is real: add --clock virtual, or leave --hardware out.'
            )
    return Checked(
        model=asked.model,
        cells=resolve_cells(asked.model),
        dtype=_choice("--dtype", asked.dtype, DTYPES),
        numerics=cast(Literal["fast", "reference"], _choice("--numerics", asked.numerics, NUMERICS)),
        device=_choice("--device", asked.device, DEVICES),
        tensor_parallel=_whole("--tensor-parallel", asked.tensor_parallel),
        kv_memory=None if asked.kv_memory is None else parse_size(asked.kv_memory, "--kv-memory"),
        prompts=asked.prompts,
        requests=_whole("--requests", asked.requests),
        workload=asked.workload,
        prompts_per_request=_whole("--prompts-per-request", asked.prompts_per_request),
        prompt_length=None if asked.prompt_length is None else parse_lengths(asked.prompt_length),
        output_length=None if asked.output_length is None else parse_lengths(asked.output_length),
        arrival=parse_arrival(asked.arrival),
        max_new_tokens=_whole("--max-new-tokens", asked.max_new_tokens),
        ignore_eos=asked.ignore_eos,
        sampling=Sampling(
            temperature=parse_float(asked.temperature, "--temperature", 0, 1000),
            top_k=parse_int(asked.top_k, "--top-k", 0, MANY),
            top_p=_above_zero("--top-p", asked.top_p),
            seed=parse_int(asked.seed, "--seed", 0, MANY),
        ),
        max_batch=_whole("--max-batch", asked.max_batch),
        settings=_settings(asked.set),
        clock=cast(Literal["real", "virtual"], clock),
        hardware=asked.hardware or "cpu",
        goodput=None if asked.goodput is None else parse_goodput(asked.goodput),
    )


def _choice(flag: str, given: str, allowed: Collection[str]) -> str:
    if given not in allowed:
        raise UsageError(f'{flag} is "{given}"{did_you_mean(given, allowed)}: give {one_of(allowed)}.')
    return given


def _whole(flag: str, given: str | None) -> int | None:
    return None if given is None else parse_int(given, flag, 1, MANY)


def _above_zero(flag: str, given: str) -> float:
    value = parse_float(given, flag, 0, 1)
    if value == 0:
        raise UsageError(f'{flag} is "{given}": give a number above 0, up to 1.')
    return value


def _settings(typed: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in typed:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f'--set is "{text}": give stage.option=value, such as {BATCH_SIZES[0]}=4.')
        if name in settings:
            raise UsageError(f"--set gives {name} twice: give it once.")
        settings[name] = value
    return settings


def settings_for(technique: Technique, checked: Checked, strict: bool) -> dict[str, Any]:
    """What --set and --max-batch mean for a technique, tried out on its stages.

    Args:
        strict: refuse what this technique has no option for, instead of leaving it out (`compare`).

    Raises:
        UsageError: an option that it does not have, or a value that the option cannot take.
    """
    known = technique.option_names
    settings: dict[str, Any] = {k: v for k, v in checked.settings.items() if strict or k in known}
    if checked.max_batch is not None:
        settings |= _batch_sizes(technique, checked.max_batch, settings, strict)
    check_settings(technique, settings)
    return settings


def has_batch_size(technique: Technique) -> bool:
    """Whether --max-batch means anything to a technique."""
    return not technique.option_names.isdisjoint(BATCH_SIZES)


def _batch_sizes(technique: Technique, size: int, settings: Mapping[str, Any], strict: bool) -> dict[str, int]:
    """The options that --max-batch sets: the first of `BATCH_SIZES`, and the others as far as --set leaves them open.

    A mix of a batching with a max_batch and a memory of slots has two. Were its slots left at their default, they
    would go on bounding the batch: with --max-batch 32, no more than 8 would ever run.
    """
    mine = [name for name in BATCH_SIZES if name in technique.option_names]
    if not mine and strict:
        raise UsageError(
            f"--max-batch is {size}, and neither the batching {technique.batching!r} nor the memory "
            f"{technique.memory!r} of {technique.name} has a batch size: leave it out, or choose another --technique, "
            "--batching or --memory."
        )
    if mine and mine[0] in settings:
        raise UsageError(f"--max-batch and --set {mine[0]} are both given: give one of them.")
    return {name: size for name in mine if name not in settings}


def check_trace(typed: str | None) -> Path | None:
    """The path of a trace that can be written; opening it is the only sure test.

    Raises:
        UsageError: it cannot be written.
    """
    if typed is None:
        return None
    path = Path(typed)
    new = not os.path.lexists(path)
    try:
        path.open("a").close()
        if new:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--trace is {typed!r}, which cannot be written ({reason}): give a file in a folder that exists and "
            "that you may write to."
        ) from None
    return path
