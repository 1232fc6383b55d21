"""Every shipped kernel compiled ahead of time for both kinds of GPU, without a GPU and without the interpreter."""

# ruff: noqa: N803 - constants of a kernel are in capitals
from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

triton = pytest.importorskip("triton", reason="Triton is for Linux only")

import triton.language as tl  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from minifuse.core.errors import KernelError, MachineError, UsageError  # noqa: E402
from minifuse.kernels import ahead_of_time, shipped  # noqa: E402
from minifuse.kernels.ahead_of_time import (  # noqa: E402
    CAPABILITIES,
    SCHEMA,
    Compiled,
    Registers,
    compile_form,
    target_of,
)
from minifuse.kernels.launch import INTERPRETED, Shipped  # noqa: E402

pytestmark = pytest.mark.skipif(INTERPRETED, reason="TRITON_INTERPRET is set")

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "kernels-registers.json"
FORMS = shipped()
LIMITS = {80: 163 * 1024, 90: 227 * 1024}


def _forms() -> Iterator[ParameterSet]:
    """Every form for every kind of GPU; in the default suite half of the forms, each for one kind.

    Neighbours are alike (decode, chunk, decode ...), so that two of four are chosen, and a kernel's first form always.
    """
    first = {form.name.split()[0]: i for i, form in reversed([*enumerate(FORMS)])}
    for i, form in enumerate(FORMS):
        chosen = i % 4 in (0, 3) or i in first.values()
        for j, capability in enumerate(CAPABILITIES):
            marks = () if chosen and j == i // 4 % len(CAPABILITIES) else pytest.mark.long
            name = form.name.replace(" ", "-")
            yield pytest.param(form, capability, marks=marks, id=f"{name}-{target_of(capability)}")


@pytest.mark.parametrize(("form", "capability"), [*_forms()])
def test_shipped(form: Shipped, capability: int) -> None:
    compiled = compile_form(form, capability)
    assert compiled.stack == 0, "registers are spilled: take smaller blocks or more warps"
    assert compiled.shared <= LIMITS[capability]
    difference = Registers.read(TABLE).difference(compiled)
    assert difference is None, difference


def test_the_table_has_a_row_for_every_shipped_form() -> None:
    keys = [(form.name, target_of(capability)) for form in FORMS for capability in CAPABILITIES]
    assert len(set(keys)) == len(keys), "two forms have the same name"
    unmatched = Registers.read(TABLE).unmatched(keys)
    assert not unmatched, "\n".join(unmatched)


def test_the_page_is_written_from_the_table(tmp_path: Path) -> None:
    Registers.read(TABLE).write(tmp_path)
    for name in (TABLE.name, TABLE.with_suffix(".md").name):
        assert (tmp_path / name).read_text() == TABLE.with_name(name).read_text()


@triton.jit
def double(out_ptr, x_ptr, stride_x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * stride_x + i, mask=i < n)
    tl.store(out_ptr + row * stride_x + i, 2 * x, mask=i < n)


@triton.jit(do_not_specialize=["stride_x"])
def double_of_any_stride(out_ptr, x_ptr, stride_x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * stride_x + i, mask=i < n)
    tl.store(out_ptr + row * stride_x + i, 2 * x, mask=i < n)


@triton.jit
def spilling(out_ptr, x_ptr, BLOCK: tl.constexpr):
    """Needs far more registers than a thread has."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(x_ptr + BLOCK + i)
    total = tl.sum(x * y, 0)
    tl.store(out_ptr + i, x * total)
    tl.store(out_ptr + BLOCK + i, y * total)


def form_of(kernel: object, block: int = 64, **constants: object) -> Shipped:
    return Shipped("double", kernel, {"BLOCK": block, **constants, "num_warps": 4, "num_stages": 2})


def test_registers_of_a_small_form() -> None:
    compiled = compile_form(form_of(double), 90)
    assert (compiled.name, compiled.target, compiled.stack, compiled.shared) == ("double", "sm_90", 0, 0)
    assert 4 <= compiled.registers <= 64


def test_spills_are_reported() -> None:
    pointers = {"out_ptr": "*fp32", "x_ptr": "*fp32"}
    form = Shipped("spilling", spilling, {"BLOCK": 16384, "num_warps": 1, "num_stages": 1}, pointers)
    compiled = compile_form(form, 90)
    assert compiled.stack > 0
    assert compiled.shared == 0


@pytest.mark.parametrize(("kernel", "divisible"), [(double, {0, 1, 2}), (double_of_any_stride, {0, 1})])
def test_pointers_and_strides_are_divisible(kernel, divisible, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in real launches, unless the kernel forbids specialisation."""
    sources = []

    class Stop(Exception):
        pass

    def compiler(source, target, options):
        sources.append(source)
        assert (target.backend, target.arch, options) == ("cuda", 80, {"num_warps": 4, "num_stages": 2})
        raise Stop

    monkeypatch.setattr(triton, "compile", compiler)
    with pytest.raises(Stop):
        compile_form(form_of(kernel), 80)
    assert sources[0].attrs == {(index,): [["tt.divisibility", 16]] for index in divisible}
    assert sources[0].constants == {(4,): 64}


def test_a_form_that_does_not_fit_its_kernel() -> None:
    with pytest.raises(KernelError, match=r"double: form and kernel differ in STEP: give each constant once"):
        compile_form(form_of(double, STEP=3), 80)
    with pytest.raises(KernelError, match=r"differ in BLOCK"):
        compile_form(dataclasses.replace(form_of(double), form={"num_warps": 4}), 80)


def test_without_the_tools_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvidia:
        @property
        def cuobjdump(self) -> None:
            raise RuntimeError("Cannot find cuobjdump")

    monkeypatch.setattr(triton.knobs, "nvidia", Nvidia())
    with pytest.raises(MachineError, match=r"lacks a tool \(Cannot find cuobjdump\): reinstall its wheel"):
        compile_form(form_of(double), 80)


def test_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "INTERPRETED", True)
    with pytest.raises(MachineError, match="TRITON_INTERPRET is set"):
        compile_form(form_of(double), 80)


ROW = Compiled("double", "sm_90", 20, 0, 16)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = Registers(SCHEMA, triton.__version__, (ROW, Compiled("double", "sm_80", 18, 0, 16)))
    table.write(tmp_path / "new")
    assert Registers.read(tmp_path / "new" / "kernels-registers.json") == table
    assert "| double | sm_90 | 20 | 0 | 16 |\n" in (tmp_path / "new" / "kernels-registers.md").read_text()


def test_differences_from_the_table() -> None:
    table = Registers(SCHEMA, triton.__version__, (ROW,))
    assert table.unmatched([ROW.key]) == []
    assert table.unmatched([ROW.key, ("half", "sm_80")]) == [
        f"half for sm_80 is not in the table: {ahead_of_time.REFRESH}."
    ]
    assert table.unmatched([]) == [f"double for sm_90 is not shipped: {ahead_of_time.REFRESH}."]
    assert table.difference(ROW) is None
    assert table.difference(Compiled("half", "sm_80", 1, 0, 0)) is None  # `unmatched` reports it
    for changes in ({"registers": 21}, {"shared": 0}, {"stack": 8}):
        difference = table.difference(dataclasses.replace(ROW, **changes))
        assert difference is not None
        assert "in the table 20 registers, stack 0, shared 16" in difference
        assert difference.endswith(f"if that is intended, {ahead_of_time.REFRESH}.")
    assert Registers(SCHEMA, "0.0.0", (ROW,)).difference(dataclasses.replace(ROW, registers=21)) is None


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"schema": "minifuse.kernels-registers/1", "triton": "3"}'])
def test_a_file_that_is_not_a_table(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        UsageError, match=r"table.json is not a table of kernels .*: run python -m .*ahead_of_time --out"
    ):
        Registers.read(path)


def command(*arguments: object) -> tuple[int, str, str]:
    app = ahead_of_time.typer.Typer()
    app.command()(ahead_of_time.main)
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return ran.exit_code, ran.stdout, " ".join(ran.stderr.split())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "shipped", lambda: [form_of(double)])
    code, out, err = command("--out", tmp_path)
    assert (code, err) == (0, "")
    assert "sm_80" in out
    table = tmp_path / "kernels-registers.json"
    assert [row.key for row in Registers.read(table).rows] == [("double", "sm_80"), ("double", "sm_90")]

    assert command("--check", table)[0] == 0
    data = json.loads(table.read_text())
    data["rows"][0]["registers"] += 1
    table.write_text(json.dumps(data))
    code, _, err = command("--check", table)
    assert code == 1
    assert "double for sm_80 takes" in err
    data["triton"] = "0.0.0"
    table.write_text(json.dumps(data))
    code, _, err = command("--check", table)
    assert code == 0
    assert err.startswith("The table was made by Triton 0.0.0 and this is")
    data["rows"].pop()
    table.write_text(json.dumps(data))
    code, _, err = command("--check", table)
    assert code == 1
    assert "double for sm_90 is not in the table" in err
    assert command("--check", tmp_path / "none")[0] == UsageError.exit_code
