"""The suite's torch runs on one thread: its tensors are tiny, and pytest-xdist has a worker for every core.

No example of hypothesis has a deadline.
"""

import pytest
import torch
from hypothesis import settings
from registers import keep_registers

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # machines are busy at times
settings.load_profile("untimed")


@pytest.fixture
def own_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers of the test's own, so that what it adds is in no other test's mixes."""
    keep_registers(monkeypatch)
