"""Gives each worker, and each direction of copies, a CUDA stream (Flover, III and V)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Streams:
    """Makes CUDA streams; the first worker has the default stream. A CPU has none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[int | str, torch.cuda.Stream] = {}

    def of(self, user: int | str) -> AbstractContextManager[object]:
        """Return the context of a worker's stream, or of copies to "host" or "device"."""
        if user == 0 or self.device.type != "cuda":
            return nullcontext()
        if user not in self._streams:
            self._streams[user] = torch.cuda.Stream(self.device)
            self._streams[user].wait_stream(torch.cuda.default_stream(self.device))
        return torch.cuda.stream(self._streams[user])
