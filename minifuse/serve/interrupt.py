"""Holds back Ctrl-C, and signals that end the process, until a block is complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from minifuse.ctrl_c import HANDLER, SIGNALS, importing

if TYPE_CHECKING:
    from minifuse.ctrl_c import Handler


class Hold:
    """A signal handler that delays signals for the handlers that it replaces.

    Args:
        before: the replaced handlers, by signal. They raise `KeyboardInterrupt`.

    Attributes:
        pending: whether a signal has come and is held back.
    """

    def __init__(self, before: Mapping[int, Handler]) -> None:
        self.pending = False
        self.before = before
        self._released = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Hold a signal back; interrupt at a second signal, or within `released`."""
        held = not self._released or importing(frame)
        try:
            self.before[number](number, None if held else frame)  # without a frame, it does not interrupt
        except KeyboardInterrupt:
            if not held or self.pending:
                self.pending = False
                raise
            self.pending = True

    @contextmanager
    def released(self) -> Iterator[None]:
        """Run a block that a signal may interrupt at any point."""
        try:
            self._released = True
            if self.pending:
                self.pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._released = False


@contextmanager
def uninterrupted(forget: bool = False) -> Iterator[Hold]:
    """Hold back a Ctrl-C until the block has ended; a second Ctrl-C interrupts at once.

    Without this, state that is written in several places, or a line that is printed and then recorded as printed, could
    be left half done. Blocks may be nested: only the outermost has an effect.

    Args:
        forget: whether a signal that was held back is dropped at the end of the block. Otherwise, it then raises
            `KeyboardInterrupt`. `Hold.pending` tells whether a signal came.
    """
    before: dict[int, Handler] = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is HANDLER or (number == signal.SIGINT and callable(handler) and not isinstance(handler, Hold)):
                before[number] = handler
    hold = Hold(before)
    for number in before:
        signal.signal(number, hold)
    try:
        yield hold
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if hold.pending and not forget:
        raise KeyboardInterrupt
