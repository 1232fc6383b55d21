"""benchmarks/kernels.py without a GPU: its arithmetic and its tables. Its cases run in interpreted/test_race.py."""

from __future__ import annotations

import json
import runpy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_race import timing
from kernel_race.attention import Heads, attention_work, buffers, chunks, decode
from kernel_race.case import Case, Contender, Limits, Trial, Work, error_of
from kernel_race.cases import full, quick
from kernel_race.copies import Storage, moves, staged, swaps
from kernel_race.measure import BESIDE, COMPUTE, measured, unmeasured
from kernel_race.page import NOT_MEASURED, page, write
from kernel_race.pointwise import choices, gates, lstm, norms, rotations

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
main = runpy.run_path(str(BENCHMARKS / "kernels.py"))["main"]
CPU = torch.device("cpu")
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="as on a machine without CUDA")


# The floor: bytes and flops by hand.


def test_work_of_a_chunk() -> None:
    """3 queries at the end of 10 tokens see 8, 9 and 10 of them: 27 pairs, each 2 flops for q k and 2 for p v."""
    work = attention_work([(3, 10)], Heads(query=4, kv=2, dim=8))
    assert work.flops == 27 * 4 * 8 * (2 + 2)
    in_and_out = 3 * 4 * 8 * 2
    keys_and_values = 10 * 2 * 8 * 2
    assert work.moved == 2 * (in_and_out + keys_and_values)


def test_work_of_a_whole_prompt_and_of_a_decode() -> None:
    """A prompt of 4 sees 1 + 2 + 3 + 4 = 10 pairs; a decode in a context of 7 sees 7."""
    heads = Heads(1, 1, 1)
    assert attention_work([(4, 4)], heads).flops == 4 * 10
    assert attention_work([(1, 7)], heads).flops == 4 * 7
    assert attention_work([(4, 4), (1, 7)], heads) == Work(moved=2 * (2 * 5 + 2 * 11), flops=4 * 17)


def test_work_of_the_cases_with_targets() -> None:
    """64 contexts of 4096 tokens, 8 KV heads of 128: 64 x 4096 x 8 x 128 x 2 (K, V) x 2 bytes = 1 GiB."""
    gib = 2**30
    assert decode([4096] * 64, Heads(), "").work.moved == gib + 64 * 32 * 128 * 2 * 2
    pairs = 2048 * 6144 + 2048 * 2049 // 2
    assert chunks([(2048, 8192)], Heads()).work.flops == 4 * 32 * 128 * pairs
    assert buffers([4096] * 64, 4096, Heads(), "").work == decode([4096] * 64, Heads(), "").work
    assert Storage().token_bytes == 32 * 2 * 8 * 128 * 2
    assert moves(128, 16, Storage(), "").work == Work(moved=2 * 2048 * 131072)
    for kernel in ("gather_slots", "scatter_slots"):
        assert staged(kernel, 128, 16, Storage()).work == Work(moved=2 * 2048 * 131072 + 2048 * 8)
    assert swaps("swap_out", 2, 16, Storage()).work == Work(moved=2 * 32 * 131072 + 32 * 8, to_host=32 * 131072)
    assert swaps("swap_in", 2, 16, Storage()).work == Work(moved=2 * 32 * 131072 + 32 * 8, to_device=32 * 131072)


@pytest.mark.parametrize(
    ("case", "moved"),
    [
        (norms(10, 100, residual=False), 2 * (10 * 100 * 2 + 100)),
        (norms(10, 100, residual=True), 2 * (10 * 100 * 4 + 100)),
        (gates(10, 100), 2 * (10 * 200 + 10 * 100)),
        (lstm(10, 100), 2 * (10 * 400 + 10 * 100 + 2 * 10 * 100)),
        (rotations(10, Heads(4, 2, 8)), 2 * 10 * (4 + 2 + 2) * 8 * 2 + 10 * 8 * 4 * 2 + 10 * 8),
        (choices(10, 100, noisy=False), 10 * 100 * 2 + 10 * 8),
        (choices(10, 100, noisy=True), 10 * 100 * 4 + 3 * 10 * 8),
    ],
    ids=lambda value: value.kernel if isinstance(value, Case) else "",
)
def test_work_of_kernels_bound_by_bandwidth(case: Case, moved: int) -> None:
    assert case.work == Work(moved=moved)


LIMITS = Limits(copy=1000.0, matrix=100.0, to_host=10.0, to_device=5.0)


@pytest.mark.parametrize(
    ("work", "floor"),
    [
        (Work(moved=4000, flops=10), (4.0, "bandwidth")),
        (Work(moved=4000, flops=1000), (10.0, "matrix rate")),
        (Work(moved=4000, to_host=70), (7.0, "link")),
        (Work(moved=4000, to_device=70), (14.0, "link")),
    ],
)
def test_floor(work: Work, floor: tuple[float, str]) -> None:
    assert work.floor(LIMITS) == floor


def test_the_sizes_are_those_of_the_targets() -> None:
    for case in full():
        amount = case.work.moved
        if case.kernel == "decode_attention":
            assert amount >= 1e9, case.size
        elif case.kernel != "multi_token_attention":
            assert amount >= 64 * 2**20, case.size
        assert case.target
    assert {case.kernel for case in quick()} == {case.kernel for case in full()}
    keys = [(case.kernel, case.size) for case in full()]
    assert len(set(keys)) == len(keys)


def test_error() -> None:
    want = [torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([1, 2])]
    assert error_of(want, want) == 0.0
    assert error_of([torch.tensor([[3.0, 4.5], [0.0, 0.0]]), want[1]], want) == pytest.approx(0.1)
    assert error_of([want[0], torch.tensor([1, 3])], want) == 0.5
    for bad in (float("nan"), float("inf")):
        assert error_of([torch.tensor([[3.0, bad], [0.0, 0.0]]), want[1]], want) == float("inf")
    assert error_of([torch.tensor([[3.0, 4.0], [0.0, 1.0]]), want[1]], want) == float("inf")
    assert error_of([want[0][:1], want[1]], want) == float("inf")


# Tables.


@on_a_cpu
def test_without_a_device_the_tables_have_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no CUDA device: nothing was measured" in said
    results = json.loads((tmp_path / "new" / "kernels.json").read_text())
    assert set(results["limits"].values()) == {None}
    assert [(row["kernel"], row["size"]) for row in results["rows"]] == [(c.kernel, c.size) for c in full()]
    for row in results["rows"]:
        for figure in ("bound", "floor_s", "seconds", "share", "exposed_s", "failure"):
            assert row[figure] is None
        for contender in row["contenders"].values():
            assert contender.pop("reason") == "no CUDA device"
            assert set(contender.values()) == {None}
    text = (tmp_path / "new" / "kernels.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "tokens" in line]
    assert all(cells[4:10] == [NOT_MEASURED] * 6 for cells in rows if len(cells) == 11)
    assert " us |" not in text.replace("floor us |", "").replace("time us |", "").replace("host us |", "")


@on_a_cpu
def test_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "norm", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "kernels.json").read_text())["rows"]
    assert [row["kernel"] for row in rows] == ["rms_norm", "rms_norm"]
    for wrong, sentence in (
        (["--only", "nothing"], "no kernel has that in its name: give a part of multi_token_attention"),
        (["--rounds", "0"], "--rounds is 0: give at least 1"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


def test_the_committed_results_are_of_these_cases() -> None:
    """The committed results have the sizes that would be measured now."""
    committed = json.loads((BENCHMARKS / "results" / "kernels.json").read_text())
    keys = [(row["kernel"], row["size"], row["target"], row["work"]) for row in committed["rows"]]
    now = unmeasured(full(), rounds=1, quick=False)["rows"]
    assert keys == [(row["kernel"], row["size"], row["target"], row["work"]) for row in now], (
        "run python benchmarks/kernels.py"
    )
    assert page(committed) == (BENCHMARKS / "results" / "kernels.md").read_text()


# Measuring, with events that read the host's clock.


def test_a_race(clock: None) -> None:
    calls: list[str] = []

    def contender(name: str, seconds: float) -> Any:
        def go() -> None:
            calls.append(name)
            time.sleep(seconds)

        return go

    times = timing.race({"slow": contender("slow", 0.02), "fast": contender("fast", 0.0)}, 3, CPU)
    assert 0.02 <= times["slow"].seconds <= 0.2
    assert times["fast"].seconds < times["slow"].seconds
    assert len(times["fast"].rounds) == 3
    assert calls[-6:] == ["slow", "fast", "fast", "slow", "slow", "fast"], "another contender begins each round"


def test_limits(clock: None) -> None:
    limits = timing.limits_of(CPU, rounds=1, size=1000, side=8)
    assert min(limits.copy, limits.matrix, limits.to_host, limits.to_device) > 0


def toy(**contenders: Any) -> Case:
    want = torch.ones(4, 8)
    return Case(
        "ours", "4 x 8", "fast", Work(moved=4000), tuple(contenders), lambda *_: Trial(contenders, lambda: [want])
    )


def fails() -> None:
    raise RuntimeError("out of registers\nand more")


def test_a_contender_that_is_wrong_or_fails_is_not_timed(clock: None, tmp_path: Path) -> None:
    right, wrong = Contender(lambda: torch.ones(4, 8)), Contender(lambda: torch.ones(4, 8) * 1.5)
    forgets = Contender(lambda: torch.full((4, 8), float("nan")))
    cases = [
        toy(ours=right, wrong=wrong, fails=Contender(fails), absent="has no such form", forgets=forgets),
        toy(ours=wrong, peer=right),
        Case("ours", "too large", "fast", Work(moved=1), ("ours",), lambda *_: fails()),  # type: ignore[func-returns-value]
    ]
    results = measured(cases, CPU, torch.float32, rounds=2, quick=True)
    first, second, third = results["rows"]
    assert first["seconds"] > 0
    assert first["share"] == pytest.approx(4.0 / first["seconds"])
    assert (first["failure"], first["bound"]) == (None, "bandwidth")
    peers = first["contenders"]
    assert peers["ours"]["error"] == 0.0
    assert len(peers["ours"]["rounds"]) == 2
    assert peers["wrong"]["reason"] == "wrong: a row has the relative error 0.5, and 0.0001 is allowed"
    assert peers["fails"]["reason"] == "RuntimeError: out of registers"
    assert peers["absent"]["reason"] == "has no such form"
    assert peers["forgets"]["reason"].startswith("wrong: a row has the relative error inf")
    assert {peers[name]["seconds"] for name in ("wrong", "fails", "absent", "forgets")} == {None}
    assert second["seconds"] is None
    assert second["failure"].startswith("wrong")
    assert second["contenders"]["peer"]["seconds"] is not None
    assert third["failure"] == "RuntimeError: out of registers"
    write(results, tmp_path)
    text = (tmp_path / "kernels.md").read_text()
    assert f"| ours | 4 x 8 | wrong | {NOT_MEASURED} | {NOT_MEASURED} | {NOT_MEASURED} | wrong: a row" in text
    assert "% of the bandwidth" in text


def test_time_that_a_swap_exposes(clock: None) -> None:
    def takes(seconds: float) -> Contender:
        return Contender(lambda: (time.sleep(seconds), torch.ones(4, 8))[1])

    contenders = {"ours": takes(0.0), COMPUTE: takes(0.01), BESIDE: takes(0.03)}
    (row,) = measured([toy(**contenders)], CPU, torch.float32, rounds=3)["rows"]
    assert 0.015 <= row["exposed_s"] <= 0.2
