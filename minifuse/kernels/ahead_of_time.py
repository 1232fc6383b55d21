"""Compiles every shipped kernel without a GPU, and reports its registers and memory.

    python -m minifuse.kernels.ahead_of_time                             # compile everything for sm_80 and sm_90
    python -m minifuse.kernels.ahead_of_time --out benchmarks/results    # write the table
    python -m minifuse.kernels.ahead_of_time --check benchmarks/results/kernels-registers.json

Registers decide how many programs share an SM, and shared memory whether a program fits at all. A stack means that
registers were spilled to memory. The table depends only on the version of Triton, which includes its own assembler.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import triton
import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import track
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minifuse.core.errors import KernelError, MachineError, MinifuseError, UsageError
from minifuse.io.output import write_whole
from minifuse.kernels import shipped
from minifuse.kernels.launch import INTERPRETED, Shipped

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # of a program on A100 (80), and on H100 and H200 (90)
CAPABILITIES = tuple(SHARED_MEMORY)
SCHEMA: Literal["minifuse.kernels-registers/1"] = "minifuse.kernels-registers/1"
NAME = "kernels-registers"
REFRESH = "run python -m minifuse.kernels.ahead_of_time --out benchmarks/results and commit the files it writes"


@dataclass(frozen=True, order=True)
class Compiled:
    """One form of a kernel, compiled for one kind of GPU."""

    name: str
    target: str  # "sm_90"
    registers: int  # per thread
    stack: int  # bytes per thread; 0: nothing was spilled
    shared: int  # bytes per program

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.target


@dataclass(frozen=True)
class Registers:
    """The committed table of what each form uses when one version of Triton compiles it."""

    schema: Literal["minifuse.kernels-registers/1"]
    triton: str
    rows: tuple[Compiled, ...]

    @classmethod
    def read(cls, path: Path) -> Registers:
        """Read a table written by `write`.

        Raises:
            UsageError: there is no such table at `path`.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except (OSError, ValueError):
            raise UsageError(f"{path} is not a table of kernels ({SCHEMA}): {REFRESH}.") from None

    def write(self, folder: Path) -> None:
        """Write kernels-registers.json and kernels-registers.md into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{NAME}.json", json.dumps(asdict(self), indent=1) + "\n")
        write_whole(folder / f"{NAME}.md", self.page())

    def page(self) -> str:
        """Write the table as Markdown."""
        limits = ", ".join(f"on {target_of(capability)} {size}" for capability, size in SHARED_MEMORY.items())
        rows = "\n".join(
            f"| {row.name} | {row.target} | {row.registers} | {row.stack} | {row.shared} |" for row in self.rows
        )
        return f"""# What the kernels take of a GPU

Compiled ahead of time by Triton {self.triton}, without a GPU (`python -m minifuse.kernels.ahead_of_time`).
Registers and bytes of stack are a thread's, bytes of shared memory a program's. A stack of 0 means that no register
was spilled. Of shared memory a program may have, in bytes, {limits}.

| kernel | target | registers | stack | shared memory |
|---|---|---|---|---|
{rows}
"""

    def unmatched(self, keys: Iterable[tuple[str, str]]) -> list[str]:
        """Name each (name, target) in `keys` without a row, and each row without a key."""
        shipped_keys = set(keys)
        own = {row.key for row in self.rows}
        return [
            f"{name} for {target} is {'not shipped' if (name, target) in own else 'not in the table'}: {REFRESH}."
            for name, target in sorted(shipped_keys ^ own)
        ]

    def difference(self, compiled: Compiled) -> str | None:
        """Describe how a form differs from its row; return None if equal or not comparable."""
        row = {row.key: row for row in self.rows}.get(compiled.key)
        if row is None or row == compiled or self.triton != triton.__version__:
            return None
        was, now = (f"{form.registers} registers, stack {form.stack}, shared {form.shared}" for form in (row, compiled))
        return f"{compiled.name} for {compiled.target} takes {now}, in the table {was}: if that is intended, {REFRESH}."


def target_of(capability: int) -> str:
    return f"sm_{capability}"


def compile_form(form: Shipped, capability: int) -> Compiled:
    """Compile one form for the compute capability 80, 90, ..., as a launch would.

    Triton specialises a launch on the divisibility of its arguments. In serving, tensors begin at multiples of 16 bytes
    and their strides are multiples of 16, so this is assumed for pointers and for arguments called `stride_...`.

    Raises:
        KernelError: the form leaves out a constant of the kernel, or names a constant that the kernel lacks.
        MachineError: Triton runs as an interpreter here, or its tools are missing.
    """
    if INTERPRETED:
        raise MachineError("TRITON_INTERPRET is set, and nothing is compiled: unset it to compile kernels.")
    cuobjdump = _cuobjdump()
    kernel = form.kernel
    constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    if wrong := constants ^ {*form.constants}:
        raise KernelError(
            f"{form.name}: form and kernel differ in {', '.join(sorted(wrong))}: give each constant once."
        )
    signature = form.signature
    attributes = {
        (argument.num,): [["tt.divisibility", 16]]
        for argument in kernel.params
        if _is_divisible(argument, signature[argument.name])
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constexprs=dict(form.constants), attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options=form.options,
    )
    registers, stack = _usage(cuobjdump, compiled.asm["cubin"], compiled.metadata.name)
    return Compiled(form.name, target_of(capability), registers, stack, compiled.metadata.shared)


def _is_divisible(argument: Any, kind: str) -> bool:
    if argument.do_not_specialize or argument.do_not_specialize_on_alignment:
        return False
    return kind.startswith("*") or (kind != "constexpr" and argument.name.startswith("stride_"))


def _cuobjdump() -> str:
    try:
        return str(triton.knobs.nvidia.cuobjdump.path)
    except RuntimeError as error:
        raise MachineError(
            f"Triton {triton.__version__} lacks a tool ({error}): reinstall its wheel from PyPI, which includes it."
        ) from None


def _usage(cuobjdump: str, cubin: bytes, function: str) -> tuple[int, int]:
    """Read how many registers and bytes of stack a thread of `function` uses."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ran = subprocess.run([cuobjdump, "-res-usage", file.name], capture_output=True, text=True, check=False)
    found = re.search(rf"Function {re.escape(function)}:\s+REG:(\d+) STACK:(\d+)", ran.stdout)
    if found is None:
        output = " ".join((ran.stdout + ran.stderr).split())
        raise MachineError(f"{cuobjdump} does not list {function} ({output}): reinstall Triton's wheel from PyPI.")
    return int(found[1]), int(found[2])


def main(
    out: Annotated[Path | None, typer.Option(help=f"Write {NAME}.json and {NAME}.md into this folder.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Compare with this table; exit with 1 if anything differs.")
    ] = None,
) -> None:
    """Compile every shipped kernel for sm_80 and sm_90; print registers, stack, shared memory."""
    err = Console(stderr=True)
    try:
        committed = None if check is None else Registers.read(check)
        jobs = [(form, capability) for form in shipped() for capability in CAPABILITIES]
        rows = tuple(compile_form(*job) for job in track(jobs, "compiling", console=err, transient=True))
    except MinifuseError as error:
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from None
    table = Registers(SCHEMA, triton.__version__, rows)
    typer.echo(table.page())
    if out is not None:
        table.write(out)
    if committed is not None:
        differences = [*committed.unmatched(row.key for row in rows), *filter(None, map(committed.difference, rows))]
        for difference in differences:
            err.print(difference, markup=False, highlight=False, soft_wrap=True)
        if committed.triton != triton.__version__:
            versions = f"made by Triton {committed.triton} and this is {triton.__version__}"
            err.print(f"The table was {versions}: only names were compared.")
        if differences:
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
