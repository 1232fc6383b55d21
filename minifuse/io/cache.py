"""Finds minifuse's cache folder."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return minifuse's cache folder (XDG base directories: a relative path does not count)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "minifuse"
