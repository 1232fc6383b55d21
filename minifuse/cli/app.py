"""Declares the commands to typer; each returns a function that does its work."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from minifuse import __version__
from minifuse.cli.plugin import load_plugin
from minifuse.parallel.torchrun import torchrun

COMMANDS = {  # imported when needed: all of them take a fifth of a second
    "run": "minifuse.cli.run:run",
    "chat": "minifuse.cli.chat:chat",
    "serve": "minifuse.cli.serve:serve",
    "bench": "minifuse.cli.bench:bench",
    "compare": "minifuse.cli.compare:compare",
    "sweep": "minifuse.cli.sweep:sweep",
    "check": "minifuse.cli.check:check",
    "trace": "minifuse.cli.trace:trace",
    "replay": "minifuse.cli.replay:replay",
    "reproduce": "minifuse.cli.reproduce:reproduce",
    "calibrate": "minifuse.cli.calibrate:calibrate",
    "list": "minifuse.cli.list:list_",
    "explain": "minifuse.cli.explain:explain",
    "tutorial": "minifuse.cli.tutorial:tutorial",
    "doctor": "minifuse.cli.doctor:doctor",
}


def _version(wanted: bool) -> None:
    if wanted:
        print(f"minifuse {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="show the version", is_eager=True, callback=_version)
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="FILE.py", help="a file that registers stages or models; repeatable"),
    ] = None,
) -> None:
    """Five papers' LLM serving systems, run for real, side by side."""
    for path in plugin or []:
        load_plugin(path)
    started = torchrun()
    if started is not None and started.rank:
        started.follow()
    if started is not None:
        atexit.register(started.dismiss)  # for every command
    if context.invoked_subcommand is None:
        print(context.get_help())


def lab(context: typer.Context) -> None:
    """The labs of the course: make one, check it, score a class, grade."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _deferred(command: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Make a command return a function that does its work later."""

    @wraps(command)
    def prepared(**typed: Any) -> Callable[[], int]:
        return partial(command, **typed)

    return prepared


def parser(typed: Sequence[str] = ()) -> Callable[..., Any]:
    """Make the parser of a command line; its help has colours only on a terminal."""
    first = typed[0] if typed else None
    return _parser(first if first in (*COMMANDS, "lab") else None, sys.stdout.isatty())


@cache  # one parser serves many command lines in a process
def _parser(only: str | None, fancy: bool) -> Callable[..., Any]:
    """Make a parser that knows the command `only`; None: all of them."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if fancy else None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(root)
    for name, where in COMMANDS.items():
        if only in (None, name):
            app.command(name)(_deferred(resolve_name(where)))
    if only in (None, "lab"):
        group = typer.Typer(rich_markup_mode="rich" if fancy else None)
        group.callback(invoke_without_command=True)(lab)
        for name, command in resolve_name("minifuse.cli.lab:LAB").items():
            group.command(name)(_deferred(command))
        app.add_typer(group, name="lab")
    return typer.main.get_command(app)
