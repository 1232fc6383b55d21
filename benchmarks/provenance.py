"""Where a figure comes from: written into every result."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

__all__ = ["provenance"]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def provenance(**run: Any) -> dict[str, Any]:
    """Commit and whether the tree was clean, machine, versions; `run` adds seed, repeats, order."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "commit": _git("rev-parse", "HEAD") or None,
        "clean": not _git("status", "--porcelain", "--untracked-files=no"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": _processor(), "threads": torch.get_num_threads(), "cuda": device},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("minifuse", "torch", "transformers", "numpy")},
        },
        **run,
    }
