"""Serves a transformer: a slot per token's KV, a forward pass per plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from minifuse.core.clock import RealClock, VirtualClock
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.plan import TRANSFORMER
from minifuse.core.stages import Clock, RunPlan
from minifuse.execute import RealExecutor, RunAhead, VirtualExecutor
from minifuse.execute.cores import usable_cores
from minifuse.execute.link import Link
from minifuse.execute.virtual import placeholder_tokens
from minifuse.memory.tiered.profile import powers_of_two
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.load import TextSource
from minifuse.model.text.reader import TextReader
from minifuse.parallel.config import computed_share
from minifuse.parallel.messages import SimulatedMessages
from minifuse.serve.assembly import Choices, Stages
from minifuse.serve.engine import ServingExecutor
from minifuse.serve.served import NOTHING_KNOWN, Offer, ServedModel, check_model
from minifuse.serve.settings import Settings
from minifuse.simulate.beyond import Sized, on_host, through_the_link
from minifuse.simulate.cost import Hardware, Host, Roofline, hardware
from minifuse.simulate.profiles import KeptProfile

if TYPE_CHECKING:
    from minifuse.execute.transfers import PlanTransfers
    from minifuse.model.text.transformer import Transformer
    from minifuse.parallel.runner import ParallelRunner
    from minifuse.simulate.measured import MeasuredCost


USED_BY = {"layers": ("layers",), "buffer": ("layers",), "split": ("host",), "beyond": ("host", "layers")}
MOST_SHARED = 0.5  # part of the device for slots that layers share, if the user gives none
MEASURED = ("profile", "token_budget", "beyond", "split", "buffer")  # what a machine's profile tells


class ServedText(ServedModel):
    """A transformer. Without a `model`, time is virtual and tokens are placeholders."""

    slot = "token"
    cell_types = (TRANSFORMER,)

    def __init__(self, choices: Choices, source: TextSource, settings: Settings, model: Transformer | None) -> None:
        self.source = source
        self.settings = settings
        self.model = model
        self.reader = TextReader(source.config.vocab_size, source.config.max_context)
        self.slot_bytes = source.slot_bytes(settings.dtype)
        config, ranks = source.config, settings.tensor_parallel
        share = computed_share(config, ranks)
        embeddings = config.num_parameters - config.num_matrix_weights  # whole on every rank
        self.weight_bytes = (config.num_matrix_weights + ranks * embeddings) * DTYPE_BYTES[settings.dtype]
        self.num_layers = config.num_layers
        self.cost = _cost(share, choices, settings)
        self.messages = None  # of simulated ranks
        if ranks > 1 and settings.clock == "virtual":
            self.messages = SimulatedMessages(config, ranks, self.cost.element, self.cost.collectives(ranks))
        self._attention = choices.row.attention
        self.kv_bytes = settings.kv_bytes(self.slot_bytes, None if source.has_weights else self.weight_bytes)
        self._check_settings()
        if settings.device == "cuda" and getattr(choices.options["memory"], "turns", None) == "host":
            raise UsageError(
                "memory.turns is host and the device is a GPU, beside which the host attends in virtual time alone: "
                "give --clock virtual with --device cpu, or another memory.turns."
            )
        if model is not None:
            self._check_model(model)

    def _check_settings(self) -> None:
        """Raise `UsageError` if numerics and ranks do not fit, or model and machine."""
        source, settings, ranks = self.source, self.settings, self.settings.tensor_parallel
        if settings.numerics == "reference" and ranks > 1:
            raise UsageError(
                f"The numerics are reference and the tensor parallel size is {ranks}: sums over ranks have an order of "
                "their own; give one rank, or --numerics fast."
            )
        if settings.clock == "real":
            return
        needed, memory = self.weight_bytes + self.kv_bytes, settings.memory
        if needed > memory:
            machine = settings.hardware if isinstance(settings.hardware, str) else "the machine"
            has = f"{machine} has" if ranks == 1 else f"{ranks} of {machine} have"
            raise UsageError(
                f"{source.name} in {settings.dtype} and its KV memory take {needed / 1e9:.1f} GB, and {has} "
                f"{memory / 1e9:.0f} GB: choose a shorter --dtype, less --kv-memory, or another --hardware."
            )

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
        device = self.settings.device if self._has_ranks else model.device.type  # ranks load parts
        check_model(self.settings, dtype=model.dtype, device=device, numerics=numerics)

    def offer(self, option: str, beside: Mapping[str, Any]) -> Offer:
        """Return a value computed for the simulated machine, or measured on this machine.

        - `profile`: the cost of recomputing a `chunk`.
        - `token_budget`: how many tokens per iteration saturate the machine.
        - `lanes`: how many lanes of attention the machine runs at once.
        - `layers`: the number of layers of the model, if layers take turns.
        - `balance`: the machine's operations per byte read, divided by the query heads that share a KV head.
        - `beyond`, `split`: how many KV tokens the host attends in an iteration, and from how many on in two passes; or
          how many the link uploads, and the `buffer` for two waves of them.
        """
        settings, config = self.settings, self.source.config
        if option in USED_BY:
            if beside["turns"] not in USED_BY[option]:
                return Offer(None, f"not needed: memory.turns is {beside['turns'] or 'none'}")
            if option == "split" and beside["passes"] is not None:
                return Offer(None, f"not needed: memory.passes is {beside['passes']}")
            if option == "layers":
                return Offer(config.num_layers, f"the model: {self.source.name}")
        value, source = None, ""
        if settings.clock == "virtual":
            value = self._computed(self.cost, option, beside)
            named = settings.hardware if isinstance(settings.hardware, str) else "given"
            source = f"computed from the hardware: {named}"
        elif option in MEASURED and (kept := self._measured()):  # only these are measured
            cost, path = kept
            value = self._computed(cost, option, beside)
            source = f"the cache: {path}"
        return NOTHING_KNOWN if value is None else Offer(value, source)

    def _measured(self) -> tuple[MeasuredCost, Path] | None:
        """Return the model's costs as measured on this machine, and their file.

        If the model itself was not measured, they come from models of other sizes.

        Raises:
            UsageError: the file cannot be read, or is damaged.
        """
        settings, config = self.settings, self.source.config
        for shape, name in ((config, self.source.name), (None, None)):
            kept = KeptProfile(shape, settings.dtype, settings.device)
            profile = kept.read(name)
            if profile is not None:
                from minifuse.simulate.measured import MeasuredCost

                with suppress(UsageError):  # it was measured for other shapes or stages
                    return MeasuredCost(config, profile, self._attention), kept.path
        return None

    def _computed(self, cost: Roofline | MeasuredCost, option: str, beside: Mapping[str, Any]) -> Any:
        """Return an option's value on a machine, or None if nothing is known."""
        config, machine = self.source.config, cost.machine
        match option:
            case "profile":
                chunk: int = beside["chunk"]
                longest = max(config.max_context, 4 * chunk)  # at least two lengths, however large the chunk
                return cost.recomputation(chunk, powers_of_two(chunk, longest)).text()
            case "token_budget":
                return cost.saturating_tokens()
            case "lanes":
                return cost.num_lanes
            case "balance":
                return machine.rate(cost.element) / machine.bandwidth * config.num_kv_heads / config.num_heads
            case "beyond" | "split" | "buffer":
                return self._beyond(cost, option, beside["turns"], beside["host_dtype"])
        return None

    def _beyond(self, cost: Roofline | MeasuredCost, option: str, turns: str, host_dtype: str) -> float | None:
        """Return what an iteration can attend beyond the device; None: whatever the host holds."""
        capacity = self.kv_bytes // self.slot_bytes
        if turns == "host" and not cost.host_attends:
            return None
        if turns == "host":
            return self._on_host.tokens if option == "beyond" else self._on_host.split
        tokens = through_the_link(cost, self._link(cost, host_dtype), capacity)
        longest = max(tokens, self.source.config.max_context)  # of a wave
        return tokens or None if option == "beyond" else min(MOST_SHARED, 2 * longest / (capacity * self.num_layers))

    def executor(self, stages: Stages) -> tuple[ServingExecutor, Clock]:
        settings = self.settings
        run: RunPlan = placeholder_tokens
        close = behind = None
        if self.model is not None:
            run, moves = self._runner(self.model, stages)
            close, behind = moves.close, moves.behind
        workers, depth = stages.batching.workers, stages.batching.depth
        if depth > 1:
            run = RunAhead(run)
        if settings.clock == "virtual":
            machine = self.cost.machine
            virtual = VirtualClock()
            return VirtualExecutor(
                virtual,
                self.cost,
                run,
                shared=True,
                together=machine.together,
                link=self._link(self.cost, stages.memory.host_dtype),
                messages=self.messages,
                on_close=close,
            ), virtual
        clock, threads = RealClock(), _threads(workers, settings.device)
        return RealExecutor(run, clock, workers, threads=threads, depth=depth, on_close=close, behind=behind), clock

    def _link(self, cost: Roofline | MeasuredCost, host_dtype: str = "auto") -> Link:
        """Return the simulated link between the device and the host, of one rank."""
        share = cost.config
        down, up = share.q_size + 2 * share.kv_size, share.q_size  # queries, keys and values; outputs
        activations = (down * cost.element, up * cost.element) if cost.host_attends else None
        kv_bytes = share.kv_bytes_per_token(self.settings.dtype if host_dtype == "auto" else host_dtype)
        return Link(kv_bytes, cost.link_rates, self.num_layers, cost.times, activations)

    @cached_property
    def _on_host(self) -> Sized:
        """Return what the host of the simulated machine attends."""
        return on_host(self.cost, self._link(self.cost), self.kv_bytes // self.slot_bytes)

    @property
    def _has_ranks(self) -> bool:
        """Tell whether processes share the model; in virtual time ranks are simulated in this one."""
        return self.settings.tensor_parallel > 1 and self.settings.clock == "real"

    def _runner(self, model: Transformer, stages: Stages) -> tuple[RunPlan, ParallelRunner | PlanTransfers]:
        """Return the runner of plans, and what starts the moves of plans without work."""
        settings, memory = self.settings, stages.memory
        if self._has_ranks:
            from minifuse.parallel.launch import launch
            from minifuse.parallel.order import Setup

            setup = Setup(
                self.source,
                stages.attention.backend(settings.device, settings.dtype),
                memory.capacity,
                settings.tensor_parallel,
                memory.host_capacity,
                memory.shared_capacity,
                memory.host_dtype,
                settings.seed,
                dtype=settings.dtype,
                device=settings.device,
            )
            ranks = launch(setup)
            return ranks, ranks
        from minifuse.execute.moving import torch_runner

        try:
            runner = torch_runner(model, memory, stages.attention, settings.numerics)
        except (RuntimeError, MemoryError):
            mebibytes = self.slot_bytes / 2**20
            raise MachineError(
                f"KV memory of {memory.capacity * mebibytes:.0f} MiB on {settings.device} and of "
                f"{memory.host_capacity * mebibytes:.0f} MiB on the host could not be allocated: lower "
                "--kv-memory or, for the host, memory.host."
            ) from None
        return runner, runner.transfers


def _cost(config: ModelConfig, choices: Choices, settings: Settings) -> Roofline | MeasuredCost:
    """Return the cost model of the simulated machine: a data sheet's, or a profile's."""
    machine = settings.hardware
    if isinstance(machine, (str, Hardware)):
        return Roofline(config, settings.dtype, _machine(hardware(machine), choices, settings.tensor_parallel))
    from minifuse.simulate.collectives import MeasuredCollectives
    from minifuse.simulate.machine_profile import check_profile
    from minifuse.simulate.measured import MeasuredCost

    profile = check_profile(machine, settings.dtype)
    if settings.tensor_parallel > 1:
        MeasuredCollectives(profile, settings.tensor_parallel)  # refuses ranks before a rank's share is refused
    return MeasuredCost(config, profile, choices.row.attention, choices.row.mix)


def _machine(machine: Hardware, choices: Choices, ranks: int) -> Hardware:
    """Return one rank's machine, with attention by the backend that was chosen for it."""
    if machine.host is not None:
        machine = replace(machine, host=Host(machine.host.bandwidth / ranks, machine.host.flops / ranks))
    backend = getattr(choices.options["attention"], "backend", "auto")  # a plugin's attention may have no such option
    return machine if backend == "auto" else replace(machine, masked=backend == "torch")


def _threads(workers: int, device: str) -> int:
    """Return how many plans this device should compute at once.

    On 2 cores, 16 concurrent instances of random:medium in bfloat16 took 16.0, 11.7, 19.0 and 23.2 ms per token with 1,
    2, 8 and 16 plans at once, if torch used 2 threads for each plan. With 1 thread for each they took 20.9, 12.8, 24.0
    and 27.6 ms.
    """
    return workers if device == "cuda" else min(workers, max(2, len(usable_cores())))
