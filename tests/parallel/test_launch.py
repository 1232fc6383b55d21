"""Starting and stopping ranks: a failure ends the run with one clear error, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from helpers import asks, make_engine, refusal, run_all

from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.core.clock import RealClock
from minifuse.core.errors import MachineError, ModelError, UsageError
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import FinishReason, Sequence
from minifuse.execute import RealExecutor
from minifuse.kernels.operators import TORCH
from minifuse.model.text.load import TextSource
from minifuse.model.text.reader import TextReader
from minifuse.parallel import watch
from minifuse.parallel.launch import launch
from minifuse.parallel.order import Setup
from minifuse.parallel.runner import ParallelRunner
from minifuse.parallel.watch import Watch
from minifuse.serve.assembly import choose
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import serve
from minifuse.techniques import technique
from minifuse.testing.texts.models import CONFIGS, CONTEXT, VOCAB, expected_answer

CAPACITY = 400
REQUESTS = [asks(f"r{i}", 3 + i, 12, ignore_eos=True) for i in range(4)]


class Failing(PerSequenceAttention):
    """Attention that fails on every rank but rank 0, at the token of position 9."""

    def batch(self, plan: Plan, sequences: dict[str, Sequence], cache: object) -> object:  # type: ignore[override]
        if "follower" in sys.argv[0] and any(work.stop > 9 for work in plan.work):
            raise ValueError("only  here")
        return super().batch(plan, sequences, cache)  # type: ignore[arg-type]


def start(attention: PerSequenceAttention | None = None, size: int = 2, timeout_s: float = 60.0) -> ParallelRunner:
    source, attention = TextSource("opt", CONFIGS["opt"], None), attention or PerSequenceAttention(TORCH)
    return launch(Setup(source, attention, CAPACITY, size, seed=7, timeout_s=timeout_s, dtype="float64"))


def at_step(
    number: int, action: Callable[[], object], run: ParallelRunner
) -> Callable[[Plan, dict[str, Sequence]], Ran]:
    """`run`, with `action` called just before plan `number`."""

    def call(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.step == number:
            action()
        return run(plan, sequences)

    return call


def all_stopped(run: ParallelRunner) -> bool:
    return all(process.poll() is not None for process in run.followers.processes) and not dist.is_initialized()


def test_one_rank_needs_no_followers() -> None:
    with start(size=1) as run:
        assert run.followers.processes == []
        steps = run_all(make_engine("orca", run=run), REQUESTS)
        for request in REQUESTS:
            tokens = tuple(token for step in steps for token in step.tokens.get(request.id, ()))
            assert tokens == expected_answer("opt", request)
        with refusal(UsageError, "in use", "close"):
            start(size=1)
    assert not dist.is_initialized()


@pytest.mark.parametrize(("size", "parts"), [(3, ("4 attention heads", "3 ranks")), (0, ("0", "at least 1"))])
def test_a_model_that_cannot_be_split_starts_no_process(
    size: int, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with refusal(UsageError, *parts):
        start(size=size)
    assert not dist.is_initialized()


def test_close_leaves_no_process_behind() -> None:
    with start() as run:
        run_all(make_engine("orca", run=run), REQUESTS)
        assert not all_stopped(run)
        assert os.getpgid(run.followers.processes[0].pid) != os.getpgid(0)  # Ctrl-C in a terminal reaches rank 0 alone
    assert all_stopped(run)
    assert [process.returncode for process in run.followers.processes] == [0]
    run.close()
    with refusal(MachineError, "stopped", "launch them again"):
        run_all(make_engine("orca", run=run), REQUESTS)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_follower_that_dies_is_named(workers: int) -> None:
    run = start()
    kill = at_step(6, run.followers.processes[0].kill, run)
    if workers == 1:
        engine = make_engine("orca", run=kill)
    else:
        stages, clock = choose(technique("fusion"), {"memory.slots": 8}).stages(CAPACITY), RealClock()
        executor = RealExecutor(kill, clock, 2)
        reader = TextReader(VOCAB, CONTEXT)
        engine = ServingEngine(stages.batching, stages.memory, stages.attention, executor, clock, reader=reader)
    with refusal(MachineError, "Rank 1 of 2", "ended by signal 9"):
        run_all(engine, REQUESTS)
    assert all_stopped(run)
    engine.executor.close()


def test_a_follower_that_fails_reports_why() -> None:
    run = start(Failing(TORCH))
    with refusal(MachineError, "Rank 1 of 2", "ValueError: only here"):
        run_all(make_engine("orca", run=run), REQUESTS)
    assert all_stopped(run)


@pytest.mark.parametrize("step", [0, 6])  # as the worker's communicator is opened, or in a collective
def test_a_follower_that_is_stopped_is_named_and_ended(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(watch, "PAUSE_S", 0.02)
    monkeypatch.setattr(watch, "PATIENCE_S", 0.2)
    run = start()
    pid = run.followers.processes[0].pid
    engine = make_engine("orca", run=at_step(step, lambda: os.kill(pid, signal.SIGSTOP), run))
    with refusal(MachineError, "Rank 1 of 2", f"process {pid}", "stopped", "SIGSTOP"):
        run_all(engine, REQUESTS)
    assert all_stopped(run)


def test_a_process_is_ended_when_it_has_been_found_stopped_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks count, not seconds: rank 0 does not look while it is suspended itself."""
    monkeypatch.setattr(watch, "PATIENCE_S", 3 * watch.PAUSE_S)
    process = subprocess.Popen(["sleep", "60"])
    try:
        looking = Watch([process])
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(3):
            looking.look()
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        looking.look()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(3):
            looking.look()
        assert process.poll() is None
        assert not looking.ended
        looking.look()
        assert process.wait(60) == -signal.SIGKILL
        looking.look()
        assert looking.ended == {0}
    finally:
        process.kill()
        process.wait()


class Slow(PerSequenceAttention):
    """Attention that takes longer than the ranks may take to join: once on rank 0, once on the follower."""

    def batch(self, plan: Plan, sequences: dict[str, Sequence], cache: object) -> object:  # type: ignore[override]
        if plan.step == (6 if "follower" in sys.argv[0] else 4):
            time.sleep(1.2)
        return super().batch(plan, sequences, cache)  # type: ignore[arg-type]


def test_a_rank_that_is_slow_or_was_suspended_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAUSE_S", 0.02)
    monkeypatch.setattr(watch, "PATIENCE_S", 0.2)
    with start(Slow(TORCH), timeout_s=1.0) as run:
        run_all(make_engine("orca", run=run), REQUESTS)


def test_weights_that_cannot_be_loaded(tmp_path: Path) -> None:
    source = TextSource("nowhere", CONFIGS["opt"], tmp_path)
    with refusal(ModelError, "model.safetensors"):
        launch(Setup(source, PerSequenceAttention(TORCH), CAPACITY, 2, dtype="float64"))
    assert not dist.is_initialized()


def test_an_interrupted_plan_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two collectives: the follower waits in one that rank 0 never joins, and still ends."""
    run = start()
    count = 0
    original = PerSequenceAttention.attend

    def attend(*args: object) -> object:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(PerSequenceAttention, "attend", attend)
    answers = serve(make_engine("orca", run=run), REQUESTS).answers
    assert {answer.finish_reason for answer in answers} == {FinishReason.INTERRUPTED}
    assert all_stopped(run)
    assert run.followers.processes[0].returncode == 0, "it had to be killed"


ENDS = "os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError"
ORPHANED = """
import os, signal, sys
from minifuse.attention.per_sequence import PerSequenceAttention
from minifuse.kernels.operators import TORCH
from minifuse.model.text.load import TextSource
from minifuse.parallel.launch import launch
from minifuse.parallel.order import Setup
from minifuse.testing.texts.models import CONFIGS
for end in sys.argv[1:]:
    if os.fork() == 0:  # each is a rank 0 of its own
        source = TextSource("opt", CONFIGS["opt"], None)
        run = launch(Setup(source, PerSequenceAttention(TORCH), 50, 2, dtype="float64"))
        print(run.followers.processes[0].pid, flush=True)
        exec(end)
        break
    _, status = os.wait()
    print(status, flush=True)
"""


def test_followers_end_with_rank_0_however_it_ends() -> None:
    """The script needs no guard for `__main__`, because followers do not run it again."""
    script = subprocess.run([sys.executable, "-c", ORPHANED, *ENDS], capture_output=True, text=True, timeout=120)
    numbers = list(map(int, script.stdout.split()))
    assert [os.waitstatus_to_exitcode(status) for status in numbers[1::2]] == [-signal.SIGKILL, 1], script.stderr
    deadline = time.monotonic() + 60
    for pid in numbers[::2]:
        while is_running(pid):
            assert time.monotonic() < deadline, "a follower outlived rank 0"
            time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
