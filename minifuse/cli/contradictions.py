"""Options that do not go together, or not with the model: each refused in a sentence before anything is made."""

from __future__ import annotations

from minifuse.cli.checked import Checked
from minifuse.errors import UsageError
from minifuse.model.cells.source import CellSource
from minifuse.request import Sampling
from minifuse.workload.cells import default_workload

__all__ = ["refuse_contradictions"]

SILENT = ("lstm", "treelstm")  # cell models that say no tokens


def refuse_contradictions(checked: Checked, typed: list[str]) -> None:
    """Refuse options that contradict each other; `typed` are the prompts of the command line.

    Raises:
        UsageError: some do.
    """
    if checked.cells is not None:
        _refuse_for_cells(checked, checked.cells, typed)
    if typed and checked.prompts is not None:
        raise UsageError(f'A typed prompt and --prompts "{checked.prompts}" are both given: give one or the other.')
    made_up = {
        "--requests": checked.requests,
        "--workload": checked.workload,
        "--prompts-per-request": checked.prompts_per_request,
        "--prompt-length": checked.prompt_length,
        "--output-length": checked.output_length,
    }
    for flag, value in made_up.items():
        if value is not None and (typed or checked.prompts is not None):
            given = "--prompts" if checked.prompts is not None else "typed prompts"
            raise UsageError(f"{flag} is for made-up requests, and {given} are given: leave one of them out.")
    for flag in ("--prompts-per-request", "--prompt-length", "--output-length"):
        if checked.workload is not None and made_up[flag] is not None:
            raise UsageError(
                f"{flag} and --workload {checked.workload} are both given, and a workload says how long its requests "
                "are: leave one of them out."
            )


def _refuse_for_cells(checked: Checked, source: CellSource, typed: list[str]) -> None:
    """Refuse what means nothing to a model of cells."""
    name, kind = source.name, source.config.kind
    if typed:
        raise UsageError(
            f"A typed prompt was given, and {name} has no tokenizer: give token ids with --prompts FILE, or made-up "
            f"requests with --workload {default_workload(kind)}."
        )
    if (checked.tensor_parallel or 1) > 1:
        raise UsageError(
            f"--tensor-parallel is {checked.tensor_parallel}, and {name} is made of cells, which are not divided among "
            "processes: leave it out."
        )
    if checked.numerics == "reference":
        raise UsageError(
            f"--numerics is reference, which is for transformers, and {name} is made of cells: leave it out; in "
            "--dtype float64 results are alike to nine digits."
        )
    if checked.sampling != Sampling(seed=checked.sampling.seed):
        raise UsageError(
            f"--temperature, --top-k or --top-p is given, and {name} is made of cells, which say the likeliest token: "
            "leave it out."
        )
    if checked.prompts_per_request is not None:
        raise UsageError(
            f"--prompts-per-request is {checked.prompts_per_request}, and {name} is made of cells, each of whose "
            "requests is one graph: leave it out."
        )
    if kind == "treelstm" and checked.prompt_length is not None:
        raise UsageError(
            "--prompt-length is for made-up prompts, and treelstm reads trees: give --workload treebank or "
            "identical-trees."
        )
    answers = {
        "--output-length": checked.output_length is not None,
        "--max-new-tokens": checked.max_new_tokens is not None,
        "--ignore-eos": checked.ignore_eos,
    }
    for flag, given in answers.items():
        if given and kind in SILENT:
            raise UsageError(f"{flag} is for answers in tokens, and {kind} says none: leave it out.")
