"""Log-probabilities, metrics, ids, keys, and the schema of what the server takes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import not_a_server_error
from server.conftest import Running, tiny
from server.test_gone import soon

from minifuse.naive import oracle


def metrics(server: Running) -> dict[str, float]:
    """Return the samples of `/metrics` by name, with the reason of an end."""
    text = httpx.get(f"{server.url}/metrics").text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {one.name + one.labels.get("finished_reason", ""): one.value for one in samples if "le" not in one.labels}


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with Running(api_keys=("secret",)) as one:
        yield one


def test_log_probabilities_are_those_of_the_naive_model(served: Running) -> None:
    source, model = tiny()
    prompt = list(source.tokenizer().encode("add 17 and 25"))
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": 2, "logprobs": 3, "temperature": 1.5, "seed": 4}
    told = httpx.post(f"{served.url}/v1/completions", json={**asked, "ignore_eos": True}).json()["choices"][0]
    assert [len(top) for top in told["logprobs"]["top_logprobs"]] == [3, 3]
    expected = torch.log_softmax(oracle.logits(model, prompt)[-1], -1)
    top = expected.topk(3)
    assert list(told["logprobs"]["top_logprobs"][0].values()) == pytest.approx(top.values.tolist(), abs=1e-4)
    [sampled] = [token for token in range(657) if source.tokenizer().decode([token]) == told["logprobs"]["tokens"][0]]
    assert told["logprobs"]["token_logprobs"][0] == pytest.approx(float(expected[sampled]), abs=1e-4)
    assert told["logprobs"]["text_offset"] == [0, len(told["logprobs"]["tokens"][0])]


def test_log_probabilities_of_a_chat_come_with_its_chunks(served: Running) -> None:
    asked = {"messages": [{"role": "user", "content": "sort 7 2 5"}], "logprobs": True, "top_logprobs": 2}
    url = f"{served.url}/v1/chat/completions"
    whole = httpx.post(url, json=asked).json()["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in whole[:3]] == [" 2", " 5", " 7"]
    assert all(one["logprob"] == one["top_logprobs"][0]["logprob"] > -0.1 for one in whole)
    lines = httpx.post(url, json={**asked, "stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = [one for chunk in chunks for one in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert pieces == whole


def test_metrics_count_what_was_served() -> None:
    with Running() as server:
        url = f"{server.url}/v1/completions"
        before = metrics(server)
        assert before["vllm:num_requests_running"] == before["vllm:num_requests_waiting"] == 0
        for prompt, reason in (("add 17 and 25", "stop"), ("count from 3 to 99", "length")):
            told = httpx.post(url, json={"prompt": prompt, "max_tokens": 5}).json()
            assert told["choices"][0]["finish_reason"] == reason
        after = metrics(server)
    assert after["vllm:prompt_tokens_total"] == 9
    assert after["vllm:generation_tokens_total"] == 7
    assert after["vllm:request_success_totalstop"] == after["vllm:request_success_totallength"] == 1
    assert after["vllm:time_to_first_token_seconds_count"] == after["vllm:e2e_request_latency_seconds_count"] == 2
    assert after["vllm:inter_token_latency_seconds_count"] == 5
    assert after["vllm:request_generation_tokens_sum"] == 7
    parts = [after[f"vllm:request_{name}_time_seconds_sum"] for name in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(after["vllm:e2e_request_latency_seconds_sum"])
    assert 0 < after["vllm:time_to_first_token_seconds_sum"] < after["vllm:e2e_request_latency_seconds_sum"]


def test_a_request_has_an_id_and_a_line_in_the_log(keyed: Running) -> None:
    headers = {"Authorization": "Bearer secret", "X-Request-Id": "mine-1"}
    answer = httpx.post(f"{keyed.url}/v1/completions", json={"prompt": "add 17 and 25"}, headers=headers)
    assert answer.headers.get_list("X-Request-Id") == ["mine-1"]
    assert soon(lambda: any("mine-1" in line for line in keyed.log))  # it is written when the answer has been sent
    told = json.loads(next(line for line in keyed.log if "mine-1" in line))
    assert (told["request_id"], told["status"], told["completion_tokens"]) == ("mine-1", 200, 2)
    other = httpx.get(f"{keyed.url}/health", headers={"X-Request-Id": "not one\u00e9".encode("latin-1")})  # type: ignore[dict-item]
    assert other.headers["X-Request-Id"].startswith("req-")
    assert not any("secret" in line for line in keyed.log)


@pytest.mark.parametrize("key", [None, "Bearer", "Bearer wrong", "Basic secret", "Bearer secret2"])
def test_who_has_no_key_is_not_let_in(keyed: Running, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key}
    answer = httpx.post(f"{keyed.url}/v1/completions", json={"prompt": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{keyed.url}/health", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b'{"prompt": "a", "prompt_": 1}', "prompt_"),
        (b'{"prompt": "\\ud800"}', "prompt.str"),
        (b'{"prompt": []}', "prompt.str"),
        (b'{"prompt": [9999]}', None),
        (b'{"prompt": ""}', None),
        (b'{"prompt": "a", "n": 0}', "n"),
        (b'{"prompt": "a", "stop": ["1", "2", "3", "4", "5"]}', "stop.list[constrained-str]"),
        (b'{"prompt": "a", "temperature": NaN}', None),
        (b'{"prompt": "a", "stream_options": {"include_usage": true}}', None),
    ],
)
def test_a_wrong_body_is_answered_with_400(served: Running, body: bytes, param: str | None) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    request_id = answer.headers["X-Request-Id"]
    assert soon(lambda: any(request_id in line and '"error"' in line for line in served.log))
    if param in ("prompt_", "n"):
        assert error["param"] == param


def test_curl_gets_a_stream(served: Running) -> None:
    body = json.dumps({"prompt": "sort 7 2 5", "stream": True})
    command = ["curl", "-sN", f"{served.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    texts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-2]]
    assert "".join(texts) == " 2 5 7"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics"])
def test_no_request_fails_the_server(served: Running, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path != path:
            continue

        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            case.call_and_validate(checks=[not_a_server_error])

        check()
