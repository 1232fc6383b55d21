"""What FluidInfer's experiments share (6.1): models, machines, requests like ShareGPT's first rounds, contenders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import minifuse.reproduce.fluidinfer.paper as paper
from minifuse.attention.layouts import BALANCE
from minifuse.core.request import Request
from minifuse.execute.cores import share_cores
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.reproduce.contest import serve_counted
from minifuse.reproduce.experiment import Conditions
from minifuse.reproduce.fluidinfer.fitted import fitted
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, hardware
from minifuse.techniques import Technique, mix, technique
from minifuse.trace.metrics import Metrics
from minifuse.workload.conversations import Asked, draw_lengths
from minifuse.workload.laws import Arrival
from minifuse.workload.synthetic import arrive

MAX_BATCH = 4096  # of the baselines: KV is what bounds them
PROCESSORS = {"rtx-4090": 128, "a100-40g": 108}  # streaming multiprocessors, by the makers' data sheets
HOST_BYTES = 256e9
LONGEST = 1.5  # in real time the device holds so many of the longest requests
BLOCK = 16  # tokens of a block, and of a chunk
DTYPE = "float16"


@dataclass(frozen=True, slots=True)
class Contender:
    """A technique, or a mix of its stages."""

    key: str
    head: str
    technique: str
    stages: Mapping[str, str] = field(default_factory=dict)
    in_turn: bool = False  # the layers of the model have the device in turn

    @property
    def row(self) -> Technique:
        return mix(technique(self.technique), **self.stages)


BASELINES = (
    Contender("orca", "orca", "orca"),
    Contender("fastserve", "fastserve", "fastserve"),
    Contender("vllm", "vllm", "vllm"),
)
ABLATIONS = (
    Contender("concatenated", "concat.", "fluid", {"memory": "paged", "attention": "paged"}),
    Contender("swapped", "+ swap", "fluid", {"attention": "paged"}),
)
FLUID = Contender("fluid", "fluid", "fluid")
IN_TURN = Contender("in_turn", "turns", "fluid", in_turn=True)


class Outcome(NamedTuple):
    """Of one run: seconds a token and requests per second as the metrics have them, and what moved.

    `bound_s` is the largest gap between two tokens of one request (the paper's latency bound).
    """

    normalized_s: float
    bound_s: float
    throughput: float  # requests per second
    tokens: float  # per second
    mean_batch: float
    exposed: float  # part of the run's time for which computing waited for transfers
    hidden: float  # part of the run's time in which transfers ran beside computing

    @classmethod
    def of(cls, metrics: Metrics) -> Outcome:
        duration_s = metrics["duration_s"]
        transfers = metrics["transfers"]
        return cls(
            metrics["normalized_latency_s"]["mean"],
            metrics["latency_bound_s"] or 0.0,
            metrics["throughput"]["requests_per_s"],
            metrics["throughput"]["tokens_per_s"],
            metrics["mean_batch_size"],
            transfers["exposed_s"] / duration_s,
            transfers["hidden_s"] / duration_s,
        )


@dataclass(frozen=True, slots=True)
class _Scale:
    """`lengths` are times ShareGPT's; `shares` the rates, of what vllm serves when all requests come at once."""

    clock: Literal["real", "virtual"]
    models: tuple[str, ...]
    machines: tuple[tuple[str, int], ...]
    lengths: float
    requests: int
    rounds: int
    shares: tuple[float, ...]


SCALES = {
    "quick": _Scale("real", ("small",), (("cpu", 1),), 0.05, 16, 1, (0.5, 1.5)),
    "cpu": _Scale("real", ("small",), (("cpu", 1),), 0.25, 60, 3, (0.5, 1.0, 1.5, 2.5)),
    "paper": _Scale("virtual", paper.MODELS, paper.MACHINES, 1.0, 500, 1, (0.7, 1.0, 1.4, 2.0, 3.0)),
}


class Server:
    """A model on a machine, and the requests that it serves.

    Args:
        fast_link: the link to the host is as fast as the device's memory.
    """

    def __init__(
        self, conditions: Conditions, model: str, machine: tuple[str, int], *, fast_link: bool = False
    ) -> None:
        self.conditions = conditions
        self.scale = scale = SCALES[conditions.scale]
        self.source = resolve_text(conditions.model or f"random:{model}")
        self.name, self.count = machine
        self.fast_link = fast_link
        self.num_requests = conditions.requests or scale.requests
        self.rounds = max(conditions.rounds, scale.rounds)
        dtype = conditions.dtype if conditions.dtype != "auto" else DTYPE if self.virtual else "float32"
        token_bytes = self.source.config.kv_bytes_per_token(dtype)
        on: Hardware | str = "cpu"
        if self.virtual:
            on = self._several(hardware(self.name))
            left = on.memory - self.source.config.num_parameters * DTYPE_BYTES[dtype]
            self.tokens = int(left / token_bytes)
            self.host_tokens = int(HOST_BYTES / token_bytes)
        else:
            longest = max(sum(lengths) for lengths in self._lengths())
            self.tokens = math.ceil(LONGEST * longest / BLOCK) * BLOCK
            self.host_tokens = sum(sum(lengths) + BLOCK for lengths in self._lengths())
        self.settings = Settings(
            dtype=dtype, clock=scale.clock, hardware=on, seed=conditions.seed, kv_memory=self.tokens * token_bytes
        )
        self._model: Any = None
        self._fitted: Hardware | None = None
        self.budget: int | None = None  # tokens that saturate this machine; None: those that the model offers

    @property
    def virtual(self) -> bool:
        return self.scale.clock == "virtual"

    @property
    def title(self) -> str:
        on = f"{self.count} x {self.name}" if self.virtual else "this CPU"
        link = ", link as fast as its memory" if self.fast_link else ""
        return f"{self.source.name.removeprefix('random:')}, {on}{link}"

    def _several(self, one: Hardware) -> Hardware:
        """So many GPUs as one machine; messages between them are not modelled."""
        assert one.link is not None
        count = self.count
        return replace(
            one,
            bandwidth=count * one.bandwidth,
            flops=count * one.flops,
            memory=count * one.memory,
            link=count * (one.bandwidth if self.fast_link else one.link),
            processors=count * PROCESSORS[self.name],
        )

    def _lengths(self) -> list[tuple[int, int]]:
        """Prompt and answer of each request: the first rounds of conversations, of those that fit the context (6.1)."""
        asked, found, number = Asked(self.scale.lengths), list[tuple[int, int]](), 0
        while len(found) < self.num_requests:
            first = draw_lengths(asked, number, self.conditions.seed)[0]
            if sum(first) <= self.source.config.max_context:
                found.append(first)
            number += 1
        return found

    def requests(self, rate: float | None) -> list[Request]:
        """All requests, arriving as a Poisson process of this rate (per second), or at once."""
        vocab = self.source.config.vocab_size
        requests = [
            Request(f"r{i}", tuple((i + 7 * k) % vocab for k in range(prompt)), answer, ignore_eos=True)
            for i, (prompt, answer) in enumerate(self._lengths())
        ]
        return requests if rate is None else arrive(requests, Arrival(1 / rate, cv=1.0), self.conditions.seed)

    def start(self) -> None:
        """Load the model, in real time, and measure how many tokens saturate the machine."""
        if not self.virtual and self._model is None:
            from minifuse.simulate.calibration import COUNTS, measure

            share_cores(self.source.config.num_parameters, None)
            self._model = load_weights(self.source, self.settings.dtype, seed=self.conditions.seed)
            self.budget = measure(self._model, (32, 64), chunk=1, rounds=5, counts=COUNTS).saturating_tokens

    def serve(self, contender: Contender, requests: list[Request], *, simulated: bool = False) -> Outcome:
        """Serve the requests with one contender.

        Args:
            simulated: in virtual time, on a machine fitted to this one.
        """
        settings, row = self.settings, contender.row
        options: dict[str, Any] = {
            "batching.max_batch": MAX_BATCH,
            "memory.host": self.host_tokens,
            "memory.block_size": BLOCK,
            "memory.chunk": BLOCK,
            "memory.turns": "layers" if contender.in_turn else "rest",
        }
        if not self.virtual:
            options["attention.balance"] = BALANCE  # which a simulated machine would offer, so that lanes would differ
        known = {key: value for key, value in options.items() if key in row.option_names}
        if contender.technique == "fluid" and self.budget is not None:
            known["batching.token_budget"] = self.budget
        if row.memory == "paged":
            known.pop("memory.host")  # vllm computes again what it evicts
        if simulated:
            self._fitted = self._fitted or fitted(self._model)
            settings = replace(settings, clock="virtual", hardware=self._fitted)
        settings = replace(settings, stage_options=known)
        model = None if settings.clock == "virtual" else self._model
        return Outcome.of(serve_counted(row, self.source, settings, model, requests, not self.virtual).result())

    def facts(self) -> dict[str, Any]:
        """The conditions, as plain values."""
        return {
            "model": self.source.name,
            "dtype": self.settings.dtype,
            "machine": self.title,
            "device_tokens": self.tokens,
            "host_tokens": self.host_tokens,
            "token_budget": self.budget,
            "requests": self.num_requests,
        }


def servers(conditions: Conditions) -> list[Server]:
    """Every model on every machine of the scale; and the largest on one GPU whose link is as fast as its memory."""
    scale = SCALES[conditions.scale]
    models = scale.models[:1] if conditions.model else scale.models
    found = [Server(conditions, model, machine) for model in models for machine in scale.machines]
    if scale.clock == "virtual":
        found.append(Server(conditions, models[-1], scale.machines[0], fast_link=True))
    return found
