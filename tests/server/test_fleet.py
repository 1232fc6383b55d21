"""Replicas on Ray Serve: chats go where their KV is, and on when a replica is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from server.test_process import process

pytest.importorskip("ray")
pytestmark = pytest.mark.long

NAMES = ("ada", "ann", "ben", "bob", "carl", "cora")


def replicas() -> dict[int, int]:
    """The processes of the replicas, and the processor time that each has taken."""
    found = subprocess.run(["pgrep", "-f", "^ray::ServeReplica:minifuse"], capture_output=True, text=True)
    ids = map(int, found.stdout.split())
    return {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) for pid in ids}


def metrics(url: str, name: str) -> list[Sample]:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    return [one for family in families for one in family.samples if one.name == name]


def count_of(url: str) -> dict[str, float]:
    """Count the requests that each engine has answered."""
    counts: Counter[str] = Counter()
    for one in metrics(url, "vllm:request_success_total"):
        counts[one.labels["engine"]] += one.value
    return counts


def test_chats_go_to_the_replica_that_has_their_kv_and_on_when_it_is_killed(tmp_path: Path) -> None:
    with process("--replicas", "2", "--state", str(tmp_path / "s.sqlite")) as server:
        chats: list[list[dict[str, str]]] = [[], [], []]
        for number, name in enumerate(NAMES):
            for i, chat in enumerate(chats):  # no two say the same
                known = server.say(chat, f"remember {name} {10 * (i + 1) + number}")
                assert (known > 0) == (number > 0)  # wherever the others went meanwhile
        assert len(replicas()) == 2
        served = count_of(server.url)
        assert set(served) == {"0", "1"}
        assert sum(served.values()) == len(NAMES) * len(chats)

        earlier = count_of(server.url)
        with ThreadPoolExecutor(6) as clients:  # what arrives together is divided, too
            list(clients.map(lambda i: server.say([], f"count from {i} to {i + 60}"), range(6)))
        given = {engine: count - earlier[engine] for engine, count in count_of(server.url).items()}
        assert sum(given.values()) == 6
        assert min(given.values()) >= 2

        before = replicas()
        body = {"prompt": "count from 3 to 250", "max_tokens": 400, "stream": True}
        text, killed = "", 0
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                if not killed and text.count(" ") == 40:
                    now = replicas()
                    killed = max(now, key=lambda pid: now[pid] - before[pid])
                    os.kill(killed, signal.SIGKILL)
        assert killed
        assert text.split() == [str(number) for number in range(3, 251)]

        for i, chat in enumerate(chats):
            server.say(chat, "recall ada")
            assert chat[-1]["content"] == f"ada {10 * (i + 1)}"
        deadline = time.monotonic() + 60
        while len(replicas()) < 2:
            assert time.monotonic() < deadline, "no replica took the place of the lost one"
            time.sleep(0.5)
        for other in replicas():  # all of them, one after the other: the texts are the server's
            os.kill(other, signal.SIGKILL)
            server.say(chats[0], "recall ann")
            assert chats[0][-1]["content"] == "ann 11"
        assert server.end() == 0
