"""A plan of cells that has been issued to a device, and what comes of it (BatchMaker, 2.5)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from minifuse.core.measured import Measured
from minifuse.core.plan import Work
from minifuse.core.report import Ran

__all__ = ["Issued"]


class Issued:
    """The tokens and results of a plan given to a device, on their way to the host until it is ready."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._computed: torch.cuda.Event | None = None
        self._produced: list[tuple[Seq[Work], Seq[int], Tensor]] = []  # work, its rows, the tokens of all rows
        self._results: list[tuple[list[tuple[str, int]], tuple[Tensor, ...]]] = []  # (sequence, node), outputs
        self._copies, self._rows, self._gathering_s = 0, 0, 0.0

    def gathered(self, rows: int, seconds: float) -> None:
        """Count a gather of so many rows."""
        self._copies += 1
        self._rows += rows
        self._gathering_s += seconds

    def say(self, work: Seq[Work], rows: Seq[int], tokens: Tensor) -> None:
        """Produce, for each piece of work, the token in its row."""
        self._produced.append((work, rows, tokens.to("cpu", non_blocking=True)))

    def result(self, nodes: list[tuple[str, int]], outputs: tuple[Tensor, ...]) -> None:
        """Keep the results of nodes: row i of each output is that of the i-th (sequence, node)."""
        self._results.append((nodes, tuple(output.to("cpu", non_blocking=True) for output in outputs)))

    def done(self) -> None:
        """Everything has been issued: mark the end on the device."""
        if self._device.type == "cuda":
            self._computed = torch.cuda.Event()
            self._computed.record()

    def ready(self) -> bool:
        return self._computed is None or self._computed.query()

    def ran(self) -> Ran:
        """Wait for the device. Returns all tokens and results."""
        if self._computed is not None:
            self._computed.synchronize()
        produced: dict[str, list[int]] = {}
        for work, rows, tokens in self._produced:
            values = tokens.tolist()
            for item, row in zip(work, rows, strict=True):
                produced.setdefault(item.sequence, []).append(values[row])
        results: dict[str, dict[int, tuple[Tensor, ...]]] = {}
        for nodes, outputs in self._results:
            for (name, node), *parts in zip(nodes, *(output.unbind(0) for output in outputs), strict=True):
                results.setdefault(name, {})[node] = tuple(parts)
        return Ran(
            {name: tuple(tokens) for name, tokens in produced.items()},
            results=results,
            measured=Measured(num_gathers=self._copies, gathered_rows=self._rows, gathering_s=self._gathering_s),
        )
