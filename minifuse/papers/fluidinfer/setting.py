"""FluidInfer's experiments (6.1): models, machines, contenders, requests like ShareGPT's first turns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import minifuse.papers.fluidinfer.paper as paper
from minifuse.attention.layouts import BALANCE
from minifuse.core.request import Request
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import TextSource
from minifuse.papers.contest import Bench, known, several, text_model
from minifuse.papers.curve import Contender, Curve, steady_rate
from minifuse.papers.experiment import Conditions, Say
from minifuse.papers.fluidinfer.fitted import fitted
from minifuse.papers.page import notes
from minifuse.simulate.cost import Hardware, hardware
from minifuse.trace.running import RunningMetrics
from minifuse.workload.conversations import MEANS, Asked, draw_lengths
from minifuse.workload.laws import Arrival
from minifuse.workload.synthetic import arrive

Curves = Mapping[str, Curve]  # by contender

MAX_BATCH = 4096  # large enough that only KV memory bounds the batches
PROCESSORS = {"rtx-4090": 128, "a100-40g": 108}  # streaming multiprocessors, by the makers' data sheets
HOST_BYTES = 256e9
LONGEST = 1.5  # in real time, the device's KV memory holds this many times the longest request
BLOCK = 16  # tokens of a block, and of a chunk
PROMPTS = 2560  # tokens of whole prompts in an iteration of vllm: the default of vLLM 0.2
FILLS, MOST = 3, 2000  # requests that need this many times the device's KV memory; but no more than MOST

VLLM = Contender("vllm", "vllm", "vllm")
ORCA = Contender("orca", "orca", "orca")  # sets aside the longest context for each request
ORCA_TOLD = Contender("orca_told", "orca told", "orca")  # knows how long each answer will be
OTHERS = (ORCA, Contender("fastserve", "fastserve", "fastserve"))
ROTATE = Contender("rotate", "rotate", "fluid", {"memory.overflow": "rotate"})  # the paper's design
FLUID = Contender("fluid", "fluid", "fluid")
HOST = Contender("host", "host", "fluid", {"memory.turns": "host"})
LAYERS = Contender("layers", "layers", "fluid", {"memory.turns": "layers"})
INT8 = Contender("int8", "layers, int8", "fluid", {"memory.turns": "layers", "memory.host_dtype": "int8"})
PARTS = (
    Contender("concatenated", "concat.", "fluid", stages={"memory": "paged", "attention": "paged"}),
    Contender("packed", "+ pack", "fluid", stages={"memory": "paged"}),
    ROTATE,
    FLUID,
    HOST,
)
CONTENDERS = (*OTHERS, VLLM, *PARTS)


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a scale measures.

    `lengths` multiplies ShareGPT's lengths. `shares` are the rates, as shares of vllm's throughput when all requests
    arrive at once.
    """

    models: tuple[str, ...]
    machines: tuple[tuple[str, int], ...]
    lengths: float
    requests: int
    shares: tuple[float, ...]


SCALES = {
    "quick": _Scale(("small",), (("cpu", 1),), 0.05, 16, (0.5, 1.5)),
    "cpu": _Scale(("small",), (("cpu", 1),), 0.25, 40, (0.5, 1.0, 2.0)),
    "paper": _Scale(paper.MODELS, paper.MACHINES, 1.0, 500, (0.7, 1.0, 1.4, 2.0, 3.0)),
}


class Server(Bench[TextSource]):
    """Serves requests with one model on one machine.

    Args:
        machine: the kind and the number of GPUs. They count as one machine; messages between them are not modelled.
        fast_link: whether the link to the host is as fast as the device's memory.
        kv_memory: bytes for KV in virtual time; None: what the weights leave.
    """

    def __init__(
        self,
        conditions: Conditions,
        model: str,
        machine: tuple[str, int],
        *,
        fast_link: bool = False,
        kv_memory: float | None = None,
    ) -> None:
        self.scale = SCALES[conditions.scale]
        self.name, self.count = machine
        self.fast_link = fast_link
        one = hardware(self.name)
        link = one.bandwidth if fast_link else one.link
        together = several(replace(one, link=link, processors=PROCESSORS.get(self.name)), self.count)
        super().__init__(conditions, text_model(conditions, model), together, real_dtype="float32")
        if self.virtual:
            left = together.memory - self.source.config.num_parameters * DTYPE_BYTES[self.dtype]
            self.tokens = int((left if kv_memory is None else kv_memory) / self.slot_bytes)
            self.host_tokens = int(HOST_BYTES / self.slot_bytes)
        self.longest = self.source.config.max_context  # tokens that orca sets aside for a request
        self.draw(conditions.requests or self._enough())
        # A model that leaves no room for KV is refused before anything runs.
        self.settings = replace(self.settings, kv_memory=self.tokens * self.slot_bytes)
        self._fitted: Hardware | None = None
        self.swept: tuple[Curves, Curves] | None = None  # as measured and as simulated, when both are complete
        self.budget: int | None = None  # tokens that saturate this machine, as measured; None: as the cost model says

    @property
    def title(self) -> str:
        on = f"{self.count} x {self.name}" if self.virtual else "this CPU"
        link = ", link as fast as its memory" if self.fast_link else ""
        return f"{self.source.name.removeprefix('random:')}, {on}{link}"

    @property
    def prompt_tokens(self) -> int:
        """The tokens of whole prompts that vllm computes in an iteration."""
        return int(PROMPTS * self.scale.lengths)

    def draw(self, num_requests: int) -> None:
        """Draw the lengths of each round's requests; in real time these set memory's sizes."""
        self.num_requests = num_requests
        self.lengths = [self._lengths(number) for number in range(self.rounds)]
        if not self.virtual:
            self.longest = max(sum(lengths) for drawn in self.lengths for lengths in drawn)
            self.tokens = math.ceil(LONGEST * self.longest / BLOCK) * BLOCK
            self.host_tokens = max(sum(sum(lengths) + BLOCK for lengths in drawn) for drawn in self.lengths)

    def _enough(self) -> int:
        """Count the requests that fill the device's KV memory, if at most `MOST` do."""
        fill = math.ceil(FILLS * self.tokens / sum(MEANS[1:])) if self.virtual else 0
        return fill if self.scale.requests < fill <= MOST else self.scale.requests

    def _lengths(self, number: int) -> list[tuple[int, int]]:
        """Draw a round's prompt and answer lengths from first turns that fit the context (6.1)."""
        asked, seed = Asked(self.scale.lengths), self.conditions.seed + number
        firsts = (draw_lengths(asked, conversation, seed)[0] for conversation in count())
        return [*islice((one for one in firsts if sum(one) <= self.source.config.max_context), self.num_requests)]

    def requests(self, rate: float | None, number: int = 0) -> list[Request]:
        """Make the requests of a round, which arrive as a Poisson process, or at once.

        Args:
            rate: requests per second; None: all at once.
            number: the number of the round.
        """
        vocab = self.source.config.vocab_size
        requests = [
            Request(f"r{i}", tuple((i + 7 * k) % vocab for k in range(prompt)), answer, ignore_eos=True)
            for i, (prompt, answer) in enumerate(self.lengths[number])
        ]
        return requests if rate is None else arrive(requests, Arrival(1 / rate, cv=1.0), self.conditions.seed + number)

    def start(self, say: Say) -> None:
        """In real time, load the model and measure how many tokens saturate the machine."""
        if not self.virtual and self.budget is None:
            from minifuse.simulate.chunk_cost import COUNTS, measure

            self.load()
            self.budget = measure(self.model, (32, 64), chunk=1, rounds=5, counts=COUNTS).saturating_tokens

    def run(
        self,
        contender: Contender,
        requests: list[Request],
        *,
        simulated: bool = False,
        machine: Hardware | None = None,
    ) -> dict[str, float]:
        """Serve the requests with one contender.

        Args:
            simulated: whether to simulate the run, on a machine fitted to this one.
            machine: another machine to simulate than the server's.

        Returns:
            Metrics of the run. Throughput and `steady_tokens` (of requests that complete, in a second) count the middle
            half of the completions. `bound_s` is the paper's latency bound: the largest gap between two tokens of a
            request. `exposed` is the part of the run's time in which computing waited for transfers; `hidden` is the
            part in which transfers ran while computing. `cpu_s` are seconds of this computer's processors.
        """
        row = contender.row
        options: dict[str, Any] = {
            "batching.max_batch": MAX_BATCH,
            "memory.host": self.host_tokens,
            "memory.block_size": BLOCK,
            "memory.chunk": BLOCK,
            **contender.options,
        }
        if contender is ORCA:
            options["memory.per_request"] = self.longest
        if not self.virtual:
            options["attention.balance"] = BALANCE  # or else a simulated machine's own, with which lanes would differ
        if contender.technique == "fluid" and self.budget is not None:
            options["batching.token_budget"] = self.budget
        if row.memory == "paged":
            options.pop("memory.host")  # vllm recomputes what it evicts
        if contender is VLLM:
            options["batching.prompt_tokens"] = self.prompt_tokens
        if simulated:
            machine = self._fitted = self._fitted or fitted(self.model)
        ended: list[tuple[float, int]] = []  # when each request completed, and its tokens
        answers = {request.id: request.max_new_tokens for request in requests}
        counted = RunningMetrics(on_end=lambda name, life: ended.append((life.ended_s, answers[name])))
        begins_s = time.process_time()
        self.serve(row, requests, self.tokens, known(row, options), into=counted.read, machine=machine)
        metrics = counted.result()
        duration_s, transfers = metrics["duration_s"], metrics["transfers"]
        return {
            "normalized_s": metrics["normalized_latency_s"]["mean"],
            "bound_s": metrics["latency_bound_s"] or 0.0,
            "throughput": steady_rate(end_s for end_s, _ in ended) or metrics["throughput"]["requests_per_s"],
            "steady_tokens": steady_rate(end_s for end_s, tokens in ended for _ in range(tokens)) or 0.0,
            "cpu_s": time.process_time() - begins_s,
            "tokens": metrics["throughput"]["tokens_per_s"],
            "mean_batch": metrics["mean_batch_size"],
            "exposed": transfers["exposed_s"] / duration_s,
            "hidden": transfers["hidden_s"] / duration_s,
        }

    def described(self) -> dict[str, Any]:
        """Return the conditions of this server's runs, as plain values."""
        return {
            "model": self.source.name,
            "dtype": self.dtype,
            "machine": self.title,
            "device_tokens": self.tokens,
            "host_tokens": self.host_tokens,
            "token_budget": self.budget,
            "requests": self.num_requests,
        }


class Servers(tuple[Server, ...]):
    """Every model on every machine of the scale.

    In virtual time, there is also the largest model on one GPU whose link is as fast as its memory.
    """

    @classmethod
    def of(cls, conditions: Conditions) -> Servers:
        scale = SCALES[conditions.scale]
        models = scale.models[:1] if conditions.model else scale.models
        found = [Server(conditions, model, machine) for model in models for machine in scale.machines]
        if found[0].virtual:
            found.append(Server(conditions, models[-1], scale.machines[0], fast_link=True))
        return cls(found)

    def start(self, say: Say) -> None:
        """Announce the number of reports; each server starts when its turn comes."""
        say.expect(sum(1 + len(server.conditions.rates or server.scale.shares) for server in self))

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        conditions = self[0].conditions
        return {
            "scale": conditions.scale,
            "seed": conditions.seed,
            "servers": [server.described() for server in self],
        }

    def notes(self) -> tuple[str, ...]:
        """Return notes on how servers are measured, and on the parts of fluid."""
        first = self[0]
        counts = {server.num_requests for server in self}
        return notes(
            "fluidinfer/setting",
            server=first,
            requests=f"{min(counts):,}" + (f" to {max(counts):,}" if len(counts) > 1 else ""),
            prompts=first.prompt_tokens,
            fills=FILLS,
            most=MOST,
        )
