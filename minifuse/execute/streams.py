"""A CUDA stream for each worker (Flover, III and V)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["Streams"]


class Streams:
    """On a GPU each worker has a stream of its own, the first worker the default stream. A CPU has none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[int, torch.cuda.Stream] = {}

    def of(self, worker: int) -> AbstractContextManager[object]:
        """A context in which work goes to the stream of `worker`."""
        if worker == 0 or self.device.type != "cuda":
            return nullcontext()
        if worker not in self._streams:
            self._streams[worker] = torch.cuda.Stream(self.device)
            self._streams[worker].wait_stream(torch.cuda.default_stream(self.device))
        return torch.cuda.stream(self._streams[worker])
