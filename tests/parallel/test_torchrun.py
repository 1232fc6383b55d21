"""Ranks of torchrun: two machines, which are two agents on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RUN = ("run", "--requests", "6", "--seed", "3", "--json", "--technique")
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def on_machines(count: int, *arguments: str, ranks: int = 1) -> list[subprocess.CompletedProcess[str]]:
    """Run a command under torchrun, an agent for each machine."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", str(ranks)),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
    ]
    agents = [
        subprocess.Popen(
            [*command, "--node-rank", str(machine), "-m", "minifuse", *arguments],
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


@pytest.mark.parametrize("technique", ["orca", "pensieve"])
def test_two_machines_answer_as_one(technique: str) -> None:
    alone = subprocess.run(
        [sys.executable, "-m", "minifuse", *RUN, technique], capture_output=True, text=True, check=True, cwd=ROOT
    )
    first, second = on_machines(2, *RUN, technique)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert answers(first.stdout) == answers(alone.stdout)
    assert second.stdout == ""


def test_a_command_of_several_runs() -> None:
    first, second = on_machines(2, "compare", "orca", "vllm", "--requests", "4", "--json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    told = json.loads(first.stdout)
    assert [one["technique"] for one in told["techniques"]] == ["orca", "vllm"]
    assert told["failed"] == []


def test_a_command_without_ranks_lets_the_others_end() -> None:
    first, second = on_machines(2, "list")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "pensieve" in first.stdout
    assert second.stdout == ""


def test_another_number_of_ranks_is_refused_with_one_sentence() -> None:
    [agent] = on_machines(1, "run", "--model", "random:small", "--requests", "2", "--tensor-parallel", "4", ranks=2)
    assert agent.returncode != 0
    assert "torchrun has started 2 ranks" in agent.stderr
