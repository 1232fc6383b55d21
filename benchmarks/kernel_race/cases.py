"""The measured sizes: those of the targets, and small ones to check that everything works."""

from __future__ import annotations

from .attention import Heads, buffers, chunks, decode
from .case import Case
from .copies import Storage, moves, staged, swaps
from .pointwise import choices, gates, lstm, norms, rotations

__all__ = ["full", "quick"]


def full() -> list[Case]:
    """Chunks of at least 2k tokens at contexts of at least 8k, decode over at least 1 GB of KV, else at least 64 MB."""
    heads = Heads()
    skewed = [65536, *[16384] * 7, *[2048] * 56]
    return [
        *(chunks([part], heads) for part in ((2048, 8192), (4096, 16384), (2048, 32768), (16384, 16384))),
        chunks([(2048, 8192)], Heads(32, 32, 128)),
        chunks(
            [(2048, 8192), (4096, 16384), *[(1, 8192)] * 30],
            heads,
            "2048 of 8192, 4096 of 16384, 30 times 1 of 8192 tokens",
        ),
        decode([4096] * 64, heads, "64 of 4096 tokens"),
        decode([262144], heads, "1 of 262144 tokens"),
        decode(skewed, heads, "1 of 65536, 7 of 16384, 56 of 2048 tokens"),
        buffers([4096] * 64, 4096, heads, "64 full buffers of 4096 tokens"),
        buffers([64 * i for i in range(1, 129)], 8192, heads, "128 buffers of 8192, holding 64, 128, ... 8192 tokens"),
        moves(4, 512, Storage(), "shuffle"),
        moves(128, 16, Storage(), "block copy"),
        *(staged(kernel, 128, 16, Storage()) for kernel in ("gather_slots", "scatter_slots")),
        *(swaps(kind, 128, 16, Storage()) for kind in ("swap_out", "swap_in")),
        *(norms(16384, 4096, residual) for residual in (False, True)),
        rotations(16384, heads),
        gates(8192, 14336),
        lstm(32768, 1024),
        choices(512, 128256, False),
        choices(256, 128256, True),
    ]


def quick() -> list[Case]:
    """Every kernel at sizes that take seconds."""
    heads, storage = Heads(8, 2, 128), Storage(2, 2, 128)
    return [
        *(chunks([part], heads) for part in ((256, 1024), (1024, 1024))),
        chunks([(256, 1024), (1, 512), (300, 300)], heads),
        decode([1024] * 8, heads, "8 of 1024 tokens"),
        decode([4096, *[256] * 7], heads, "1 of 4096, 7 of 256 tokens"),
        buffers([64 * i for i in range(1, 9)], 1024, heads, "8 buffers of 1024, holding 64, 128, ... 512 tokens"),
        moves(4, 64, storage, "shuffle"),
        moves(16, 16, storage, "block copy"),
        *(staged(kernel, 16, 16, storage) for kernel in ("gather_slots", "scatter_slots")),
        *(swaps(kind, 16, 16, storage) for kind in ("swap_out", "swap_in")),
        *(norms(1024, 1024, residual) for residual in (False, True)),
        rotations(1024, heads),
        gates(1024, 1024),
        lstm(1024, 512),
        choices(64, 32000, False),
        choices(16, 32000, True),
    ]
