"""The cases of benchmarks/kernels.py in the interpreter, smaller."""

from __future__ import annotations

import pytest
import torch
from kernel_race import timing
from kernel_race.attention import Heads, buffers, chunks, decode
from kernel_race.case import Case
from kernel_race.copies import Storage, moves, staged, swaps
from kernel_race.measure import BESIDE, measured
from kernel_race.pointwise import choices, gates, lstm, norms, rotations

HEADS = Heads(4, 2, 16)
CASES = [
    chunks([(9, 20)], HEADS, page=4),
    chunks([(9, 9)], HEADS, page=4),
    chunks([(5, 20), (1, 17), (7, 7)], HEADS, page=4),
    decode([20, 7], HEADS, "skewed", page=4),
    decode([20, 20], HEADS, "equal", page=4),
    buffers([20, 7, 17], 24, HEADS, "buffers", page=4),
    moves(3, 5, Storage(2, 2, 16), "shuffle"),
    *(staged(kernel, 3, 4, Storage(2, 2, 16)) for kernel in ("gather_slots", "scatter_slots")),
    *(swaps(kind, 3, 4, Storage(2, 2, 16)) for kind in ("swap_out", "swap_in")),
    *(norms(5, 100, residual) for residual in (False, True)),
    rotations(5, HEADS),
    gates(5, 100),
    lstm(5, 100),
    *(choices(5, 300, noisy) for noisy in (False, True)),
]
REASONS = "does not add", "takes one length for all sequences"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel} {case.size}")
def test_a_case_as_it_would_be_measured(case: Case, clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel and every peer that runs on a CPU agree with the twin; compiled peers run in eager mode here."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(timing, "WARMUP", 0)
    (row,) = measured([case], torch.device("cpu"), torch.float32, rounds=1)["rows"]
    assert row["failure"] is None
    assert row["seconds"] > 0
    for name, contender in row["contenders"].items():
        excused = name.startswith("sdpa") or (name == BESIDE and "CUDA" in contender["reason"])
        assert contender["error"] is not None or excused or contender["reason"] in REASONS, (
            f"{name}: {contender['reason']}"
        )
    assert set(row["contenders"]) == set(case.contenders)
