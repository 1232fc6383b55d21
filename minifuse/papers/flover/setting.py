"""Flover's experiments (section VI-A): scales, the machine, requests, fusion and instances."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import Any

import minifuse.papers.flover.paper as paper
from minifuse.core.errors import UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.model.text.load import TextSource
from minifuse.model.text.presets import preset
from minifuse.papers.contest import Bench, Raced, text_model
from minifuse.papers.experiment import Conditions, Experiment, Say, Values
from minifuse.papers.flover.bounds import BOUNDS
from minifuse.papers.flover.machine import PROMPT, by_context, calibrated
from minifuse.papers.flover.outcome import Outcome, observe
from minifuse.papers.page import Draw, notes, spec
from minifuse.simulate.cost import Hardware, hardware
from minifuse.workload.laws import Uniform

BATCHES = (1, 2, 4, 8, 16, 32)  # at which the fused stream's throughput is measured
MOST = max(BATCHES)
ALONE_ROUNDS = 3
MODELS = {"quick": "small", "cpu": "medium", "paper": paper.MODEL}


class Setting(Bench[TextSource]):
    """Serves requests on one machine, at arrivals given in the paper's milliseconds.

    One of the paper's milliseconds is 1/5800 of the time that one request takes here alone (`alone_s`). So requests
    overlap as much as in the paper.

    Args:
        tokens: the tokens of an answer, if `conditions` give none.
        crowds: pairs of the most prompts served at once and the longest answer among them, as a multiple of `tokens`.
        drawn: see `Bench`.

    Raises:
        UsageError: the model, a request or the KV memory is too large.
    """

    def __init__(
        self, conditions: Conditions, tokens: int, crowds: Iterable[tuple[int, float]], *, drawn: bool = True
    ) -> None:
        super().__init__(conditions, text_model(conditions, MODELS[conditions.scale]), calibrated(), drawn=drawn)
        shape = replace(self.source.config, eos_ids=())
        # Whether to show the paper's numbers: not beside a model that the user chose instead of the paper's.
        self.is_papers = conditions.model is None or shape == replace(preset(paper.MODEL), eos_ids=())
        self.tokens = conditions.tokens or tokens
        self.alone_s = 0.0  # until `start`
        self.throughput: dict[int, float] = {}  # tokens/s of the fused stream, by its batch
        self.by_machine: dict[str, Setting] = {"": self}
        most = self.source.config.max_context - PROMPT
        for prompts, share in (*crowds, (MOST, 1.0)):
            longest = self.length(share * paper.TOKENS)
            if longest > most:
                raise UsageError(
                    f"With --tokens {self.tokens} answers have up to {longest} tokens, and {self.source.name} has room "
                    f"for {most} after the prompt: give at most {self.tokens * most // longest}."
                )
            self.check_memory(
                prompts * (PROMPT + longest),
                f"the KV of {prompts} answers of {longest} tokens",
                "a smaller --model, a shorter --dtype or fewer --tokens",
            )

    def start(self, say: Say) -> None:
        """Load the model and warm up; then `measure`."""
        if not self.virtual:
            self.load(share=False)
            say("warming up")
            crowd = self.requests([0.0] * MOST, self.rng("warm-up").sample(range(1, MOST + 1), MOST))
            self.fusion(crowd)  # every batch size once, from all to one, with the moves in between
            self.instances(crowd[: MOST // 4])
        say("one request alone, and the fused stream's throughput")
        self.measure()

    def measure(self) -> None:
        """Measure the time of a request alone, and the throughput of `BATCHES`."""
        self.alone_s = self._alone()
        batches = {
            batch: self.fusion(self.requests([0.0] * batch), preprocess="inline")  # all in every iteration
            for batch in BATCHES
        }
        self.throughput = {batch: batch / outcome.iteration_s for batch, outcome in batches.items()}

    def machines(self) -> dict[str, Setting]:
        """Return the settings to measure a figure in, by their addition to its title.

        In virtual time, two others are the machine fitted to Fig. 8, and the one whose rows cost as much as their
        context.
        """
        if self.virtual:
            self.by_machine = {
                ", one number calibrated": self,
                ", fitted to Fig. 8": self._on(paper.FITTED),
                ", fitted, by context": self._on(by_context()),
            }
        return self.by_machine

    def _on(self, machine: str | Hardware) -> Setting:
        other = copy(self)
        other.settings = replace(self.settings, hardware=machine)
        other.measure()
        return other

    def with_ranks(self, ranks: int, link: str) -> Setting:
        """Return a setting of several GPUs, the slowest of whose connections is `link` (see `paper.LINKS`)."""
        other = copy(self)
        other.settings = replace(self.settings, tensor_parallel=ranks)
        if self.virtual:
            joined = replace(hardware(self.settings.hardware), peer_bandwidth=paper.LINKS[link])
            other.settings = replace(other.settings, hardware=joined)
        return other

    def published(self, values: Values) -> Values:
        """Return the paper's values of a point, or none if the user chose another model."""
        return values if self.is_papers else dict.fromkeys(values)

    def of_tokens(self, tokens: int) -> Setting:
        """Return a setting for requests of another length, and measure such a request alone."""
        other = copy(self)
        other.tokens = tokens
        other.alone_s = other._alone()
        return other

    def _alone(self) -> float:
        return median(self.fusion(self.requests([0.0])).latency_s for _ in range(1 if self.virtual else ALONE_ROUNDS))

    def rng(self, what: str, number: int = 0) -> random.Random:
        """Return a random stream for each purpose and round, equal for all contenders and points."""
        return random.Random(f"flover {what} {self.conditions.seed + number}")

    def seconds(self, paper_ms: float) -> float:
        """Return the seconds that are the same fraction of `alone_s` here as in the paper."""
        return paper_ms / (paper.ALONE_S * 1e3) * self.alone_s

    def length(self, paper_tokens: float) -> int:
        """Return the length that is the same fraction of `tokens` here as in the paper."""
        return max(1, int(paper_tokens * self.tokens / paper.TOKENS))

    def lengths(self, longest: int, count: int, number: int) -> list[int]:
        """Draw a round's answer lengths from U(128, longest), in the paper's tokens (VI-D)."""
        law, rng = self.law(longest), self.rng("lengths", number)
        return [law.draw(rng) for _ in range(count)]

    def law(self, longest: int) -> Uniform:
        """Return the law of answer lengths up to `longest` of the paper's tokens."""
        return Uniform(self.length(paper.SHORTEST), self.length(longest))

    def requests(self, arrivals: Sequence[float], lengths: Sequence[int] = (), prompts: int = 1) -> list[Request]:
        """Make a request of `prompts` prompts for each arrival.

        Args:
            arrivals: seconds.
            lengths: the exact number of tokens of each request's answers; by default, `tokens`.
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

    def outcome(self, name: str, requests: Sequence[Request], kv_tokens: int, options: Mapping[str, Any]) -> Outcome:
        """Serve with the technique `name`, its options, and KV memory for `kv_tokens` tokens."""
        reports: list[StepReport] = []
        self.serve(name, requests, kv_tokens, options, on_step=reports.append)
        return observe(requests, reports)

    def fusion(
        self, requests: Sequence[Request], shuffle: bool = True, preprocess: str | None = None, backend: str = "auto"
    ) -> Outcome:
        """Serve by fusion, with a memory slot for every prompt.

        Args:
            backend: what computes attention, and so how much an idle row reads.
            preprocess: where prompts are computed; None: by workers in virtual time, as in the paper, otherwise inline.
        """
        count = len(requests)
        options: dict[str, Any] = {
            "attention.backend": backend,
            "memory.slots": count,
            "memory.shuffle": shuffle,
            "memory.shrink": shuffle,  # without shuffle, the paper's region keeps its offset and size (Fig. 5)
            "batching.preprocess": preprocess or ("worker" if self.virtual else "inline"),
            "batching.preprocessors": count,  # a worker for each prompt, as in the paper
        }
        return self.outcome("fusion", requests, count * max(request.max_length for request in requests), options)

    def instances(self, requests: Sequence[Request]) -> Outcome:
        """Serve by concurrent instances, one for each request."""
        count = sum(1 for _ in groupby(requests, key=lambda request: request.group or request.id))
        kv_tokens = sum(request.max_cached for request in requests)
        return self.outcome("instances", requests, kv_tokens, {"batching.instances": count})

    def contest(
        self,
        draw: Callable[[int], list[Request]],
        first: int = 0,
        *,
        instances: bool = True,
        unshuffled: bool = False,
        masked: bool = False,
    ) -> tuple[dict[str, Raced[Outcome]], Values]:
        """Serve a round's requests by fusion and, if asked, by instances and unshuffled fusion.

        Args:
            draw: returns the requests of a round, given its number.
            first: the number of the contender that begins the first round.
            masked: also serve both with torch's attention, which reads a region up to its longest context.

        Returns:
            The contenders' outcomes of all rounds, and a point's values: overall latencies, gains of fusion, and the
            medians of their `BOUNDS`. `speedup_limit` is the speed-up over instances that would be reached if every
            request, from its arrival on, took only as long as it does alone.
        """
        draws = [draw(number) for number in range(self.rounds)]
        contenders: dict[str, Callable[[int], Outcome]] = {"fusion": lambda number: self.fusion(draws[number])}
        if unshuffled:
            contenders["unshuffled"] = lambda number: self.fusion(draws[number], shuffle=False)
        if masked:
            contenders["masked"] = lambda number: self.fusion(draws[number], backend="torch")
            contenders["unshuffled_masked"] = lambda number: self.fusion(draws[number], False, backend="torch")
        if instances:
            contenders["instances"] = lambda number: self.instances(draws[number])
            contenders["alone"] = lambda number: self.fusion(self.requests([0.0]))
        raced = self.race(contenders, lambda outcome: outcome.latency_s, first)
        values: Values = {}
        for name, one in raced.items():
            values |= {f"{name}_s": one.run.latency_s, f"{name}_s_rounds": one.rounds_s}
        if unshuffled:
            values |= gains("gain", raced["fusion"].over(raced["unshuffled"]))
            for key, bound in BOUNDS.items():
                rounds = tuple(map(bound, draws))
                values |= {key: median(rounds), f"{key}_rounds": rounds}
        if masked:
            values |= gains("masked_gain", raced["masked"].over(raced["unshuffled_masked"]))
        if instances:
            values |= gains("speedup", raced["fusion"].over(raced["instances"]))
            seconds = zip(draws, raced["alone"].rounds_s, raced["instances"].rounds_s, strict=True)
            limits = [separate_s / self._least(drew, alone_s) for drew, alone_s, separate_s in seconds]
            values["speedup_limit"] = median(limits)
        return raced, values

    def _least(self, requests: Sequence[Request], alone_s: float) -> float:
        """Return the overall latency if no request slowed another down."""
        ends = [one.arrival_s + alone_s * one.max_new_tokens / self.tokens for one in requests]
        return max(ends) - requests[0].arrival_s

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return self.facts(
            f"{paper.MACHINE}, calibrated",
            bandwidth_bytes_per_s=hardware(self.settings.hardware).bandwidth if self.virtual else None,
            tokens=self.tokens,
            prompt_tokens=PROMPT,
            alone_s=self.alone_s,
            fused_tokens_per_s={str(batch): speed for batch, speed in self.throughput.items()},
            paper_tokens=paper.TOKENS,
            paper_alone_s=paper.ALONE_S,
        )

    def notes(self) -> tuple[str, ...]:
        """Return notes on how the paper's setup was scaled, and on the throughput here."""
        bandwidth = hardware(self.settings.hardware).bandwidth
        return notes(
            "flover/setting",
            setting=self,
            paper=paper,
            terabytes=bandwidth / 1e12,
            of_sheet=bandwidth / hardware(paper.MACHINE).bandwidth,
            fitted=hardware(paper.FITTED),
            by_context=by_context(),
            batches=BATCHES,
            speeds=by_machine(
                {
                    where: ", ".join(f"{speed:,.0f}" for speed in one.throughput.values())
                    for where, one in self.by_machine.items()
                }
            ),
        )

    def about_instances(self) -> tuple[str, ...]:
        """Return a note on concurrent instances, and on how much faster fusion may be."""
        together = {where: hardware(one.settings.hardware).together for where, one in self.by_machine.items()}
        most = {where: one.throughput[MOST] / one.throughput[1] for where, one in self.by_machine.items()}
        bounds = {where: f"{most[where] / factor:.1f} times" for where, factor in together.items()}
        return notes(
            "flover/instances", setting=self, fitted=hardware(paper.FITTED), bounds=by_machine(bounds), most=MOST
        )


def by_machine(texts: Mapping[str, str]) -> str:
    """Join texts, each with the machine that it belongs to (see `Setting.machines`).

    >>> by_machine({"": "7"}), by_machine({", fitted": "7", ", other": "8"})
    ('7', '7 (fitted); 8 (other)')
    """
    return "; ".join(text + (f" ({where.removeprefix(', ')})" if where else "") for where, text in texts.items())


def gains(key: str, rounds: Sequence[float]) -> Values:
    """Return a gain as values of a point: the median, and all rounds."""
    return {key: median(rounds), f"{key}_rounds": rounds}


def experiment(
    number: str,
    shows: str,
    tokens: Mapping[str, int],
    crowds: Iterable[tuple[int, float]],
    make: Callable[..., Setting] = Setting,
) -> Callable[[Draw[Setting]], Experiment]:
    """Return a decorator that turns a measuring function into a figure's experiment.

    Args:
        tokens: the tokens of an answer, by scale.
        crowds: see `Setting`.
        make: builds the setting; by default, a plain `Setting`.
    """
    return spec(
        "Flover", number, shows, lambda conditions: make(conditions, tokens[conditions.scale], crowds), paper=paper
    )
