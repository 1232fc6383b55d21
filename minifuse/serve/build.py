"""From a technique, a model and a budget to answers: what the command line, the benchmarks and a notebook call."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from minifuse.clock import RealClock, VirtualClock
from minifuse.engine import Engine
from minifuse.errors import MachineError, RequestRefused, UsageError
from minifuse.execute import Ahead, RealExecutor, VirtualExecutor
from minifuse.execute.real import RunPlan
from minifuse.execute.virtual import placeholder_tokens
from minifuse.model.cells.config import CellSource
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.parallel.config import shard_config
from minifuse.plan import StepReport
from minifuse.request import FinishReason, Request, TextLimits, by_request
from minifuse.serve.interrupt import InterruptibleExecutor, undisturbed
from minifuse.simulate.cost import Hardware, Roofline, hardware
from minifuse.stages import Executor
from minifuse.techniques import Stages, Technique, for_model
from minifuse.trace import Trace

if TYPE_CHECKING:
    from minifuse.execute.texts import TorchRunner
    from minifuse.model.cells.model import CellModel
    from minifuse.model.text.load import ModelSource
    from minifuse.model.text.transformer import Transformer
    from minifuse.stages import Attention, Memory

__all__ = ["Answer", "Served", "Settings", "build_engine", "open_trace", "serve", "torch_runner"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is set up, whatever the technique."""

    dtype: str = "float32"
    device: str = "cpu"
    kv_memory: int = 64 * 2**20  # bytes
    clock: Literal["real", "virtual"] = "real"
    hardware: str | Hardware = "cpu"  # whose speed virtual time has
    stage_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    tensor_parallel: int = 1  # ranks among which the model, and with it the KV memory, is divided
    numerics: Literal["fast", "reference"] = "fast"  # reference: a request's bits do not depend on technique or company


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request. Times are seconds since the run began, None for what never happened."""

    request: Request
    token_ids: tuple[int, ...]  # the new tokens only
    finish_reason: FinishReason
    first_token_s: float | None = None
    finish_s: float | None = None
    why_refused: str | None = None
    results: Mapping[int, Any] = field(default_factory=dict)  # of a cell graph: what its results came to, by node


@dataclass(frozen=True, slots=True)
class Served:
    """A whole run: an answer for every request, in the order given, and the trace of how they came about."""

    answers: tuple[Answer, ...]
    trace: Trace

    @property
    def interrupted(self) -> bool:
        return any(answer.finish_reason is FinishReason.INTERRUPTED for answer in self.answers)


def torch_runner(model: Transformer, memory: Memory, attention: Attention, numerics: str = "fast") -> TorchRunner:
    """What computes plans for these stages on the model's device."""
    from minifuse.execute.texts import TorchRunner
    from minifuse.memory.storage import KVStorage

    cache = KVStorage(model.config, memory.capacity, model.dtype, model.device, memory.host_capacity)
    dtype = str(model.dtype).removeprefix("torch.")
    return TorchRunner(model, cache, attention.backend(model.device.type, dtype, numerics))


def build_engine(
    technique: Technique,
    source: ModelSource | CellSource,
    settings: Settings,
    model: Transformer | CellModel | None = None,
    trace_path: Path | None = None,
) -> Engine:
    """Plug a technique's stages into the loop.

    Args:
        model: its weights, already loaded; without, tokens are placeholders, as they may be under virtual time. A model
            of cells is always needed: it unfolds the requests.

    Raises:
        UsageError: the technique does not serve such a model, an option is wrong, the KV budget holds not even one
            token, or the ranks cannot divide the model.
        MachineError: the KV memory does not fit the device.
    """
    if isinstance(source, CellSource):
        from minifuse.serve.cells import build_cell_engine

        row = for_model(technique, "cells")
        return build_cell_engine(row, source, settings, cast("CellModel", model), trace_path)
    technique = for_model(technique, "transformer")
    model = cast("Transformer | None", model)
    token_bytes = source.config.kv_bytes_per_token(settings.dtype)
    capacity = settings.kv_memory // token_bytes
    if capacity < 1:
        raise UsageError(
            f"The KV memory of {settings.kv_memory} bytes is less than the {token_bytes} bytes of one token of "
            f"{source.name} in {settings.dtype}: raise --kv-memory."
        )
    shard_config(source.config, settings.tensor_parallel)
    if settings.numerics == "reference" and settings.tensor_parallel > 1:
        raise UsageError(
            f"The numerics are reference and the tensor parallel size is {settings.tensor_parallel}: sums over ranks "
            "have an order of their own; give one rank, or --numerics fast."
        )
    if settings.clock == "virtual":
        _check_fits(source, settings)  # before anything is allocated
    stages = Stages.of(technique, capacity, settings.stage_options)
    if model is not None or settings.clock == "real":
        stages.attention.check(settings.device, settings.dtype)
    trace = open_trace(trace_path, technique, source.name, settings, token_bytes, capacity)
    run: RunPlan = placeholder_tokens
    stop: Callable[[], None] | None = None
    if model is not None and settings.tensor_parallel > 1:
        from minifuse.parallel.launch import launch

        run = ranks = launch(
            model,
            source,
            stages.attention.backend(settings.device, settings.dtype),
            capacity,
            settings.tensor_parallel,
            host_capacity=stages.memory.host_capacity,
            seed=settings.seed,
        )
        stop = ranks.close
    elif model is not None:
        try:
            run = torch_runner(model, stages.memory, stages.attention, settings.numerics)
        except (RuntimeError, MemoryError):
            raise MachineError(
                f"KV memory of {settings.kv_memory / 2**20:.0f} MiB on {settings.device} and of "
                f"{stages.memory.host_capacity * token_bytes / 2**20:.0f} MiB on the host could not be allocated: "
                "lower --kv-memory or, for the host, memory.host."
            ) from None
    if stages.batching.depth > 1:
        run = Ahead(run)
    clock: RealClock | VirtualClock
    executor: Executor
    if settings.clock == "virtual":
        clock = VirtualClock()
        cost = Roofline(source.config, settings.dtype, hardware(settings.hardware))
        executor = VirtualExecutor(clock, cost, run, shared=True)
    else:
        clock = RealClock()
        workers, depth = stages.batching.workers, stages.batching.depth
        threads = _threads(workers, settings.device)
        executor = RealExecutor(run, clock, workers, threads=threads, depth=depth, on_close=stop)
    return Engine(
        stages.batching,
        stages.memory,
        stages.attention,
        executor,
        clock,
        limits=TextLimits(source.config.vocab_size, source.config.max_context),
        trace=trace,
    )


def open_trace(
    path: Path | None, row: Technique, model: str, settings: Settings, slot_bytes: int, capacity: int
) -> Trace:
    """The log of a run, which begins with how it is set up: memory has `capacity` slots, of a token or of a state."""
    return Trace(
        path,
        technique=row.name,
        stages=row.stages,
        model=model,
        dtype=settings.dtype,
        clock=settings.clock,
        numerics=settings.numerics,
        seed=settings.seed,
        options={name: str(value) for name, value in settings.stage_options.items()},
        kv_bytes_per_token=slot_bytes,
        kv_capacity_tokens=capacity,
    )


def _threads(workers: int, device: str) -> int:
    """How many plans to compute at once: on a CPU two, or one a core. More only take the cores from each other.

    Measured on 2 cores with 16 concurrent instances, random:medium in bfloat16: 11.7 ms a token with 2 threads, 16.0
    with 1, 19.0 with 8 and 23.2 with 16, torch using 2 threads for each; 12.8, 20.9, 24.0 and 27.6 with 1 for each.
    """
    return workers if device == "cuda" else min(workers, max(2, len(os.sched_getaffinity(0))))


def _check_fits(source: ModelSource, settings: Settings) -> None:
    """A simulated machine has no more memory than the real one."""
    if settings.tensor_parallel > 1:
        raise UsageError(
            f"A tensor parallel size of {settings.tensor_parallel} was given and the clock is virtual, whose cost "
            "model knows one device: use the real clock, or one rank."
        )
    needed = source.config.num_parameters * DTYPE_BYTES[settings.dtype] + settings.kv_memory
    name = settings.hardware
    memory = hardware(name).memory
    if needed > memory:
        machine = name if isinstance(name, str) else "the machine"
        raise UsageError(
            f"{source.name} in {settings.dtype} and its KV memory take {needed / 1e9:.1f} GB, and {machine} has "
            f"{memory / 1e9:.0f} GB: choose a shorter --dtype, less --kv-memory, or another --hardware."
        )


def serve(
    engine: Engine,
    requests: Iterable[Request],
    on_answer: Callable[[Answer], None] = lambda answer: None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> Served:
    """Serve all requests. A refused one stops nobody; Ctrl-C keeps what has been answered and marks the rest.

    Neighbours of one group are the prompts of one request.

    Args:
        on_answer: called as each request ends, refused ones first.
        on_step: called after every iteration.
    """
    requests = list(requests)
    answers: dict[int, Answer] = {}
    index: dict[str, int] = {}
    first: dict[str, float] = {}

    def ended(name: str, at: float | None) -> None:
        sequence = engine.finished[name]
        assert sequence.finish_reason is not None
        answer = Answer(
            *(sequence.request, tuple(sequence.answer), sequence.finish_reason, first.get(name), at),
            why_refused=engine.refused.get(name),
            results=sequence.results,
        )
        answers[index[name]] = answer
        on_answer(answer)

    def refused_late() -> None:
        """Those whose graphs cannot be computed, which shows when they arrive."""
        for name in engine.refused:
            if index[name] not in answers:
                ended(name, None)

    # Computing and waiting may be interrupted; the books in between are never left half written.
    with undisturbed(forget=True) as hold:
        executor = engine.executor
        engine.executor = InterruptibleExecutor(executor, hold)
        gc.freeze()  # looking through all that was there before, over and over, would take as long as scheduling itself
        try:
            numbers = count()
            for prompts in by_request(requests):
                numbered = {next(numbers): prompt for prompt in prompts}
                try:
                    engine.submit(*prompts)
                    index.update((request.id, i) for i, request in numbered.items())
                except RequestRefused as refusal:
                    for i, request in numbered.items():
                        answers[i] = Answer(request, (), FinishReason.REFUSED, why_refused=str(refusal))
                        on_answer(answers[i])
            for report in engine.run():
                for name in (*report.tokens, *report.answers):
                    first.setdefault(name, report.ended_s)
                for name in report.finished:
                    ended(name, report.ended_s)
                refused_late()
                on_step(report)
            refused_late()
        except KeyboardInterrupt:
            for name in engine.interrupt():
                ended(name, None)
            for i, request in enumerate(requests):  # finished, or not even submitted, when a callback was interrupted
                if i not in answers and index.get(request.id) == i:
                    ended(request.id, engine.now)
                elif i not in answers:
                    answers[i] = Answer(request, (), FinishReason.INTERRUPTED)
                    on_answer(answers[i])
        finally:
            gc.unfreeze()
            engine.executor = executor
            executor.close()
            engine.trace.close()
    return Served(tuple(answers[i] for i in range(len(requests))), engine.trace)
