"""The options of `minifuse sweep`, and the grid that they give."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from minifuse.cli.declare import argument, option, parsed, whole
from minifuse.cli.files import writable_file
from minifuse.cli.options import Options, stage_options
from minifuse.core.errors import UsageError
from minifuse.io.parsing import MANY, check_word, parse_float, parse_int
from minifuse.serve.sweep import Values
from minifuse.trace.ended import LATENCIES
from minifuse.workload.laws import Arrival

RATES = "requests (or sharegpt conversations) per second: 0.5,1,2; Poisson, or as --arrival (not its mean)"
VARY = "values of another option: requests=100,400, hardware=a100-40g,h200, batching.max_batch=8,64; repeatable"
OUT = "a row for each run; runs that it already holds are not repeated"
PICTURE = "draw throughput against latency here, each technique's knee marked; needs --rates"
PROCESSES = "runs at a time: the machine's cores; in real time 1"
DRAWN = "latency of the picture and the knees: normalized_latency_s.p99, of cells e2e_s.p99"
POISSON = Arrival(cv=1.0)
METRICS = [f"{name}.{statistic}" for name in LATENCIES for statistic in ("mean", "p50", "p90", "p99", "max")]


def _rates(text: str, flag: str) -> tuple[float, ...]:
    return tuple([parse_float(part, f"A rate of {flag}", 1e-6, 1e9) for part in text.split(",")])


def _seeds(text: str, flag: str) -> tuple[int, ...]:
    return tuple([parse_int(part, f"A seed of {flag}", 0, MANY) for part in text.split(",")])


def _metric(text: str, flag: str) -> str:
    check_word(text, flag, METRICS)
    return text


def _axis(text: str, flag: str) -> str:
    name, _, values = text.partition("=")
    if not name or not all(values.split(",")):
        raise UsageError(f'{flag} is "{text}": give an option and its values, such as requests=100,400.')
    return text


_grid, _output = partial(option, panel="Grid"), partial(option, panel="Output")


@dataclass(frozen=True)
class SweepOptions(Options):
    """The options of `sweep`: those of a run, and its grid."""

    techniques: Annotated[Sequence[str], argument("TECHNIQUE", "one or more, see minifuse list")] = ()
    rates: Annotated[tuple[float, ...] | None, _grid("--rates", RATES, "LIST", parse=_rates)] = None
    seeds: Annotated[tuple[int, ...] | None, _grid("--seeds", "of requests: 0", "LIST", parse=_seeds)] = None
    vary: Annotated[Sequence[str], _grid("--vary", VARY, "NAME=V,V", parse=_axis)] = ()
    processes: Annotated[int | None, _grid("--processes", PROCESSES, "N", parse=whole(1, 1024))] = None
    out: Annotated[Path | None, _output("--out", OUT, "FILE.csv", parse=writable_file)] = None
    picture: Annotated[Path | None, _output("--picture", PICTURE, "FILE.png", parse=writable_file)] = None
    latency: Annotated[str | None, _output("--latency", DRAWN, "METRIC", parse=_metric)] = None

    @property
    def varied(self) -> dict[str, list[str]]:
        """Return the values of --vary, as typed, by option."""
        return {name: values.split(",") for name, _, values in (text.partition("=") for text in self.vary)}

    @property
    def grid(self) -> dict[str, Sequence[Any]]:
        """Return the values of each axis; an option that was given once has one value."""
        fixed = {
            one.name.replace("_", "-"): [getattr(self, one.name)]
            for one in fields(Options)
            if one.name not in ("json", "seed", "set") and getattr(self, one.name) != one.default
        }
        fixed |= {name: [value] for name, value in stage_options(self.set).items()}
        files = {"files": [self.digest]} if self.digest else {}
        rates = {"rate": self.rates} if self.rates else {}
        return {"technique": self.techniques, **fixed, **self.varied, **files, **rates, "seed": self.seeds or (0,)}

    @cached_property
    def digest(self) -> str:
        """Return a digest of the files of requests and machines.

        It is an axis of the grid, so that changed files make new rows.
        """
        varied = self.varied
        named = {self.prompts, self.hardware, *varied.get("prompts", ()), *varied.get("hardware", ())}
        texts = [path.read_bytes() for path in map(Path, sorted(filter(None, named))) if path.is_file()]
        return hashlib.blake2b(b"\0".join(texts), digest_size=4).hexdigest() if texts else ""

    def at(self, values: Values) -> SweepOptions:
        """Return the options of one point of the grid."""
        varied = {name: values[name] for name in self.varied}
        settings = [f"{name}={value}" for name, value in varied.items() if "." in name]
        changed = {
            field: parsed(SweepOptions, field, value)
            for field, value in ((name.replace("-", "_"), value) for name, value in varied.items() if "." not in name)
        }
        if "rate" in values:
            changed["arrival"] = replace(self.arrival or POISSON, mean_s=1 / values["rate"])
        return replace(self, set=(*self.set, *settings), seed=values["seed"], **changed)
