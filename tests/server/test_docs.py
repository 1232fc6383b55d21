"""docs/server.md: its example runs, and prints what it says."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from server.conftest import Running

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_chat_prints_what_the_page_says(served: Running) -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = text.split("<!-- chat -->\n```python\n")[1].split("```")[0]
    expected = text.split("```text\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.replace("http://127.0.0.1:8000", served.url), {})
    assert printed.getvalue() == expected
