"""The live page: what has been served, drawn by the replay page; a stream tells when there is more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server.conftest import Running
from server.test_gone import soon

from minifuse.server import live


@pytest.fixture
def server() -> Iterator[Running]:
    with Running() as one:
        yield one


def ask(server: Running, prompt: str = "sort 7 2 5", **more: Any) -> str:
    told = httpx.post(f"{server.url}/v1/completions", json={"prompt": prompt, **more}).json()
    return str(told["choices"][0]["text"])


def test_the_page_shows_what_was_served(server: Running) -> None:
    assert "Nothing has been served yet" in httpx.get(f"{server.url}/live").text
    assert ask(server) == " 2 5 7"
    page = httpx.get(f"{server.url}/live").text
    assert 'id="record"' in page
    assert "live/events" in httpx.get(server.url).text


def test_a_stream_tells_when_there_is_more_to_draw(server: Running) -> None:
    ask(server)
    with httpx.stream("GET", f"{server.url}/live/events") as stream:
        counts = (int(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        first = next(counts)
        ask(server)
        assert next(counts) > first > 0


def test_a_full_recording_begins_anew_when_nothing_is_served(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_EVENTS", 4)
    ask(server, "count from 3 to 30", max_tokens=20)
    recording = server.gateway.recording
    assert recording is not None
    assert soon(lambda: len(list(recording.kept())) == 1)
    assert recording.count > 20
    assert "Nothing has been served yet" in httpx.get(f"{server.url}/live").text
