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
from typing import TYPE_CHECKING

from minifuse.core.errors import MachineError
from minifuse.io.cache import cache_folder

if TYPE_CHECKING:
    import torch

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
FLAGS = {"float32": (), "bfloat16": ("-DBFLOAT16",)}  # of each dtype that the kernels compute
COMPILED = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
PATIENCE_S = 120


class Product(ctypes.Structure):
    """A product with packed weights and perhaps a bias: `Product` in kernels.h."""

    _fields_ = (("panels", c_void_p), ("bias", c_void_p), ("inputs", c_int64), ("outputs", c_int64))


class Layer(ctypes.Structure):
    """A LLaMA layer: `Layer` in layer.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm")),
        *((name, Product) for name in ("qkv", "out", "gate_up", "down")),
        ("eps", c_float),
    )


class Rotation(ctypes.Structure):
    """The angles of rows: `Rotation` in attention.c."""

    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("dim", c_int64), ("interleaved", c_int64))


class Wave(ctypes.Structure):
    """The sequences that are attended together: `Wave` in attention.c, `Ragged` as pointers."""

    _fields_ = (
        *((name, c_void_p) for name in ("cu_seqlens", "contexts", "tables", "first")),
        *((name, c_int64) for name in ("num_sequences", "columns", "page", "num_heads", "num_kv_heads", "head_dim")),
    )


SIGNATURES = {  # as in C: tensors are pointers, the last argument is the number of threads
    "panel_size": [],
    "pack": [c_void_p] * 2 + [c_int64] * 2,
    "linear": [c_void_p] * 2 + [POINTER(Product), c_int64, c_int],
    "rms_norm": [c_void_p] * 5 + [c_int64] * 2 + [c_float, c_int],
    "silu_mul": [c_void_p] * 2 + [c_int64] * 2 + [c_int],
    "argmax": [c_void_p] * 2 + [c_int64] * 3 + [c_int],
    "attend": [c_void_p] * 2 + [POINTER(Rotation)] + [c_void_p] * 3 + [POINTER(Wave), c_int64, c_int],
    "pre_attention": [c_void_p] * 2 + [POINTER(Layer), c_int64, c_int],
    "post_attention": [c_void_p] * 3 + [POINTER(Layer), c_int64, c_int],
}


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype: "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


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
    options = [compiler, *COMPILED, *FLAGS[dtype], "-shared", "-fPIC"]
    command = [*options, *[str(path) for path in SOURCES if path.suffix == ".c"], "-lm"]
    known = cache_folder() / f"kernels-{_digest(options)}.so"
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


def _digest(options: list[str]) -> str:
    """Hash what decides the compiled file: sources, options, compiler and processor."""
    compiler = subprocess.run([options[0], "--version"], capture_output=True, text=True).stdout
    known = [*[path.read_text() for path in SOURCES], *options, compiler, platform.machine(), _features()]
    return blake2b("\0".join(known).encode(), digest_size=12).hexdigest()


def _features() -> str:
    """Return what the processor can do, as Linux lists it; elsewhere its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
