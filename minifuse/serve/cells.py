"""Plugging stages together for a model of cells."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from minifuse.cell_graph import CellGraph
from minifuse.clock import RealClock, VirtualClock
from minifuse.engine import Engine
from minifuse.errors import MachineError, UsageError
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.execute.cells import CellRunner
from minifuse.execute.real import RunPlan
from minifuse.memory.state_storage import StateStorage
from minifuse.model.cells.by_operator import by_operator
from minifuse.model.cells.config import CellSource
from minifuse.model.cells.model import CellModel
from minifuse.parsing import unknown
from minifuse.plan import Plan, Ran
from minifuse.request import Request, Sequence
from minifuse.serve.build import Settings, open_trace
from minifuse.simulate.cells import CellRoofline
from minifuse.simulate.cost import hardware
from minifuse.techniques import Stages, Technique, check_settings

__all__ = ["build_cell_engine"]


def build_cell_engine(
    technique: Technique, source: CellSource, settings: Settings, model: CellModel, trace_path: Path | None = None
) -> Engine:
    """`build_engine` for a model of cells: its KV memory holds the states of nodes, a slot for each.

    Raises:
        UsageError: an option is wrong, or the memory holds not even one state.
        MachineError: it does not fit the device.
    """
    if getattr(check_settings(technique, settings.stage_options)["batching"], "per", "cell") == "operator":
        model = by_operator(model)
    capacity = settings.kv_memory // model.slot_bytes
    if capacity < 1:
        raise UsageError(
            f"The memory of {settings.kv_memory} bytes is less than the {model.slot_bytes} bytes of one state of "
            f"{source.name} in {settings.dtype}: raise --kv-memory."
        )
    stages = Stages.of(technique, capacity, settings.stage_options)
    stages.attention.check(settings.device, settings.dtype)
    memory, batching = stages.memory, stages.batching
    _check_types(getattr(batching, "named_types", ()), model)
    check_graph: Callable[[str, CellGraph], None] | None = getattr(memory, "check_graph", None)

    def unfold(request: Request) -> CellGraph:
        graph = model.unfold(request)
        if check_graph is not None:
            check_graph(request.id, graph)
        return graph

    clock: RealClock | VirtualClock
    executor: RealExecutor | VirtualExecutor
    if settings.clock == "virtual":
        clock = VirtualClock()
        executor = VirtualExecutor(clock, CellRoofline(model, hardware(settings.hardware)), placeholders(model))
    else:
        clock = RealClock()
        executor = _real(_runner(model, capacity, settings), clock, batching.workers, batching.depth)
    return Engine(
        *(batching, memory, stages.attention, executor, clock),
        limits=model,
        unfold=unfold,
        trace=open_trace(trace_path, technique, source.name, settings, model.slot_bytes, capacity),
    )


def _check_types(named: Iterable[str], model: CellModel) -> None:
    """Raise `UsageError` if an option names a type of cell that this model does not have."""
    for name in named:
        if name not in model.types:
            raise unknown(f"type of cell of {model.name}", name, model.types)


def _runner(model: CellModel, capacity: int, settings: Settings) -> CellRunner:
    try:
        return CellRunner(model, StateStorage(model.fields, capacity, model.device))
    except (RuntimeError, MemoryError):
        raise MachineError(
            f"Memory of {settings.kv_memory / 2**20:.0f} MiB for states could not be allocated on {settings.device}: "
            "lower --kv-memory."
        ) from None


def _real(runner: CellRunner, clock: RealClock, workers: int, depth: int) -> RealExecutor:
    """On a GPU plans are issued from threads and polled for; on a CPU one worker needs none, more share the cores."""
    if runner.model.device.type == "cuda":
        return RealExecutor(runner, clock, workers, depth=depth, issue=runner.issue)
    if workers == 1:
        return RealExecutor(runner, clock, depth=depth)
    before = torch.get_num_threads()
    run = _sharing(runner, max(1, len(os.sched_getaffinity(0)) // workers))
    return RealExecutor(run, clock, workers, depth=depth, on_close=lambda: torch.set_num_threads(before))


def _sharing(run: RunPlan, num_threads: int) -> RunPlan:
    """`run`, in threads that have so many of torch's each."""
    own = threading.local()

    def divided(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if not hasattr(own, "divided"):
            torch.set_num_threads(num_threads)
            own.divided = True
        return run(plan, sequences)

    return divided


def placeholders(model: CellModel) -> RunPlan:
    """What a plan says without being computed: -1 for every node that says a token."""

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        said: dict[str, int] = {}
        for work in plan.work:
            if model.types[work.cell].says is not None:
                said[work.sequence] = said.get(work.sequence, 0) + 1
        return Ran(
            {name: -1 for name, count in said.items() if count == 1},
            answers={name: (-1,) * count for name, count in said.items() if count > 1},
        )

    return run
