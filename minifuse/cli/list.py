"""`minifuse list`: every technique and every stage, as a table or as JSON."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from minifuse.cli.declare import JsonOptions, takes
from minifuse.cli.streams import print_result
from minifuse.cli.text import console
from minifuse.options import describe_options
from minifuse.stages import KINDS, Kind, stages
from minifuse.techniques import MODELS, TECHNIQUES, Technique

if TYPE_CHECKING:
    from rich.table import Table


SCHEMA = "minifuse.list/1"


@takes(JsonOptions)
def list_(options: JsonOptions) -> int:
    """Show every technique and every stage."""
    if options.json:
        print_result(_as_json())
    else:
        _show()
    return 0


def first_line(cls: type[Any]) -> str:
    """Return the first line of a stage's docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _technique(row: Technique) -> dict[str, Any]:
    return {
        "name": row.name,
        "paper": row.paper,
        "section": row.section,
        "serves": [model for model in MODELS if model in row.serves],
        "stages": row.stages,
        "options": list(row.described_options()),
    }


def _stages(kind: Kind) -> list[dict[str, Any]]:
    return [
        {"name": name, "summary": first_line(cls), "options": describe_options(cls.Options)}
        for name, cls in stages(kind).items()
    ]


def _as_json() -> str:
    listed = {"schema": SCHEMA, "techniques": [_technique(row) for row in TECHNIQUES.values()]}
    return json.dumps({**listed, **{kind: _stages(kind) for kind in KINDS}}, indent=2)


def _show() -> None:
    from rich.text import Text

    screen = console()
    table = _table("Technique", "What it does", "batching", "memory", "attention")
    for row in TECHNIQUES.values():
        table.add_row(row.name, row.summary, *row.stages.values())
    screen.print(table)
    for kind in KINDS:
        table = _table(kind.capitalize(), "What it does", "Options")
        for name, cls in stages(kind).items():
            options = ", ".join(option["name"] for option in describe_options(cls.Options))
            table.add_row(Text(name), Text(first_line(cls)), Text(options))
        screen.print()
        screen.print(table)
    screen.print("\nminifuse explain NAME tells more; minifuse run --technique NAME runs it.")


def _table(name: str, summary: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(name, style="bold", no_wrap=True)
    table.add_column(summary, ratio=1)
    for other in others:
        table.add_column(other)
    return table
