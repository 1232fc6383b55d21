"""Builds an engine for a technique and a model, and serves requests with it."""

import inspect
import sys
from types import ModuleType

from minifuse.serve.run import serve

__all__ = ["serve"]


class _Callable(ModuleType):
    """Lets the package `minifuse.serve` be called like its function `serve`."""

    __call__ = staticmethod(serve)
    __signature__ = inspect.signature(serve)


sys.modules[__name__].__class__ = _Callable
