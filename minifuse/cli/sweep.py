"""`minifuse sweep`: runs a grid of techniques, rates, seeds and options."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from minifuse.cli.compare import distinct, refuse_unknown, warm_up
from minifuse.cli.declare import takes
from minifuse.cli.failures import told
from minifuse.cli.files import refuse_overwriting
from minifuse.cli.options import Options, refuse_contradictions, stage_options
from minifuse.cli.plugin import load_plugin, plugins
from minifuse.cli.requests import make_workload, stream_requests
from minifuse.cli.run import load_weights
from minifuse.cli.status import Status
from minifuse.cli.streams import print_result
from minifuse.cli.sweep_options import SweepOptions
from minifuse.cli.tables import sweep_tables
from minifuse.cli.text import console, tell, time_left
from minifuse.core.errors import MachineError, MinifuseError, UsageError
from minifuse.ctrl_c import INTERRUPTED
from minifuse.execute.cores import usable_cores
from minifuse.io.parsing import all_of, one_of, unknown
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import serve
from minifuse.serve.stream import serve_stream
from minifuse.serve.sweep import ERROR, Row, Values, points_of
from minifuse.serve.sweep import sweep as run_points
from minifuse.show.load import Loaded, draw_load, knee
from minifuse.techniques import Technique, for_model, technique
from minifuse.trace.metrics import flat_metrics
from minifuse.trace.running import RunningMetrics

SCHEMA = "minifuse.sweep/1"
LATENCY = {"transformer": "normalized_latency_s.p99", "cells": "e2e_s.p99"}
THROUGHPUT = "throughput.requests_per_s"
OF_CELLS = ("e2e_s", "queueing_s", "computing_s")  # latencies that requests without tokens have
INSTEAD = {"seed": "--seeds", "arrival": "--rates", "set": "STAGE.OPTION=V,V"}  # of an axis of this name
NO_AXES = ("by", "json", "ignore_eos", *INSTEAD)


@takes(SweepOptions, without=("seed", "by"))
def sweep(options: SweepOptions) -> int:
    """Run a grid of techniques, rates, seeds and options; keep a row for each run.

    \b
        minifuse sweep orca vllm --clock virtual --hardware a100-80g --model random:llama-7b --dtype float16 \\
            --rates 1,4,16 --seeds 0,1,2 --out sweep.csv --picture sweep.png

    A run that fails is named, and the others go on. After Ctrl-C the same command goes on with the runs that are not
    yet in --out.
    """
    points = points_of(options.grid)
    kind = _check(options, points)
    default = min(len(usable_cores()), len(points)) if options.clock == "virtual" else 1
    begin = partial(_begin, [str(path) for path in plugins()])
    began, done = time.perf_counter(), 0
    with Status("sweep") as status:

        def on_row(row: Row, left: int) -> None:
            nonlocal done
            done += 1
            status.say(_label(options, row), f" ({left} left{time_left(done, done + left, began)})")
            if error := row.get(ERROR):
                tell(f"error: {_label(options, row)} failed: {error}")

        try:
            rows = run_points(
                _Run(options),
                options.grid,
                options.out,
                processes=options.processes or default,
                begin=begin,
                on_row=on_row,
            )
        except KeyboardInterrupt:
            tell(f"error: Interrupted: {_kept(options.out)}: run it again.")
            return INTERRUPTED
    good = [row for row in rows if not row.get(ERROR)]
    latency = options.latency or LATENCY[kind]
    curves = _curves(options, good, latency) if options.rates else {}
    if options.picture is not None and curves:
        _draw(curves, latency, options.picture)
    if options.json:
        knees = {name: None if (found := knee(points)) is None else found._asdict() for name, points in curves.items()}
        print_result(json.dumps({"schema": SCHEMA, "latency": latency, "knees": knees, "rows": rows}, default=str))
    elif good:
        _show(options, good, kind, curves, latency)
    return int(len(good) < len(rows))


def _kept(out: Path | None) -> str:
    """Tell what an interrupted sweep leaves behind."""
    if out is None:
        return "the runs that had ended are lost without --out"
    return f"{out} keeps the runs that had ended" if out.exists() else "no run had ended"


def _check(options: SweepOptions, points: Sequence[Values]) -> str:
    """Refuse what cannot run before the first run does; return the kind of the models."""
    rows = distinct(options.techniques, "sweep")
    if options.clock == "real" and (options.processes or 1) > 1:
        raise UsageError(
            f"--processes is {options.processes}, and runs in real time slow each other down: leave it out, or add "
            "--clock virtual."
        )
    if options.prompts == "-":
        raise UsageError("--prompts is -, which can be read only once: give a file.")
    if options.rates and options.arrival is not None and options.arrival.mean_s == 0:
        raise UsageError("--rates and --arrival none are both given: leave one of them out.")
    if options.picture is not None and len(options.rates or ()) < 2:
        raise UsageError("--picture is given without several --rates: give these, such as --rates 1,2,4.")
    refuse_unknown(rows, options)
    _check_axes(options, rows)
    refuse_overwriting([("--out", options.out), ("--picture", options.picture)], [options.model, options.prompts])
    first = points[0]
    kinds = [
        _Run(options).resolved(point)[1].source.kind
        for point in points
        if point["seed"] == first["seed"] and point.get("rate") == first.get("rate")
    ]
    begins = options.at(first)
    source = resolve(begins.model)
    if stream_requests(begins, source) is None:
        make_workload(begins, source)
    if kinds[0] == "cells" and options.latency and options.latency.partition(".")[0] not in OF_CELLS:
        raise UsageError(
            f"--latency is {options.latency}, which counts tokens, and cells have none: give e2e_s, queueing_s or "
            "computing_s instead."
        )
    if len(set(kinds)) > 1:
        raise UsageError(f"--vary model names models of {all_of(sorted(set(kinds)))}: give models of one kind.")
    return str(kinds[0])


def _check_axes(options: SweepOptions, rows: Sequence[Technique]) -> None:
    """Refuse axes of --vary that no run can have, or that are given elsewhere, too."""
    names = [text.partition("=")[0] for text in options.vary]
    defaults = {one.name: one.default for one in fields(Options)}
    known = [name.replace("_", "-") for name in defaults if name not in NO_AXES]
    for name in names:
        field = name.replace("-", "_")
        if names.count(name) > 1 or name in stage_options(options.set):
            raise UsageError(f"{name} is given twice: give it once, all its values in one --vary.")
        if "." in name:
            lacking = [row.name for row in rows if name not in row.option_names]
            if lacking:
                raise UsageError(f"--vary gives {name}, no option of {one_of(lacking)}: leave one of them out.")
        elif field in INSTEAD:
            raise UsageError(f"--vary gives {name}: give {INSTEAD[field]} instead.")
        elif name not in known:
            raise unknown("option to vary", name, known)
        elif getattr(options, field) != defaults[field]:
            raise UsageError(f"--{name} and --vary {name} are both given: leave one of them out.")
    if "max-batch" in names and (unbounded := [row.name for row in rows if not row.batch_sizes]):
        raise UsageError(f"--vary gives max-batch, which sets nothing for {one_of(unbounded)}: leave one of them out.")


class _Run:
    """Serves the requests of one point, and returns its metrics."""

    def __init__(self, options: SweepOptions) -> None:
        self.options = options
        self.loaded: dict[Any, Any] = {}  # the last model, by what it depends on

    def __call__(self, **values: Any) -> dict[str, Any]:
        try:
            return self._metrics(values)
        except MinifuseError:
            raise
        except Exception as error:
            raise MinifuseError(told(error)[0]) from error

    def resolved(self, values: Values) -> tuple[SweepOptions, ResolvedRun]:
        """Return the options of a point, and its run; raise `UsageError` if it cannot run."""
        options = self.options.at(values)
        source = resolve(options.model)
        refuse_contradictions(options, source)
        choices = options.choices(for_model(technique(values["technique"]), source.kind), known_only=True)
        return options, resolve_run(choices, source, options.settings)

    def _metrics(self, values: Values) -> dict[str, Any]:
        options, run = self.resolved(values)
        model = run.outline if run.placeholders else self._model(options, run)
        counted = RunningMetrics(options.goodput)
        stream = stream_requests(options, run.source) if options.clock == "virtual" else None
        if stream is not None:
            serve_stream(build_engine(run, model, into=counted.read), stream)
            return flat_metrics(counted.result())
        workload = make_workload(options, run.source)
        if options.clock == "real":
            warm_up(run, workload, model)
        serve(build_engine(run, model, into=counted.read), workload.requests).whole()
        return flat_metrics(counted.result())

    def _model(self, options: SweepOptions, run: ResolvedRun) -> Any:
        key = options.model, options.dtype, options.device, options.seed
        if key not in self.loaded:
            self.loaded = {key: load_weights(run.source, run.load)}
        return self.loaded[key]


def _begin(files: Sequence[str]) -> None:
    """Prepare a new process: Ctrl-C ends it through its parent, and plugins are loaded again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for file in files:
        load_plugin(file)


def _label(options: SweepOptions, values: Values, without: Sequence[str] = ()) -> str:
    """Name a run by its technique and the values that differ from run to run."""
    several = [axis for axis, given in options.grid.items() if len(given) > 1 and axis not in ("technique", *without)]
    return ", ".join([str(values["technique"]), *(f"{axis} {values[axis]}" for axis in several)])


def _curves(options: SweepOptions, rows: Sequence[Row], latency: str) -> dict[str, list[Loaded]]:
    """Return medians over seeds by rate, for each other combination of values."""
    runs: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        by_rate = runs.setdefault(_label(options, row, ("rate", "seed")), {})
        if row.get(latency) is not None:
            by_rate.setdefault(row["rate"], []).append(row)
    return {name: [_loaded(rate, by_rate[rate], latency) for rate in sorted(by_rate)] for name, by_rate in runs.items()}


def _loaded(rate: float, rows: Sequence[Row], latency: str) -> Loaded:
    values = [row[latency] for row in rows]
    return Loaded(rate, median(row[THROUGHPUT] for row in rows), median(values), min(values), max(values))


def _draw(curves: dict[str, list[Loaded]], latency: str, path: Path) -> None:
    try:
        draw_load(curves, f"{latency.replace('_s.', ' ').replace('_', ' ')}, s", path)
    except ModuleNotFoundError as error:
        raise MachineError(
            f"--picture needs {error.name}, which is not installed: pip install 'minifuse[tutorials]'."
        ) from None


def _show(options: SweepOptions, rows: Sequence[Row], kind: str, curves: dict[str, list[Loaded]], latency: str) -> None:
    out = console()
    for table in sweep_tables([(_label(options, row), row) for row in rows], kind, out.width):
        out.print(table, "", sep="\n")
    for name, points in curves.items():
        found = knee(points)
        where = (
            "no knee" if found is None else f"knee at {found.rate:g} requests/s offered, {found.throughput:.3g} served"
        )
        out.print(f"{name}: {where} ({latency})", soft_wrap=True)
