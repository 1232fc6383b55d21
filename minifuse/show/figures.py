"""Writes numbers and names for people."""

from __future__ import annotations

from collections.abc import Sequence


def plain(value: float | None, unit: str = "") -> str:
    """Write three digits of a number, or its whole part if longer; "-" for None.

    >>> plain(0.123456), plain(12345.6, " tokens"), plain(None)
    ('0.123', '12,346 tokens', '-')
    """
    if value is None:
        return "-"
    return (f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}") + unit


def in_time(seconds: float | None) -> str:
    """Write seconds in the unit that suits them.

    >>> in_time(1.5), in_time(0.0123), in_time(4.2e-5)
    ('1.5 s', '12.3 ms', '42 us')
    """
    if seconds is None or seconds >= 1 or seconds == 0:
        return plain(seconds, " s")
    return plain(seconds * 1e3, " ms") if seconds >= 1e-3 else plain(seconds * 1e6, " us")


def in_bytes(size: float) -> str:
    """Write bytes in the unit that suits them.

    >>> in_bytes(96), in_bytes(2304), in_bytes(64 * 2**20)
    ('96 B', '2.25 KiB', '64 MiB')
    """
    power = next((power for power in (4, 3, 2, 1) if size >= 1024**power), 0)
    return plain(size / 1024**power, (" B", " KiB", " MiB", " GiB", " TiB")[power])


def first_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Write the first `most` names, and how many more there are.

    >>> first_few(["r0", "r1", "r2"], 2)
    'r0, r1 and 1 more'
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + rest
