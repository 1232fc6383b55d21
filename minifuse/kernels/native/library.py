"""Compiles the C kernels for this machine, once for each dtype, and loads them."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import cache
from hashlib import blake2b
from pathlib import Path

from minifuse.core.errors import MachineError
from minifuse.io.cache import cache_folder

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = {"float32": (), "bfloat16": ("-DBFLOAT16",)}  # of each dtype that the kernels compute
COMPILED = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
PATIENCE_S = 120


class Wave(ctypes.Structure):
    """The sequences that are attended together: `Wave` in kernels.c, `Ragged` as pointers."""

    _fields_ = (
        *((name, c_void_p) for name in ("cu_seqlens", "contexts", "tables", "first")),
        *((name, c_int64) for name in ("num_sequences", "columns", "page", "num_heads", "num_kv_heads", "head_dim")),
    )


SIGNATURES = {  # as in kernels.c: tensors are pointers, the last argument is the number of threads
    "rms_norm": [c_void_p] * 5 + [c_int64] * 2 + [c_float, c_int],
    "silu_mul": [c_void_p] * 2 + [c_int64] * 2 + [c_int],
    "rotate_and_write": [c_void_p] * 7 + [c_int64] * 5 + [c_int] * 2,
    "attend": [c_void_p] * 4 + [POINTER(Wave), c_int],
    "panel_size": [],
    "pack": [c_void_p] * 2 + [c_int64] * 2,
    "linear": [c_void_p] * 4 + [c_int64] * 3 + [c_int],
    "argmax": [c_void_p] * 2 + [c_int64] * 3 + [c_int],
}


@cache
def native(dtype: str) -> ctypes.CDLL:
    """Load the kernels of a dtype; compile them first if this machine has not.

    Raises:
        MachineError: there is no C compiler, or it cannot compile them.
    """
    import torch  # noqa: F401  (its OpenMP is then the one that the kernels find)

    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise MachineError("There is no C compiler (cc, gcc or clang), and the kernels of a CPU are compiled: get one.")
    command = [compiler, *COMPILED, *FLAGS[dtype], "-shared", "-fPIC", str(SOURCE), "-lm"]
    known = cache_folder() / f"kernels-{_digest(command)}.so"
    try:
        path = known if known.exists() else _compile(command, known)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise MachineError(f"The kernels of a CPU cannot be loaded from {known} ({error}): remove it.") from None
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None if arguments else c_int
    return library


@cache
def has_native(dtype: str) -> bool:
    """Return whether this machine can compile the kernels of a dtype."""
    try:
        return dtype in FLAGS and native(dtype) is not None
    except MachineError:
        return False


def _compile(command: list[str], path: Path) -> Path:
    """Compile beside `path`, then move there, so that no process finds half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=path.parent)
    except OSError:  # a cache folder that cannot be written: compile for this process alone
        folder = tempfile.mkdtemp()
        path = Path(folder) / "kernels.so"
    made = Path(folder) / "made.so"
    try:
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            told = (done.stderr.strip().splitlines() or ["no message"])[0]
            raise MachineError(
                f"The kernels of a CPU cannot be compiled by {command[0]} ({told}): get another compiler."
            )
        made.replace(path)
    except subprocess.TimeoutExpired:
        raise MachineError(f"{command[0]} takes more than {PATIENCE_S} s for the kernels of a CPU.") from None
    finally:
        if path.parent != Path(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _digest(command: list[str]) -> str:
    """Hash what decides the compiled file: source, command, compiler and processor."""
    compiler = subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout
    known = [SOURCE.read_text(), *command[:-2], compiler, platform.machine(), _features()]
    return blake2b("\0".join(known).encode(), digest_size=12).hexdigest()


def _features() -> str:
    """Return what the processor can do, as Linux lists it; elsewhere its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
