"""A page as it is printed: pictures as SVG, beside each other in one document."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from replay.conftest import Screen


def test_no_picture_uses_what_another_defines(screen: Screen, pages: Callable[..., Path]) -> None:
    """Patterns of B's lanes are not those of A's, and charts are not clipped as lanes are."""
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=5")
    screen.js("window.dispatchEvent(new Event('beforeprint'))")
    used, foreign = screen.js(
        "const pictures = [...document.querySelectorAll('svg')];"
        "const uses = pictures.flatMap((picture) => [...picture.innerHTML.matchAll(/url\\(#([^)]+)\\)/g)]"
        ".map(([, id]) => [picture, id]));"
        "return [uses.length, uses.filter(([picture, id]) => document.getElementById(id)?.closest('svg') !== picture)"
        ".map(([, id]) => id)]"
    )
    screen.js("window.dispatchEvent(new Event('afterprint'))")
    assert used > 10
    assert foreign == []
