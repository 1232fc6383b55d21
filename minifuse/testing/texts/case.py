"""Runs a technique on texts, with small transformers and a shadow of the KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING

from minifuse.contracts.attention import checked_backend
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan, sampled_work
from minifuse.core.report import NOT_FINITE, Ran
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.stages import RunPlan
from minifuse.execute import RunAhead
from minifuse.execute.link import Link, LinkRates
from minifuse.model.text.reader import TextReader
from minifuse.stages import COMPUTED_WHOLE, Memory
from minifuse.testing.capacity import slots_needed
from minifuse.testing.observation import Observation
from minifuse.testing.subject import Case, Expected, Tokens
from minifuse.testing.texts.alike import check_alike
from minifuse.testing.texts.books import TextBooks
from minifuse.testing.texts.models import expected_answer, model_config, small_model
from minifuse.testing.texts.scenario import TextScenario
from minifuse.testing.texts.tiers import check_found, check_kept, check_swaps
from minifuse.testing.texts.value import check_value

if TYPE_CHECKING:
    from minifuse.testing.texts.ghost import GhostRunner


class TextCase(Case):
    """A technique on a scenario of texts."""

    scenario: TextScenario

    @property
    def capacity(self) -> int:
        return self.scenario.capacity

    @property
    def reader(self) -> TextReader:
        config = model_config(self.scenario.model)
        return TextReader(config.vocab_size, config.max_context)

    @property
    def probes(self) -> list[Sequence]:
        return _probes(self.capacity)

    @cached_property
    def most_steps(self) -> int:
        """Count the steps if every token recomputes its text, and each request is prepared alone."""
        limit = self.choices.policy.token_budget or math.inf
        longest: dict[str | None, int] = {None: 0}  # longest text up to the end of each request
        lengths: list[int] = []
        for request in self.requests:
            before = longest.get(request.after, 0)
            longest[request.id] = before + request.max_length
            lengths += range(before + len(request.prompt), longest[request.id])
        return len(self.requests) + sum(math.ceil(n / min(limit, n)) for n in lengths)

    def books(self, memory: Memory) -> TextBooks:
        return TextBooks(memory, self.options["memory"], self._copy_bytes(memory), self._both_ways)

    @property
    def _slot_bytes(self) -> int:
        return model_config(self.scenario.model).kv_bytes_per_token("float64")

    def _copy_bytes(self, memory: Memory) -> int:
        """Return the bytes of a slot's copy on the host."""
        dtype = "float64" if memory.host_dtype == "auto" else memory.host_dtype
        return model_config(self.scenario.model).kv_bytes_per_token(dtype)

    @property
    def _both_ways(self) -> float | None:
        """Return for every second scenario that the link's directions may overlap."""
        return 0.75 if self.scenario.capacity % 2 else None

    def link(self, memory: Memory) -> Link:
        seconds = self.scenario.seconds_per_transfer
        bandwidth = self._slot_bytes / seconds if seconds else math.inf
        num_layers = model_config(self.scenario.model).num_layers
        # Copies have no latency: in a second life blocks lie elsewhere, and may take more copies.
        rates = LinkRates.alike(bandwidth, both_ways=self._both_ways)
        return Link(self._copy_bytes(memory), rates, num_layers)

    def runner(self, numerics: str = "fast") -> GhostRunner:
        from minifuse.execute.tiered_storage import TieredStorage
        from minifuse.testing.texts.ghost import GhostRunner

        stages = self.stages()
        memory, model = stages.memory, small_model(self.scenario.model, numerics)
        sizes = memory.host_capacity, memory.shared_capacity, memory.host_dtype
        cache = TieredStorage(model.config, memory.capacity, model.dtype, model.device, *sizes)
        on_device = [cache.tiers["device"], cache.tiers["shared"]]
        taken = sum(kv.untyped_storage().nbytes() for tier in on_device for kv in (tier.keys, tier.values))
        allowed = self.capacity * self._slot_bytes
        if taken > allowed:
            raise LawBroken("budget", f"the KV tensors take {taken} bytes of {allowed}")
        backend = checked_backend(stages.attention, "cpu", "float64", numerics)
        return GhostRunner(model, cache, backend, cleared=bool(stages.attention.reads & COMPUTED_WHOLE))

    def replay(self, tokens: Tokens) -> RunPlan:
        def run(plan: Plan, sequences: Mapping[str, Sequence]) -> Ran:
            names = [plan.work[i].sequence for i in sampled_work(plan, sequences)]
            found = {name: tokens.get((name, len(sequences[name])), -1) for name in names}
            failed = tuple(name for name in names if found[name] == NOT_FINITE)
            return Ran({name: (found[name],) for name in names if name not in failed}, not_finite=failed)

        return run

    def expected(self, request: Request) -> Expected:
        tokens = expected_answer(self.scenario.model, request)
        stopped = not request.ignore_eos and tokens[-1:] and tokens[-1] in request.stop_ids
        whole = FinishReason.LENGTH if len(tokens) == request.max_new_tokens else FinishReason.NAN
        return Expected(tokens, FinishReason.STOP if stopped else whole)

    def endless(self, request: Request) -> Expected:
        return Expected((-1,) * request.max_new_tokens, FinishReason.LENGTH)

    def servable(self, prompts: tuple[Request, ...]) -> bool:
        """Return whether the prompts fit in the context, and in memory together."""
        needed = slots_needed(self.choices, tuple(map(Sequence, prompts)))
        context = model_config(self.scenario.model).max_context
        return needed is not None and needed <= self.capacity and all(p.max_length <= context for p in prompts)

    def of_one_run(self, seen: Observation) -> None:
        check_value(self, seen)
        check_alike(self, seen)
        check_swaps(self, seen)
        check_kept(self, seen)
        check_found(self, seen)

    def running_ahead(self, run: RunPlan) -> RunPlan:
        return RunAhead(run)


@cache
def _probes(count: int) -> list[Sequence]:
    return [Sequence(Request(f"probe {i}", (0,), max_new_tokens=1)) for i in range(count)]
