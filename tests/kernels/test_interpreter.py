"""Runs the files of interpreted/ in Triton's interpreter, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
FILES = sorted(map(str, FOLDER.glob("test_*.py")))


PROCESSES = 2  # each takes seconds to start


@pytest.mark.parametrize("number", range(PROCESSES))
def test_in_the_interpreter(number: int) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *FILES[number::PROCESSES]]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
