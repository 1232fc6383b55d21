"""Estimates how long a ring of ranks takes for a collective."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ring:
    """Times collectives in a ring of ranks (Thakur, Rabenseifner and Gropp, 2005).

    With N ranks, n bytes are summed in 2 (N - 1) steps of n / N bytes, and n bytes of each rank are gathered in N - 1
    steps of n bytes. A step takes the latency, and its bytes at the bandwidth.

    >>> ring = Ring(size=2, bandwidth=1.0, latency_s=0.5)
    >>> ring.sum_s(96), ring.gather_s(60)  # two steps of 48.5 s, one of 60.5 s
    (97.0, 60.5)

    Args:
        size: the number of ranks, at least 2.
        bandwidth: bytes per second from a rank to the next.
        latency_s: seconds of a step, whatever its bytes.
    """

    size: int
    bandwidth: float
    latency_s: float

    def sum_s(self, num_bytes: float) -> float:
        return 2 * self.gather_s(num_bytes / self.size)

    def gather_s(self, num_bytes: float) -> float:
        return (self.size - 1) * (self.latency_s + num_bytes / self.bandwidth)
