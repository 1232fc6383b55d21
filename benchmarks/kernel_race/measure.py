"""From cases to results: check the results first, then time, then compare with the roofline."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from minifuse.papers.provenance import provenance

from .case import Case, Contender, Limits, Trial, error_of
from .timing import Timing, limits_of, race

__all__ = ["measured", "unmeasured"]

ROUNDING = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}  # relative error of a row
COMPUTE, BESIDE = "compute alone", "compute, with it on a side stream"
NO_DEVICE = "no CUDA device"


def unmeasured(cases: Sequence[Case], **settings: Any) -> dict[str, Any]:
    """The results without a device: only the figures that follow from arithmetic."""
    rows = [_row(case, {}, dict.fromkeys(case.contenders, NO_DEVICE), {}, None) for case in cases]
    return _results(rows, dict.fromkeys(Limits.__dataclass_fields__), settings)


def measured(
    cases: Sequence[Case], device: torch.device, dtype: torch.dtype, *, rounds: int, **settings: Any
) -> dict[str, Any]:
    """Measure all cases; the failure of a case is recorded and does not stop the run."""
    limits = limits_of(device, rounds)
    rows = []
    with torch.inference_mode():
        for case in cases:
            rows.append(_measure(case, device, dtype, rounds, limits))
            _free(device)
            print(f"{case.kernel}, {case.size}: {rows[-1]['seconds']} s", file=sys.stderr)
    return _results(rows, asdict(limits), {"rounds": rounds, "dtype": str(dtype).removeprefix("torch."), **settings})


def _measure(case: Case, device: torch.device, dtype: torch.dtype, rounds: int, limits: Limits) -> dict[str, Any]:
    try:
        trial = case.prepare(device, dtype)
        errors, reasons = _check(trial, device, dtype)
        able = {name: trial.contenders[name] for name in errors}
        runs = {name: contender.run for name, contender in able.items() if isinstance(contender, Contender)}
        timings = race(runs, rounds, device) if runs else {}
    except Exception as error:  # for example out of memory: the other cases can still be measured
        return _row(case, {}, dict.fromkeys(case.contenders, _first_line(error)), {}, limits)
    return _row(case, timings, reasons, errors, limits)


def _check(trial: Trial, device: torch.device, dtype: torch.dtype) -> tuple[dict[str, float], dict[str, str]]:
    """The error of each contender that can be timed, and the reason for each that cannot: it fails, or is wrong."""
    tolerance = ROUNDING[dtype] if trial.tolerance is None else trial.tolerance
    want = trial.expected()
    errors: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name, contender in trial.contenders.items():
        if isinstance(contender, str):
            reasons[name] = contender
            continue
        try:
            _poison(want, dtype)
            out = contender.run()
            error = error_of(contender.read(out), want) if want else 0.0
            del out
        except Exception as failure:
            reasons[name] = _first_line(failure)
            continue
        if error <= tolerance:
            errors[name] = error
        else:
            reasons[name] = f"wrong: a row has the relative error {error:.2g}, and {tolerance:.2g} is allowed"
    del want
    _free(device)
    return errors, reasons


def _poison(like: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Leave NaN in the memory that the allocator hands out next, so that unwritten elements show."""
    for tensor in like:
        if tensor.is_floating_point():
            torch.full_like(tensor, float("nan"), dtype=dtype)


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}"[:200]


def _free(device: torch.device) -> None:
    gc.collect()
    torch.compiler.reset()  # or it compiles only so many shapes of one function
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _row(
    case: Case,
    timings: Mapping[str, Timing],
    reasons: Mapping[str, str],
    errors: Mapping[str, float],
    limits: Limits | None,
) -> dict[str, Any]:
    """One case's results. A figure that was not measured is None, and its contender has a reason."""
    ours = case.contenders[0]
    seconds = timings[ours].seconds if ours in timings else None
    floor, bound = (None, None) if limits is None else case.work.floor(limits)
    contenders = {
        name: {
            **(asdict(timings[name]) if name in timings else dict.fromkeys(Timing.__dataclass_fields__)),
            "error": errors.get(name),
            "reason": reasons.get(name),
        }
        for name in case.contenders
    }
    exposed = timings[BESIDE].seconds - timings[COMPUTE].seconds if {BESIDE, COMPUTE} <= timings.keys() else None
    return {
        "kernel": case.kernel,
        "size": case.size,
        "target": case.target,
        "work": asdict(case.work),
        "bound": bound,
        "floor_s": floor,
        "seconds": seconds,
        "share": None if floor is None or seconds is None else floor / seconds,
        "exposed_s": exposed,
        "failure": None if limits is None or seconds is not None else reasons[ours],
        "contenders": contenders,
    }


def _results(rows: list[dict[str, Any]], limits: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = None
    return {
        "benchmark": "kernels",
        "provenance": provenance(triton=triton, order="rotated each round", **settings),
        "limits": limits,
        "rows": rows,
    }
