"""What Pensieve's figures of latency against throughput share (3.6.1): models, machine, contenders, a load sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from minifuse.core.errors import UsageError
from minifuse.execute.cores import share_cores
from minifuse.memory.tiered.profile import ASSUMED, Profile, powers_of_two
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.model.text.presets import preset
from minifuse.reproduce.contest import serve_counted
from minifuse.reproduce.curve import Contender, Curve, Outcome
from minifuse.reproduce.experiment import Conditions, Experiment, Finding, Panel, Run, Say
from minifuse.reproduce.load import load_at, offered
from minifuse.reproduce.machine import half_precision
from minifuse.reproduce.pensieve.sweeps import Sweep, curves_panel
from minifuse.reproduce.pensieve.talked import Talked
from minifuse.reproduce.pensieve.under_way import REMEMBERED, Crowd
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Roofline, hardware
from minifuse.workload.conversations import Asked, draw_lengths

PENSIEVE = Contender("pensieve", "pensieve", "pensieve")
DEVICE = Contender("device", "device only", "pensieve", {"memory.host": 0})
STATELESS = Contender("stateless", "stateless", "pensieve", {"memory.keep": False})
VLLM = Contender("vllm", "vllm", "vllm")
LRU = Contender("lru", "LRU", "pensieve", {"memory.eviction": "lru"})
BY_FIG_4 = Contender("by_fig_4", "Fig. 3.4", "pensieve", {"memory.profile": ASSUMED.text()})
SEPARATE = Contender("separate", "not unified", "pensieve", {"batching.unify": False})

MACHINE, DTYPE = "a100-80g", "float16"
DEVICE_BYTES, HOST_BYTES = 40e9, 220e9  # of KV, for each GPU (3.6.1)
MAX_BATCH = 256
CHUNK = 32  # tokens, as in the thesis
PROFILED = 5  # rounds
FARTHER = 1.4  # times the last rate is the next, until latency says which contender is better
# The thesis' models (Table 3.1), and the GPUs that serve each.
GPUS = {"opt-13b-16k": 1, "llama-2-13b-gqa-16k": 1, "opt-66b-16k": 4, "llama-2-70b-16k": 4}
REACTION_S = 60.0
SAMPLE = 2000  # conversations from which the mean number of turns is taken, where it is not the published one


@dataclass(frozen=True, slots=True)
class _Scale:
    """`shares` are the rates, as shares of what vllm serves when all requests come at once; `lengths` and `memory` the
    scale of all lengths and, by model family, of the conversations that memory holds, `second` what a second of the
    thesis' reaction times takes, `requests` those in the measured period, `models` what stands for the thesis' models,
    `more` how many rates may follow the last, `remembered` as in `Crowd`, and `at_once` the requests that come all at
    once: a few tens are of very few conversations. None: as many as in the measured period."""

    clock: Literal["real", "virtual"]
    lengths: float
    memory: Mapping[str, float]
    second: float
    requests: int
    rounds: int
    shares: tuple[float, ...]
    models: Mapping[str, str]
    more: int = 0
    remembered: float = REMEMBERED
    at_once: int | None = None


SMALL = {"opt": "small-opt", "llama": "small"}
# On a CPU few conversations are under way at once: as much memory as holds some of them, or the longest.
FEW = {"opt": 0.4, "llama": 0.1}
SCALES = {
    "quick": _Scale("real", 0.02, {"opt": 0.5, "llama": 0.5}, 0.01, 24, 1, (0.5, 1.5), SMALL),
    "cpu": _Scale("real", 0.125, FEW, 1 / 48, 60, 5, (0.7, 1.1, 1.5), SMALL, remembered=1.5, at_once=100),
    "paper": _Scale("virtual", 1.0, {"opt": 1.0, "llama": 1.0}, 1.0, 300, 2, (0.7, 1.0, 1.3, 1.8, 2.5), {}, more=4),
}


class Serving:
    """The machine of a figure, and one of the thesis' models, or a smaller one of the same shape, on it.

    Args:
        other: values of the scale that a figure needs to differ; the conditions count before either.

    Raises:
        UsageError: it cannot run.
    """

    def __init__(self, conditions: Conditions, published: str, **other: Any) -> None:
        self.conditions = conditions
        self.scale = scale = replace(SCALES[conditions.scale], **other)
        self.published, self.gpus = published, GPUS[published]
        family = published.partition("-")[0]
        self.source = resolve_text(f"random:{scale.models.get(family, published)}")
        self.memory = scale.memory[family]
        self.num_requests = conditions.requests or scale.requests
        self.rounds = max(conditions.rounds, scale.rounds)
        dtype = conditions.dtype
        if dtype == "auto":
            dtype = DTYPE if self.virtual else half_precision()
        token_bytes = preset(published).kv_bytes_per_token(DTYPE)
        self.device_tokens, self.host_tokens = (
            int(self.memory * scale.lengths * self.gpus * size / token_bytes) for size in (DEVICE_BYTES, HOST_BYTES)
        )
        machine = hardware(MACHINE)
        if self.gpus > 1:
            assert machine.link is not None
            machine = replace(
                machine,
                bandwidth=self.gpus * machine.bandwidth,
                flops=self.gpus * machine.flops,
                memory=self.gpus * machine.memory,
                link=self.gpus * machine.link,
            )
        self.settings = Settings(
            dtype=dtype,
            clock=scale.clock,
            hardware=machine if self.virtual else "cpu",
            seed=conditions.seed,
            kv_memory=self.device_tokens * self.source.config.kv_bytes_per_token(dtype),
        )
        self._model: Any = None
        self.profile: Profile | None = None  # what a chunk costs to compute again; None: not known yet

    @property
    def virtual(self) -> bool:
        return self.scale.clock == "virtual"

    def crowd(self, reaction_s: float, min_turns: int, number: int = 0) -> Crowd:
        """The conversations of a round, with this mean reaction time, in the thesis' seconds, and this least number of
        turns. Each round has others: a few hundred requests are of few conversations, whose lengths differ widely."""
        asked = Asked(self.scale.lengths, reaction_s * self.scale.second, min_turns)
        seed = self.conditions.seed + number
        return Crowd(asked, self.source.config.vocab_size, seed, self.scale.remembered)

    def serve(self, contender: Contender, requests: Any) -> Any:
        """Serve requests with one contender; raises as `serve_counted` does."""
        if self.profile is None:
            self.profile = self._prepare()
        options = {"batching.max_batch": MAX_BATCH, **contender.options}
        if contender.technique == "pensieve":
            options = {"memory.host": self.host_tokens, "memory.profile": self.profile.text(), **options}
        settings = replace(self.settings, stage_options=options)
        collect = not self.virtual
        return serve_counted(contender.technique, self.source, settings, self._model, requests, collect)

    def _prepare(self) -> Profile:
        """Load the model, and find out what a chunk costs to compute again: here, or on the simulated machine."""
        longest = self.source.config.max_context
        if self.virtual:
            cost = Roofline(self.source.config, self.settings.dtype, hardware(self.settings.hardware))
            return cost.recomputation(CHUNK, powers_of_two(CHUNK, longest))
        from minifuse.simulate.calibration import contexts_of, measure

        share_cores(self.source.config.num_parameters, None)
        self._model = load_weights(self.source, self.settings.dtype, seed=self.settings.seed)
        return measure(self._model, contexts_of(CHUNK, longest, self.source.name), CHUNK, PROFILED).profile

    def attention_share(self) -> tuple[int, float]:
        """How long a context may be, up to 4,096 tokens, and what attention to it adds to the cost of a chunk."""
        assert self.profile is not None
        at = min(4096, self.source.config.max_context)
        return at, self.profile.cost(at) / self.profile.other - 1

    def capacity(self, crowd: Crowd) -> float:
        """Requests per second of vllm when all come at once, histories and all: of which rates are shares."""
        served = self.serve(VLLM, crowd.at_once(self.scale.at_once or self.num_requests))
        return float(served.result()["throughput"]["requests_per_s"])

    def sweep(
        self,
        say: Say,
        title: str,
        contenders: Sequence[Contender],
        reaction_s: float = REACTION_S,
        min_turns: int = 1,
        capacity: float | None = None,
    ) -> Sweep:
        """Offer growing rates to all contenders, the same requests to each."""
        crowds = [self.crowd(reaction_s, min_turns, number) for number in range(self.rounds)]
        if capacity is None:
            say(f"{title}: all at once")
            capacity = self.capacity(crowds[0])
        asked = crowds[0].asked
        turns = [len(draw_lengths(asked, number, self.settings.seed)) for number in range(SAMPLE)]
        mean_turns = sum(turns) / SAMPLE
        given = self.conditions.rates
        rates = offered(given, capacity) if given else tuple(share * capacity for share in self.scale.shares)
        curves = {one.key: Curve(one, MAX_BATCH, 0.0) for one in contenders}
        sweep = Sweep(title, capacity, curves, paired=not self.virtual)
        made: dict[tuple[float, int], Any] = {}
        runs: Counter[tuple[str, float]] = Counter()

        def run(curve: Curve, rate: float) -> Outcome:
            number = runs[curve.contender.key, rate]  # of the round
            runs[curve.contender.key, rate] += 1
            crowd = crowds[number]
            if (rate, number) not in made:
                made.clear()
                made[rate, number] = crowd.requests(rate, self.num_requests, mean_turns)
            requests, period = made[rate, number], crowd.period(rate, self.num_requests)
            return Talked.measured(self.serve(curve.contender, requests), period, crowd.offered(requests, period))

        def measure(*rates: float) -> None:
            load_at(
                *(curves, rates, run, self.rounds),
                *(lambda what: say(f"{title}: {what}"), lambda: say.keep(curves_panel(sweep))),
                all_rates=sweep.paired,
            )

        measure(*rates)
        more = 0 if given else self.scale.more
        while more and not all(map(sweep.ends, curves.values())):
            more -= 1
            measure(max(rate for curve in curves.values() for rate in curve.points) * FARTHER)
        return sweep

    def num_reports(self, capacity: bool = True) -> int:
        """How often a sweep reports, at most."""
        return capacity + (
            len(self.conditions.rates) if self.conditions.rates else len(self.scale.shares) + self.scale.more
        )

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
        scale = self.scale
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "dtype": self.settings.dtype,
            "clock": scale.clock,
            "hardware": f"{self.gpus} x {MACHINE}" if self.virtual else None,
            "lengths": scale.lengths,
            "memory": self.memory,
            "reaction_s": REACTION_S * scale.second,
            "device_tokens": self.device_tokens,
            "host_tokens": self.host_tokens,
            "requests": self.num_requests,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
            "paper_model": self.published,
        }

    def note(self) -> str:
        """The machine, and the size of what is measured."""
        scale = self.scale
        size = (
            f"{self.source.name} in {self.settings.dtype}, KV of {self.device_tokens:,} tokens on the device and "
            f"{self.host_tokens:,} on the host"
        )
        if self.virtual:
            several = (
                ", four of them as one machine of four times the rates, messages between them not modelled"
                if self.gpus > 1
                else ""
            )
            return (
                f"{size} (40 and 220 GB a GPU, as in the thesis), virtual time of an A100-80GB by its data sheet"
                f"{several}: nothing is fitted, so requests/s and ms are those of a roofline."
            )
        return (
            f"{size}: what {self.published} has in the thesis, for {self.memory:g} times the conversations of "
            f"{scale.lengths:g} times the length. Real time on this machine, a second of its reaction times being "
            f"{scale.second * 1e3:.3g} ms. Ratios can be compared, requests/s and ms cannot."
        )

    def method(self) -> str:
        """How all figures measure."""
        rounds = f", medians of {self.rounds} interleaved rounds with requests of their own" if self.rounds > 1 else ""
        further = (
            ", and grow until a contender's throughput grows no more, or its p90 exceeds what is compared"
            if self.scale.more and not self.conditions.rates
            else ""
        )
        compared = (
            "Loads at equal p90 are those offered, where p90 is twice the lowest of the baseline."
            if self.virtual
            else "Contenders are compared run by run, as each round of a rate has a load of its own."
        )
        return (
            f"Conversations with ShareGPT's published statistics (minifuse.workload.conversations), about "
            f"{self.num_requests} requests in the measured period{rounds}. They begin as a Poisson process long before "
            "the run; a text so far is sent once before the measured period, so that memory holds what it would. Rates "
            f"are shares of what vllm serves when everything comes at once{further}. "
            "p90 is the 90th percentile of the normalized latency, of the requests that arrive in the "
            "period; throughput counts turns that end in it, offered those that were to arrive in it. "
            f"{compared} Hits are of histories, by tier; recomputed are all tokens of the run that had been computed "
            "before."
        )


Draw = Callable[[Sequence[Serving], Say], tuple[tuple[Panel, ...], tuple[str, ...]]]


def experiment(
    number: str,
    shows: str,
    models: Sequence[str],
    draw: Draw,
    other: Mapping[str, Mapping[str, Any]] | None = None,
) -> Experiment:
    """The experiment of a figure on some of the thesis' models, each with a panel of its own.

    Args:
        draw: panels and verdicts.
        other: by scale, what differs from it.
    """

    def prepare(conditions: Conditions) -> Run:
        if conditions.requests is not None and conditions.requests > 100_000:
            raise UsageError(
                f"--requests is {conditions.requests:,}, of each run of this figure: give at most 100,000."
            )
        differing = (other or {}).get(conditions.scale, {})
        return partial(_run, [Serving(conditions, name, **differing) for name in models], draw)

    return Experiment("Pensieve", number, shows, prepare, frozenset({"rates", "requests"}))


def _run(servings: Sequence[Serving], draw: Draw, say: Say) -> Finding:
    panels, verdicts = draw(servings, say)
    first = servings[0]
    facts = {**first.facts(), "models": [serving.facts() for serving in servings]}
    return Finding(facts, panels, (*(serving.note() for serving in servings), first.method(), *verdicts))
