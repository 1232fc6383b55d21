"""`minifuse doctor`: whether this machine has what minifuse needs, and how to get what is missing."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Literal

from minifuse.cli.declare import JsonOptions, takes
from minifuse.cli.streams import print_result
from minifuse.cli.text import console
from minifuse.execute.cores import OtherWork, usable_cores

SCHEMA = "minifuse.doctor/1"
MIN_PYTHON = (3, 11)
MIN_FREE_BYTES = 2**30
WATCHED_S = 0.3
Status = Literal["ok", "warning", "problem"]
OK: Status = "ok"
WARNING: Status = "warning"
PROBLEM: Status = "problem"
STYLES = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
MACHINE = 3


@dataclass(frozen=True)
class Check:
    """One line: the subject, its status, what was found, and what to do unless it is ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


@takes(JsonOptions)
def doctor(options: JsonOptions) -> int:
    """Check that this machine has what minifuse needs."""
    checks = list(_all())
    if options.json:
        print_result(dumps({"schema": SCHEMA, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    return MACHINE if any(check.status == PROBLEM for check in checks) else 0


def _show(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for check in checks:
        found = check.found + (f": {check.advice}" if check.advice else "")
        table.add_row(Text(check.status, STYLES[check.status]), Text(check.name), Text(found))
    console().print(table)


def _all() -> Iterator[Check]:
    yield _python()
    packages = list(_packages())
    yield from packages
    for look in (_torch, _triton, _cuda, _threads, _others, _memory, _temporary, _tiny):
        yield _safely(look)


def _safely(look: Callable[[], Check]) -> Check:
    """An exception in a check is a problem, not a traceback."""
    try:
        return look()
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Check(
            look.__name__.strip("_"), PROBLEM, what, "install minifuse anew with pip install -e . -c constraints.txt"
        )


def _python() -> Check:
    needed = ".".join(map(str, MIN_PYTHON))
    if sys.version_info < MIN_PYTHON:
        return Check("python", PROBLEM, platform.python_version(), f"use Python {needed} or newer")
    return Check("python", OK, platform.python_version())


def _packages() -> Iterator[Check]:
    """The requirements of pyproject.toml, without extras."""
    from importlib import metadata

    for requirement in metadata.requires("minifuse") or []:
        text, _, condition = requirement.partition(";")
        match = re.match(r"([A-Za-z0-9._-]+)(?:>=([0-9.]+))?", text.strip())
        if match is None or "extra" in condition or ("linux" in condition and sys.platform != "linux"):
            continue
        name, least = match[1], match[2] or "0"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Check(name, PROBLEM, "not installed", f"pip install '{text.strip()}'")
            continue
        if _release(version) < _release(least):
            yield Check(name, PROBLEM, f"{version}, older than {least}", f"pip install '{text.strip()}'")
        else:
            yield Check(name, OK, version)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.match(r"[0-9.]*", version)[0].split(".") if number)  # type: ignore[index]


def _torch() -> Check:
    import torch

    product = torch.ones(2, 2) @ torch.ones(2, 2)
    if product.tolist() != [[2.0, 2.0], [2.0, 2.0]]:
        return Check("torch works", PROBLEM, "a product is wrong", "install torch anew")
    return Check(
        "torch works", OK, f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
    )


def _triton() -> Check:
    try:
        import triton
    except ImportError as error:
        needed = WARNING if sys.platform == "linux" else OK
        return Check("triton works", needed, f"no ({error})", "only CUDA kernels need it; the CPU does without")
    return Check("triton works", OK, f"imports as {triton.__version__}")


def _cuda() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("CUDA device", OK, "none, everything runs on the CPU")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("CUDA device", OK, ", ".join(names))


def _threads() -> Check:
    import torch

    return Check("threads", OK, f"torch uses up to {torch.get_num_threads()} of {len(usable_cores())} cores")


def _others() -> Check:
    others = OtherWork()
    time.sleep(WATCHED_S)
    cores, usable = others.cores(), len(usable_cores())
    if cores is None:
        return Check("other processes", OK, "not known on this system")
    found = f"use {cores:.1f} of {usable} cores"
    if cores >= usable / 4:
        return Check("other processes", WARNING, found, "runs take longer, and their times compare with no others")
    return Check("other processes", OK, found)


def _memory() -> Check:
    from minifuse.model.device import free_bytes

    free = free_bytes("cpu")
    if free is None:
        return Check("free memory", OK, "unknown on this system")
    found = f"{free / 2**30:.1f} GiB"
    if free < MIN_FREE_BYTES:
        return Check("free memory", WARNING, found, "close other programs, or keep --kv-memory small")
    return Check("free memory", OK, found)


def _temporary() -> Check:
    import tempfile

    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"minifuse")
    except OSError as error:
        return Check(
            "temporary files", PROBLEM, f"cannot be written ({error.strerror})", "set TMPDIR to a folder with room"
        )
    return Check("temporary files", OK, "can be written")


def _tiny() -> Check:
    """The shipped model, solving one task."""
    from minifuse.core.request import Request
    from minifuse.model.text.load import TINY, load_weights, resolve_text
    from minifuse.model.tiny.tasks import crowd
    from minifuse.naive.oracle import answer

    if not (Path(TINY) / "model.safetensors").exists():
        return Check("model tiny", PROBLEM, "its weights are missing", "install minifuse anew")
    source = resolve_text("tiny")
    tokenizer = source.tokenizer()
    task = min(crowd(32), key=lambda task: len(task.answer))
    request = Request("doctor", tokenizer.encode(task.prompt), max_new_tokens=64, stop_ids=source.config.eos_ids)
    text = tokenizer.decode(answer(load_weights(source), request)).strip()
    if text != task.answer:
        return Check("model tiny", PROBLEM, f"it answers {task.prompt!r} with {text!r}", "install minifuse anew")
    return Check("model tiny", OK, f"answers {task.prompt!r} with {text!r}")
