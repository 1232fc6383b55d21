"""Whether stages and sequences are as they were: bytes that stay the same for as long as nothing changes."""

from __future__ import annotations

import copyreg
import io
import pickle
from types import FunctionType
from typing import Any

from torch import Tensor

from minifuse.cell_graph import CellGraph
from minifuse.stages import Memory

__all__ = ["fingerprint", "state"]

# Graphs and tensors by identity: what a graph has found out about its own shape is no change.
_BY_IDENTITY = {**copyreg.dispatch_table, **dict.fromkeys((CellGraph, Tensor), lambda held: (int, (id(held),)))}


def fingerprint(held: Any) -> bytes:
    """The same bytes for as long as nothing in it changes."""
    try:
        return _pickled(pickle.Pickler, held)
    except Exception:  # a stage may hold what cannot be pickled
        return _pickled(_Tolerant, held)


def _pickled(kind: type[pickle.Pickler], held: Any) -> bytes:
    file = io.BytesIO()
    pickler = kind(file)
    pickler.dispatch_table = _BY_IDENTITY
    pickler.dump(held)
    return file.getvalue()


class _Tolerant(pickle.Pickler):
    """Takes by identity what cannot be pickled: a lock, a lambda, an object whose class was made in a function."""

    def reducer_override(self, held: Any) -> Any:
        if held is int or type(held) in _BY_IDENTITY:
            return NotImplemented
        if isinstance(held, type | FunctionType):
            return int, (id(held),)
        try:
            held.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        except Exception:
            return int, (id(held),)
        return NotImplemented


def state(memory: Memory) -> Any:
    """What a memory's attributes are, those in `__slots__` too."""
    return object.__getstate__(memory)
