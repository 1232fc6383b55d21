"""What is known of the machine's cores, from files as Linux writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minifuse.execute import cores
from minifuse.execute.cores import (
    OtherWork,
    keep_compiled,
    share_cores,
    threads_kept,
    usable_cores,
    used_by_others,
    wait_briefly,
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a machine with four cores, two of which may be used."""
    monkeypatch.setattr(cores, "PROC", tmp_path)
    monkeypatch.setattr(cores, "usable_cores", lambda: {0, 2})
    return tmp_path / "stat"


def _stat(busy: dict[int, int]) -> str:
    """Hundredths of seconds of computing on each core, among the other columns that count."""
    lines = ["cpu  9 9 9 9 9 9 9 9 0 0"]
    lines += [f"cpu{core} {ticks - 6} 1 1 5000 700 1 1 2 0 0" for core, ticks in busy.items()]
    return "\n".join([*lines, "intr 1 2", "ctxt 3"])


def _own(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(os, "times", lambda: (seconds, 0.0, 0.0, 0.0, 0.0))


def test_what_others_used_of_the_usable_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(cores.time, "perf_counter", lambda: next(clock))
    machine.write_text(_stat({0: 1000, 1: 1000, 2: 1000, 3: 1000}))
    _own(monkeypatch, 3.0)
    others = OtherWork()
    machine.write_text(_stat({0: 1900, 1: 2000, 2: 1500, 3: 2000}))  # 14 s on cores 0 and 2, of which 4 are ours
    _own(monkeypatch, 7.0)
    assert others.cores() == pytest.approx(1.0)


def test_idle_and_waiting_are_no_use(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write_text(_stat({0: 100, 2: 200}))
    _own(monkeypatch, 1.0)
    assert used_by_others() == pytest.approx(3.0 - 1.0)


def test_what_is_not_known(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert used_by_others() is None
    assert OtherWork().cores() is None
    machine.write_text(_stat({0: 100, 2: 200}))
    assert OtherWork().cores() is None  # no time has passed


def test_this_machine_tells() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc here")
    assert used_by_others() is not None
    assert usable_cores()


@pytest.mark.parametrize(
    ("parameters", "others", "before", "after"),
    [
        (10**9, 0.0, 4, 4),
        (10**9, 0.4, 4, 4),
        (10**9, 2.2, 4, 2),
        (10**9, None, 4, 4),
        (10**9, 9.0, 4, 1),
        (10**9, 0.0, 2, 2),  # the user's choice
        (10**6, 0.0, 4, 1),  # too small to be shared
    ],
)
def test_threads(
    parameters: int, others: float | None, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(cores, "usable_cores", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(torch, "get_num_threads", lambda: before)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    share_cores(parameters, others)
    assert chosen == [after]


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with threads_kept():
        torch.set_num_threads(before + 1)
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_kept_unless_the_user_chose_otherwise() -> None:
    """The next tensors of the same size then cause fewer page faults."""
    program = (
        "import resource, torch\n"
        "from minifuse.execute.cores import keep_freed_memory\n"
        "keep_freed_memory({})\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def use(): torch.ones(2**24)\n"
        "use(); before = faults(); [use() for _ in range(8)]; print(faults() - before)\n"
    )
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout)
        for text in (program, program.replace("({})", "({'MALLOC_ARENA_MAX': '1'})"))
    )
    assert kept < 0.7 * given_back


def test_what_is_compiled_is_the_users_choice_first() -> None:
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"):
        environment = {name: "1"}
        keep_compiled(environment)
        assert environment == {name: "1"}
    environment = {}
    keep_compiled(environment)
    assert environment == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384"}


def test_waiting_is_the_users_choice_first() -> None:
    environment: dict[str, str] = {}
    wait_briefly(environment)
    assert environment == {"GOMP_SPINCOUNT": "6000"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        environment = {name: "1"}
        wait_briefly(environment)
        assert environment == {name: "1"}
