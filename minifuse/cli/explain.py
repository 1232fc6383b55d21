"""`minifuse explain NAME`: what a technique or a stage does, where its code is, and how to run it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

import minifuse
from minifuse.cli.list import first_line
from minifuse.cli.text import console
from minifuse.errors import UsageError
from minifuse.options import describe_options
from minifuse.parsing import unknown
from minifuse.stages import KINDS, Kind, stage, stages
from minifuse.techniques import MODELS, TECHNIQUES, Technique, for_model, mix

__all__ = ["explain", "where"]

Line = tuple[str | tuple[str, str], ...]  # parts of a text, some with a style


@dataclass(frozen=True)
class Explanation:
    """What is shown of one technique or stage: a title, a text, and named facts, each of some lines."""

    title: Line
    text: str
    facts: list[tuple[str, list[Line]]]


def explain(name: Annotated[str, typer.Argument(metavar="NAME", help="a technique or a stage")]) -> int:
    """Explain a technique or a stage: its options, its paper, where its code is and how to run it.

    A technique and a stage may share a name; batching.static is the stage.
    """
    kind_wanted, dot, bare = name.rpartition(".")
    row = None if dot else TECHNIQUES.get(name)
    found = [(kind, stages(kind)[bare]) for kind in KINDS if bare in stages(kind) and kind_wanted in ("", kind)]
    if row is None and not found:
        known = dict.fromkeys([*TECHNIQUES, *(stage_name for kind in KINDS for stage_name in stages(kind))])
        raise unknown("technique or stage", name, known)
    explanations = [] if row is None else [_technique(row)]
    _show([*explanations, *(_stage(kind, cls) for kind, cls in found)])
    return 0


def _show(explanations: list[Explanation]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    lines: list[Any] = []
    for explanation in explanations:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
        for name, fact in explanation.facts:
            table.add_row(name, Text("\n").join(Text.assemble(*line) for line in fact))
        text = [Padding(Text(explanation.text), (0, 0, 0, 2))] if explanation.text else []
        lines += [Text.assemble(*explanation.title), *text, Padding(table, (0, 0, 0, 2)), ""]
    console().print(*lines[:-1], sep="\n", soft_wrap=False)


def where(cls: type[Any]) -> str:
    """The module of a stage, and its file relative to the package's folder; of an attention, the half with tensors."""
    if cls.kind == "attention" and cls.tensors:
        module = cls.tensors.partition(":")[0]
        return f"{module} ({module.replace('.', '/')}.py)"
    file = Path(inspect.getsourcefile(cls) or sys.modules[cls.__module__].__file__ or "")
    home = Path(minifuse.__file__).parent.parent
    return f"{cls.__module__} ({file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name})"


def _technique(row: Technique) -> Explanation:
    serves = [model for model in MODELS if model in row.serves]
    used: list[tuple[str, list[Line]]] = [
        (kind, _stage_lines(stage(kind, name), models if len(models) < len(serves) else []))
        for kind in KINDS
        for name, models in _by_model(row, kind).items()
    ]
    variants = [for_model(row, model) for model in serves]
    options = {option["name"]: option for variant in variants for option in variant.described_options()}
    return Explanation(
        ((row.name, "bold"), f", a technique: {row.summary}."),
        "",
        [
            ("paper", [(row.paper if row.paper != "-" else "none",)]),
            ("section", [(row.section,)]),
            ("serves", [(", ".join(MODELS[model] for model in serves),)]),
            *used,
            ("options", _options(options.values())),
            ("run it", [(_run(row.name, model),) for model in serves]),
        ],
    )


def _stage_lines(cls: type[Any], models: list[str]) -> list[Line]:
    """What a stage of a technique does, and where; `models` are those for which it is this stage, if not all."""
    for_which = f" for {' and '.join(MODELS[model] for model in models)}" if models else ""
    return [((cls.name, "bold"), f"{for_which}: {first_line(cls)}"), ((where(cls), "dim"),)]


def _by_model(row: Technique, kind: Kind) -> dict[str, list[str]]:
    """The stages of this kind that a technique has: name -> the kinds of model for which it is that one."""
    found: dict[str, list[str]] = {}
    for model in MODELS:
        if model in row.serves:
            found.setdefault(getattr(for_model(row, model), kind), []).append(model)
    return found


def _run(technique: str, model: str, flags: str = "") -> str:
    """A command line that runs a technique on a kind of model, with some stages exchanged."""
    which = " --model lstm --workload wmt15" if model == "cells" else ""
    return f"minifuse run --technique {technique}{flags}{which}"


def _stage(kind: Kind, cls: type[Any]) -> Explanation:
    text = inspect.cleandoc(inspect.getdoc(cls) or "").partition(">>>")[0].strip()
    return Explanation(
        ((cls.name, "bold"), f", a stage for {kind}."),
        text.replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n"),
        [
            ("used by", [(", ".join(row.name for row in _users(kind, cls.name)) or "no technique by default",)]),
            ("serves", [(", ".join(name for model, name in MODELS.items() if model in cls.serves),)]),
            ("code", [(where(cls),)]),
            ("options", _options(describe_options(cls.Options), f"{kind}.")),
            ("run it", [(_command(kind, cls),)]),
        ],
    )


def _options(described: Iterable[dict[str, Any]], prefix: str = "") -> list[Line]:
    lines: list[Line] = []
    for option in described:
        default = option["default"]
        if default is None or isinstance(default, bool):
            default = {None: "none", True: "on", False: "off"}[default]
        help = f" {option['help']}; give {option['allowed']}"
        lines.append(((f"{prefix}{option['name']}={default}", "bold"), help))
    return lines or [("none",)]


def _users(kind: Kind, name: str) -> list[Technique]:
    return [row for row in TECHNIQUES.values() if name in _by_model(row, kind)]


def _command(kind: Kind, cls: type[Any]) -> str:
    """A command line that runs a stage: a technique that has it, else one with as few stages exchanged as possible."""
    name, model = cls.name, next(model for model in MODELS if model in cls.serves)
    users = [row for row in TECHNIQUES.values() if model in _by_model(row, kind).get(name, ())]
    if users:
        return _run(users[0].name, model)
    others = [other for other in KINDS if other != kind]
    exchanges = sorted(
        product(*([None, *stages(other)] for other in others)), key=lambda picks: len(picks) - picks.count(None)
    )
    rows = [row for row in TECHNIQUES.values() if model in row.serves]
    for picks, row in product(exchanges, rows):
        exchanged: dict[str, str] = {
            str(kind): name,
            **{other: pick for other, pick in zip(others, picks, strict=True) if pick},
        }
        try:
            mixed = mix(for_model(row, model), **exchanged)
        except UsageError:
            continue
        if not all(model in stage(place, other).serves for place, other in mixed.stages.items()):
            continue
        return _run(row.name, model, "".join(f" --{other} {pick}" for other, pick in exchanged.items()))
    return "it fits no other stage yet"
