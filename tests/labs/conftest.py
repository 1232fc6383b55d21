"""Labs register stages: for the tests of one file, which then leave the registers as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from registers import forget_labs, keep_registers


@pytest.fixture(scope="module", autouse=True)
def _labs_of_this_file() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        keep_registers(patch)
        yield
    forget_labs()


@pytest.fixture
def solution(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a student's file."""

    def write(text: str) -> Path:
        file = tmp_path / "solution.py"
        file.write_text(text)
        return file

    return write
