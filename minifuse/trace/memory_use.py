"""Counts memory in use over the steps of a run."""

from __future__ import annotations


def ratio(amount: float, of: float) -> float | None:
    """Return a part of a whole; None if there is no whole."""
    return amount / of if of > 0 else None


def in_bytes(tokens: float | None, bytes_per_token: int | None) -> float | None:
    return None if tokens is None or bytes_per_token is None else tokens * bytes_per_token


class MemoryUse:
    """Counts KV in use, set aside, on the host, and kept, step by step."""

    def __init__(self) -> None:
        self.num_steps, self.seconds, self.capacity = 0, 0.0, 0
        self.peak = dict.fromkeys(("used", "reserved", "host", "kept", "kept_host"), 0)
        self.tokens = dict.fromkeys(self.peak, 0)  # sums over steps
        self.token_seconds = dict.fromkeys(self.peak, 0.0)

    def add(self, seconds: float, capacity: int, *usage: int) -> None:
        """Count a step; `usage` has the tokens of each kind, ordered as in `peak`."""
        self.num_steps += 1
        self.seconds += seconds
        self.capacity = max(self.capacity, capacity)
        for kind, tokens in zip(self.peak, usage, strict=True):
            self.peak[kind] = max(self.peak[kind], tokens)
            self.tokens[kind] += tokens
            self.token_seconds[kind] += tokens * seconds

    def result(self, bytes_per_token: int | None) -> dict[str, float | None]:
        """Return peak and mean of each kind, in tokens and in bytes.

        The mean is weighted with the time of each step.
        """
        found: dict[str, float | None] = {"capacity_tokens": self.capacity if self.num_steps else None}
        for kind, peak in self.peak.items():
            mean = ratio(self.token_seconds[kind], self.seconds)
            if mean is None:  # no time passed
                mean = ratio(self.tokens[kind], self.num_steps)
            found |= {f"peak_{kind}_tokens": peak if self.num_steps else None, f"mean_{kind}_tokens": mean}
        of_bytes = {name.replace("tokens", "bytes"): in_bytes(value, bytes_per_token) for name, value in found.items()}
        return found | of_bytes
