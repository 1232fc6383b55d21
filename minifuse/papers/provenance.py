"""Describes where a result comes from; every stored result contains this."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from minifuse.execute.cores import processor


def provenance(**run: Any) -> dict[str, Any]:
    """Return the commit, whether the tree is clean, the machine, the versions, and `run`.

    Outside a checkout, commit and cleanness are None.
    """
    versions = {name: _version(name) for name in ("minifuse", "torch", "transformers", "numpy")}
    # Installed inside another repository, this file is not tracked there.
    commit = _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", __file__) else None
    return {
        "commit": commit,
        "clean": None if commit is None else not _git("status", "--porcelain", "--untracked-files=no"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), **_torch()},
        "versions": {"python": platform.python_version(), **versions},
        **run,
    }


def _torch() -> dict[str, Any]:
    """Return torch's threads and GPU, or nothing if torch has not been imported."""
    if (torch := sys.modules.get("torch")) is None:
        return {}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"threads": torch.get_num_threads(), "cuda": device}


def _git(*arguments: str) -> str:
    home = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments], capture_output=True, text=True, cwd=home, check=False
        )
    except OSError:  # no git
        return ""
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
