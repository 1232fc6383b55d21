"""`minifuse explain NAME`: what a technique, a stage or a term is, where its code is, and how to run it."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

import minifuse
from minifuse.cli.glossary import Term, folded, terms
from minifuse.cli.list import first_line
from minifuse.cli.text import console
from minifuse.core.errors import UsageError
from minifuse.io.parsing import did_you_mean
from minifuse.options import describe_options
from minifuse.stages import KINDS, Kind, stage, stages
from minifuse.techniques import MODELS, TECHNIQUES, Technique, fit, for_model

Line = tuple[str | tuple[str, str], ...]  # parts of a text, some with a style


@dataclass(frozen=True)
class Explanation:
    """What is shown of one technique, stage or term: a title, a text, and named facts, each of some lines."""

    title: Line
    text: str
    facts: list[tuple[str, list[Line]]]
    commands: list[str]  # that run it, each shown on a line of its own, however long


def explain(
    context: typer.Context,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="a technique, a stage, an option or a term", show_default=False),
    ] = None,
) -> int:
    """Explain a technique, a stage, or a term such as ttft, kv or idle.

    Of a technique or a stage: its options, its paper, where its code is and how to run it. They may share a name;
    batching.static is the stage. Without a name, everything that can be explained is listed.
    """
    if name is None:
        _show_names()
        return 0
    plugins = (context.parent.params.get("plugin") if context.parent else None) or []
    _show(_explanations(" ".join(name), "".join(f" --plugin {shlex.quote(path)}" for path in plugins)))
    return 0


def _explanations(name: str, plugins: str) -> list[Explanation]:
    """Everything of this name, or else the terms of which it is a word."""
    kind_wanted, dot, bare = name.rpartition(".")
    wanted, kind_wanted = folded(bare), folded(kind_wanted)
    rows = [row for row in TECHNIQUES.values() if not dot and folded(row.name) == wanted]
    parts = [
        *(_technique(row, plugins) for row in rows),
        *(
            _stage(kind, cls, plugins)
            for kind in KINDS
            for stage_name, cls in stages(kind).items()
            if folded(stage_name) == wanted and kind_wanted in ("", kind)
        ),
    ]
    found = [*parts, *(_term(term) for term in terms() if term.is_called(folded(name)))]
    found += [] if parts else _option(wanted, kind_wanted)  # a stage tells its options itself
    if found:
        return found
    if near := [_term(term) for term in terms() if term.has_word(folded(name))]:
        return near
    known = dict.fromkeys([*TECHNIQUES, *(stage_name for kind in KINDS for stage_name in stages(kind))])
    known |= dict.fromkeys(name for term in terms() for name in term.names)
    known |= dict.fromkeys(option["name"] for _, _, option in _stage_options())
    raise UsageError(
        f"There is no technique, stage or term {name!r}{did_you_mean(name, known)}: give one that minifuse explain "
        "lists."
    )


def _show_names() -> None:
    """Every name that can be explained."""
    from rich.text import Text

    chapters: dict[str, list[str]] = {"Techniques": list(TECHNIQUES)}
    chapters |= {f"Stages for {kind}": list(stages(kind)) for kind in KINDS}
    for term in terms():
        chapters.setdefault(f"Terms: {term.chapter}", []).extend(term.names)
    for chapter, names in chapters.items():
        console().print(Text(chapter, "bold"), Text(", ".join(names)), "", sep="\n")
    console().print("minifuse explain NAME tells more.")


def _term(term: Term) -> Explanation:
    facts: list[tuple[str, list[Line]]] = [("part of", [(term.chapter,)]), ("defined in", [(term.defined_in,)])]
    commands = [] if term.command is None else [term.command]
    return Explanation(((", ".join(term.names), "bold"), f": {term.meaning}."), "", facts, commands)


def _option(wanted: str, kind_wanted: str) -> list[Explanation]:
    """The option of this folded name, of every stage that has it; of none, nothing."""
    found = [
        (kind, stage_name, option)
        for kind, stage_name, option in _stage_options()
        if folded(option["name"]) == wanted and kind_wanted in ("", kind)
    ]
    facts = [(f"{kind} {stage_name}", _options([option], f"{kind}.")) for kind, stage_name, option in found]
    return [Explanation(((found[0][2]["name"], "bold"), ", an option, for --set:"), "", facts, [])] if found else []


def _stage_options() -> Iterator[tuple[Kind, str, dict[str, Any]]]:
    """Every option of every stage, with the kind and the name of the stage."""
    for kind in KINDS:
        for stage_name, cls in stages(kind).items():
            for option in describe_options(cls.Options):
                yield kind, stage_name, option


def _show(explanations: list[Explanation]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    out = console()
    for number, explanation in enumerate(explanations):
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
        for name, fact in explanation.facts:
            table.add_row(name, Text("\n").join(Text.assemble(*line) for line in fact))
        text = [Padding(Text(explanation.text), (0, 0, 0, 2))] if explanation.text else []
        out.print(
            *[""] * (number > 0), Text.assemble(*explanation.title), *text, Padding(table, (0, 0, 0, 2)), sep="\n"
        )
        if explanation.commands:
            out.print(
                Text("  run it", "dim"), *(Text(f"    {one}") for one in explanation.commands), sep="\n", soft_wrap=True
            )


def where(cls: type[Any]) -> str:
    """The module of a stage, and its file relative to the package's folder; of an attention, the half with tensors."""
    if cls.kind == "attention" and cls.tensors:
        module = cls.tensors.partition(":")[0]
        return f"{module} ({module.replace('.', '/')}.py)"
    file = Path(inspect.getsourcefile(cls) or sys.modules[cls.__module__].__file__ or "")
    home = Path(minifuse.__file__).parent.parent
    return f"{cls.__module__} ({file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name})"


def _technique(row: Technique, plugins: str) -> Explanation:
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
        ],
        [_run(row.name, model, plugins) for model in serves],
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


def _run(technique: str, model: str, plugins: str, flags: str = "") -> str:
    """A command line that runs a technique on a kind of model, with some stages exchanged."""
    which = " --model lstm --workload wmt15" if model == "cells" else ""
    return f"minifuse{plugins} run --technique {technique}{flags}{which}"


def _stage(kind: Kind, cls: type[Any], plugins: str) -> Explanation:
    text = inspect.cleandoc(inspect.getdoc(cls) or "").partition(">>>")[0].strip()
    return Explanation(
        ((cls.name, "bold"), f", a stage for {kind}."),
        text.replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n"),
        [
            ("used by", [(", ".join(row.name for row in _users(kind, cls.name)) or "no technique by default",)]),
            ("serves", [(", ".join(name for model, name in MODELS.items() if model in cls.serves),)]),
            ("code", [(where(cls),)]),
            ("options", _options(describe_options(cls.Options), f"{kind}.")),
        ],
        [_command(kind, cls, plugins)],
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


def _command(kind: Kind, cls: type[Any], plugins: str) -> str:
    """A command line that runs a stage: a technique that has it, else one with as few stages exchanged as possible."""
    name, model = cls.name, next(model for model in MODELS if model in cls.serves)
    users = [row for row in TECHNIQUES.values() if model in _by_model(row, kind).get(name, ())]
    if users:
        return _run(users[0].name, model, plugins)
    others = [other for other in KINDS if other != kind]
    exchanges = sorted(
        product(*([None, *stages(other)] for other in others)), key=lambda picks: len(picks) - picks.count(None)
    )
    rows = [row for row in TECHNIQUES.values() if model in row.serves]
    for picks, row in product(exchanges, rows):
        exchanged = {kind: name, **{other: pick for other, pick in zip(others, picks, strict=True) if pick}}
        mixed = {**for_model(row, model).stages, **exchanged}
        if fit(mixed) and all(model in stage(place, other).serves for place, other in mixed.items()):
            return _run(row.name, model, plugins, "".join(f" --{other} {pick}" for other, pick in exchanged.items()))
    return "it fits no other stage yet"
