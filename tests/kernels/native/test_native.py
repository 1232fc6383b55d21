"""The C kernels of a CPU against float64 and their plain twins; what happens without a compiler."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kernel_cases import SHAPES, expected, lay_out, parts_of
from torch import Tensor

from minifuse.attention.stage import PerSequenceStage
from minifuse.core.errors import LawBroken, MachineError, UsageError
from minifuse.core.report import NOT_FINITE
from minifuse.kernels.native import library
from minifuse.kernels.native.operators import NativeOperators, NativeWave
from minifuse.kernels.operators import TORCH
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.rotary import RotaryRows

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
RAGGED = [(0, 7), (3, 150), (1, 1), (0, 30), (1, 64), (65, 65), (1, 129), (0, 1), (2, 2)]

if not library.has_native("float32"):
    pytest.skip("there is no C compiler", allow_module_level=True)


def operators(dtype: torch.dtype) -> NativeOperators:
    return NativeOperators(library.name_of(dtype))


def attend(q: Tensor, keys: Tensor, values: Tensor, ragged: Ragged) -> Tensor:
    """Attend KV that is written already: all rows are idle, and are attended nevertheless."""
    wave = NativeWave.of(ragged, q.shape[1], keys.shape[1], q.shape[2])
    wave.check(len(keys))
    unwritten = q.new_full((len(q), 2 * keys.shape[1], q.shape[2]), math.nan)
    heads, slots = torch.cat([q, unwritten], 1), torch.full((len(q),), -1)
    return operators(q.dtype).attend(heads, None, keys[None], values[None], slots, 0, wave).view_as(q)


def assert_near(got: Tensor, want: Tensor, factor: float = 1.0) -> None:
    tolerance = factor * TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("page", [0, 5, 16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_any_lengths(dtype: torch.dtype, shape: tuple[int, int, int], page: int) -> None:
    parts = parts_of(RAGGED, *shape)
    assert_near(attend(*lay_out(parts, page, dtype)), expected(parts), factor=3)


def test_attention_of_a_long_chunk() -> None:
    """Several units of queries, and steps of 64 tokens that need no mask."""
    parts = parts_of([(150, 280)], 6, 2, 64)
    assert_near(attend(*lay_out(parts, 16)), expected(parts), factor=3)


@pytest.mark.parametrize("page", [0, 16])
def test_rows_that_begin_with_empty_columns(page: int) -> None:
    parts = parts_of([(4, 70), (1, 129), (3, 3), (65, 65)])
    first = [66, 120, 2, 60]
    q, keys, values, ragged = lay_out(parts, page, first=first)
    got = attend(q, keys, values, ragged)
    assert_near(got, expected(parts, first), factor=3)


def test_a_row_that_sees_nothing_of_a_step_is_finite() -> None:
    """The first step of 64 columns is empty for a query in the second."""
    parts = parts_of([(70, 140)], 2, 2, 16)
    assert_near(attend(*lay_out(parts, 0, first=[100])), expected(parts, [100]), factor=3)


def test_large_scores_do_not_overflow() -> None:
    parts = parts_of([(3, 90)], 2, 1, 16)
    q, keys, values, ragged = lay_out(parts, 16)
    got = attend(q * 1e4, keys, values, ragged)
    assert got.isfinite().all()


def test_nan_stays_nan() -> None:
    parts = parts_of([(1, 90), (1, 5)], 2, 1, 16)
    q, keys, values, ragged = lay_out(parts, 16)
    keys[ragged.slots(0, torch.tensor([3]))] = math.nan
    got = attend(q, keys, values, ragged)
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


def test_a_table_beyond_the_storage_is_refused() -> None:
    q, keys, values, ragged = lay_out(parts_of([(1, 20), (1, 3)]), 16)
    with pytest.raises(LawBroken, match="names slots beyond"):
        attend(q, keys[:20], values[:20], ragged)


def test_a_last_block_may_reach_beyond_the_storage() -> None:
    parts = parts_of([(1, 20)])
    q, keys, values, _ = lay_out(parts, 16)
    (context, _) = parts[0]
    keys[:20], values[:20] = context.k, context.v
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    numbers = [torch.tensor(one, dtype=torch.int32) for one in ([0, 1], [20])]
    assert_near(
        attend(q, keys[:20].clone(), values[:20].clone(), Ragged(*numbers, table, 16, 1, 20)), expected(parts), 3
    )


@pytest.mark.parametrize("size", [1, 15, 16, 33, 768])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_are_their_twins(dtype: torch.dtype, size: int) -> None:
    x, residual, weight = (torch.randn(n, size).to(dtype) for n in (5, 5, 1))
    weight = weight[0]
    assert_near(operators(dtype).rms_norm(x, weight, 1e-5), TORCH.rms_norm(x.double(), weight.double(), 1e-5))
    got, total = operators(dtype).add_rms_norm(x, residual, weight, 1e-5)
    assert_near(total, x.double() + residual.double())
    assert_near(got, TORCH.rms_norm(total.double(), weight.double(), 1e-5))


@pytest.mark.parametrize("size", [1, 16, 41, 2048])
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_is_its_twin(dtype: torch.dtype, size: int) -> None:
    gate_up = (20 * torch.randn(7, 2 * size)).to(dtype)
    assert_near(operators(dtype).silu_mul(gate_up), TORCH.silu_mul(gate_up.double()), factor=2)


def test_swiglu_of_what_is_not_finite_or_large() -> None:
    gate = torch.tensor([math.nan, 200.0, -200.0, math.inf] * 5)
    got = operators(torch.float32).silu_mul(torch.cat([gate, torch.ones(20)])[None])[0]
    assert got[0].isnan()
    assert got[16].isnan()
    assert got[1:4].tolist() == [200.0, 0.0, math.inf] == got[17:20].tolist()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [0, 8, 24])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_rotated_and_written_as_their_twin_does(dtype: torch.dtype, dim: int, interleaved: bool) -> None:
    """Five sequences of one query; rows 1 and 4 are idle, the others attend an earlier token and their own."""
    heads = torch.randn(5, 6 + 2 * 2, 24).to(dtype)
    angles = [torch.randn(5, 1, dim).to(dtype) for _ in range(2)]
    rotary = RotaryRows(*angles, interleaved) if dim else None
    wide = RotaryRows(*(one.double() for one in angles), interleaved) if dim else None
    slots, live = torch.tensor([3, -1, 0, 7, -1]), torch.tensor([0, 2, 3])
    stored = [torch.randn(2, 8, 2, 24).to(dtype) for _ in range(2)]
    want = [one.double() for one in stored]
    tables = [[5, 3], [1, -1], [2, 0], [6, 7], [1, -1]]
    numbers = [torch.tensor(one, dtype=torch.int32) for one in (range(6), [2, 1, 2, 2, 1], tables)]
    wave = NativeWave.of(Ragged(*numbers, 1, 1, 2), 6, 2, 24)
    got = operators(dtype).attend(heads, rotary, *stored, slots, 1, wave).view(5, 6, 24)
    q = TORCH.rotate_and_write(heads.double(), wide, want[0][1], want[1][1], slots, live)
    for found, one in zip(stored, want, strict=True):
        assert_near(found, one)
    for row, table in enumerate(tables):
        read = [slot for slot in table if slot >= 0]
        k, v = (one[1, read].repeat_interleave(3, 1) for one in want)  # three heads share a KV head
        scores = torch.einsum("hd,thd->ht", q[row], k) / math.sqrt(24)
        assert_near(got[row], torch.einsum("ht,thd->hd", scores.softmax(-1), v), factor=6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax_is_the_first_of_the_largest(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 1000).to(dtype)
    logits[0, [40, 900]] = 9.0
    logits[1, 999] = 9.0
    logits[2, 500], logits[3, 3], logits[4] = math.nan, math.inf, -math.inf
    logits[5, :990] = -math.inf
    logits[5, 995] = 50.0
    assert operators(dtype).argmax(logits) == [40, 999, NOT_FINITE, NOT_FINITE, NOT_FINITE, 995]
    assert operators(dtype).argmax(logits[:2].double()) == [40, 999]


def test_operators_are_sent_to_other_processes() -> None:
    sent = pickle.loads(pickle.dumps(operators(torch.float32)))
    assert sent.argmax(torch.tensor([[1.0, 3.0, 2.0]])) == [1]


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing has been compiled; the cache folder is this one. Other tests do not see what a test found here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for one in (library.native, library.has_native):
        one.cache_clear()
    yield tmp_path / "minifuse"
    for one in (library.native, library.has_native):
        one.cache_clear()


def test_without_a_compiler_torch_attends(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    assert type(PerSequenceStage().backend()).__name__ == "TorchPerSequence"
    with pytest.raises(MachineError, match="There is no C compiler"):
        PerSequenceStage(PerSequenceStage.Options(backend="native")).backend()


def test_a_compiler_that_fails_is_told(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "COMPILED", ("-no-such-flag",))
    with pytest.raises(MachineError, match=r"cannot be compiled by .* \(.*no-such-flag.*\): get another compiler."):
        library.native("float32")
    assert not library.has_native("float32")
    assert [*anew.iterdir()] == []


def test_kernels_are_compiled_once(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.native("float32")
    (made,) = anew.iterdir()
    library.native.cache_clear()
    monkeypatch.setattr(library, "_compile", None)  # a second call would fail
    library.native("float32")
    assert [*anew.iterdir()] == [made]


def test_a_damaged_file_is_told(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_digest", lambda command: "damaged")
    anew.mkdir()
    (anew / "kernels-damaged.so").write_bytes(b"no library")
    with pytest.raises(MachineError, match="remove it"):
        library.native("float32")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(anew: Path) -> None:
    anew.parent.chmod(0o500)
    assert library.has_native("float32")


def test_other_dtypes_are_torchs() -> None:
    assert not library.has_native("float16")
    with pytest.raises(UsageError, match="float32 or bfloat16; give attention"):
        PerSequenceStage(PerSequenceStage.Options(backend="native")).check("cpu", "float16")


def test_the_kernels_have_no_warnings() -> None:
    for flags in library.FLAGS.values():
        command = [
            "cc",
            *library.COMPILED,
            *flags,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            *map(str, library.SOURCES),
        ]
        subprocess.run(command, check=True)
