"""A plan of cells that has been issued to a device, and what comes of it (BatchMaker, 2.5)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from minifuse.core.measured import Measured
from minifuse.core.plan import Work
from minifuse.core.report import Ran


class Issued:
    """The tokens and results of an issued plan, on their way to the host."""

    def __init__(self, device: torch.device) -> None:
        self._computed = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._produced: list[tuple[Seq[Work], Tensor]] = []  # work, the token of each
        self._results: list[tuple[Seq[tuple[str, int]], tuple[Tensor, ...]]] = []  # (sequence, node), outputs
        self._copies, self._rows, self._gathering_s = 0, 0, 0.0

    def gathered(self, rows: int, seconds: float) -> None:
        """Count a gather of so many rows."""
        self._copies += 1
        self._rows += rows
        self._gathering_s += seconds

    def say(self, work: Seq[Work], tokens: Tensor) -> None:
        """Produce a token for each piece of work."""
        self._produced.append((work, tokens.to("cpu", non_blocking=True)))

    def result(self, nodes: Seq[tuple[str, int]], outputs: tuple[Tensor, ...]) -> None:
        """Keep the results of nodes: row i of each output is that of the i-th (sequence, node)."""
        self._results.append((nodes, tuple(output.to("cpu", non_blocking=True) for output in outputs)))

    def done(self) -> None:
        """Everything has been issued: mark the end on the device."""
        if self._computed is not None:
            self._computed.record()

    def ran(self) -> Ran:
        """Wait for the device. Returns all tokens and results."""
        if self._computed is not None:
            self._computed.synchronize()
        produced: dict[str, list[int]] = {}
        for work, tokens in self._produced:
            for item, token in zip(work, tokens.tolist(), strict=True):
                produced.setdefault(item.sequence, []).append(token)
        results: dict[str, dict[int, tuple[Tensor, ...]]] = {}
        for nodes, outputs in self._results:
            for (name, node), *parts in zip(nodes, *(output.unbind(0) for output in outputs), strict=True):
                results.setdefault(name, {})[node] = tuple(parts)
        return Ran(
            {name: tuple(tokens) for name, tokens in produced.items()},
            results=results,
            measured=Measured(num_gathers=self._copies, gathered_rows=self._rows, gathering_s=self._gathering_s),
        )
