"""What Flover's experiments share (section VI-A): scales, the machine, requests, and fusion against instances."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from statistics import median
from typing import Any, Literal

import minifuse.reproduce.flover.paper as paper
from minifuse.core.errors import UsageError
from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.request import Request
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.model.text.presets import preset
from minifuse.reproduce.contest import serve_all
from minifuse.reproduce.experiment import Column, Conditions, Say, Value, beside
from minifuse.reproduce.flover.outcome import Outcome, median_run, observe
from minifuse.reproduce.machine import fit_bandwidth, half_precision
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, Roofline, hardware
from minifuse.simulate.timing import take_turns

PROMPT = 8  # tokens of a prompt: the paper gives none, and counts the tokens of the answers only
BATCHES = (1, 2, 4, 8, 16, 32)  # at which the fused stream's throughput is measured
ALONE_ROUNDS = 3

FUSION, INSTANCES = Column("fusion\ns", "measured", "fusion_s"), Column("inst.\ns", "measured", "instances_s")
SPEEDUP = beside("speed-up", "speedup", "{:.1f}x", "{:.2f}x")


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

    An iteration of one request only waits for memory.
    """
    machine = hardware(paper.MACHINE)
    cost = Roofline(preset(paper.MODEL), paper.DTYPE, machine)
    contexts = [range(PROMPT - 1), *(range(last, last + 1) for last in range(PROMPT - 1, PROMPT - 1 + paper.TOKENS))]
    plans = [Plan(0, 0, (Work("r0", span.start, span.stop),), (Extent(0, span.stop),)) for span in contexts]
    return fit_bandwidth(machine, cost, plans, paper.ALONE_S)


class Setting:
    """Requests of `tokens` tokens on one machine; arrivals are given in the paper's milliseconds.

    One of the paper's milliseconds is 1/5800 of what a request takes here when it is alone (`alone_s`), so that
    requests overlap as much here as they did there.

    Args:
        tokens: of one request, if `conditions` give none.
        crowds: prompts served at once, at most, and the longest answer among them in units of `tokens`.

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
        """Load the model, warm up both contenders, and measure a request alone and the throughput of batches."""
        seed = self.conditions.seed
        self.model = None if self.virtual else load_weights(self.source, self.settings.dtype, seed=seed)
        if not self.virtual:
            say("warming up")
            lengths = self.rng("warm-up").sample(range(1, max(BATCHES) + 1), max(BATCHES))
            crowd = self.requests([0.0] * max(BATCHES), lengths)
            self.fusion(crowd)  # every batch size once, from all to one, with the moves in between
            self.instances(crowd[: max(BATCHES) // 4])
        say("one request alone, and the fused stream's throughput")
        self.alone_s = self._alone()
        for batch in BATCHES:
            together = self.fusion(self.requests([0.0] * batch), preprocess="inline")  # all in every iteration
            self.throughput[batch] = batch / together.iteration_s

    def of_tokens(self, tokens: int) -> Setting:
        """The same machine for requests of another length, whose time alone is measured again."""
        other = copy(self)
        other.tokens = tokens
        other.alone_s = other._alone()
        return other

    def _alone(self) -> float:
        return median(self.fusion(self.requests([0.0])).latency_s for _ in range(1 if self.virtual else ALONE_ROUNDS))

    def rng(self, what: str) -> random.Random:
        """A random stream of its own for each purpose, the same for every contender and point."""
        return random.Random(f"flover {what} {self.conditions.seed}")

    def seconds(self, paper_ms: float) -> float:
        """The seconds that are the same fraction of a request's time alone here as `paper_ms` is in the paper."""
        return paper_ms / (paper.ALONE_S * 1e3) * self.alone_s

    def length(self, paper_tokens: float) -> int:
        """An answer's length here: the same fraction of `tokens` as in the paper."""
        return max(1, int(paper_tokens * self.tokens / paper.TOKENS))

    def requests(self, arrivals: Sequence[float], lengths: Sequence[int] = (), prompts: int = 1) -> list[Request]:
        """One request of `prompts` prompts for each arrival (seconds), with answers of exactly the lengths given.

        Without lengths every answer has `tokens` tokens.
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

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV."""
        return self.source.config.kv_bytes_per_token(self.settings.dtype)

    def serve(self, name: str, requests: Sequence[Request], kv_tokens: int, options: Mapping[str, Any]) -> Outcome:
        """Serve with the technique `name`, its options, and KV memory for `kv_tokens` tokens."""
        settings = replace(self.settings, kv_memory=kv_tokens * self.token_bytes, stage_options=options)
        collect = not self.virtual
        return observe(requests, serve_all(name, self.source, settings, self.model, requests, collect)[1])

    def fusion(self, requests: Sequence[Request], shuffle: bool = True, preprocess: str | None = None) -> Outcome:
        """Flover: a slot for every prompt. Without `preprocess` prompts are pre-processed where the scale has it."""
        width = max(request.max_length for request in requests)
        options: dict[str, Any] = {
            "memory.slots": len(requests),
            "memory.shuffle": shuffle,
            "batching.preprocess": preprocess or self.scale.preprocess,
            "batching.preprocessors": len(requests),  # a worker for each, as in the paper, where there are workers
        }
        return self.serve("fusion", requests, len(requests) * width, options)

    def instances(self, requests: Sequence[Request]) -> Outcome:
        """Concurrent model instances: one for every request, so that none waits for another to end."""
        count = sum(1 for _ in groupby(requests, key=lambda request: request.group or request.id))
        kv_tokens = sum(request.max_cached for request in requests)
        return self.serve("instances", requests, kv_tokens, {"batching.instances": count})

    def race(
        self,
        arrivals: Sequence[float],
        lengths: Sequence[int] = (),
        batch: int = 1,
        first: int = 0,
        instances: bool = True,
        unshuffled: bool = False,
    ) -> tuple[dict[str, Outcome], dict[str, Value]]:
        """Serve the same requests by fusion and, if wanted, by instances and by fusion without shuffle.

        Returns:
            The outcomes of the contenders, and a point's values: overall latencies, and how many times as fast as
            instances fusion is. `limit` is how many times as fast it would be if every request, from its arrival on,
            took as long as it does alone.
        """
        requests = self.requests(arrivals, lengths, batch)
        contenders = {"fusion": partial(self.fusion, requests)}
        if unshuffled:
            contenders["unshuffled"] = partial(self.fusion, requests, shuffle=False)
        if instances:
            contenders["instances"] = partial(self.instances, requests)
        turns = take_turns(contenders, self.conditions.rounds, first)
        outcomes = {name: median_run(runs) for name, runs in turns.items()}
        values: dict[str, Value] = {}
        for name, outcome in outcomes.items():
            values |= {f"{name}_s": outcome.latency_s, f"{name}_rounds_s": outcome.rounds_s}
        if instances:
            alone = [self.alone_s * length / self.tokens for length in lengths] or [self.alone_s] * len(arrivals)
            least_s = max(map(sum, zip(arrivals, alone, strict=True))) - arrivals[0]
            separate_s = outcomes["instances"].latency_s
            values |= {"speedup": separate_s / outcomes["fusion"].latency_s, "limit": separate_s / least_s}
        return outcomes, values

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
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

    def notes(self) -> tuple[str, ...]:
        """How the paper's setup was scaled, and what a batch yields on this machine."""
        rounds, speeds = self.conditions.rounds, self.throughput
        size = (
            f"{self.source.name} in {self.settings.dtype}, {self.tokens} tokens a request"
            f"{f', medians of {rounds} rounds' if rounds > 1 else ''}"
        )
        alone = f"One request alone takes {self.alone_s:.3g} s"
        if self.virtual:
            machine, sheet = hardware(self.settings.hardware), hardware(paper.MACHINE)
            how = (
                f"{size}, virtual time of an A100-40G. One number is calibrated: its memory bandwidth, "
                f"{machine.bandwidth / 1e12:.3f} TB/s ({machine.bandwidth / sheet.bandwidth:.0%} of the data sheet's), "
                f"at which {paper.TOKENS} tokens of GPT-J 6B take {paper.ALONE_S} s alone, as in the paper. {alone}."
            )
            share = (
                "Concurrent instances share the simulated machine evenly: each of k runs at a k-th of its speed, so "
                "together they are as fast as one. What else they gained or lost on the paper's machine is not "
                "modelled."
            )
        else:
            how = (
                f"{size}, real time. {alone} (paper: {paper.ALONE_S} s for {paper.TOKENS} tokens of GPT-J 6B), and "
                f"intervals are the fractions of it that they are in the paper."
            )
            share = (
                "Fusion pre-processes prompts in the main stream, between two iterations: beside it, they would take "
                "the same cores."
            )
        return (
            how,
            f"tokens/s of the fused stream at batch {', '.join(map(str, speeds))}: "
            f"{', '.join(f'{speed:,.0f}' for speed in speeds.values())}. The last is "
            f"{speeds[max(speeds)] / speeds[1]:.1f} times the first: fusion cannot gain more over instances that "
            "together are as fast as one.",
            share,
        )
