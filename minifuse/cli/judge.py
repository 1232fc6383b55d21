"""Answers of the shipped tasks, judged where the stages are under test: those of a plugin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.text import Text

from minifuse.cli.answers import is_right
from minifuse.cli.requests import Workload
from minifuse.cli.text import console, first_few
from minifuse.contracts.fault import is_own
from minifuse.core.errors import one_line
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Served, serve
from minifuse.stages import stage
from minifuse.techniques import technique

SHOWN = 8  # ids in the sentence


def report_wrong(resolved: ResolvedRun, workload: Workload, served: Served, model: Any) -> bool:
    """Say in red on stderr which answers are wrong by the stages of a plugin. Returns whether there are any.

    The model makes mistakes of its own: a wrong answer counts only where the technique naive, which serves the same
    prompt alone, answers otherwise. Sampled answers are not judged.
    """
    own = [f"{kind} {name!r}" for kind, name in resolved.row.stages.items() if not is_own(stage(kind, name))]
    wrong = {a.request.id: a for a in served.answers if is_right(workload, a) is False and a.request.sampling.greedy}
    if not own or not wrong:
        return False
    again = [replace(answer.request, arrival_s=0.0, group=None) for answer in wrong.values()]
    naive = resolve_run(technique("naive"), workload.source, replace(resolved.settings, stage_options={}))
    alone = serve(build_engine(naive, model), again).whole().answers
    faults = [answer.request.id for answer in alone if answer.token_ids != wrong[answer.request.id].token_ids]
    if faults:
        text = (
            f"error: {len(faults)} of {len(served.answers)} answers are wrong, and naive answers otherwise "
            f"({first_few(faults, SHOWN)}): "
            f"correct the {' or the '.join(own)}; its laws say what is wrong: minifuse check."
        )
        console(stderr=True).print(Text(one_line(text), "bold red"), soft_wrap=True)
    return bool(faults)
