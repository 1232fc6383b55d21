"""CUDA streams: one for each worker (Flover, III and V), and one for each direction of copies beside them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["Streams"]


class Streams:
    """On a GPU each worker has a stream of its own, the first worker the default stream. A CPU has none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[int | str, torch.cuda.Stream] = {}

    def of(self, worker: int) -> AbstractContextManager[object]:
        """A context in which work goes to the stream of `worker`."""
        if worker == 0 or self.device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(self._stream(worker))

    def copying(self, tier: str) -> torch.cuda.Stream:
        """On a GPU, the stream of the copies that go to a tier: "host" or "device"."""
        return self._stream(tier)

    def _stream(self, key: int | str) -> torch.cuda.Stream:
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream(self.device)
            self._streams[key].wait_stream(torch.cuda.default_stream(self.device))
        return self._streams[key]
