"""Tells whether two cells are the same: identical sub-graphs that share their weights (BatchMaker, 2.3.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, jit, nn

_WEIGHTS = ("_parameters", "_buffers", "_modules")


def definition(module: nn.Module) -> Any:
    """Make a hashable key of a module; modules with equal keys compute the same.

    Modules with equal keys have equal classes and attributes, and share the memory of their tensors. Modules with
    different keys may compute the same, too: an unhashable value, a GraphModule or a ScriptModule equals only itself.

    Do not use a key after its module is gone: the key may contain addresses of the module's tensors.
    """
    return _frozen(module, set())


def _frozen(value: Any, inside: set[int]) -> Any:
    """Make the key of a value; `inside` has the ids of the containers around it."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if not isinstance(value, nn.Module | dict | list | tuple | set | frozenset):
        return _plain(value)
    if id(value) in inside or isinstance(value, fx.GraphModule | jit.ScriptModule):
        return ("the object", id(value))
    inside = inside | {id(value)}
    if isinstance(value, nn.Module):
        attributes = {name: held for name, held in vars(value).items() if name not in _WEIGHTS}
        held = [attributes, *(dict(getattr(value, name)) for name in _WEIGHTS)]
        return (type(value), *(_frozen(part, inside) for part in held))
    if isinstance(value, dict):
        return (type(value), *((_plain(key), _frozen(held, inside)) for key, held in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value), frozenset(_frozen(held, inside) for held in value))
    return (type(value), *(_frozen(held, inside) for held in value))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return (float, value.hex())  # 0.0 is not -0.0, and a NaN is itself
    try:
        hash(value)
    except TypeError:
        return ("the object", id(value))
    return (type(value), value)  # 1 is not True


def _tensor(tensor: Tensor) -> Any:
    what = (tensor.dtype, tuple(tensor.shape), tensor.device)
    if tensor.device.type == "meta" or tensor.is_mkldnn:  # these have no address
        return ("tensor", id(tensor), *what)
    return ("tensor", tensor.data_ptr(), tensor.stride(), *what)
