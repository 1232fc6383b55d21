"""CUDA streams: one for each worker (Flover, III and V), and one for each direction of copies beside them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class Streams:
    """On a GPU each worker has a stream of its own, the first worker the default stream. A CPU has none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[int | str, torch.cuda.Stream] = {}

    def of(self, user: int | str) -> AbstractContextManager[object]:
        """A context in which work goes to the stream of a worker, or of the copies to "host" or "device"."""
        if user == 0 or self.device.type != "cuda":
            return nullcontext()
        if user not in self._streams:
            self._streams[user] = torch.cuda.Stream(self.device)
            self._streams[user].wait_stream(torch.cuda.default_stream(self.device))
        return torch.cuda.stream(self._streams[user])
