"""Pensieve's load sweeps (3.6.1): models, machine, contenders, latency against throughput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.memory.tiered.profile import Profile, powers_of_two
from minifuse.model.text.load import TextSource, resolve_text
from minifuse.model.text.presets import preset
from minifuse.papers.contest import HALF, Bench, several
from minifuse.papers.curve import Contender, Curve, Served, load_at, never, rates_of
from minifuse.papers.experiment import Conditions, Experiment, Say
from minifuse.papers.page import Draw, notes, spec
from minifuse.papers.pensieve.cold import Cold
from minifuse.papers.pensieve.contenders import VLLM
from minifuse.papers.pensieve.sweeps import Sweep
from minifuse.papers.pensieve.under_way import REMEMBERED, Costs, Crowd, measured
from minifuse.simulate.cost import Roofline, hardware
from minifuse.workload.conversations import LONGEST, MEANS, Asked, Lengths, scale_lengths
from minifuse.workload.sharegpt import CHARACTERS, read_lengths

MACHINE = "a100-80g"
DEVICE_BYTES, HOST_BYTES = 40e9, 220e9  # of KV, for each GPU (3.6.1)
MAX_BATCH = 256
CHUNK = 32  # tokens, as in the thesis
PROFILED = 5  # rounds of profiling
FARTHER = 1.4  # the next rate is this many times the last, until latencies show which contender is better
# The thesis' models (Table 3.1), and the GPUs that serve each.
GPUS = {"opt-13b-16k": 1, "llama-2-13b-gqa-16k": 1, "opt-66b-16k": 4, "llama-2-70b-16k": 4}
REACTION_S = 60.0
SAMPLE = 2000  # conversations over which the mean number of turns is computed
MOST_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a scale measures.

    Attributes:
        lengths: multiplies all lengths.
        memory: multiplies the number of conversations that memory holds, by model family.
        second: the seconds here that stand for one second of the thesis' reaction times.
        requests: the number of requests in the measured period.
        cold: the reaction times that a run lasts that starts cold.
        window: the reaction times that the measured period lasts at least, with more requests if need be.
        shares: the rates, as shares of vllm's throughput when all requests arrive at once.
        models: the models that stand for the thesis' models, by family.
        more: how many rates may follow the last.
        remembered: see `Crowd`.
        at_once: the number of requests that measure this throughput of vllm; None: `requests`. A few tens would belong
            to too few conversations.
    """

    lengths: float
    memory: Mapping[str, float]
    second: float
    requests: int
    shares: tuple[float, ...]
    models: Mapping[str, str]
    more: int = 0
    remembered: float = REMEMBERED
    at_once: int | None = None
    cold: float = 6.0
    window: float = 0.0


SMALL = {"opt": "small-opt", "llama": "small"}
# On a CPU, few conversations are under way at once. Memory holds some of them, or just the longest.
FEW = {"opt": 0.4, "llama": 0.1}
SCALES = {
    "quick": _Scale(0.02, {"opt": 0.5, "llama": 0.5}, 0.01, 24, (0.5, 1.5), SMALL),
    "cpu": _Scale(0.125, FEW, 1 / 48, 40, (0.7, 1.3), SMALL, remembered=1.5, at_once=100),
    "paper": _Scale(1.0, {"opt": 1.0, "llama": 1.0}, 1.0, 600, (0.7, 1.0, 1.3, 1.8, 2.5), {}, more=4, window=1.0),
}


class Serving(Bench[TextSource]):
    """Serves conversations with a model of the thesis, or a smaller one, on one machine.

    Args:
        published: the name of the thesis' model.
        min_turns: the minimum number of turns of a conversation.
        found: lengths of conversations to choose from; without any, lengths are drawn.
        other: fields of the scale that the figure replaces. The conditions take precedence over both.

    Raises:
        UsageError: these conditions cannot run.
    """

    def __init__(
        self,
        conditions: Conditions,
        published: str,
        min_turns: int = 1,
        found: Sequence[Lengths] = (),
        **other: Any,
    ) -> None:
        self.scale = scale = replace(SCALES[conditions.scale], **other)
        self.published, self.gpus = published, GPUS[published]
        family = published.partition("-")[0]
        model, machine = scale.models.get(family, published), several(hardware(MACHINE), self.gpus)
        super().__init__(conditions, resolve_text(f"random:{model}"), machine)
        self.check_requests(MOST_REQUESTS)
        self.memory = scale.memory[family]
        self.num_requests = conditions.requests or scale.requests
        self.min_turns = min_turns
        self.correlation = 0.0
        self.found = [scale_lengths(lengths, scale.lengths) for lengths in found if len(lengths) >= min_turns]
        if found and not self.found:
            raise UsageError(
                f"{conditions.conversations} holds no conversation of {min_turns} turns: give another file as "
                "--conversations."
            )
        token_bytes = preset(published).kv_bytes_per_token(HALF)
        self.device_tokens, self.host_tokens = (
            int(self.memory * scale.lengths * self.gpus * size / token_bytes) for size in (DEVICE_BYTES, HOST_BYTES)
        )
        self.profile: Profile | None = None  # the cost of recomputing a chunk; None: not known yet

    @property
    def title(self) -> str:
        return self.source.name.removeprefix("random:")

    def crowd(self, number: int = 0, reaction_s: float = REACTION_S, cold: bool = False) -> Crowd:
        """Return the conversations of a round.

        Each round has conversations of its own, because the few that a round needs differ widely in length.

        Args:
            number: the number of the round.
            reaction_s: the mean reaction time, in the thesis' seconds.
            cold: whether no conversation is under way when the run begins.
        """
        asked = Asked(self.scale.lengths, reaction_s * self.scale.second, self.min_turns, correlation=self.correlation)
        seed = self.conditions.seed + number
        kind = Cold if cold else Crowd
        return kind(asked, self.source.config.vocab_size, seed, self.scale.remembered, self.found)

    def on(self, machine: str) -> Serving:
        """Return the same measurements on another simulated machine."""
        other = copy(self)
        other.settings = replace(self.settings, hardware=several(hardware(machine), self.gpus))
        other.profile = None
        return other

    def correlating(self, correlation: float) -> Serving:
        """Return the same measurements with lengths that depend on each other (see `Asked`)."""
        other = copy(self)
        other.correlation = correlation
        return other

    def run(self, contender: Contender, requests: Any) -> Costs:
        """Serve requests with one contender; errors are those of `Bench.serve`."""
        if self.profile is None:
            self.profile = self._prepare()
        options = {"batching.max_batch": MAX_BATCH, **contender.options}
        if contender.technique == "pensieve":
            options = {"memory.host": self.host_tokens, "memory.profile": self.profile.text(), **options}
        else:
            options = {"batching.prompt_tokens": int(LONGEST * self.scale.lengths), **options}
        counted = Costs(self.profile, CHUNK)
        self.serve(contender.technique, requests, self.device_tokens, options, into=counted.read)
        return counted

    def _prepare(self) -> Profile:
        """Load the model, and return the cost of recomputing a chunk."""
        longest = self.source.config.max_context
        if self.virtual:
            cost = Roofline(self.source.config, self.dtype, hardware(self.settings.hardware))
            return cost.recomputation(CHUNK, powers_of_two(CHUNK, longest))
        from minifuse.simulate.chunk_cost import contexts_of, measure

        self.load()
        return measure(self.model, contexts_of(CHUNK, longest, self.source.name), CHUNK, PROFILED).profile

    def attention_share(self) -> tuple[int, float]:
        """Return a context of up to 4,096 tokens, and its cost relative to everything else."""
        assert self.profile is not None
        at = min(4096, self.source.config.max_context)
        return at, self.profile.cost(at) / self.profile.other - 1

    def sweep(
        self,
        say: Say,
        title: str,
        contenders: Sequence[Contender],
        reaction_s: float = REACTION_S,
        capacity: float | None = None,
        cold: bool = False,
        rate: float | None = None,
        beside: Sequence[Curve] = (),
    ) -> Sweep:
        """Offer growing rates to all contenders, with the same requests for each.

        Args:
            capacity: vllm's requests per second when all requests arrive at once, with their histories. Rates are
                shares of it. None: it is measured.
            cold: whether no conversation is under way when a run begins.
            rate: the only rate to offer, in requests per second; None: growing rates.
            beside: curves of other sweeps with which these are compared.
        """
        crowds = [self.crowd(number, reaction_s, cold) for number in range(self.rounds)]
        if capacity is None:
            say(f"{title}: all at once")
            served = self.run(VLLM, crowds[0].at_once(self.scale.at_once or self.num_requests))
            capacity = float(served.result()["throughput"]["requests_per_s"])
        mean_turns = sum(len(crowds[0].lengths(number)) for number in range(SAMPLE)) / SAMPLE
        curves = {one.key: Curve(one) for one in contenders}
        sweep = Sweep(title, capacity, curves, not self.virtual, cold, beside)
        made: dict[tuple[float, int], Any] = {}

        def run(curve: Curve, rate: float, number: int) -> Served:
            crowd, count = crowds[number], self.num_requests
            if not self.conditions.requests:
                per_reaction = rate * crowd.asked.reaction
                count = (
                    round(self.scale.cold * per_reaction)
                    if cold
                    else max(count, round(self.scale.window * per_reaction))
                )
            if (rate, number) not in made:
                made.clear()
                made[rate, number] = crowd.requests(rate, count, mean_turns)
            requests, period = made[rate, number], crowd.period(rate, count)
            return measured(self.run(curve.contender, requests), period, crowd.offered(requests, period))

        def measure(*rates: float) -> None:
            load_at(
                curves,
                rates,
                run,
                self.rounds,
                lambda what: say(f"{title}: {what}"),
                lambda rate: say.keep(sweep.panel()),
                ended=sweep.ends if self.more else never,
            )

        if rate is not None:
            measure(rate)
            return sweep
        measure(*rates_of(self.conditions, self.scale.shares, capacity))
        more = self.more
        while more and not all(map(sweep.ends, curves.values())):
            more -= 1
            measure(max(rate for curve in curves.values() for rate in curve.points) * FARTHER)
        return sweep

    @property
    def more(self) -> int:
        """How many rates may follow the last; none if the user gave the rates.

        If none may follow, every contender is offered every rate.
        """
        return 0 if self.conditions.rates else self.scale.more

    def num_reports(self, capacity: bool = True) -> int:
        """Return the maximum number of reports of a sweep.

        Args:
            capacity: whether the sweep measures the capacity.
        """
        return capacity + len(self.conditions.rates or self.scale.shares) + self.more

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return self.facts(
            f"{self.gpus} x {MACHINE}",
            lengths=self.scale.lengths,
            memory=self.memory,
            reaction_s=REACTION_S * self.scale.second,
            device_tokens=self.device_tokens,
            host_tokens=self.host_tokens,
            requests=self.num_requests,
            paper_model=self.published,
        )

    def conversations(self) -> str:
        """Tell where the conversations come from, and their mean lengths."""
        crowd = self.crowd()
        lengths = [crowd.lengths(number) for number in range(SAMPLE)]
        prompts, answers = zip(*chain.from_iterable(lengths), strict=True)
        means = fmean(map(len, lengths)), fmean(prompts), fmean(answers)
        path = self.conditions.conversations
        source = (
            "Conversations with ShareGPT's published statistics, whose lengths are drawn independently of each other"
            if path is None
            else f"Conversations of {path} with {CHARACTERS} characters to a token"
        )
        found = "{:.2f} turns, {:.1f} tokens of a prompt and {:.1f} of an answer".format(*means)
        shorter = "" if self.scale.lengths == 1 else f"; lengths are multiplied by {self.scale.lengths:g}"
        return f"{source} (in the mean {found}; the thesis' whole data: {MEANS[0]}, {MEANS[1]} and {MEANS[2]}{shorter})"

    def note(self) -> str:
        """Return a note on the machine, and on the size of the measurements."""
        return notes("pensieve/serving", setting=self, second_ms=self.scale.second * 1e3, gpus=self.gpus > 1)[0]


class Servings(tuple[Serving, ...]):
    """The models of a figure; each has a panel."""

    def start(self, say: Say) -> None:
        """Do nothing: the first run of each model prepares it."""

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return {**self[0].described(), "models": [serving.described() for serving in self]}

    def notes(self) -> tuple[str, ...]:
        """Return notes on each model and its machine, and on how all are measured."""
        first = self[0]
        crowd = first.crowd()
        begins_s, prompts = crowd.period(1.0, 1).begin_s, int(LONGEST * first.scale.lengths)
        conversations = first.conversations()
        return (
            *(serving.note() for serving in self),
            *notes("pensieve/method", setting=first, conversations=conversations, begins_s=begins_s, prompts=prompts),
        )


def experiment(
    number: str,
    shows: str,
    models: Sequence[str],
    other: Mapping[str, Mapping[str, Any]] | None = None,
    page: str = "verdicts",
    min_turns: int = 1,
) -> Callable[[Draw[Servings]], Experiment]:
    """Return a decorator that turns a measuring function into a figure's experiment.

    Args:
        models: the thesis' models that the figure has.
        other: by scale, the fields of the scale that the figure replaces.
        min_turns: the minimum number of turns of a conversation.
    """

    def make(conditions: Conditions) -> Servings:
        differs = (other or {}).get(conditions.scale, {})
        found = read_lengths(conditions.conversations) if conditions.conversations else ()
        return Servings(Serving(conditions, name, min_turns, found, **differs) for name in models)

    return spec("Pensieve", number, shows, make, takes=("rates", "requests", "conversations"), page=page)
