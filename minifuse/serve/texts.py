"""Serving a transformer: a slot for each token's KV, and a forward pass for each plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from minifuse.core.errors import MachineError, UsageError
from minifuse.core.plan import TRANSFORMER
from minifuse.core.stages import RunPlan
from minifuse.cores import usable_cores
from minifuse.execute.link import Link
from minifuse.execute.run_ahead import RunAhead
from minifuse.execute.virtual import placeholder_tokens
from minifuse.memory.profile import powers_of_two
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.load import TextSource
from minifuse.model.text.reader import TextReader
from minifuse.parallel.config import shard_config
from minifuse.serve.assembly import Choices, Stages
from minifuse.serve.served import NOTHING_KNOWN, Offer, PlanRunner, check_model
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, Roofline, hardware
from minifuse.simulate.profiles import CHUNK, KeptProfile
from minifuse.stages import Memory

if TYPE_CHECKING:
    from minifuse.model.text.transformer import Transformer

__all__ = ["ServedText"]


class ServedText:
    """A transformer. Without weights (`model` is None) it is described, and in virtual time every token is a
    placeholder.
    """

    slot = "token"
    cell_types = (TRANSFORMER,)
    shares_device = True

    def __init__(self, choices: Choices, source: TextSource, settings: Settings, model: Transformer | None) -> None:
        self.source = source
        self.settings = settings
        self.model = model
        self.reader = TextReader(source.config.vocab_size, source.config.max_context)
        self.slot_bytes = source.slot_bytes(settings.dtype)
        self.weight_bytes = source.config.num_parameters * DTYPE_BYTES[settings.dtype]
        self.num_layers = source.config.num_layers
        self.kv_bytes = settings.kv_bytes(self.slot_bytes, None if source.has_weights else self.weight_bytes)
        if model is not None:
            self._check_model(model)

    def check(self) -> None:
        """Raise `UsageError` if the ranks cannot divide the model, or the simulated machine cannot hold it."""
        settings = self.settings
        shard_config(self.source.config, settings.tensor_parallel)
        if settings.numerics == "reference" and settings.tensor_parallel > 1:
            raise UsageError(
                f"The numerics are reference and the tensor parallel size is {settings.tensor_parallel}: sums over "
                "ranks have an order of their own; give one rank, or --numerics fast."
            )
        if settings.clock == "virtual":
            self._check_fits()

    def _check_model(self, model: Transformer) -> None:
        from minifuse.model.text.row_by_row import computes_row_by_row
        from minifuse.model.text.transformer import Transformer

        if not isinstance(model, Transformer):
            raise UsageError(
                f"The engine was given a {type(model).__name__} as its model: give what source.load returned."
            )
        if replace(cast(ModelConfig, model.config), eos_ids=()) != replace(self.source.config, eos_ids=()):
            raise UsageError(f"The model that was given is not {self.source.name}: give what source.load returned.")
        numerics = "reference" if computes_row_by_row(model) else "fast"
        check_model(self.settings, dtype=model.dtype, device=model.device.type, numerics=numerics)

    def offer(self, option: str, beside: Mapping[str, Any]) -> Offer:
        """What is known of the simulated machine, or was measured on this one.

        - `profile`: what a `chunk` costs to compute again.
        - `token_budget`: the tokens of an iteration that saturate it.
        - `lanes`: the lanes of attention that it runs at once.
        - `layers`: of the model, where they take turns.
        - `balance`: its operations for each byte that it reads, divided by the query heads that share a KV head.
        """
        if option == "layers":
            if beside["turns"] != "layers":
                return Offer(None, f"not needed: memory.turns is {beside['turns']}")
            return Offer(self.source.config.num_layers, f"the model: {self.source.name}")
        if self.settings.clock == "virtual":
            value = self._offer_of(hardware(self.settings.hardware), option, beside)
            named = self.settings.hardware if isinstance(self.settings.hardware, str) else "given"
            return NOTHING_KNOWN if value is None else Offer(value, f"computed from the hardware: {named}")
        if option not in ("profile", "token_budget"):
            return NOTHING_KNOWN  # not measured
        settings = self.settings
        kept = KeptProfile(self.source.config, settings.dtype, settings.device, beside.get("chunk", CHUNK))
        profile = kept.read(self.source.name)
        if profile is None:
            return NOTHING_KNOWN
        value = profile.text() if option == "profile" else kept.saturating_tokens()
        return NOTHING_KNOWN if value is None else Offer(value, f"the cache: {kept.path}")

    def _offer_of(self, machine: Hardware, option: str, beside: Mapping[str, Any]) -> Any:
        """The value of an option on a simulated machine; None: nothing is known."""
        config = self.source.config
        cost = Roofline(config, self.settings.dtype, machine)
        match option:
            case "profile":
                chunk: int = beside["chunk"]
                contexts = powers_of_two(
                    chunk, max(config.max_context, 4 * chunk)
                )  # at least two, however large a chunk
                return cost.recomputation(chunk, contexts).text()
            case "token_budget":
                return cost.saturating_tokens()
            case "lanes":
                return cost.num_lanes
            case "balance":
                return machine.rate(cost.element) / machine.bandwidth * config.num_kv_heads / config.num_heads
        return None

    def runner(self, stages: Stages) -> PlanRunner:
        run: RunPlan = placeholder_tokens
        close = behind = None
        if self.model is not None and self.settings.tensor_parallel > 1:
            from minifuse.parallel.launch import launch

            run = ranks = launch(
                self.model,
                self.source,
                stages.attention.backend(self.settings.device, self.settings.dtype),
                stages.memory.capacity,
                self.settings.tensor_parallel,
                host_capacity=stages.memory.host_capacity,
                layers_in_turn=stages.memory.layers_in_turn,
                seed=self.settings.seed,
            )
            close, behind = ranks.close, ranks.behind
        elif self.model is not None:
            from minifuse.execute.moving import torch_runner

            try:
                run = runner = torch_runner(self.model, stages.memory, stages.attention, self.settings.numerics)
            except (RuntimeError, MemoryError):
                mebibytes = self.slot_bytes / 2**20
                raise MachineError(
                    f"KV memory of {stages.memory.capacity * mebibytes:.0f} MiB on {self.settings.device} and of "
                    f"{stages.memory.host_capacity * mebibytes:.0f} MiB on the host could not be allocated: lower "
                    "--kv-memory or, for the host, memory.host."
                ) from None
            close, behind = runner.transfers.close, runner.transfers.behind
        if stages.batching.depth > 1:
            run = RunAhead(run)
        threads = _threads(stages.batching.workers, self.settings.device)
        return PlanRunner(run, threads=threads, close=close, behind=behind)

    def cost(self) -> Roofline:
        return Roofline(self.source.config, self.settings.dtype, hardware(self.settings.hardware))

    def link(self, memory: Memory) -> Link:
        return Link(
            self.slot_bytes,
            hardware(self.settings.hardware).transfer_bandwidth,
            self.source.config.num_layers,
            self.cost().attention_s,
            in_turn=memory.layers_in_turn > 1,
        )

    def _check_fits(self) -> None:
        """A simulated machine has no more memory than the real one."""
        source, settings = self.source, self.settings
        if settings.tensor_parallel > 1:
            raise UsageError(
                f"A tensor parallel size of {settings.tensor_parallel} was given and the clock is virtual, whose cost "
                "model knows one device: use the real clock, or one rank."
            )
        needed = self.weight_bytes + self.kv_bytes
        name = settings.hardware
        memory = hardware(name).memory
        if needed > memory:
            machine = name if isinstance(name, str) else "the machine"
            raise UsageError(
                f"{source.name} in {settings.dtype} and its KV memory take {needed / 1e9:.1f} GB, and {machine} has "
                f"{memory / 1e9:.0f} GB: choose a shorter --dtype, less --kv-memory, or another --hardware."
            )


def _threads(workers: int, device: str) -> int:
    """How many plans to compute at once: on a CPU two, or one a core. More only take the cores from each other.

    Measured on 2 cores with 16 concurrent instances, random:medium in bfloat16: 11.7 ms a token with 2 threads, 16.0
    with 1, 19.0 with 8 and 23.2 with 16, torch using 2 threads for each; 12.8, 20.9, 24.0 and 27.6 with 1 for each.
    """
    return workers if device == "cuda" else min(workers, max(2, len(usable_cores())))
