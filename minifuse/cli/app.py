"""Declares the commands to typer; each returns a function that does its work."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Annotated, Any

import typer

from minifuse import __version__
from minifuse.cli.bench import bench
from minifuse.cli.calibrate import calibrate
from minifuse.cli.chat import chat
from minifuse.cli.check import check
from minifuse.cli.compare import compare
from minifuse.cli.doctor import doctor
from minifuse.cli.explain import explain
from minifuse.cli.lab import LAB
from minifuse.cli.list import list_
from minifuse.cli.plugin import load_plugin
from minifuse.cli.replay import replay
from minifuse.cli.reproduce import reproduce
from minifuse.cli.run import run
from minifuse.cli.serve import serve
from minifuse.cli.sweep import sweep
from minifuse.cli.trace import trace
from minifuse.cli.tutorial import tutorial
from minifuse.parallel.torchrun import torchrun

COMMANDS: dict[str, Callable[..., int]] = {
    "run": run,
    "chat": chat,
    "serve": serve,
    "bench": bench,
    "compare": compare,
    "sweep": sweep,
    "check": check,
    "trace": trace,
    "replay": replay,
    "reproduce": reproduce,
    "calibrate": calibrate,
    "list": list_,
    "explain": explain,
    "tutorial": tutorial,
    "doctor": doctor,
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


def parser() -> Callable[..., Any]:
    """Make the parser of command lines; its help has colours only on a terminal."""
    return _parser(sys.stdout.isatty())


@cache  # one parser serves many command lines in a process
def _parser(fancy: bool) -> Callable[..., Any]:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if fancy else None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(root)
    for name, command in COMMANDS.items():
        app.command(name)(_deferred(command))
    group = typer.Typer(rich_markup_mode="rich" if fancy else None)
    group.callback(invoke_without_command=True)(lab)
    for name, command in LAB.items():
        group.command(name)(_deferred(command))
    app.add_typer(group, name="lab")
    return typer.main.get_command(app)
