"""The open task of a lab: counted costs of a student's answer, compared with baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minifuse.core.errors import MachineError, MinifuseError, UsageError
from minifuse.labs.judge import Work, of_student, told
from minifuse.labs.lab import Lab
from minifuse.labs.submission import Budget


@dataclass(frozen=True)
class Scores:
    """The costs of files and of baselines, or the reason why a file has none."""

    costs: Mapping[str, str]  # the name of a cost, and whether "lower" or "higher" is better; the first one ranks
    rows: Mapping[str, Mapping[str, float]]
    baselines: Mapping[str, Mapping[str, float]]
    failed: Mapping[str, str]

    @property
    def ranked(self) -> list[tuple[str, Mapping[str, float], bool]]:
        """List name, costs, and whether the row is a baseline; the best comes first."""
        first, better = next(iter(self.costs.items()))
        all_rows = [(name, row, False) for name, row in self.rows.items()]
        all_rows += [(name, row, True) for name, row in self.baselines.items()]
        return sorted(all_rows, key=lambda one: (one[1][first] * (1 if better == "lower" else -1), one[2], one[0]))


def scores(
    lab: Lab,
    files: Mapping[str, Path],
    *,
    seed: str = "public",
    user: str | None = None,
    budget: Budget | None = None,
) -> Scores:
    """Score files, by name, and the lab's baselines on the same workload.

    Args:
        budget: the computing time of all files; by default each has the lab's limit.

    Raises:
        UsageError: the lab has no open task.
        MachineError: this machine lacks what the open task needs.
    """
    task: Any = lab.open_task
    if task is None:
        raise UsageError(f"Lab {lab.number} has no tests/open.py, so there is nothing to score.")
    rows: dict[str, Mapping[str, float]] = {}
    failed: dict[str, str] = {}
    baselines: dict[str, Mapping[str, float]] = {}
    for name, file in files.items():
        work = Work(file, lab.limits, user, budget=budget, seed=f"{seed} {lab.number} open", lab=lab)
        try:
            with work:
                rows[name] = task.score(work)
        except MachineError:
            raise
        except Exception as error:  # whatever the error is, the other files are scored
            found = of_student(error)
            failed[name] = str(found) if isinstance(found, MinifuseError) else told(found, lab)[0]
        baselines = baselines or task.baselines(work)  # baselines do not call the file
    return Scores(task.COSTS, rows, baselines, failed)
