"""What can be typed after `minifuse run` and `minifuse compare`: every option once, with its help.

Values stay the text that was typed; `minifuse.cli.checked` turns them into numbers, laws and sizes, so that every
refusal is a sentence of ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

__all__ = ["Asked", "AskedOfRun", "with_options"]

DTYPES = ("float32", "float64", "bfloat16", "float16")
NUMERICS = ("fast", "reference")
DEVICES = ("auto", "cpu", "cuda")
CLOCKS = ("real", "virtual")


def _option(flag: str, panel: str, help: str, metavar: str = "") -> Any:
    return typer.Option(flag, help=help, metavar=metavar or None, rich_help_panel=panel)


@dataclass(frozen=True)
class Asked:
    """The options that `run` and `compare` share. None means that nothing was typed."""

    model: Annotated[
        str,
        _option(
            *("--model", "Model"),
            "tiny, a directory in Hugging Face's format, random:PRESET, or cells: lstm, seq2seq, treelstm:hidden=256",
            "MODEL",
        ),
    ] = "tiny"
    dtype: Annotated[str, _option("--dtype", "Model", "numbers to compute in", "|".join(DTYPES))] = "float32"
    numerics: Annotated[
        str,
        _option("--numerics", "Model", "reference: the same bits under every technique, slowly", "|".join(NUMERICS)),
    ] = "fast"
    device: Annotated[str, _option("--device", "Model", "where to compute", "|".join(DEVICES))] = "auto"
    tensor_parallel: Annotated[
        str | None, _option("--tensor-parallel", "Model", "processes that share the model: 1", "N")
    ] = None
    kv_memory: Annotated[
        str | None,
        _option(
            *("--kv-memory", "Model"),
            "the budget of the KV cache, or of cells' states: 64MiB, or more if 4096 tokens need it",
            "SIZE",
        ),
    ] = None
    prompts: Annotated[
        str | None, _option("--prompts", "Workload", "requests as JSON lines (- is standard input)", "FILE")
    ] = None
    requests: Annotated[
        str | None, _option("--requests", "Workload", "requests to make up when none are given: 16", "N")
    ] = None
    workload: Annotated[
        str | None,
        _option(
            "--workload", "Workload", "what is made up: wmt15, wmt15:max=50, treebank, identical-trees, ...", "NAME"
        ),
    ] = None
    prompts_per_request: Annotated[
        str | None, _option("--prompts-per-request", "Workload", "prompts of each made-up request: 1", "N")
    ] = None
    prompt_length: Annotated[
        str | None,
        _option("--prompt-length", "Workload", "made-up prompts of random tokens: uniform:8:64, fixed:32, ...", "LAW"),
    ] = None
    output_length: Annotated[
        str | None, _option("--output-length", "Workload", "their answers' lengths: uniform:16:128, ...", "LAW")
    ] = None
    arrival: Annotated[
        str,
        _option("--arrival", "Workload", "none, constant:500ms, poisson:50ms or gamma:50ms:cv=2", "LAW"),
    ] = "none"
    max_new_tokens: Annotated[
        str | None, _option("--max-new-tokens", "Workload", "tokens of an answer, at most: 256", "N")
    ] = None
    ignore_eos: Annotated[bool, _option("--ignore-eos", "Workload", "go on to the last allowed token")] = False
    temperature: Annotated[str, _option("--temperature", "Workload", "0 always takes the likeliest token", "T")] = "0"
    top_k: Annotated[str, _option("--top-k", "Workload", "draw from the K likeliest tokens; 0: from all", "K")] = "0"
    top_p: Annotated[
        str, _option("--top-p", "Workload", "draw from the likeliest tokens that make up P of the chance", "P")
    ] = "1"
    seed: Annotated[str, _option("--seed", "Workload", "of made-up requests, random weights and sampling", "N")] = "0"
    max_batch: Annotated[
        str | None,
        _option("--max-batch", "Technique", "served at once, at most: max_batch, instances or slots of a stage", "N"),
    ] = None
    set: Annotated[
        list[str],
        _option("--set", "Technique", "an option of a stage, as minifuse explain tells; repeatable", "STAGE.OPTION=V"),
    ] = field(default_factory=list)
    clock: Annotated[str, _option("--clock", "Time", "real, or virtual: a cost model's time", "|".join(CLOCKS))] = (
        "real"
    )
    hardware: Annotated[
        str | None, _option("--hardware", "Time", "whose speed virtual time has: cpu, a100-40g, h200, ...", "NAME")
    ] = None
    goodput: Annotated[
        str | None, _option("--goodput", "Output", "bounds in ms that make an answer good: ttft:200,tpot:50", "BOUNDS")
    ] = None
    json: Annotated[bool, _option("--json", "Output", "one JSON object on stdout")] = False


@dataclass(frozen=True)
class AskedOfRun(Asked):
    """The options of `run` alone: one technique, its stages exchanged at will, its trace."""

    technique: Annotated[
        str | None, _option("--technique", "Technique", "see minifuse list: orca, or cellular for cells", "NAME")
    ] = None
    batching: Annotated[str | None, _option("--batching", "Technique", "another batching stage", "NAME")] = None
    memory: Annotated[str | None, _option("--memory", "Technique", "another memory stage", "NAME")] = None
    attention: Annotated[str | None, _option("--attention", "Technique", "another attention stage", "NAME")] = None
    trace: Annotated[
        str | None, _option("--trace", "Output", "write every decision and time here, as JSON lines", "FILE")
    ] = None


NamesT = TypeVar("NamesT")
AskedT = TypeVar("AskedT", bound=Asked)


def with_options(asked: type[AskedT]) -> Callable[[Callable[[NamesT, AskedT], Any]], Callable[..., Any]]:
    """Let typer see a command of (names, asked) as one with an option for every field of `asked`, its own first."""

    def decorate(command: Callable[[NamesT, AskedT], Any]) -> Callable[..., Any]:
        names, _ = inspect.signature(command).parameters
        hints = get_type_hints(command, include_extras=True) | get_type_hints(asked, include_extras=True)

        def seen(**typed: Any) -> Any:
            return command(typed.pop(names), asked(**typed))

        defaults: dict[str, Any] = {names: None}
        for f in sorted(fields(asked), key=lambda f: f.name not in asked.__annotations__):
            defaults[f.name] = f.default if f.default_factory is MISSING else f.default_factory()
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            for name, default in defaults.items()
        ]
        seen.__name__, seen.__doc__ = getattr(command, "__name__", ""), command.__doc__
        seen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        seen.__annotations__ = {name: hints[name] for name in defaults}
        return seen

    return decorate
