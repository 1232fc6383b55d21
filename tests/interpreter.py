"""Triton's interpreter without what it does again and again.

For every launch, and whenever a kernel calls a function, it walks over all of `triton.language` and puts its own
functions in the place of the builtins. That is most of its time, and only the first time changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def prepared_once() -> Iterator[None]:
    """Prepare each module of kernels when it is first used, and let that stand until the context ends."""
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, {}

    def once(function: Any) -> Any:
        module = id(function.__globals__)  # all that the preparation depends on
        if module not in prepared:
            prepared[module] = prepare(function)
        return interpreter._LangPatchScope()  # nothing to be undone when the launch ends

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        yield
    for scope in reversed(prepared.values()):
        scope.restore()
