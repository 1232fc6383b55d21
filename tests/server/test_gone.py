"""Clients that go away, read slowly, or never send what they began: nothing is held for them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pytest
from server.conftest import Running

from minifuse.server import guards, protocol

LONG = {"messages": [{"role": "user", "content": "count from 3 to 299"}], "ignore_eos": True, "temperature": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with Running(kv_memory=2**25) as one:
        yield one


def soon(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait until something holds, as it must within so many seconds."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def is_idle(server: Running) -> bool:
    """Whether nothing is served, and memory's books agree that nothing is reserved."""
    engine = server.engine
    load = engine.load()
    engine.memory.check_integrity()  # type: ignore[attr-defined]
    books = {**vars(engine.arrivals), **vars(server.dialogues), "first": engine.requests.first_token_s}
    names = ("first", "_submitted", "_turns", "_without_text", "_refused", "_pending", "_behind", "_groups", "_taken")
    known = [books[name] for name in names if books[name]] or engine.finished or engine.refused
    return not (load.running or load.waiting or load.usage.reserved or server.gateway.num_unfinished or known)


def is_healthy(server: Running) -> bool:
    return httpx.get(f"{server.url}/health", timeout=5).json() == {"status": "ok"}


def sent(server: Running, body: object, path: str = "/v1/chat/completions") -> socket.socket:
    """Send a request, and read nothing of the answer."""
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(head.encode() + text)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_aborts_its_request(server: Running, stream: bool) -> None:
    connection = sent(server, {**LONG, "stream": stream})
    assert soon(lambda: server.engine.load().running == 1)
    connection.close()
    assert soon(lambda: is_idle(server))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_while_its_request_waits(stream: bool) -> None:
    with Running("serial") as server:
        first = sent(server, {**LONG, "max_tokens": 900})
        assert soon(lambda: server.engine.load().running == 1)
        second = sent(server, {**LONG, "stream": stream})
        assert soon(lambda: server.engine.load().waiting == 1)
        second.close()
        assert soon(lambda: server.engine.load().waiting == 0)
        first.close()
        assert soon(lambda: is_idle(server))


def test_two_hundred_clients_that_leave(server: Running) -> None:
    body = {"prompt": [1] * 10_000, "max_tokens": 10}
    fits = {"prompt": [1] * 900, "max_tokens": 100, "ignore_eos": True}

    async def ask(client: httpx.AsyncClient, body: object) -> None:
        with suppress(httpx.ReadTimeout):
            await client.post(f"{server.url}/v1/completions", json=body)

    async def leave() -> None:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=httpx.Timeout(30, read=0.5), limits=limits) as client:
            await asyncio.gather(*(ask(client, fits if i % 2 else body) for i in range(200)))

    asyncio.run(leave())
    assert is_healthy(server)
    assert soon(lambda: is_idle(server))


def test_a_slow_reader_holds_nobody_up(server: Running) -> None:
    slow = sent(server, {**LONG, "stream": True})
    for _ in range(3):
        told = httpx.post(f"{server.url}/v1/completions", json={"prompt": "add 17 and 25"}, timeout=10).json()
        assert told["choices"][0]["text"] == " 42"
    slow.close()
    assert soon(lambda: is_idle(server))


def test_half_open_connections_and_endless_headers(server: Running) -> None:
    address = ("127.0.0.1", server.port)
    silent = [socket.create_connection(address) for _ in range(100)]
    for connection in silent[:50]:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    endless = socket.create_connection(address, timeout=10)
    endless.sendall(b"GET /health HTTP/1.1\r\n")
    headers = "".join(f"X-{i}: {'x' * 100}\r\n" for i in range(100_000))
    with suppress(ConnectionError):
        endless.sendall(headers.encode())
        assert endless.recv(100).startswith(b"HTTP/1.1 400")
    assert is_healthy(server)
    told = httpx.post(f"{server.url}/v1/completions", json={"prompt": "add 17 and 25"}, timeout=10).json()
    assert told["choices"][0]["text"] == " 42"
    for connection in (*silent, endless):
        connection.close()
    assert soon(lambda: is_idle(server))


def test_connections_without_a_request_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "IDLE_S", 0.2)
    monkeypatch.setattr(guards, "BODY_S", 0.2)
    with Running() as server:
        silent, headless, bodiless = (socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(3))
        headless.sendall(b"POST /v1/completions HTTP/1.1\r\nHost")
        bodiless.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert silent.recv(100) == headless.recv(100) == b""
        assert bodiless.recv(100).startswith(b"HTTP/1.1 408")


def test_what_can_never_be_taken_in_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(most_unfinished=8) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": [[1]] * 5, "n": 2})
        assert answer.status_code == 400
        assert "10 answers are asked for, and the server takes 8" in answer.text


def test_a_body_that_is_too_large_and_a_queue_that_is_full() -> None:
    with Running("serial", most_unfinished=2, most_body_bytes=10_000) as server:
        url = f"{server.url}/v1/completions"
        for headers in ({}, {"Transfer-Encoding": "chunked"}):
            content = json.dumps({"prompt": "a" * 20_000}).encode()
            answer = httpx.post(url, content=iter([content]) if headers else content, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        waiting = [sent(server, {**LONG, "stream": True}) for _ in range(2)]
        assert soon(lambda: server.gateway.num_unfinished == 2), server.log
        answer = httpx.post(url, json={"prompt": "add 17 and 25"})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        for one in waiting:
            one.close()
        assert soon(lambda: is_idle(server))
