"""`minifuse lab`: the labs of the course, for students and for graders."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minifuse.cli.declare import JsonOptions, argument, json_switch, option, switch, takes
from minifuse.cli.outcomes import as_json, show
from minifuse.cli.streams import print_result
from minifuse.cli.text import console, tell
from minifuse.core.errors import MachineError, UsageError
from minifuse.io.lines import read_bounded

if TYPE_CHECKING:
    from minifuse.labs.lab import Lab


SCHEMA = "minifuse.lab/1"
HERE = "."
SHOWN = 30  # pairs that are listed
SEEDED = "of the workloads that are drawn; the course's secret, to see what will be graded"
SECRET = "of the course, from which hidden workloads are drawn; without one, a new one"
HANDED_IN = "what was handed in for one lab: folders with a solution.py each, or files"


def _filled(text: str, flag: str) -> str:
    """Parse a seed or secret; strip blanks, as a grader does when reading it."""
    if not (found := text.strip()):
        raise UsageError(f"{flag} is empty: give a text, from which workloads are drawn.")
    return found


NUMBER = argument("NN", "a lab, by its number")
OUT = option("-o", "the folder that is made", "DIR")
SEED = option("--seed", SEEDED, "TEXT", parse=_filled)
HAND_INS = argument("HAND-IN", HANDED_IN)
WHICH = option("--lab", "the lab; without it, as the first line of the skeleton says", "NN")


def _needs_hypothesis() -> None:
    from importlib.util import find_spec

    if find_spec("hypothesis") is None:
        raise MachineError(
            "Labs are judged with hypothesis, which is not installed: pip install -e '.[tutorials]' -c constraints.txt."
        )


def _lab(text: str | None) -> Lab:
    """Return the installed lab with this number."""
    from minifuse.labs.handins import lab_with_number

    if text is None:
        raise UsageError("No lab is named: give one of those that minifuse lab list shows.")
    return lab_with_number(text)


def _print_json(**result: object) -> None:
    print_result(json.dumps({"schema": SCHEMA, **result}))


@takes(JsonOptions)
def list_labs(options: JsonOptions) -> int:
    """List the labs: the chapter that each follows, its hours, its points."""
    from minifuse.labs.lab import labs

    known = labs()
    if options.json:
        names = ("number", "title", "chapter", "hours", "points")
        _print_json(labs=[{name: getattr(one, name) for name in names} for one in known])
        return 0
    for one in known:
        print_result(f"{one.number:02}  {one.title} (after chapter {one.chapter}; {one.hours} hours)")
    print_result("\nminifuse lab start NN makes a folder to work in.")
    return 0


@dataclass(frozen=True)
class StartOptions:
    """The options of `lab start`."""

    number: Annotated[str | None, NUMBER] = None
    folder: Annotated[str | None, argument("[DIR]", "the folder that is made; without one, named after the lab")] = None


@takes(StartOptions)
def start(options: StartOptions) -> int:
    """Make a folder to work in: the task, the skeleton, the public tests."""
    from minifuse.labs.handout import handed_out, write_files

    lab = _lab(options.number)
    folder = Path(options.folder or lab.folder.name)
    write_files(handed_out(lab), folder)
    print_result(
        f"{folder} is lab {lab.number}: {lab.title}. Read {folder / 'README.md'}, write {folder / 'solution.py'}."
    )
    tell(f"note: minifuse lab check {folder} tells what holds.")
    return 0


@dataclass(frozen=True)
class CheckOptions:
    """The options of `lab check`."""

    folder: Annotated[str, argument("[DIR]", "the lab's folder; without one, this folder")] = HERE
    only: Annotated[str | None, option("--only", "run this test alone", "TEST")] = None
    hidden: Annotated[bool, switch("--hidden", "run the hidden tests, too, where minifuse has them")] = False
    seed: Annotated[str, SEED] = "public"
    json: Annotated[bool, json_switch()] = False


@takes(CheckOptions)
def check(options: CheckOptions) -> int:
    """Judge a solution: what holds, what does not, and the smallest case that shows it."""
    _needs_hypothesis()
    from minifuse.labs.judge import judge
    from minifuse.labs.lab import read_lab

    own = read_lab(Path(options.folder))
    lab = _lab(str(own.number)) if options.hidden else own
    known = [test.name for test in lab.tests(options.hidden)]
    if options.only is not None and options.only not in known:
        raise UsageError(f"--only is {options.only!r}, which is no test of this lab: give one of {', '.join(known)}.")
    outcomes = judge(
        lab,
        own.folder / "solution.py",
        hidden=options.hidden,
        seed=options.seed,
        only=options.only,
        say=lambda name: tell(f"note: {name.replace('_', ' ')} ..."),
    )
    if options.json:
        _print_json(lab=lab.number, tests=[as_json(one) for one in outcomes])
    else:
        show(lab, own.folder, outcomes)
    return int(not all(one.held for one in outcomes))


@dataclass(frozen=True)
class SimilarOptions:
    """The options of `lab similar`."""

    hand_ins: Annotated[Sequence[str], HAND_INS] = ()
    lab: Annotated[str | None, WHICH] = None
    json: Annotated[bool, json_switch()] = False


@dataclass(frozen=True)
class ScoreOptions(SimilarOptions):
    """The options of `lab score`."""

    seed: Annotated[str, SEED] = "public"


@takes(ScoreOptions)
def score(options: ScoreOptions) -> int:
    """Make a table of the open task: counted costs of each hand-in, beside baselines."""
    _needs_hypothesis()
    from rich.table import Table

    from minifuse.labs.handins import hand_ins, lab_of
    from minifuse.labs.score import scores

    files, without = hand_ins(options.hand_ins or [HERE])
    lab = lab_of(files, options.lab)
    scored = scores(lab, files, seed=options.seed)
    failed = {**scored.failed, **without}
    if options.json:
        _print_json(lab=lab.number, costs=scored.costs, rows=scored.rows, baselines=scored.baselines, failed=failed)
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column("", overflow="fold")  # in one class, names often begin alike
        for name, better in scored.costs.items():
            table.add_column(f"{name}\n({better} is better)", justify="right")
        for name, row, baseline in scored.ranked:
            values = [f"{row[cost]:,.6g}" if cost in row else "-" for cost in scored.costs]
            table.add_row(f"({name})" if baseline else name, *values, style="dim" if baseline else None)
        console().print(table)
        console().print("\n(in brackets: baselines)")
    for name, why in failed.items():
        tell(f"error: {name} has no score: {why}")
    return int(bool(failed))


@takes(SimilarOptions)
def similar(options: SimilarOptions) -> int:
    """List how alike hand-ins are to each other and to published code, most alike first."""
    from minifuse.labs.handins import hand_ins, lab_of
    from minifuse.labs.similar import alike

    files, without = hand_ins(options.hand_ins)
    if not files:
        raise UsageError("No hand-ins are named: give folders with a solution.py, or files.")
    lab = lab_of(files, options.lab)
    texts = {name: _bytes(path) for name, path in files.items()}
    for name, why in without.items():
        tell(f"note: {name} is left out: {why}")
    pairs = alike(texts, lab)
    if options.json:
        _print_json(lab=lab.number, pairs=[vars(one) for one in pairs])
        return 0
    for one in pairs[:SHOWN]:
        print_result(f"{one.ratio:>4.0%}  {one.shared:>5} runs  {one.one}  {one.other}")
    if len(pairs) > SHOWN:
        tell(f"note: {len(pairs) - SHOWN} more pairs are less alike: --json has all.")
    return 0


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return read_bounded(file, str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give files that you may read.") from None


@dataclass(frozen=True)
class HandoutOptions:
    """The options of `lab handout`."""

    number: Annotated[str | None, NUMBER] = None
    out: Annotated[str | None, OUT] = None

    @property
    def folder(self) -> Path:
        if not self.out:
            raise UsageError("-o is missing: give the folder that is to be made, as in -o handout.")
        return Path(self.out)


@takes(HandoutOptions)
def handout(options: HandoutOptions) -> int:
    """Make the folder that students are given: no line of any solution is in it."""
    from minifuse.labs.handout import handed_out, write_files

    lab, folder = _lab(options.number), options.folder
    write_files(handed_out(lab), folder)
    print_result(f"{folder} is what students are given of lab {lab.number}: {lab.title}.")
    return 0


@dataclass(frozen=True)
class AutograderOptions(HandoutOptions):
    """The options of `lab autograder`."""

    secret: Annotated[str | None, option("--secret", SECRET, "TEXT", parse=_filled)] = None


@takes(AutograderOptions)
def autograder(options: AutograderOptions) -> int:
    """Make a folder that grades a lab, on Gradescope or in GitHub Classroom."""
    _needs_hypothesis()
    from minifuse.labs.autograder import make_autograder

    lab, folder = _lab(options.number), options.folder
    make_autograder(lab, folder, options.secret or secrets.token_hex(16))
    print_result(f"{folder} grades lab {lab.number}: {lab.title}. For Gradescope: upload a zip file of what is in it.")
    tell(f"note: {folder / 'secret.txt'} is the course's secret: keep it, and grade all with the same.")
    return 0


LAB = {
    "list": list_labs,
    "start": start,
    "check": check,
    "score": score,
    "similar": similar,
    "handout": handout,
    "autograder": autograder,
}
