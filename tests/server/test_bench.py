"""`minifuse bench`: what clients see is what the engine's trace tells, and the network on top."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.conftest import Running

from minifuse.cli import main
from minifuse.cli.bench import summary
from minifuse.core.request import Request
from minifuse.server.client import Timed

KEYS = (  # of `vllm bench serve --save-result`
    "duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput "
    "output_throughput total_token_throughput mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms "
    "median_tpot_ms std_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms "
    "median_e2el_ms std_e2el_ms p99_e2el_ms"
)


def bench(server: Running, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["bench", "--url", server.url, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_clients_see_what_the_trace_tells_and_never_less(capsys: pytest.CaptureFixture[str]) -> None:
    with Running() as server:
        code, seen = bench(server, capsys, "--requests", "30", "--arrival", "poisson:10ms")
        text = httpx.get(f"{server.url}/metrics").text
    assert code == 0
    assert {*KEYS.split()} <= seen.keys()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    inside = {one.name.removeprefix("vllm:"): one.value for one in samples if "le" not in one.labels}
    assert seen["completed"] == inside["e2e_request_latency_seconds_count"] == 30
    assert seen["total_input_tokens"] == inside["prompt_tokens_total"]
    assert seen["total_output_tokens"] == inside["generation_tokens_total"]
    for outside, name in (("ttft", "time_to_first_token"), ("e2el", "e2e_request_latency")):
        assert seen[f"mean_{outside}_ms"] * 30 > inside[f"{name}_seconds_sum"] * 1e3


def test_turns_of_conversations_are_sent_as_chats(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    before = len(served.log)
    code, seen = bench(served, capsys, "--workload", "crowd:turns=3", "--requests", "4")
    assert code == 0
    assert seen["failed"] == 0
    assert {json.loads(line)["path"] for line in served.log[before:]} == {"/v1/models", "/v1/chat/completions"}


def test_requests_that_fail_are_counted_and_the_first_is_told(
    served: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--url", served.url, "--prompt-length", "fixed:2000", "--requests", "3"]) == 1
    told = capsys.readouterr()
    assert "0 completed, 3 failed" in told.out
    assert "error: 3 requests failed, the first 'r0' with 400:" in told.err


def test_no_server_and_a_wrong_key_end_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:1"]) == 2
    assert "No server of OpenAI's API answers at http://127.0.0.1:1/v1" in capsys.readouterr().err
    with Running(api_keys=("key",)) as server:
        assert main(["bench", "--url", server.url, "--api-key", "other"]) == 2
        assert "401" in capsys.readouterr().err
        assert main(["bench", "--url", server.url, "--api-key", "key", "--requests", "2"]) == 0


def test_statistics_of_answers() -> None:
    def timed(sent_s: float, *token_times: float) -> Timed:
        return Timed(Request("r", (1,)), 4, len(token_times), sent_s, list(token_times), token_times[-1])

    answers = [timed(0.0, 0.1, 0.2, 0.4), timed(1.0, 1.3), Timed(Request("f", (1,)), error="503: no")]
    told = summary(answers, {"ttft": 0.2})
    assert (told["completed"], told["failed"], told["duration"]) == (2, 1, 1.3)
    assert (told["total_input_tokens"], told["total_output_tokens"]) == (8, 4)
    assert told["mean_ttft_ms"] == pytest.approx(200)
    assert told["mean_tpot_ms"] == pytest.approx(150)  # of the first alone
    assert told["median_itl_ms"] == pytest.approx(150)
    assert told["mean_e2el_ms"] == pytest.approx(350)
    assert told["request_goodput"] == pytest.approx(1 / 1.3)
    assert summary([])["mean_ttft_ms"] is None
