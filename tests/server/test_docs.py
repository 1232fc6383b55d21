"""docs/server.md: its example runs, and prints what it says."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
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


def test_a_notebook_shows_the_live_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = text.split("<!-- notebook -->\n```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    with names["server"] as server:
        address = server._repr_html_().split('"')[1]
        assert "live/events" in httpx.get(address).text
        assert 'id="record"' in httpx.get(f"{address}live").text
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
