"""Labs register stages: for the tests of one file, which then leave the registers as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from registers import forget_labs, keep_registers


@pytest.fixture(scope="module", autouse=True)
def _labs_of_this_file() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        keep_registers(patch)
        yield
    forget_labs()
