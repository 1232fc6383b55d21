"""Fingerprints stages and sequences: the bytes stay the same while nothing changes."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from types import FunctionType
from typing import Any

from minifuse.core.cell_graph import CellGraph
from minifuse.core.request import Request
from minifuse.stages import Memory


def _by_identity() -> dict[type, Any]:
    """Return a pickle table that reduces some objects to their identity.

    Requests are frozen, graphs change only their caches, and tensors are large.
    """
    torch = sys.modules.get("torch")  # if torch is not imported, there are no tensors
    kinds = (Request, CellGraph) if torch is None else (Request, CellGraph, torch.Tensor)
    return {**copyreg.dispatch_table, **dict.fromkeys(kinds, lambda held: (int, (id(held),)))}


def fingerprint(held: Any) -> bytes:
    """Return bytes that stay the same for as long as nothing in an object changes."""
    try:
        return _pickled(pickle.Pickler, held)
    except Exception:  # a stage may hold what cannot be pickled
        return _pickled(_Tolerant, held)


def _pickled(kind: type[pickle.Pickler], held: Any) -> bytes:
    file = io.BytesIO()
    pickler = kind(file)
    pickler.dispatch_table = _by_identity()
    pickler.dump(held)
    return file.getvalue()


class _Tolerant(pickle.Pickler):
    """Reduces unpicklable objects to their identity: locks, lambdas, objects of local classes."""

    dispatch_table: dict[type, Any]

    def reducer_override(self, held: Any) -> Any:
        if held is int or type(held) in self.dispatch_table:
            return NotImplemented
        if isinstance(held, type | FunctionType):
            return int, (id(held),)
        try:
            held.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        except Exception:
            return int, (id(held),)
        return NotImplemented


def state(memory: Memory) -> Any:
    """Return a memory's attributes, including those in `__slots__`."""
    return object.__getstate__(memory)
