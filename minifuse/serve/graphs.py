"""Serves a model of cells: a slot per node's states, a batch per wave."""

from __future__ import annotations

import threading
from functools import partial

import torch

from minifuse.core.clock import RealClock, VirtualClock
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.core.stages import Clock, RunPlan
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.execute.cells import CellRunner
from minifuse.execute.cores import usable_cores
from minifuse.execute.state_storage import StateStorage
from minifuse.model.cells.by_operator import by_operator
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.source import CellSource
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.serve.assembly import Choices, Stages
from minifuse.serve.engine import ServingExecutor
from minifuse.serve.served import ServedModel, check_model
from minifuse.serve.settings import Settings
from minifuse.simulate.cells import CellRoofline, MeasuredCells
from minifuse.simulate.cost import Hardware, hardware


class ServedCells(ServedModel):
    """A model of cells. In virtual time it only unfolds requests, and needs no weights."""

    slot = "state"

    def __init__(self, choices: Choices, source: CellSource, settings: Settings, model: CellModel) -> None:
        if not isinstance(model, CellModel):
            raise UsageError(
                f"The engine was given a {type(model).__name__} as its model: give what source.load returned, or, in "
                "virtual time, source.outline."
            )
        check_model(settings, dtype=model.dtype)
        of_cells = f"and {source.name} is made of cells"
        if settings.tensor_parallel > 1:
            raise UsageError(
                f"--tensor-parallel is {settings.tensor_parallel}, {of_cells}, which are not divided among processes: "
                "leave it out."
            )
        if settings.numerics == "reference":
            raise UsageError(
                f"--numerics is reference, which is for transformers, {of_cells}: leave it out; in --dtype float64 "
                "results agree to nine digits."
            )
        self.settings = settings
        self.model = by_operator(model) if choices.policy.granularity == "operator" else model
        self.reader = self.model
        self.slot_bytes = self.model.slot_bytes
        weights = source.config.num_parameters * DTYPE_BYTES[settings.dtype]
        self.kv_bytes = settings.kv_bytes(source.slot_bytes(settings.dtype), weights)
        self.cell_types = self.model.types
        self.cost = self._cost(choices)

    def _cost(self, choices: Choices) -> CellRoofline | MeasuredCells:
        """Return the cost model of the simulated machine: a data sheet's, or a profile's."""
        machine = self.settings.hardware
        if isinstance(machine, (str, Hardware)):
            return CellRoofline(self.model, hardware(machine))
        from minifuse.simulate.machine_profile import check_profile

        return MeasuredCells(self.cell_types, check_profile(machine, self.settings.dtype), choices.row.mix)

    def executor(self, stages: Stages) -> tuple[ServingExecutor, Clock]:
        """Make the executor, and its clock.

        On a GPU, each worker issues plans in one thread and waits for them in another. On a CPU, a single worker runs
        in the caller's thread, and several share the cores. In virtual time each worker has a device of its own, and
        states stay on it.
        """
        settings, workers, device = self.settings, stages.batching.workers, self.model.device
        if settings.clock == "virtual":
            virtual = VirtualClock()
            return VirtualExecutor(virtual, self.cost, placeholders(self.model), host=self.cost.prepare_s), virtual
        capacity = stages.memory.capacity
        try:
            runner = CellRunner(self.model, StateStorage(self.model.fields, capacity, device))
        except (RuntimeError, MemoryError):
            raise MachineError(
                f"Memory of {capacity * self.slot_bytes / 2**20:.0f} MiB for states could not be allocated "
                f"on {settings.device}: lower --kv-memory."
            ) from None
        runner.materialise(stages.batching.batch_sizes)
        run: RunPlan = runner
        issue = on_close = None
        if device.type == "cuda":
            issue = runner.issue
        elif workers > 1:
            on_close = partial(torch.set_num_threads, torch.get_num_threads())
            run = _sharing(runner, max(1, len(usable_cores()) // workers))
        clock, depth = RealClock(), stages.batching.depth
        return RealExecutor(run, clock, workers, depth=depth, issue=issue, on_close=on_close), clock


def _sharing(run: RunPlan, num_threads: int) -> RunPlan:
    """Wrap `run` so that each thread that calls it uses `num_threads` torch threads."""
    own = threading.local()

    def divided(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if not hasattr(own, "divided"):
            torch.set_num_threads(num_threads)
            own.divided = True
        return run(plan, sequences)

    return divided


def placeholders(model: CellModel) -> RunPlan:
    """Return a function that runs a plan without computing; every token it produces is -1."""

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        tokens: dict[str, tuple[int, ...]] = {}
        for work in plan.work:
            if model.types[work.cell].token_output is not None:
                tokens[work.sequence] = (*tokens.get(work.sequence, ()), -1)
        return Ran(tokens)

    return run
