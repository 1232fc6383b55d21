"""`minifuse doctor`: checks what minifuse needs, and says how to get what is missing."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from json import dumps
from typing import Literal

from minifuse.cli.declare import JsonOptions, takes
from minifuse.cli.streams import print_result
from minifuse.cli.text import console
from minifuse.core.errors import MachineError
from minifuse.execute.cores import OtherWork, usable_cores

SCHEMA = "minifuse.doctor/1"
MIN_FREE_BYTES = 2**30
WATCHED_S = 0.3
STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}
ANEW = "install minifuse anew with pip install -e . -c constraints.txt"
MACHINE = 3


@dataclass(frozen=True)
class Check:
    """A line of the report: subject, what was found, how bad it is, advice."""

    name: str
    found: str
    status: Literal["ok", "warning", "problem"] = "ok"
    advice: str = ""


@takes(JsonOptions)
def doctor(options: JsonOptions) -> int:
    """Check that this machine has what minifuse needs."""
    checks = [Check("python", platform.python_version()), *_packages()]
    checks += map(_safely, LOOKS)
    if options.json:
        print_result(dumps({"schema": SCHEMA, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    return MACHINE if any(check.status == "problem" for check in checks) else 0


def _show(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for check in checks:
        found = check.found + (f": {check.advice}" if check.advice else "")
        table.add_row(Text(check.status, STYLES[check.status]), Text(check.name), Text(found))
    console().print(table)


def _safely(look: Callable[[], Check]) -> Check:
    """Run a check; report an exception in it as a problem."""
    try:
        return look()
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Check(look.__name__.strip("_"), what, "problem", ANEW)


def _packages() -> Iterator[Check]:
    """Check the requirements of pyproject.toml, without extras."""
    from importlib import metadata

    for requirement in metadata.requires("minifuse") or []:
        text, _, condition = requirement.partition(";")
        match = re.match(r"([A-Za-z0-9._-]+)(?:>=([0-9.]+))?", text.strip())
        if match is None or "extra" in condition or ("linux" in condition and sys.platform != "linux"):
            continue
        name, least = match[1], match[2] or "0"
        install = f"pip install '{text.strip()}'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Check(name, "not installed", "problem", install)
            continue
        if _release(version) < _release(least):
            yield Check(name, f"{version}, older than {least}", "problem", install)
        else:
            yield Check(name, version)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", re.match(r"[0-9.]*", version)[0])))  # type: ignore[index]


def _triton() -> Check:
    try:
        import triton
    except ImportError as error:
        return Check("triton works", f"no ({error})", "warning", "only CUDA kernels need it; the CPU does without")
    return Check("triton works", f"imports as {triton.__version__}")


def _native() -> Check:
    from minifuse.kernels.native.library import native

    try:
        native("float32")
    except MachineError as error:
        return Check("kernels in C", f"none ({error})", "warning", "torch computes instead, more slowly")
    return Check("kernels in C", "compiled for this processor")


def _cuda() -> Check:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("CUDA device", ", ".join(names) or "none, everything runs on the CPU")


def _cores() -> Check:
    import torch

    others = OtherWork()
    time.sleep(WATCHED_S)
    used, usable = others.cores() or 0.0, len(usable_cores())
    found = f"torch uses up to {torch.get_num_threads()} of {usable}, other processes {used:.1f}"
    if used >= usable / 4:
        return Check("cores", found, "warning", "runs take longer, and their times compare with no others")
    return Check("cores", found)


def _memory() -> Check:
    from minifuse.model.device import free_bytes

    free = free_bytes("cpu")
    if free is None:
        return Check("free memory", "unknown on this system")
    found = f"{free / 2**30:.1f} GiB"
    if free < MIN_FREE_BYTES:
        return Check("free memory", found, "warning", "close other programs, or keep --kv-memory small")
    return Check("free memory", found)


def _tiny() -> Check:
    """Let the shipped model solve one task."""
    from minifuse.core.request import Request
    from minifuse.model.text.load import load_weights, resolve_text
    from minifuse.model.tiny.tasks import crowd
    from minifuse.naive.oracle import answer

    source = resolve_text("tiny")
    tokenizer = source.tokenizer()
    task = min(crowd(32), key=lambda task: len(task.answer))
    request = Request("doctor", tokenizer.encode(task.prompt), max_new_tokens=64, stop_ids=source.config.eos_ids)
    text = tokenizer.decode(answer(load_weights(source), request)).strip()
    if text != task.answer:
        return Check("model tiny", f"it answers {task.prompt!r} with {text!r}", "problem", ANEW)
    return Check("model tiny", f"answers {task.prompt!r} with {text!r}")


LOOKS = (_triton, _native, _cuda, _cores, _memory, _tiny)
