"""Triton's interpreter without what it does again and again.

For every launch, and whenever a kernel calls a function, it walks over all of `triton.language` and puts its own
functions in the place of the builtins. That is most of its time, and only the first time changes anything.

It also computes whether each sum, difference or product of integers overflows, and then drops the result, because
the assertion that would read it is only made in its debug mode, which is off. And it makes a table of all types each
time that it looks one up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest


@contextmanager
def prepared_once() -> Iterator[None]:
    """Prepare each module of kernels when it is first used, and let that stand until the context ends."""
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, {}
    numpy_type, numpy_types = interpreter._get_np_dtype, {}

    def once(function: Any) -> Any:
        module = id(function.__globals__)  # all that the preparation depends on
        if module not in prepared:
            prepared[module] = prepare(function)
        return interpreter._LangPatchScope()  # nothing to be undone when the launch ends

    def found(kind: Any) -> Any:
        scalar = kind.scalar
        if scalar.name not in numpy_types:
            numpy_types[scalar.name] = numpy_type(scalar)
        return numpy_types[scalar.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        patch.setattr(interpreter, "_get_np_dtype", found)
        builder = interpreter.interpreter_builder
        assert not builder.options.debug
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield
    for scope in reversed(prepared.values()):
        scope.restore()
