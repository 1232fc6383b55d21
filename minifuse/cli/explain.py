"""`minifuse explain NAME`: explains a technique, a stage, an option or a term."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

import minifuse
from minifuse.cli.declare import argument
from minifuse.cli.glossary import Term, folded, terms
from minifuse.cli.list import first_line
from minifuse.cli.text import console
from minifuse.core.errors import UsageError
from minifuse.io.parsing import did_you_mean
from minifuse.options import describe_options
from minifuse.stages import KINDS, Kind, stage, stages
from minifuse.techniques import MODELS, TECHNIQUES, Technique, fit, for_model

SHOWN = {None: "none", True: "on", False: "off"}  # defaults, spelled as --set takes them


@dataclass(frozen=True)
class Explanation:
    """What is shown of one technique, stage, option or term."""

    name: str
    what: str
    text: str = ""
    facts: dict[str, list[str]] = field(default_factory=dict)  # subject -> lines about it
    commands: list[str] = field(default_factory=list)  # command lines that run it, each shown on one line, however long


def explain(
    context: typer.Context,
    name: Annotated[list[str] | None, argument("NAME", "a technique, a stage, an option or a term")] = None,
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
    """Explain everything of this name; otherwise, terms that contain the name as a word."""
    kind_wanted, dot, bare = name.rpartition(".")
    wanted, kind_wanted = folded(bare), folded(kind_wanted)
    kinds = [kind for kind in KINDS if kind_wanted in ("", kind)]
    found = [_technique(row, plugins) for row in TECHNIQUES.values() if not dot and folded(row.name) == wanted]
    found += [
        _stage(kind, cls, plugins)
        for kind in kinds
        for stage_name, cls in stages(kind).items()
        if folded(stage_name) == wanted
    ]
    called = [] if found else [one for one in _stage_options() if folded(one[2]["name"]) == wanted and one[0] in kinds]
    found += [_term(term) for term in terms() if term.is_called(folded(name))]
    if called:  # if a stage had that name, its options would be listed already
        facts = {f"{kind} {stage_name}": _options([option], f"{kind}.") for kind, stage_name, option in called}
        found.append(Explanation(called[0][2]["name"], ", an option, for --set:", facts=facts))
    if found := found or [_term(term) for term in terms() if term.has_word(folded(name))]:
        return found
    known = [*TECHNIQUES, *(name for term in terms() for name in term.names)]
    known += [each for kind, stage_name, option in _stage_options() for each in (stage_name, option["name"])]
    raise UsageError(
        f"There is no technique, stage or term {name!r}{did_you_mean(name, known)}: give one that minifuse explain "
        "lists."
    )


def _show_names() -> None:
    """Print every name that can be explained."""
    from rich.text import Text

    chapters: dict[str, list[str]] = {"Techniques": list(TECHNIQUES)}
    chapters |= {f"Stages for {kind}": list(stages(kind)) for kind in KINDS}
    for term in terms():
        chapters.setdefault(f"Terms: {term.chapter}", []).extend(term.names)
    for chapter, names in chapters.items():
        console().print(Text(chapter, "bold"), Text(", ".join(names)), "", sep="\n")
    console().print("minifuse explain NAME tells more.")


def _term(term: Term) -> Explanation:
    facts = {"part of": [term.chapter], "defined in": [term.defined_in]}
    commands = [] if term.command is None else [term.command]
    return Explanation(", ".join(term.names), f": {term.meaning}.", facts=facts, commands=commands)


def _stage_options() -> Iterator[tuple[Kind, str, dict[str, Any]]]:
    """Yield every option of every stage, with the kind and the name of the stage."""
    for kind in KINDS:
        for stage_name, cls in stages(kind).items():
            for option in describe_options(cls.Options):
                yield kind, stage_name, option


def _show(explanations: list[Explanation]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    out = console()
    for number, one in enumerate(explanations):
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
        for name, lines in one.facts.items():
            table.add_row(name, Text("\n".join(lines)))
        if number:
            out.print()
        out.print(Text.assemble((one.name, "bold"), one.what))
        if one.text:
            out.print(Padding(Text(one.text), (0, 0, 0, 2)))
        out.print(Padding(table, (0, 0, 0, 2)))
        if one.commands:
            commands = [Text(f"    {command}") for command in one.commands]
            out.print(Text("  run it", "dim"), *commands, sep="\n", soft_wrap=True)


def where(cls: type[Any]) -> str:
    """Return the module and the file of a stage, or of an attention's backend."""
    if cls.kind == "attention" and cls.tensors:
        module = cls.tensors.partition(":")[0]
        return f"{module} ({module.replace('.', '/')}.py)"
    file = Path(inspect.getsourcefile(cls) or sys.modules[cls.__module__].__file__ or "")
    home = Path(minifuse.__file__).parent.parent
    return f"{cls.__module__} ({file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name})"


def _technique(row: Technique, plugins: str) -> Explanation:
    serves = [model for model in MODELS if model in row.serves]
    variants = [for_model(row, model) for model in serves]
    options = {option["name"]: option for variant in variants for option in variant.described_options()}
    facts = {
        "paper": [row.paper if row.paper != "-" else "none"],
        "section": [row.section],
        "serves": [", ".join(MODELS[model] for model in serves)],
    }
    for kind in KINDS:
        lines = facts[kind] = []
        for name, models in _by_model(row, kind).items():
            cls = stage(kind, name)
            which = f" for {' and '.join(MODELS[model] for model in models)}" if len(models) < len(serves) else ""
            lines += [f"{name}{which}: {first_line(cls)}", where(cls)]
    facts["options"] = _options(options.values())
    commands = [_run(row.name, model, plugins) for model in serves]
    return Explanation(row.name, f", a technique: {row.summary}.", facts=facts, commands=commands)


def _by_model(row: Technique, kind: Kind) -> dict[str, list[str]]:
    """Return a technique's stages of this kind, each with the models it serves."""
    found: dict[str, list[str]] = {}
    for model in MODELS:
        if model in row.serves:
            found.setdefault(getattr(for_model(row, model), kind), []).append(model)
    return found


def _run(technique: str, model: str, plugins: str, flags: str = "") -> str:
    """Write a command line that runs a technique on a kind of model."""
    which = " --model lstm --workload wmt15" if model == "cells" else ""
    return f"minifuse{plugins} run --technique {technique}{flags}{which}"


def _stage(kind: Kind, cls: type[Any], plugins: str) -> Explanation:
    text = inspect.cleandoc(inspect.getdoc(cls) or "").partition(">>>")[0].strip()
    users = [row.name for row in TECHNIQUES.values() if cls.name in _by_model(row, kind)]
    facts = {
        "used by": [", ".join(users) or "no technique by default"],
        "serves": [", ".join(name for model, name in MODELS.items() if model in cls.serves)],
        "code": [where(cls)],
        "options": _options(describe_options(cls.Options), f"{kind}."),
    }
    paragraphs = "\n".join(part.replace("\n", " ") for part in text.split("\n\n"))
    return Explanation(cls.name, f", a stage for {kind}.", paragraphs, facts, [_command(kind, cls, plugins)])


def _options(described: Iterable[dict[str, Any]], prefix: str = "") -> list[str]:
    lines = []
    for option in described:
        default = option["default"]
        if default is None or isinstance(default, bool):
            default = SHOWN[default]
        lines.append(f"{prefix}{option['name']}={default} {option['help']}; give {option['allowed']}")
    return lines or ["none"]


def _command(kind: Kind, cls: type[Any], plugins: str) -> str:
    """Write a command line that runs a stage and exchanges few other stages."""
    model = next(model for model in MODELS if model in cls.serves)
    others = [other for other in KINDS if other != kind]
    choices = [[None, *stages(other)] for other in others]
    rows = [row for row in TECHNIQUES.values() if model in row.serves]
    users = [row for row in rows if model in _by_model(row, kind).get(cls.name, ())]
    if users:
        return _run(users[0].name, model, plugins)
    for picks, row in product(sorted(product(*choices), key=lambda picks: -picks.count(None)), rows):
        exchanged = {kind: cls.name, **{other: pick for other, pick in zip(others, picks, strict=True) if pick}}
        mixed = {**for_model(row, model).stages, **exchanged}
        if fit(mixed) and all(model in stage(place, other).serves for place, other in mixed.items()):
            return _run(row.name, model, plugins, "".join(f" --{other} {pick}" for other, pick in exchanged.items()))
    return "it fits no other stage yet"
