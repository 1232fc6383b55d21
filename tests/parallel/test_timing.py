"""Collectives between processes are timed, and a failure of one is told."""

from __future__ import annotations

import signal

from helpers import refusal

from minifuse.core.errors import MachineError
from minifuse.parallel.timing import time_collectives


def test_collectives_are_timed() -> None:
    """The sizes are so far apart that the larger messages take longer."""
    found = time_collectives(2, "cpu", (2**10, 2**24))
    assert {*found} == {"sum", "gather"}
    assert all(0 < small < large for small, large in found.values())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_fails_is_told() -> None:
    with refusal(MachineError, "2 processes", "nowhere", "--ranks"):
        time_collectives(2, "nowhere", (2**10,))
