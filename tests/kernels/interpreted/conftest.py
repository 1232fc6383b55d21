"""The kernels in Triton's interpreter: tests/kernels/test_interpreter.py runs each of these files in a process of its
own with TRITON_INTERPRET=1, which must be set before a kernel is imported.

The interpreter reads and writes any address that a kernel computes. Here the addresses are checked: a lane that its
mask admits and that touches memory outside the tensors of the launch fails the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from interpreter import prepared_once
from torch import Tensor

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


class Allowed:
    """The memory that the tensors of one launch span, each from its first element to its last."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        spans = sorted((*_span(tensor), name) for name, tensor in tensors.items() if tensor.numel())
        self.names = [name for _, _, name in spans]
        self.starts = np.array([start for start, _, _ in spans], dtype=np.uint64)
        self.ends = np.array([end for _, end, _ in spans], dtype=np.uint64)
        self.reach = np.maximum.accumulate(self.ends) if spans else self.ends  # tensors may overlap

    def check(self, access: str, pointers: Any, mask: np.ndarray | None = None) -> None:
        """Raise `IndexError` unless every lane of `pointers` that `mask` admits is inside."""
        lanes = np.asarray(pointers.data, dtype=np.uint64)
        if mask is not None:
            lanes = lanes[np.broadcast_to(np.asarray(mask, dtype=bool), lanes.shape)]
        lanes = lanes.ravel()
        if lanes.size == 0:
            return
        size = np.uint64(max(pointers.get_element_ty().primitive_bitwidth // 8, 1))
        owner = np.searchsorted(self.starts, lanes, side="right") - 1
        inside = np.zeros(lanes.shape, dtype=bool)
        owned = owner >= 0
        inside[owned] = lanes[owned] + size <= self.reach[owner[owned]]
        if not inside.all():
            raise IndexError(self._message(access, lanes[~inside], int(size)))

    def _message(self, access: str, lanes: np.ndarray, size: int) -> str:
        """The message: it names the tensor nearest to the first lane, which is the likeliest one."""
        lane = int(lanes[0])
        spans = [(int(start), int(end)) for start, end in zip(self.starts, self.ends, strict=True)]
        where = "no memory"
        if spans:
            distances = [max(start - lane, lane - end) for start, end in spans]
            nearest = distances.index(min(distances))
            start, end = spans[nearest]
            where = f"element {(lane - start) // size} of {self.names[nearest]}, which spans {(end - start) // size}"
        return f"out of bounds: a {access} in {lanes.size} lanes, the first one at {where}"


def _span(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


@pytest.fixture(autouse=True, scope="session")
def bounds_are_checked() -> Iterator[None]:
    with prepared_once(), pytest.MonkeyPatch.context() as patch:
        _check_bounds(patch)
        yield


def _check_bounds(patch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    allowed = Allowed({})
    to_host = interpreter.GridExecutor._init_args_hst

    def record_tensors(executor: Any, arguments: Any, keywords: Any) -> Any:
        """Called as every launch begins: its tensors, or copies of them if they are on a device, become `allowed`."""
        nonlocal allowed
        on_host, keywords_on_host = to_host(executor, arguments, keywords)
        named = {**dict(zip(executor.arg_names, on_host, strict=False)), **keywords_on_host}
        allowed = Allowed({name: value for name, value in named.items() if isinstance(value, Tensor)})
        return on_host, keywords_on_host

    def checked(name: str, access: str, pointers: int, mask: int | None) -> Callable[..., Any]:
        """The builder's method `name`; its arguments at the positions `pointers` and `mask` are checked first."""
        method = getattr(interpreter.InterpreterBuilder, name)

        def wrapped(builder: Any, *arguments: Any, **keywords: Any) -> Any:
            allowed.check(access, arguments[pointers], None if mask is None else arguments[mask].data)
            return method(builder, *arguments, **keywords)

        return wrapped

    patch.setattr(interpreter.GridExecutor, "_init_args_hst", record_tensors)
    for name, access, pointers, mask in (
        ("create_masked_load", "load", 0, 1),
        ("create_masked_store", "store", 0, 2),
        ("create_atomic_rmw", "atomic operation", 1, 3),
        ("create_atomic_cas", "atomic operation", 0, None),
    ):
        patch.setattr(interpreter.InterpreterBuilder, name, checked(name, access, pointers, mask))


@pytest.fixture
def poisoned_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the workspace of splits with NaN, which no kernel may read."""
    from minifuse.kernels import splits

    workspace = splits.workspace

    def poisoned(q: Tensor, count: int) -> tuple[Tensor, ...]:
        return tuple(buffer.fill_(float("nan")) for buffer in workspace(q, count))

    monkeypatch.setattr(splits, "workspace", poisoned)
