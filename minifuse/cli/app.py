"""The commands and how they are typed. Each returns its job, imported only when it is called for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from minifuse import __version__
from minifuse.cli.asked import DTYPES, Asked, AskedOfRun, with_options
from minifuse.cli.plugin import load_plugin

__all__ = ["make_app"]

Job = Callable[[], int]

JsonFlag = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="what to ask, each in quotes")]
Techniques = Annotated[list[str] | None, typer.Argument(metavar="TECHNIQUE", help="two or more, see minifuse list")]


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
        typer.Option("--plugin", metavar="FILE.py", help="a file with stages or models of your own; repeatable"),
    ] = None,
) -> None:
    """Five papers' LLM serving systems, run for real, side by side."""
    for path in plugin or []:
        load_plugin(path)
    if context.invoked_subcommand is None:
        print(context.get_help())


@with_options(AskedOfRun)
def run(texts: Texts, asked: AskedOfRun) -> Job:
    """Serve requests with one technique and show the answers as they finish.

    Without a prompt and without --prompts, a crowd of made-up requests is served.
    """
    from minifuse.cli.run import run as job

    return lambda: job(texts or [], asked)


@with_options(Asked)
def compare(techniques: Techniques, asked: Asked) -> Job:
    """Serve the same requests with several techniques, and show what each made of them in one table."""
    from minifuse.cli.compare import compare as job

    return lambda: job(techniques or [], asked)


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="a figure, or a paper: all of its figures")] = None,
    list_: Annotated[bool, typer.Option("--list", help="show the figures that there are")] = False,
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="quick|cpu|paper",
            help="seconds with a small model, minutes in real time, or the paper's own scale",
        ),
    ] = "cpu",
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="instead of the scale's model")] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar=f"auto|{'|'.join(DTYPES)}", help="auto: the scale's half precision")
    ] = "auto",
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="tokens of an answer, or of a query")
    ] = None,
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="N", help="runs of each point, at least; medians count")
    ] = "1",
    hidden: Annotated[
        str | None, typer.Option("--hidden", metavar="N", help="hidden size of BatchMaker's models")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            "--rates",
            metavar="LIST",
            help="of BatchMaker's requests: 0.2,0.5,1.2 (shares of the measured peak, up to 2) or 300,600 (per second)",
        ),
    ] = None,
    requests: Annotated[
        str | None, typer.Option("--requests", metavar="N", help="of BatchMaker's figures, at the highest rates")
    ] = None,
    seed: Annotated[str, typer.Option("--seed", metavar="N", help="of arrivals, lengths and weights")] = "0",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="also write NAME.json and NAME.md to this folder")
    ] = None,
    json: JsonFlag = False,
) -> Job:
    """Measure a figure of a paper again, and show the paper's numbers beside those of this machine."""
    from minifuse.cli.reproduce import AskedOfFigure
    from minifuse.cli.reproduce import reproduce as job

    asked = AskedOfFigure(*(name, list_, scale, model, dtype, tokens, rounds, seed, json, out, hidden, rates, requests))
    return lambda: job(asked)


def list_(json: JsonFlag = False) -> Job:
    """Show every technique and every stage."""
    from minifuse.cli.catalogue import show_list

    return lambda: show_list(json)


def explain(name: Annotated[str, typer.Argument(metavar="NAME", help="a technique or a stage")]) -> Job:
    """Tell what a technique or a stage does, its options, its paper, where its code is and how to run it."""
    from minifuse.cli.explain import explain as job

    return lambda: job(name)


def doctor(json: JsonFlag = False) -> Job:
    """Check that this machine has what minifuse needs."""
    from minifuse.cli.doctor import doctor as job

    return lambda: job(json)


def make_app() -> typer.Typer:
    """The parser. Its help has frames and colours only on a terminal."""
    fancy = sys.stdout.isatty()
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if fancy else None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(root)
    app.command("run")(run)
    app.command("compare")(compare)
    app.command("reproduce")(reproduce)
    app.command("list")(list_)
    app.command("explain")(explain)
    app.command("doctor")(doctor)
    return app
