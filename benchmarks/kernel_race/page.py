"""Results as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["NOT_MEASURED", "page", "summary", "write"]

NOT_MEASURED = "not measured"
NO_DEVICE = """
There was no CUDA device: nothing was measured. Bytes and flops are counted, targets are what the kernels are held to.
"""


def write(results: dict[str, Any], folder: Path) -> None:
    """Write kernels.json and kernels.md into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "kernels.md").write_text(page(results))


def _or(value: float | None, form: str, factor: float = 1.0, unit: str = "") -> str:
    return NOT_MEASURED if value is None else format(value * factor, form) + unit


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def summary(results: dict[str, Any]) -> str:
    """Every kernel's time and its share of the roofline."""
    return _table(
        ("kernel", "size", "microseconds", "of the roofline"),
        ((row["kernel"], row["size"], _or(row["seconds"], ".1f", 1e6), _share(row)) for row in results["rows"]),
    )


def _share(row: dict[str, Any]) -> str:
    return NOT_MEASURED if row["share"] is None else f"{row['share']:.0%} of the {row['bound']}"


def _reached(row: dict[str, Any]) -> str:
    """The rate, in the unit of the limit that decides it."""
    if row["seconds"] is None:
        return NOT_MEASURED
    work = row["work"]
    if row["bound"] == "matrix rate":
        return f"{work['flops'] / row['seconds'] / 1e12:.0f} TFLOP/s"
    moved = work["moved"] if row["bound"] == "bandwidth" else work["to_host"] + work["to_device"]
    return f"{moved / row['seconds'] / 1e9:.0f} GB/s"


def _kernels(rows: Sequence[dict[str, Any]]) -> str:
    head = ("kernel", "size", "bytes", "flops", "floor us", "time us", "host us", "reached", "of the roofline", "error")
    return _table(
        (*head, "target"),
        (
            (
                row["kernel"],
                row["size"],
                f"{sum(row['work'].values()) - row['work']['flops']:.3g}",
                f"{row['work']['flops']:.3g}",
                _or(row["floor_s"], ".1f", 1e6),
                _or(row["seconds"], ".1f", 1e6),
                _or(row["contenders"][row["kernel"]]["host_seconds"], ".1f", 1e6),
                _reached(row),
                _share(row),
                _or(row["contenders"][row["kernel"]]["error"], ".1e"),
                row["target"] + (f" (exposed: {_or(row['exposed_s'], '.1f', 1e6, ' us')})" if _has_link(row) else ""),
            )
            for row in rows
        ),
    )


def _has_link(row: dict[str, Any]) -> bool:
    return bool(row["work"]["to_host"] + row["work"]["to_device"])


def _peers(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        for name, peer in row["contenders"].items():
            if name == row["kernel"]:
                continue
            ours, theirs = row["seconds"], peer["seconds"]
            faster = NOT_MEASURED if ours is None or theirs is None else f"{theirs / ours:.2f}x"
            why = peer["reason"] or ""
            cells = (row["kernel"], row["size"], name, _or(theirs, ".1f", 1e6), faster, _or(peer["error"], ".1e"), why)
            lines.append([cell.replace("|", "/") for cell in cells])
    return _table(("kernel", "size", "peer", "time us", "kernel is as fast", "error", "why not"), lines)


def _limits(limits: dict[str, float | None]) -> str:
    return _table(
        ("copy, read + written", "bf16 matrix product", "to the host", "from the host"),
        [
            (
                _or(limits["copy"], ".0f", 1e-9, " GB/s"),
                _or(limits["matrix"], ".0f", 1e-12, " TFLOP/s"),
                _or(limits["to_host"], ".1f", 1e-9, " GB/s"),
                _or(limits["to_device"], ".1f", 1e-9, " GB/s"),
            )
        ],
    )


def page(results: dict[str, Any]) -> str:
    origin, limits, rows = results["provenance"], results["limits"], results["rows"]
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    device = origin["machine"].get("cuda")
    notice = "" if device else NO_DEVICE
    return f"""# Kernels against their rooflines

Device: {device or "none"}; {versions}, triton {origin["triton"]};
commit {origin["commit"]}{"" if origin["clean"] else " with changes"}.
{notice}
bfloat16, medians of {origin["rounds"]} rounds, contenders interleaved, the L2 emptied before every launch; times are
the device's, by CUDA events. Measured in the same run:

{_limits(limits)}

Bytes: each input read once, each output written once. The floor is the longest of bytes over the measured bandwidth,
flops over the measured rate, and bytes over the link. Host: what the call keeps the host busy. Error: the largest
relative error of a row (norm of the difference over norm) against the twin in float32, looked at before anything was
timed.

{_kernels(rows)}

## Peers

On the same inputs, in the same rounds. Attention of PyTorch reads contiguous KV, which it is given for free.
"As fast" is the peer's time over the kernel's.

{_peers(rows)}
"""
