"""`minifuse calibrate`: measures this machine, for simulated time and for what depends on its speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from minifuse.cli.declare import option, switch, takes, whole
from minifuse.cli.files import STDOUT, file_or_stdout, refuse_overwriting
from minifuse.cli.options import MODEL
from minifuse.cli.streams import print_result
from minifuse.cli.tables import BUSY
from minifuse.cli.text import console, tell
from minifuse.core.errors import MachineError, UsageError
from minifuse.execute.cores import OtherWork, usable_cores
from minifuse.io.output import write_whole
from minifuse.io.parsing import parse_float
from minifuse.model.choices import find_device
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.source import Source, resolve
from minifuse.model.text.load import TextSource
from minifuse.parallel.config import computed_share, counts_to
from minifuse.show.figures import in_time, plain
from minifuse.techniques import TECHNIQUES, Technique, for_model, technique

if TYPE_CHECKING:
    from minifuse.simulate.machine_profile import MachineProfile

MOST_ROUNDS, MOST_CONTEXT, MOST_MINUTES, MOST_RANKS = 1000, 1 << 20, 24 * 60, 16
OUT = "write the profile here instead of to the cache folder (- is standard output)"
LOOK_S = 1.0  # how long other processes are watched before anything is measured


def _minutes(text: str, flag: str) -> float:
    return parse_float(text, flag, 0, MOST_MINUTES)


def _technique(text: str, flag: str) -> str:
    return technique(text).name


@dataclass(frozen=True)
class CalibrateOptions:
    """The options of `calibrate`."""

    model: Annotated[
        str | None, option("--model", f"{MODEL}; none: llama, opt and cells in several sizes", "MODEL")
    ] = None
    dtype: Annotated[str, option("--dtype", "data type to compute in", choices=DTYPE_BYTES)] = "float32"
    device: Annotated[str, option("--device", "where to compute", choices=("auto", "cpu", "cuda"))] = "auto"
    technique: Annotated[
        Sequence[str], option("--technique", "measure its stages; repeatable; none: all", "NAME", parse=_technique)
    ] = ()
    context: Annotated[
        int, option("--context", "tokens of the longest context", "N", parse=whole(16, MOST_CONTEXT))
    ] = 1024
    rounds: Annotated[
        int, option("--rounds", "times that everything is measured", "N", parse=whole(1, MOST_ROUNDS))
    ] = 3
    minutes: Annotated[
        float | None, option("--minutes", "begin no further round after so many", "N", parse=_minutes)
    ] = None
    ranks: Annotated[
        int | None,
        option("--ranks", "measure messages among up to N processes, too", "N", parse=whole(2, MOST_RANKS)),
    ] = None
    busy: Annotated[bool, switch("--busy", "measure even if other processes compute")] = False
    out: Annotated[Path | Literal["-"] | None, option("--out", OUT, "FILE", parse=file_or_stdout)] = None


@takes(CalibrateOptions)
def calibrate(options: CalibrateOptions) -> int:
    """Measure how long a model's operators, and the host, take on this machine.

    --hardware FILE simulates the machine. In real time, memory that drops KV of conversations (pensieve) drops what is
    cheap to compute again, and fluid computes as many tokens per iteration as saturate the machine: both look for the
    profile in the cache folder.
    """
    source = None if options.model is None else resolve(options.model)
    if source is not None:
        for name in options.technique:
            for_model(technique(name), source.kind)  # refuses models that it does not serve
    refuse_overwriting([("--out", options.out)], [] if options.model is None else [options.model])
    from minifuse.simulate.profiles import KeptProfile

    device = find_device(options.device)
    config: Any = None if source is None else source.config
    _check_ranks(options.ranks, device, source)
    kept = KeptProfile(config, options.dtype, device)
    if options.out is None:
        kept.check()
    if not options.busy:
        _refuse_if_busy()
    profile = _measured(source, options, device, kept.machine)
    _show(profile, options)
    text = profile.model_dump_json(indent=1)
    if options.out == STDOUT:
        print_result(text)
        return 0
    if options.out is None:
        kept.write(text)
    else:
        write_whole(options.out, text)
    console().print(f"Written to {options.out or kept.path}", soft_wrap=True)
    return 0


def _measured(source: Source | None, options: CalibrateOptions, device: str, machine: str) -> MachineProfile:
    """Measure the profile, and tell on stderr what is being measured."""
    from minifuse.serve.calibrate import Calibration
    from minifuse.simulate.shapes import of_hosts, shapes

    rows: list[Technique] = [TECHNIQUES[name] for name in options.technique or TECHNIQUES]
    sources = shapes() if source is None else [source, *_shares(source, options.ranks)]
    return Calibration(
        sources,
        rows,
        options.dtype,
        device,
        options.rounds,
        options.context,
        options.minutes,
        tell,
        hosts=of_hosts(sources) if source is None else [source],
        ranks=options.ranks or 1,
    ).measure(machine)


def _check_ranks(ranks: int | None, device: str, source: Source | None) -> None:
    """Raise `UsageError` if ranks cannot divide the model, or a GPU is missing."""
    if ranks is None:
        return
    if source is not None and source.kind == "cells":
        raise UsageError(
            f"--ranks is {ranks}, and {source.name} is made of cells, which are not divided: leave it out."
        )
    _shares(source, ranks)
    if device == "cuda":
        import torch

        if ranks > (count := torch.cuda.device_count()):
            raise UsageError(f"--ranks is {ranks}, and {count} GPUs are in this machine: give fewer, or leave it out.")


def _shares(source: Source | None, ranks: int | None) -> list[Source]:
    """Return one rank's share of the model, for each number of ranks."""
    if source is None or ranks is None:
        return []
    config: Any = source.config
    found: list[Source] = []
    for count in counts_to(ranks):
        with suppress(UsageError) if count < ranks else nullcontext():  # 4 of 6 ranks need not divide the model
            found.append(TextSource(f"{source.name}, a rank of {count}", computed_share(config, count), None))
    return found


def _refuse_if_busy() -> None:
    others = OtherWork()
    time.sleep(LOOK_S)
    if (used := others.cores() or 0.0) >= BUSY:
        raise MachineError(
            f"Other processes use {plain(used)} of {len(usable_cores())} cores, and what is measured now would not "
            "hold later: wait until they have ended, or give --busy."
        )


def _show(profile: MachineProfile, options: CalibrateOptions) -> None:
    """Print the rates and a few times; on stderr if standard output carries the profile."""
    from rich.table import Table

    out = console(stderr=options.out == STDOUT)
    rounds = f"{profile.rounds} rounds" if profile.rounds > 1 else "1 round"
    out.print(f"{profile.machine}, {profile.dtype}, {rounds}:", soft_wrap=True)
    rates = profile.rates
    out.print(f"reads {rates.bandwidth / 1e9:.1f} GB/s, computes {rates.flops / 1e9:,.0f} Gflop/s", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("layers of", no_wrap=True)
    for head in ("weights", "1 row", "64 rows", "512 rows"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, kind in profile.kinds.items():
        for weights in kind.layers.axes["weights"]:
            times = [in_time(kind.layers(weights, count)) for count in (1, 64, 512)]
            table.add_row(name, f"{weights:,.0f}", *times)
    for name, steps in profile.cells.items():
        for weights in steps.axes["weights"]:
            table.add_row(
                f"cell {name}", f"{weights:,.0f}", *(in_time(steps(weights, count)) for count in (1, 64, 512))
            )
    out.print(table)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("host of", no_wrap=True)
    table.add_column("under", no_wrap=True)
    for head in ("an iteration", "a sequence", "a newcomer"):
        table.add_column(head, justify="right", no_wrap=True)
    for model, mixes in profile.host.items():
        for mix, host in mixes.items():
            terms = ("iteration", "sequence", "newcomer")
            told = [in_time(host.seconds[term]) if term in host.seconds else "-" for term in terms]
            table.add_row(model, mix, *told)
    out.print(table)
    if profile.rounds > 1:
        spread = f"The middle half of an iteration's rounds spans {profile.spread:.0%} of their median."
        out.print(spread, soft_wrap=True)
    if profile.others >= BUSY:
        busy = f"other processes used {plain(profile.others)} of {len(usable_cores())} cores"
        tell(f"note: {busy} meanwhile: measure again when the machine is quiet.")
