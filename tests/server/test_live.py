"""The live page: what has been served, drawn by the replay page; a stream tells when there is more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server.conftest import Running

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


def test_a_recording_keeps_the_last_events_however_busy_the_engine_is(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_EVENTS", 20)
    with ThreadPoolExecutor(3) as clients:
        list(clients.map(lambda i: ask(server, f"count from {i} to {i + 40}", max_tokens=40), range(12)))
    recording = server.gateway.recording
    assert recording is not None
    assert recording.count > 100
    assert len(list(recording.kept())) <= 2 * 20 + 12
    assert 'id="record"' in httpx.get(f"{server.url}/live").text


def test_nobody_is_shown_what_the_holders_of_keys_ask() -> None:
    with Running(api_keys=("one",)) as server:
        assert server.gateway.recording is None
        for path in ("", "/live", "/live/events"):
            assert httpx.get(server.url + path, headers={"Authorization": "Bearer one"}).status_code == 404


def test_a_page_that_is_open_does_not_hold_up_the_end_of_the_server() -> None:
    server = Running(drain_s=20.0)
    with httpx.stream("GET", f"{server.url}/live/events") as stream:
        next(stream.iter_lines())
        begun = time.monotonic()
        server.stop()
    assert time.monotonic() - begun < 10
