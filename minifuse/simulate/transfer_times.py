"""Times copies between a device and the host, each way and both at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minifuse.execute.streams import Streams
from minifuse.execute.timing import timed
from minifuse.simulate.machine_profile import CopyTimes, TransferTimes

SMALL, LARGE = 2**12, 2**26  # bytes of a copy
ROUNDS = 5
WAYS = "host", "device"  # where a copy goes


def transfer_times(device: str) -> TransferTimes:
    """Time copies each way, and both ways at once."""
    where = torch.device(device)
    streams, on_gpu = Streams(where), where.type == "cuda"
    tiers = {
        way: (
            torch.zeros(LARGE, dtype=torch.uint8, device=where),
            torch.zeros(LARGE, dtype=torch.uint8, pin_memory=on_gpu),
        )
        for way in WAYS
    }

    def seconds(ways: Sequence[str], num_bytes: int) -> float:
        def copy() -> None:
            begun = torch.cuda.current_stream().record_event() if on_gpu else None
            ended = []
            for way in ways:
                target, source = tiers[way] if way == "device" else reversed(tiers[way])
                with streams.of(way):
                    if begun is not None:
                        torch.cuda.current_stream().wait_event(begun)
                    target[:num_bytes].copy_(source[:num_bytes], non_blocking=True)
                    if begun is not None:
                        ended.append(torch.cuda.current_stream().record_event())
            for event in ended:
                torch.cuda.current_stream().wait_event(event)

        return timed(copy, ROUNDS, where.type)

    alone = {way: (seconds([way], SMALL), seconds([way], LARGE)) for way in WAYS}
    to_host, to_device = (_copy_times(*alone[way]) for way in WAYS)
    shorter, longer = sorted(large for _, large in alone.values())
    # When the shorter has ended, the longer goes on alone.
    beside_s = seconds(WAYS, LARGE) - (longer - shorter)
    return TransferTimes(to_host=to_host, to_device=to_device, both_ways=min(1.0, shorter / beside_s))


def _copy_times(small_s: float, large_s: float) -> CopyTimes:
    """Return the line through the seconds of a small and of a large copy.

    >>> _copy_times(1.0, 1.0 + 2**26 - 2**12).bandwidth
    1.0
    """
    bandwidth = (LARGE - SMALL) / max(large_s - small_s, 1e-9)
    return CopyTimes(bandwidth=bandwidth, copy_s=max(0.0, small_s - SMALL / bandwidth))
