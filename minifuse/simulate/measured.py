"""Estimates how long an iteration takes from a machine's profile: the sum of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

from minifuse.core.plan import Plan, Work
from minifuse.core.shapes import Rectangle, Region
from minifuse.execute.layers import PlanTimes
from minifuse.execute.link import AT_ONCE, Direction, LinkRates
from minifuse.io.parsing import one_of
from minifuse.memory.tiered.profile import Profile
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.config import ModelConfig
from minifuse.simulate.collectives import MeasuredCollectives
from minifuse.simulate.cost import saturating
from minifuse.simulate.host_terms import Terms, host_terms
from minifuse.simulate.look_up import LookUp
from minifuse.simulate.machine_profile import Host, MachineProfile, at_width, known


def kind_of_layer(config: ModelConfig) -> str:
    """Return what the model's layers compute: models of a kind run the same operators."""
    return config.family if config.family in ("llama", "gptj") else "gpt"


def layer_weights(config: ModelConfig) -> int:
    """Count the weights of one layer."""
    return (config.num_matrix_weights - config.head_weights) // config.num_layers


def heads_of(config: ModelConfig) -> tuple[int, int]:
    """Return how many query heads share a KV head, and the numbers in a head."""
    return config.num_heads // config.num_kv_heads, config.head_dim


def _told(shared: int, size: int) -> str:
    return f"heads of {size} numbers, {shared} of queries for each of KV"


class MeasuredCost:
    """Adds up the measured times of a plan's operators, one after the other.

    Every layer computes all tokens, then attends. The head samples. Before and after, the host makes the plan and its
    tensors. Sequences with a single query are attended together, other pieces of work one by one.

    Args:
        attention: the name of the attention stage.
        mix: the names of all stages, joined by +; None: the host takes no time.

    Raises:
        UsageError: the profile was measured with other models or stages.
    """

    def __init__(self, config: ModelConfig, profile: MachineProfile, attention: str, mix: str | None = None) -> None:
        self.config, self.num_layers = config, config.num_layers
        self.element = DTYPE_BYTES[profile.dtype]
        self._tables, self._profile = LookUp(profile.slow), profile
        kind = known(profile.kinds, kind_of_layer(config), "layers")
        tables = known(kind.attention, attention, "attention")
        host = Host(seconds={}) if mix is None else profile.host_of(kind_of_layer(config), mix)
        self.host = host.seconds
        self.machine = replace(profile.sheet, together=host.speed_of_several(layer_weights(config)))
        self._embed = at_width(kind.embed, config.hidden_size, "numbers in a hidden state")
        self._layer = at_width(kind.layers, layer_weights(config), "weights in a layer")
        self._head = at_width(kind.head, config.head_weights, "weights in the head")
        self._decode = at_width(tables.decode, config.kv_size, "numbers in a key")
        self._prefill = at_width(tables.prefill, config.q_size, "numbers in a query")
        self._index_decode = at_width(tables.index_decode, config.kv_size, "numbers in a key")
        self._index_prefill = at_width(tables.index_prefill, config.kv_size, "numbers in a key")
        self._ragged = tables.ragged
        self._shared = (
            self._tables.seconds(at_width(tables.index_shared, config.kv_size, "numbers in a key")),
            self._tables.seconds(at_width(tables.shared, config.q_size, "numbers in a query")),
        )
        if heads_of(config) not in kind.heads:
            self._tables.warn(
                "heads",
                f"The model has {_told(*heads_of(config))}, and the profile was measured with "
                f"{one_of([_told(*heads) for heads in kind.heads])}: attention may take another time.",
            )
        self.embed_s = cache(lambda count: self._tables.seconds(self._embed, count))
        self.layers_s = cache(lambda count: config.num_layers * self._tables.seconds(self._layer, count))
        self.head_s = cache(lambda rows: self._tables.seconds(self._head, rows))

    def __call__(self, plan: Plan) -> float:
        return self.device_s(plan) + self.host_s(plan)

    def device_s(self, plan: Plan) -> float:
        """Return the seconds of a plan's operators, and of making its tensors."""
        if plan.layout.passes:
            return sum(map(self.device_s, plan.parts))
        index_s, attention_s = self._attention(plan)
        computed = plan.num_computed
        token_wise_s = self.embed_s(computed) + self.layers_s(computed) + self.head_s(len(plan.work))
        return float(token_wise_s + index_s + sum(attention_s))

    def host_s(self, plan: Plan) -> float:
        """Return the seconds in which the host decides on a plan, and takes its results."""
        return self._tables.host_s(self.host, self.terms(plan))

    def terms(self, plan: Plan) -> Terms:
        """Count what in a plan costs the host time."""
        return host_terms(plan, self.num_layers)

    def attention_s(self, plan: Plan) -> list[float]:
        """Return the seconds of attention of each wave, in all layers."""
        return self._attention(plan)[1]

    def times(self, plan: Plan) -> PlanTimes:
        """Return how long the passes and the waves of a plan take."""
        attention_s = [self.attention_s(part) for part in plan.parts]
        token_wise = [self.device_s(part) - sum(waves) for part, waves in zip(plan.parts, attention_s, strict=True)]
        token_wise[0] += self.host_s(plan)
        return PlanTimes(token_wise, [*chain.from_iterable(attention_s)])

    @property
    def host_attends(self) -> bool:
        """Return False: the processor that was measured is the host."""
        return False

    @property
    def num_lanes(self) -> int | None:
        """Return None: how many lanes run at once is part of what was measured."""
        return None

    def _attention(self, plan: Plan) -> tuple[float, list[float]]:
        """Return the seconds of making the tensors, and of each wave's attention in all layers."""
        shape = plan.shape
        if shape is not None:
            index_s, one_s = self._shape(plan)
            return index_s, [self.num_layers * one_s]
        index_s, waves = 0.0, []
        for start, stop in plan.waves:
            pieces = plan.work[start:stop]
            single = [piece.stop for piece in pieces if piece.stop - piece.start == 1]
            parts = [self._prompt(piece) for piece in pieces if piece.stop - piece.start > 1]
            if single:
                mean = sum(single) / len(single)
                parts.append(self._rows(len(single), mean + self._ragged * (max(single) - mean)))
            tensors_s, one_s = self._together(parts)
            index_s += tensors_s
            waves.append(self.num_layers * one_s)
        return index_s, waves

    def _shape(self, plan: Plan) -> tuple[float, float]:
        """Return the seconds of tensors, and of one layer's attention over a whole shape."""
        shape = plan.shape
        if isinstance(shape, Region):
            return self._rows(shape.size, max(work.stop for work in plan.work))
        assert isinstance(shape, Rectangle)
        computed, width = shape.stop - shape.start, shape.stop - shape.begin
        if computed == 1:
            return self._rows(shape.rows, width)
        return self._together([self._prompt(Work("", width - computed, width))] * shape.rows)

    def _together(self, parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Add up times of tensors and of attention, less what parts of one wave share."""
        if not parts:
            return 0.0, 0.0
        index_s, one_s = (
            max(max(seconds), sum(seconds) - (len(parts) - 1) * shared)
            for seconds, shared in zip(zip(*parts, strict=True), self._shared, strict=True)
        )
        return index_s, one_s

    def _rows(self, rows: int, context: float) -> tuple[float, float]:
        """Return the seconds of tensors and of one layer's attention, of `rows` single queries."""
        return self._tables.seconds(self._index_decode, rows, context), self._tables.seconds(
            self._decode, rows, context
        )

    def _prompt(self, work: Work) -> tuple[float, float]:
        """Return the seconds of tensors, and of one layer's attention of several queries."""
        point = work.num_tokens, work.start
        return self._tables.seconds(self._index_prefill, *point), self._tables.seconds(self._prefill, *point)

    @property
    def link_rates(self) -> LinkRates:
        """Return the rates of copies between the tiers."""
        found, slow = self._profile.transfers, self._profile.slow
        if found is None:
            return AT_ONCE
        to_host, to_device = (
            Direction(one.bandwidth / slow, one.copy_s * slow) for one in (found.to_host, found.to_device)
        )
        return LinkRates(to_host, to_device, found.both_ways)

    def collectives(self, ranks: int) -> MeasuredCollectives:
        """Return how long messages take among so many of these machines."""
        return MeasuredCollectives(self._profile, ranks)

    def reading_s(self, context: int) -> float:
        """Return the seconds of reading the KV of `context` tokens."""
        return context * self.config.kv_elements_per_token * self.element / self.machine.bandwidth

    def saturating_tokens(self) -> int:
        """Return the fewest tokens per iteration that nearly reach the highest token rate."""
        fixed = self.host.get("iteration", 0.0) + self.num_layers * self.host.get("layer", 0.0)
        return saturating({int(count): self.layers_s(int(count)) + fixed for count in self._layer.axes["tokens"]})

    def recomputation(self, chunk: int, contexts: Sequence[int]) -> Profile:
        """Return the cost of recomputing the last `chunk` tokens of each context (Pensieve, 3.4.3.1).

        Contexts that were not measured are left out, except for the first two: `Profile` continues the last slope.
        """
        longest = chunk + self._prefill.axes["earlier"][-1]
        contexts = [*contexts[:2], *[context for context in contexts[2:] if context <= longest]]
        works = [Work("", context - chunk, context) for context in contexts]
        attention = tuple(self.num_layers * self._prompt(work)[1] for work in works)
        return Profile(self.layers_s(chunk), tuple(contexts), attention)
