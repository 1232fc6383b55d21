"""What Flover's experiments share (section VI-A): scales, the machine, requests, and the two contenders."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from statistics import median
from typing import Any, Literal

import minifuse.reproduce.flover_paper as paper
from minifuse.errors import UsageError
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.model.text.presets import preset
from minifuse.place import Extent
from minifuse.plan import Plan
from minifuse.reproduce.bench import Bench, Outcome
from minifuse.reproduce.experiment import Conditions, Say
from minifuse.request import Request
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, Roofline, hardware
from minifuse.work import Work

__all__ = ["Setting", "calibrated"]

PROMPT = 8  # tokens of a prompt: the paper gives none, and counts the tokens of the answers only
BATCHES = (1, 2, 4, 8, 16, 32)  # of which the fused stream's throughput is told
ALONE_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _Scale:
    model: str
    clock: Literal["real", "virtual"]
    preprocess: str  # where fusion computes prompts


SCALES = {
    "quick": _Scale("random:small", "real", "inline"),
    "cpu": _Scale("random:medium", "real", "inline"),
    "paper": _Scale(f"random:{paper.MODEL}", "virtual", "worker"),
}


@cache
def calibrated() -> Hardware:
    """The A100 with the memory bandwidth at which a request of 512 tokens takes 5.8 s alone, as in the paper.

    An iteration of one request only waits for memory, so its seconds are bytes / bandwidth + overhead.
    """
    machine = hardware(paper.MACHINE)
    cost = Roofline(preset(paper.MODEL), paper.DTYPE, machine)
    contexts = [range(PROMPT - 1), *(range(last, last + 1) for last in range(PROMPT - 1, PROMPT - 1 + paper.TOKENS))]
    plans = [Plan(0, 0, (Work("r0", span.start, span.stop),), (Extent(0, span.stop),)) for span in contexts]
    overhead_s = machine.overhead_s * len(plans)
    reading_s = sum(map(cost, plans)) - overhead_s
    return replace(machine, bandwidth=machine.bandwidth * reading_s / (paper.ALONE_S - overhead_s))


def half_precision() -> str:
    """The nearest to the paper's half precision that this CPU is fast in: bfloat16 with tiles for it, or float32."""
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return "bfloat16" if supported is not None and supported() else "float32"


class Setting:
    """Requests of `tokens` tokens on one machine; arrivals are given in the paper's milliseconds.

    One of the paper's milliseconds is 1/5800 of what a request takes here when it is alone (`alone_s`), so that
    requests overlap as much here as they did there.

    Args:
        tokens: of one request, where `conditions` give none.
        crowds: the most prompts served at once, each with the longest answer among them, in units of `tokens`.

    Raises:
        UsageError: the model, a request or the KV memory is too large.
    """

    def __init__(self, conditions: Conditions, tokens: int, crowds: Iterable[tuple[int, float]]) -> None:
        scale = SCALES[conditions.scale]
        dtype = conditions.dtype
        if dtype == "auto":
            dtype = paper.DTYPE if scale.clock == "virtual" else half_precision()
        self.conditions = conditions
        self.scale = scale
        self.tokens = conditions.tokens or tokens
        self.source = resolve_text(conditions.model or scale.model)
        machine = calibrated() if scale.clock == "virtual" else "cpu"
        self.settings = Settings(dtype=dtype, clock=scale.clock, hardware=machine, seed=conditions.seed)
        self.alone_s = 0.0  # until `start`
        self.throughput: dict[int, float] = {}  # tokens/s of the fused stream, by its batch
        for prompts, longest in (*crowds, (max(BATCHES), 1.0)):
            self._check(prompts, self.length(longest * paper.TOKENS))

    def _check(self, prompts: int, longest: int) -> None:
        most = self.source.config.max_context - PROMPT
        if longest > most:
            raise UsageError(
                f"With --tokens {self.tokens} answers have up to {longest} tokens, and {self.source.name} has room for "
                f"{most} after the prompt: give at most {self.tokens * most // longest}."
            )
        if not self.virtual:
            return
        config, dtype, memory = self.source.config, self.settings.dtype, hardware(self.settings.hardware).memory
        kv_memory = prompts * (PROMPT + longest) * config.kv_bytes_per_token(dtype)
        needed = config.num_parameters * DTYPE_BYTES[dtype] + kv_memory
        if needed > memory:
            raise UsageError(
                f"{self.source.name} in {dtype} and the KV of {prompts} answers of {longest} tokens take "
                f"{needed / 1e9:.1f} GB, and the paper's machine has {memory / 1e9:.0f} GB: give a smaller --model, a "
                "shorter --dtype or fewer --tokens."
            )

    @property
    def virtual(self) -> bool:
        return self.settings.clock == "virtual"

    def start(self, say: Say) -> None:
        """Load the model, warm both contenders up, and measure what a request takes alone and batches yield."""
        seed = self.conditions.seed
        model = None if self.virtual else load_weights(self.source, self.settings.dtype, seed=seed)
        self.bench = Bench(self.source, self.settings, model)
        if not self.virtual:
            say("warming up")
            lengths = self.rng("warm-up").sample(range(1, max(BATCHES) + 1), max(BATCHES))
            crowd = self.requests([0.0] * max(BATCHES), lengths)
            self.fusion(crowd)  # every batch once, from all to one, with the moves in between
            self.instances(crowd[: max(BATCHES) // 4])
        say("one request alone, and the fused stream's throughput")
        self.alone_s = self._alone()
        for batch in BATCHES:
            together = self.fusion(self.requests([0.0] * batch), preprocess="inline")  # all in every iteration
            self.throughput[batch] = batch / together.iteration_s

    def of_tokens(self, tokens: int) -> Setting:
        """The same machine for requests of another length, whose time alone is measured anew."""
        other = copy(self)
        other.tokens = tokens
        other.alone_s = other._alone()
        return other

    def _alone(self) -> float:
        return median(self.fusion(self.requests([0.0])).latency_s for _ in range(1 if self.virtual else ALONE_ROUNDS))

    def rng(self, what: str) -> random.Random:
        """A stream of its own for each thing that is drawn, the same for every contender and point."""
        return random.Random(f"flover {what} {self.conditions.seed}")

    def seconds(self, paper_ms: float) -> float:
        """The same fraction of a request's time alone, here, as `paper_ms` is in the paper."""
        return paper_ms / (paper.ALONE_S * 1e3) * self.alone_s

    def length(self, paper_tokens: float) -> int:
        """An answer's length here: the same fraction of `tokens` as in the paper."""
        return max(1, int(paper_tokens * self.tokens / paper.TOKENS))

    def requests(self, arrivals: Sequence[float], lengths: Sequence[int] = (), prompts: int = 1) -> list[Request]:
        """One request for each arrival (seconds), of so many prompts, with answers of exactly the lengths given.

        Without lengths all answers have `tokens` tokens.
        """
        tokens = self.rng("prompts")
        vocab = range(self.source.config.vocab_size)
        return [
            Request(
                f"r{i}.{j}",
                tuple(tokens.choices(vocab, k=PROMPT)),
                max_new_tokens=lengths[i] if lengths else self.tokens,
                ignore_eos=True,
                arrival_s=arrival_s,
                group=f"r{i}" if prompts > 1 else None,
            )
            for i, arrival_s in enumerate(arrivals)
            for j in range(prompts)
        ]

    def fusion(self, requests: Sequence[Request], shuffle: bool = True, preprocess: str | None = None) -> Outcome:
        """Flover: a slot for every prompt. Prompts are pre-processed where the scale says, or as told."""
        width = max(request.max_length for request in requests)
        options: dict[str, Any] = {
            "memory.slots": len(requests),
            "memory.shuffle": shuffle,
            "batching.preprocess": preprocess or self.scale.preprocess,
            "batching.preprocessors": len(requests),  # a worker for each, as in the paper, where there are workers
        }
        return self.bench.serve("fusion", requests, len(requests) * width, options)

    def instances(self, requests: Sequence[Request]) -> Outcome:
        """Concurrent model instances: one for every request, so that none ever waits for another to end."""
        count = sum(1 for _ in groupby(requests, key=lambda request: request.group or request.id))
        kv_tokens = sum(request.max_cached for request in requests)
        return self.bench.serve("instances", requests, kv_tokens, {"batching.instances": count})

    def facts(self) -> dict[str, Any]:
        """The conditions of everything that was measured, as plain values."""
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "dtype": self.settings.dtype,
            "clock": self.settings.clock,
            "hardware": f"{paper.MACHINE}, calibrated" if self.virtual else None,
            "bandwidth_bytes_per_s": hardware(self.settings.hardware).bandwidth if self.virtual else None,
            "tokens": self.tokens,
            "prompt_tokens": PROMPT,
            "rounds": self.conditions.rounds,
            "seed": self.conditions.seed,
            "alone_s": self.alone_s,
            "fused_tokens_per_s": {str(batch): speed for batch, speed in self.throughput.items()},
            "paper_tokens": paper.TOKENS,
            "paper_alone_s": paper.ALONE_S,
        }
