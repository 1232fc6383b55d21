"""Metrics for Prometheus, under vLLM's names, so that dashboards made for vLLM show this server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from minifuse.core.request import FinishReason
from minifuse.serve.engine import ServingEngine
from minifuse.trace.lives import Life
from minifuse.trace.log import Event
from minifuse.trace.running import RunningMetrics

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
E2E_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
LABELS = ("model_name", "engine")


class ServerMetrics:
    """Counts what an engine does, from the events of its trace.

    Args:
        engine: the engine's number among several.
    """

    def __init__(self, model: str, engine: int = 0) -> None:
        self.registry = CollectorRegistry()
        self._labels = model, str(engine)
        self._run = RunningMetrics()
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts, history included.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self._preemptions = self._counter("num_preemptions", "Evictions of running requests.")
        self._queries = self._counter("prefix_cache_queries", "Tokens of admitted prompts.")
        self._hits = self._counter("prefix_cache_hits", "Tokens of admitted prompts whose KV was in memory.")
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", TTFT_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Between two tokens of an answer.", TPOT_S)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "The mean for each request.", TPOT_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", E2E_S)
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to admission.", E2E_S)
        self._prefill = self._histogram("request_prefill_time_seconds", "From admission to the first token.", E2E_S)
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.", E2E_S)
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a request's prompt.", TOKENS)
        self._generation = self._histogram("request_generation_tokens", "Tokens of a request's answer.", TOKENS)
        labels = (*LABELS, "finished_reason")
        self._success = Counter("vllm:request_success", "Requests that have ended.", labels, registry=self.registry)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"vllm:{name}", what, LABELS, registry=self.registry).labels(*self._labels)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"vllm:{name}", what, LABELS, registry=self.registry, buckets=buckets).labels(*self._labels)

    def watch(self, engine: ServingEngine) -> None:
        """Add the engine's load to the metrics, read whenever they are collected."""
        self.registry.register(_Load(self._labels, engine))

    def read(self, event: Event) -> None:
        """Count an event; the engine's thread calls this."""
        self._run.read(event)
        match event["event"]:
            case "step":
                self._step(event)
            case "aborted":
                self._end(event["id"])

    def _step(self, event: Event) -> None:
        lives, now = self._run.lives, event["wall"]["end_s"]
        self._preemptions.inc(len(event["evicted"]))
        for name in event["admitted"]:
            self._queries.inc(lives[name].prompt_tokens)
        for _, on_device, on_host in event.get("reused", ()):
            self._hits.inc(on_device + on_host)
        for name, tokens in event["tokens"].items():
            times = lives[name].token_times
            self._generation_tokens.inc(len(tokens))
            if len(times) == len(tokens):  # the first
                self._prompt_tokens.inc(lives[name].prompt_tokens)
                self._ttft.observe(now - lives[name].arrival_s)
            else:
                self._itl.observe(now - times[-len(tokens) - 1])
        for name in event["finished"]:
            self._end(name)

    def _end(self, name: str) -> None:
        """Count a request that has ended."""
        life: Life = self._run.lives[name]
        reason = "abort" if life.reason == FinishReason.ABORTED.value else life.reason
        self._success.labels(*self._labels, reason).inc()
        self._prompt.observe(life.prompt_tokens)
        self._generation.observe(len(life.token_times))
        if life.finished:
            found = life.latencies
            self._e2e.observe(found["e2e_s"])
            self._queue.observe(life.admitted_s - life.arrival_s)
            self._prefill.observe(life.token_times[0] - life.admitted_s)
            self._decode.observe(life.token_times[-1] - life.token_times[0])
            if "tpot_s" in found:
                self._tpot.observe(found["tpot_s"])


class _Load(Collector):
    """An engine's load when the metrics are collected."""

    def __init__(self, labels: tuple[str, ...], engine: ServingEngine) -> None:
        self._labels, self._engine = labels, engine

    def collect(self) -> list[GaugeMetricFamily]:
        load = self._engine.load()
        used = load.usage.reserved + load.usage.kept
        values = (
            ("num_requests_running", "Requests that have memory.", load.running),
            ("num_requests_waiting", "Requests that wait, evicted ones included.", load.waiting),
            ("kv_cache_usage_perc", "KV memory in use on the device, from 0 to 1.", used / load.usage.capacity),
        )
        families = []
        for name, what, value in values:
            family = GaugeMetricFamily(f"vllm:{name}", what, labels=LABELS)
            family.add_metric(self._labels, value)
            families.append(family)
        return families


class _Joined(Collector):
    """Metrics of several engines, each with its own label."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._families: dict[str, Metric] = {}
        for text in texts:
            for family in text_string_to_metric_families(text.decode()):
                self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                self._families[family.name].samples += family.samples

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def joined(texts: Iterable[bytes]) -> bytes:
    """Join the metrics of several engines, in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Joined(texts))
    return generate_latest(registry)
