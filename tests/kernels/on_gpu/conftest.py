"""Every kernel on a real device: run with `-m gpu`. Most of the time goes into compiling, where `-n 8` helps.

Under TRITON_INTERPRET=1 fewer of the same tests run on CPU tensors. That shows that the tests work, and nothing about a
GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from gpu_cases import DTYPES, SEEDS

from minifuse.kernels.launch import INTERPRETED


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device of all tensors."""
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=SEEDS)
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)
