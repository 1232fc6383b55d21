"""Calls the collectives of a worker's plans, and counts their messages (Flover, V-D)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor

from minifuse.core.errors import MachineError
from minifuse.core.measured import Measured


class RankLost(MachineError):
    """The ranks can no longer reach each other."""


class Communicator:
    """Calls the collectives of one worker.

    The main stream has one communicator, however many requests it serves (Flover, V-D). A message covers the rows of
    the iteration, idle buffers included, so its size follows `buffer_size`; gathering the running requests' buffers
    makes messages smaller (Flover, VI-E). Every worker needs a communicator of its own: two workers call collectives in
    no particular order, and ranks that disagree on the order would wait for each other forever. Concurrent instances
    are expensive because they need one communicator for each request.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._calls = 0
        self._bytes = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum every rank's `x` in place: [tokens, features]."""
        if self._counted(x):
            with rank_lost_if_unreachable():
                dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Gather the ranks' `x` [rows, part] side by side, in order: [rows, size * part]."""
        parts = x.new_empty(self.group.size(), *x.shape)
        if self._counted(x):
            with rank_lost_if_unreachable():
                dist.all_gather(list(parts.unbind(0)), x.contiguous(), group=self.group)
        return parts.transpose(0, 1).flatten(1)

    def take(self, measured: Measured) -> Measured:
        """Return `measured` with the messages counted since the last call; reset the counts."""
        measured = measured._replace(num_messages=self._calls, message_bytes=self._bytes)
        self._calls = self._bytes = 0
        return measured

    def _counted(self, x: Tensor) -> bool:
        """Count a message; return False if it is empty, because empty messages are not sent."""
        if not x.numel():
            return False
        self._calls += 1
        self._bytes += x.numel() * x.element_size()
        return True


@contextmanager
def rank_lost_if_unreachable() -> Iterator[None]:
    """Raise `RankLost` if the block waits for other ranks and they do not answer."""
    try:
        yield
    except RuntimeError as error:
        why = re.sub(r"^\[.*?\] *", "", str(error).splitlines()[0])  # gloo puts its own source line first
        raise RankLost(f"The other ranks cannot be reached ({why}): start again.") from error
