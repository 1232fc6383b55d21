"""The suite's torch runs on one thread: its tensors are tiny, and pytest-xdist has a worker for every core.

No example of hypothesis has a deadline.
"""

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from registers import keep_registers

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # machines are busy at times
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user() -> Iterator[None]:
    """What the user has measured with `minifuse calibrate` changes no test."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        yield
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture
def own_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers of the test's own, so that what it adds is in no other test's mixes."""
    keep_registers(monkeypatch)


@pytest.fixture
def shorter_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the search for broken laws, a long run has the length of a crowd."""
    from minifuse.testing import load, search

    monkeypatch.setattr(search, "long_run_of", load.crowd_of)
