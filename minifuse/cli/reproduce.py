"""`minifuse reproduce`: measures a paper's figure again, next to the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from minifuse.cli.declare import argument, json_switch, option, switch, takes, whole
from minifuse.cli.files import writable_folder
from minifuse.cli.streams import print_result
from minifuse.cli.text import tell
from minifuse.core.errors import MinifuseError, UsageError
from minifuse.ctrl_c import INTERRUPTED
from minifuse.io.parsing import parse_float
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.serve.interrupt import uninterrupted

if TYPE_CHECKING:
    from minifuse.papers.experiment import Experiment


MIN_TOKENS = 4  # lengths of a quarter of a request's tokens must still be whole
MAX_HIDDEN, MAX_REQUESTS, MAX_RATES = 65536, 1_000_000, 64
MIN_REQUESTS = 8  # fewer requests have no percentiles
LEAST_SHARE, FASTEST = 1e-3, 1e9
LEAST_MINUTES, MOST_MINUTES = 1e-3, 60 * 24 * 7
CHOICES = ("model", "tokens", "hidden", "rates", "requests", "conversations")  # options that not every figure takes


def _rates(text: str, flag: str) -> tuple[float, ...]:
    """Parse rates: shares of the peak if none exceeds `SHARE`, otherwise requests per second."""
    from minifuse.papers.experiment import SHARE

    parts = text.split(",")
    if len(parts) > MAX_RATES:
        raise UsageError(f"{flag} has {len(parts)} rates, each of which is a run: give at most {MAX_RATES}.")
    rates = tuple(sorted({parse_float(part, f"A rate of {flag}", LEAST_SHARE, FASTEST) for part in parts}))
    if rates[0] <= SHARE < rates[-1]:
        raise UsageError(
            f'{flag} is "{text}", which mixes shares of the measured peak (up to {SHARE:g}) with requests per second: '
            "give one or the other."
        )
    return rates


def _minutes(text: str, flag: str) -> float:
    return parse_float(text, flag, LEAST_MINUTES, MOST_MINUTES)


SCALE = "seconds with a small model, minutes in real time, or the paper's own scale"
RATES = "at which requests arrive: 0.2,0.5,1.2 (shares of the measured peak, up to 2) or 300,600 (per second)"
_count = partial(option, metavar="N")


@dataclass(frozen=True)
class FigureOptions:
    """The options of `reproduce`."""

    name: Annotated[str | None, argument("NAME", "a figure, or a paper: all of its figures")] = None
    list: Annotated[bool, switch("--list", "show the figures that there are")] = False
    scale: Annotated[str, option("--scale", SCALE, choices=("quick", "cpu", "paper"))] = "cpu"
    model: Annotated[str | None, option("--model", "instead of the scale's model", "MODEL")] = None
    dtype: Annotated[str, option("--dtype", "auto: the scale's half precision", choices=("auto", *DTYPE_BYTES))] = (
        "auto"
    )
    tokens: Annotated[int | None, _count("--tokens", "of an answer, or of a query", parse=whole(MIN_TOKENS))] = None
    rounds: Annotated[
        int | None, _count("--rounds", "runs of each point; medians count (5; quick: 1)", parse=whole(1, 1000))
    ] = None
    hidden: Annotated[
        int | None, _count("--hidden", "hidden size of BatchMaker's models", parse=whole(1, MAX_HIDDEN))
    ] = None
    rates: Annotated[tuple[float, ...] | None, option("--rates", RATES, "LIST", parse=_rates)] = None
    requests: Annotated[
        int | None,
        _count("--requests", "of each run, where their number can be chosen", parse=whole(MIN_REQUESTS, MAX_REQUESTS)),
    ] = None
    conversations: Annotated[
        str | None, option("--conversations", "lengths of ShareGPT's conversations, from its JSON", "FILE")
    ] = None
    minutes: Annotated[
        float | None,
        option("--minutes", "after so many, end a figure with the measurement that runs", "N", parse=_minutes),
    ] = None
    seed: Annotated[int, _count("--seed", "of arrivals, lengths and weights", parse=whole(0))] = 0
    out: Annotated[
        Path | None,
        option("--out", "also write NAME.json, NAME.md and NAME.png to this folder", "DIR", parse=writable_folder),
    ] = None
    json: Annotated[bool, json_switch()] = False


@takes(FigureOptions)
def reproduce(options: FigureOptions) -> int:
    """Measure a figure of a paper again, and show it beside the paper's numbers."""
    from minifuse.cli.findings import SCHEMA, Progress, TimeIsUp, beside_others, show, show_list, write
    from minifuse.execute.cores import OtherWork
    from minifuse.papers import experiments
    from minifuse.papers.experiment import Conditions
    from minifuse.papers.provenance import provenance

    if options.list:
        if options.name is not None:
            raise UsageError(f"--list and {options.name!r} are both given: give one of them.")
        show_list(options.json)
        return 0
    if options.name is None:
        raise UsageError(
            "No figure was named: give one of minifuse reproduce --list, such as flover-fig7, or a paper, such as "
            "flover."
        )
    rows = experiments(options.name)
    _refuse_unused(options, rows)
    conditions = Conditions(**{f.name: getattr(options, f.name) for f in fields(Conditions) if f.init})
    seconds = None if options.minutes is None else options.minutes * 60
    runs = [row.prepare(conditions) for row in rows]  # what cannot run is refused before the first one does
    source = provenance()  # of the code that is about to run
    figures: list[dict[str, Any]] = []
    interrupted, code = False, 0
    for row, run in zip(rows, runs, strict=True):
        progress, others = Progress(row.name, seconds), OtherWork()
        try:
            with progress.status:
                finding = run(progress)
        except TimeIsUp:
            finding = progress.so_far(f"Ended by --minutes {options.minutes:g}")
        except KeyboardInterrupt:
            interrupted = True
            if not progress.kept:
                break
            finding = progress.so_far("Interrupted")
        finding = beside_others(finding, others.cores())
        with uninterrupted():
            figures.append(row.as_json(finding))
            if options.out is not None:
                try:
                    write(options.out, conditions.scale, row, finding, source)
                except MinifuseError as error:  # a result that took hours is shown even if it cannot be written
                    tell(f"error: {error}")
                    code = error.exit_code
            if not options.json:
                show(row, finding)
        if interrupted:
            break
    if options.json and figures:
        print_result(dumps({"schema": SCHEMA, "provenance": source, "figures": figures}))
    if interrupted:
        left = ", ".join(row.name for row in rows[len(figures) :])
        lost = f"nothing is shown of {left}" if left else f"{rows[-1].name} is incomplete"
        if left and progress.kept:
            lost = f"{rows[len(figures) - 1].name} is incomplete, and {lost}"
        tell(f"error: Interrupted: {lost}: run it again.")
    return INTERRUPTED if interrupted else code


def _refuse_unused(options: FigureOptions, rows: tuple[Experiment, ...]) -> None:
    """Refuse an option that none of these figures uses."""
    from minifuse.papers import EXPERIMENTS

    for name in CHOICES:
        if getattr(options, name) is not None and not any(name in row.takes for row in rows):
            takers = [row.name for row in EXPERIMENTS.values() if name in row.takes]
            raise UsageError(
                f"--{name} is given, and {options.name} has no use for it: leave it out, or name a figure that has, "
                f"such as {takers[0]}."
            )
