"""`minifuse calibrate`: measures the cost of recomputing a chunk of KV (Pensieve, 3.4.3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

from minifuse.cli.declare import option, takes, whole
from minifuse.cli.files import STDOUT, file_or_stdout, refuse_overwriting
from minifuse.cli.options import ModelOptions
from minifuse.cli.run import load_weights
from minifuse.cli.streams import print_result
from minifuse.cli.tables import BUSY
from minifuse.cli.text import console, tell
from minifuse.core.errors import UsageError
from minifuse.execute.cores import OtherWork, usable_cores
from minifuse.io.output import write_whole
from minifuse.io.parsing import number
from minifuse.model.choices import find_device
from minifuse.model.source import resolve
from minifuse.model.text.load import resolve_text
from minifuse.show.figures import in_time, plain

if TYPE_CHECKING:
    from minifuse.simulate.calibration import Measured


MOST_CHUNK, MOST_ROUNDS = 4096, 1000
OUT = "write the profile here instead of to the cache folder (- is standard output)"


@dataclass(frozen=True)
class CalibrateOptions(ModelOptions):
    """The options of `calibrate`."""

    chunk: Annotated[int, option("--chunk", "tokens of a chunk, as memory.chunk", "N", parse=whole(1, MOST_CHUNK))] = 32
    rounds: Annotated[
        int, option("--rounds", "times that each context is measured", "N", parse=whole(1, MOST_ROUNDS))
    ] = 15
    out: Annotated[Path | Literal["-"] | None, option("--out", OUT, "FILE", parse=file_or_stdout)] = None


@takes(CalibrateOptions)
def calibrate(options: CalibrateOptions) -> int:
    """Measure what recomputing a chunk of KV costs, and how many tokens saturate this machine.

    Memory that drops KV of conversations (pensieve) drops what is cheap to compute again. In real time it finds the
    profile of its machine, model, dtype, device and chunk in the cache folder; --set memory.profile=FILE gives another.
    fluid computes as many tokens per iteration as saturate the machine, if that was measured with the default chunk.
    """
    if resolve(options.model).kind != "transformer":
        raise UsageError(
            f"--model is {options.model}, made of cells, whose states are not computed again: give a transformer."
        )
    source = resolve_text(options.model)
    refuse_overwriting([("--out", options.out)], [options.model])
    from minifuse.simulate.calibration import COUNTS, contexts_of, measure
    from minifuse.simulate.profiles import SATURATING, KeptProfile

    contexts = contexts_of(options.chunk, source.config.max_context, source.name)
    dtype, device = options.dtype, find_device(options.device)
    model = load_weights(source, lambda: source.load(dtype, device))
    kept = KeptProfile(source.config, dtype, device, options.chunk)
    if options.out is None:
        kept.check()
    others = OtherWork()
    measured = measure(model, contexts, options.chunk, options.rounds, COUNTS)
    about: dict[str, Any] = {"model": source.name, "dtype": dtype, "device": device, "chunk": options.chunk}
    about |= {SATURATING: measured.saturating_tokens, "machine": kept.machine, "rounds": options.rounds}
    text = measured.profile.text(**about)
    _show(measured, f"{source.name} in {dtype} on {kept.machine}", options)
    if (used := others.cores() or 0.0) >= BUSY:
        busy = f"other processes used {plain(used)} of {len(usable_cores())} cores"
        tell(f"note: {busy} meanwhile: measure again when the machine is quiet.")
    if options.out == STDOUT:
        print_result(text)
        return 0
    if options.out is None:
        kept.write(text)
    else:
        write_whole(options.out, text)
    console().print(f"Written to {options.out or kept.path}", soft_wrap=True)
    return 0


def _show(measured: Measured, of: str, options: CalibrateOptions) -> None:
    """Print medians and their spread; on stderr if standard output carries the profile."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("context", "median", "shortest", "longest", "of the rest"):
        table.add_column(head, justify="right", no_wrap=True)
    rest = median(measured.other_s)
    table.add_row("the rest", *_spread(measured.other_s), "")
    for context, seconds in measured.attention_s.items():
        table.add_row(f"{context:,}", *_spread(seconds), f"{median(seconds) / rest:.3f}x")
    out = console(stderr=options.out == STDOUT)
    rounds = f"{options.rounds} rounds" if options.rounds > 1 else "1 round"
    out.print(f"{of}: a chunk of {options.chunk} tokens in all layers, {rounds}", soft_wrap=True)
    out.print("Attention by context, and the rest of the layers:", table, sep="\n")
    saturating = number(measured.saturating_tokens, "token")
    most = max(count / median(seconds) for count, seconds in measured.layers_s.items())
    out.print(
        f"Without attention, {saturating} in an iteration come near the most, {most:,.0f} tokens/s.", soft_wrap=True
    )


def _spread(seconds: Sequence[float]) -> tuple[str, str, str]:
    return in_time(median(seconds)), in_time(min(seconds)), in_time(max(seconds))
