"""Ranks of torchrun: two machines, which are two agents on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minifuse.cli import main

RUN = "run --requests 6 --seed 3 --json --technique"
SEVERAL = f"{RUN} orca", f"{RUN} pensieve", "compare orca vllm --requests 4 --json"
ROOT = Path(__file__).parents[2]

# What both machines start: rank 0 carries out the commands one after another, and the last one ends its process.
IN_TURN = """
import sys
from minifuse.__main__ import main
from minifuse.cli import main as run_command_line

*first, last = sys.argv[1:]
for command in first:
    code = run_command_line(command.split())
    assert code == 0, (command, code)
    print(end="\\0", flush=True)
sys.argv[1:] = last.split()
main()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def on_machines(count: int, *program: str, ranks: int = 1) -> list[subprocess.CompletedProcess[str]]:
    """Run a program under torchrun, an agent for each machine."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", str(ranks)),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
    ]
    agents = [
        subprocess.Popen(
            [*command, "--node-rank", str(machine), *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        for machine in range(count)
    ]
    told = [agent.communicate(timeout=120) for agent in agents]
    return [
        subprocess.CompletedProcess(agent.args, agent.returncode, *one) for agent, one in zip(agents, told, strict=True)
    ]


def answers(text: str) -> list[list[int]]:
    return [one["token_ids"] for one in json.loads(text)["outputs"]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What two machines print for each command of `SEVERAL`: all of it comes from the first machine."""
    script = tmp_path_factory.mktemp("torchrun") / "in_turn.py"
    script.write_text(IN_TURN)
    first, second = on_machines(2, str(script), *SEVERAL)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    return dict(zip(SEVERAL, first.stdout.split("\0"), strict=True))


@pytest.mark.parametrize("command", SEVERAL[:2])
def test_two_machines_answer_as_one(command: str, told: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 0
    assert answers(told[command]) == answers(capfd.readouterr().out)


def test_a_command_of_several_runs(told: dict[str, str]) -> None:
    compared = json.loads(told[SEVERAL[2]])
    assert [one["technique"] for one in compared["techniques"]] == ["orca", "vllm"]
    assert compared["failed"] == []


def test_a_command_without_ranks_lets_the_others_end(capfd: pytest.CaptureFixture[str]) -> None:
    """One machine with two ranks prints what one process prints: rank 1 adds nothing."""
    [agent] = on_machines(1, "-m", "minifuse", "list", ranks=2)
    assert agent.returncode == 0, agent.stderr
    assert main(["list"]) == 0
    assert "pensieve" in agent.stdout
    assert agent.stdout == capfd.readouterr().out


def test_another_number_of_ranks_is_refused_with_one_sentence() -> None:
    typed = ("run", "--model", "random:small", "--requests", "2", "--tensor-parallel", "4")
    [agent] = on_machines(1, "-m", "minifuse", *typed, ranks=2)
    assert agent.returncode != 0
    assert "torchrun has started 2 ranks" in agent.stderr
