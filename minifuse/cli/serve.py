"""`minifuse serve`: an HTTP server with OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minifuse.cli.declare import option, takes, whole
from minifuse.cli.files import refuse_overwriting
from minifuse.cli.run import RunOptions, chosen, load
from minifuse.cli.status import loading
from minifuse.cli.text import tell
from minifuse.core.errors import MachineError, UsageError
from minifuse.io.parsing import number as counted
from minifuse.io.parsing import parse_duration, parse_size
from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.serve.resolve import resolve_run

if TYPE_CHECKING:
    from minifuse.serve.history import History
    from minifuse.serve.resolve import ResolvedRun
    from minifuse.server.gateway import Gateway, Texts
    from minifuse.server.settings import ServerSettings

TECHNIQUE = "pensieve"
NOT_HERE = (
    *("texts", "prompts", "requests", "workload", "prompts_per_request", "prompt_length", "output_length", "arrival"),
    *("users", "ignore_eos", "clock", "hardware", "goodput", "by", "trace", "why", "live", "replay", "json"),
)
KEY = "lets in whoever sends it, and keeps their conversations apart from other keys'; repeatable"
MOST_DRAIN_S = 3600
_server = partial(option, panel="Server")


def _drain(text: str, flag: str) -> float:
    return parse_duration(text, flag, MOST_DRAIN_S)


def _key(text: str, flag: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{flag} is {text!r}: give a key of printable ASCII without blanks.")
    return text


def _size(text: str, flag: str) -> int:
    return parse_size(text, flag)


@dataclass(frozen=True)
class ServeOptions(RunOptions):
    """The options of `serve`: those of `run` for the engine, and options of the server."""

    technique: Annotated[
        str | None, option("--technique", f"see minifuse list: {TECHNIQUE}", "NAME", panel="Technique")
    ] = None
    host: Annotated[str, _server("--host", "the address to listen at; 0.0.0.0 is every one", "HOST")] = "127.0.0.1"
    port: Annotated[int, _server("--port", "0 is any that is free", "N", parse=whole(0, 65535))] = 8000
    served_model_name: Annotated[str | None, _server("--served-model-name", "what clients call the model", "NAME")] = (
        None
    )
    api_key: Annotated[Sequence[str], _server("--api-key", KEY, "KEY", parse=_key)] = ()
    max_queue: Annotated[
        int, _server("--max-queue", "unfinished requests, at most; others get 429", "N", parse=whole())
    ] = 1024
    max_body: Annotated[int, _server("--max-body", "of a request's body; larger ones get 413", "SIZE", parse=_size)] = (
        4 * 2**20
    )
    drain: Annotated[float, _server("--drain", "how long SIGTERM waits for answers: 30s", "TIME", parse=_drain)] = 30.0
    replicas: Annotated[
        int | None, _server("--replicas", "engines on Ray Serve, on the machines of its cluster", "N", parse=whole())
    ] = None


@takes(ServeOptions, without=NOT_HERE)
def serve(options: ServeOptions) -> int:
    """Serve OpenAI's API over HTTP: completions, chats, streams, metrics.

    \b
        minifuse serve &
        curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
            -d '{"messages": [{"role": "user", "content": "add 17 and 25"}]}'

    A chat is recognised by what was said in it, so pensieve finds its KV again. --temperature, --top-k, --top-p and
    --max-new-tokens hold where a body says nothing. SIGTERM, and Ctrl-C, end the server when the answers that it has
    begun are complete. With --state FILE chats go on after a restart.
    """
    try:
        from minifuse.server.running import HttpServer, listening
        from minifuse.server.settings import ServerSettings
    except ModuleNotFoundError as error:
        raise MachineError(
            f"minifuse serve needs {error.name}, which is not installed: pip install 'minifuse[server]'."
        ) from None
    source = resolve(options.model)
    if not isinstance(source, TextSource) or not source.has_tokenizer:
        raise UsageError(f"minifuse serve reads text, and {source.name} has no tokenizer: choose another --model.")
    choices = options.choices(chosen(options, source.kind, TECHNIQUE))
    refuse_overwriting([("--state", options.state)], [options.model])
    settings = ServerSettings(
        options.host, options.port, options.served_model_name, tuple(options.api_key), options.max_queue,
        options.max_body, options.drain, options.sampling, options.max_new_tokens,
    )  # fmt: skip
    with loading(source.name):
        resolved = resolve_run(choices, source, options.settings)
    settings.check_apart(resolved)
    if options.replicas is not None and resolved.settings.tensor_parallel > 1:
        raise UsageError("--replicas has whole models, and --tensor-parallel divides one: give one of them.")
    with listening(settings) as opened, _history(options.state) as history:
        gateway = _gateway(resolved, settings, options.replicas)
        host, port, *_ = opened.getsockname()
        tell(f"{source.name} with {resolved.row.name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1")
        try:
            given_up = HttpServer(gateway, source, settings, opened, history).run()
        except KeyboardInterrupt:  # before the server handles signals
            return 0
    if given_up:
        tell(f"note: {counted(given_up, 'request')} had not ended by the deadline, and ended early.")
    return 0


def _gateway(run: ResolvedRun, settings: ServerSettings, num_replicas: int | None) -> Callable[[Texts], Gateway]:
    """Return a function that makes the gateway to an engine here or replicas on Ray."""
    if num_replicas is None:
        from minifuse.server.engine_gateway import EngineGateway

        return partial(EngineGateway, run, load(run), settings)
    try:
        from minifuse.server.fleet import Fleet, connect
    except ModuleNotFoundError as error:
        raise MachineError(
            f"--replicas needs {error.name}, which is not installed: pip install 'minifuse[ray]'."
        ) from None
    connect()
    return partial(Fleet, run, settings, num_replicas)


def _history(path: Path | None) -> AbstractContextManager[History | None]:
    """Open the state file, if any, for a `with` block."""
    if path is None:
        return nullcontext()
    from minifuse.serve.history import History  # SQLite takes a moment to import

    return History(path)
