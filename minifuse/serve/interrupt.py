"""Ctrl-C that waits for a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minifuse.plan import Plan
from minifuse.report import Completion
from minifuse.request import Sequence
from minifuse.stages import Executor

__all__ = ["Hold", "InterruptibleExecutor", "uninterrupted"]


class Hold:
    """Whether a Ctrl-C is being held back, and whether one came."""

    def __init__(self) -> None:
        self.pending = False
        self._released = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note a Ctrl-C; a second one, or one in a released block, interrupts at once."""
        if self._released or self.pending:
            self.pending = False
            raise KeyboardInterrupt
        self.pending = True

    @contextmanager
    def released(self) -> Iterator[None]:
        """A block that may be interrupted anywhere."""
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
    """Hold a Ctrl-C back until the block has ended; a second one is not held back, should the block hang.

    Books that are written in several places, or a line that is printed and then noted as printed, would otherwise be
    left half done. Blocks may be nested: only the outermost does anything.

    Args:
        forget: do not raise `KeyboardInterrupt` at the end of the block either.
    """
    hold = Hold()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield hold
        return
    signal.signal(signal.SIGINT, hold.on_signal)
    try:
        yield hold
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hold.pending and not forget:
        raise KeyboardInterrupt


class InterruptibleExecutor:
    """An executor whose waiting, during which plans run, may be interrupted, inside a block where nothing else may."""

    def __init__(self, executor: Executor, hold: Hold) -> None:
        self.executor = executor
        self.hold = hold

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        self.executor.submit(plan, sequences, now)

    def wait(self, until: float | None) -> list[Completion]:
        with self.hold.released():
            return self.executor.wait(until)

    def wake(self) -> None:
        self.executor.wake()

    def close(self) -> None:
        self.executor.close()
