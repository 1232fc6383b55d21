"""`minifuse bench`: sends a workload to a server, and measures what clients see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median, pstdev
from typing import Annotated, Any

from minifuse.cli.declare import option, takes, whole
from minifuse.cli.requests import make_workload
from minifuse.cli.run import RunOptions
from minifuse.cli.streams import print_result
from minifuse.cli.text import tell
from minifuse.core.errors import MachineError
from minifuse.io.parsing import number as counted
from minifuse.model.source import resolve
from minifuse.trace.tally import percentile

NOT_HERE = (
    *("state", "technique", "batching", "memory", "attention", "trace", "why", "live", "replay", "by", "clock"),
    *("hardware", "set", "max_batch", "dtype", "device", "numerics", "tensor_parallel", "kv_memory"),
)
LATENCIES = {"ttft": "time to the first token", "tpot": "per token after it", "itl": "between tokens", "e2el": "in all"}
_server = partial(option, panel="Server")


@dataclass(frozen=True)
class BenchOptions(RunOptions):
    """The options of `bench`: those of `run` for the workload, and the server's address."""

    url: Annotated[str, _server("--url", "of a server with OpenAI's API", "URL")] = "http://127.0.0.1:8000"
    api_key: Annotated[str | None, _server("--api-key", "sent with each request", "KEY")] = None
    served_model_name: Annotated[
        str | None, _server("--served-model-name", "what the server calls the model; the first that it lists", "NAME")
    ] = None
    max_concurrency: Annotated[
        int | None, _server("--max-concurrency", "requests that are unfinished at one time", "N", parse=whole())
    ] = None


@takes(BenchOptions, without=NOT_HERE)
def bench(options: BenchOptions) -> int:
    """Send a workload to a server and time its answers.

    \b
        minifuse bench --url http://127.0.0.1:8000 --requests 100 --arrival poisson:50ms

    The requests are those of minifuse run with the same options. Prompts are sent as token ids of --model, turns of
    conversations as chats. With --json the keys are those of vllm bench serve.
    """
    try:
        from minifuse.server.client import Client
    except ModuleNotFoundError as error:
        raise MachineError(
            f"minifuse bench needs {error.name}, which is not installed: pip install 'minifuse[server]'."
        ) from None
    workload = make_workload(options, resolve(options.model), options.texts)
    client = Client(options.url, options.served_model_name, options.api_key, workload.text, options.max_concurrency)
    answers = asyncio.run(client.run(workload.requests))
    failed = [one for one in answers if one.error is not None]
    result = summary(answers, options.goodput)
    result |= {"model_id": client.model, "max_concurrency": options.max_concurrency}
    if options.json:
        print_result(json.dumps(result))
    else:
        print_result(table(result))
    if failed:
        first = failed[0]
        tell(f"error: {counted(len(failed), 'request')} failed, the first {first.request.id!r} with {first.error}")
    return int(bool(failed))


def summary(answers: Sequence[Any], goodput: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the metrics of `Timed` answers, with the keys of `vllm bench serve`.

    Args:
        goodput: latency bounds in seconds, from `parse_goodput`.
    """
    good = [one for one in answers if one.error is None]
    duration = max((one.ended_s for one in good), default=0.0)
    num_input, num_output = sum(one.num_prompt for one in good), sum(one.num_output for one in good)
    gaps = [late - early for one in good for early, late in zip(one.token_times, one.token_times[1:], strict=False)]
    seconds: dict[str, list[float]] = {
        "ttft": [one.ttft_s for one in good],
        "tpot": [one.tpot_s for one in good if one.tpot_s is not None],
        "itl": gaps,
        "e2el": [one.e2e_s for one in good],
    }

    def rate(amount: int) -> float | None:
        return amount / duration if duration else None

    result: dict[str, Any] = {
        "schema": "minifuse.bench/1",
        "duration": duration,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": rate(len(good)),
        "request_goodput": None if goodput is None else rate(sum(_is_good(one, goodput) for one in good)),
        "output_throughput": rate(num_output),
        "total_token_throughput": rate(num_input + num_output),
    }
    for name, values in seconds.items():
        result |= _statistics(name, values)
    return result


def _is_good(one: Any, bounds: Mapping[str, float]) -> bool:
    """Return whether an answer keeps all bounds; a missing latency keeps its bound."""
    values = ((getattr(one, f"{name}_s"), bound) for name, bound in bounds.items())
    return all(value is None or value <= bound for value, bound in values)


def _statistics(name: str, values: Iterable[float]) -> dict[str, float | None]:
    """Return mean, median, standard deviation and 99th percentile, in ms; each None without values."""
    ascending = sorted(1e3 * value for value in values)
    if not ascending:
        return dict.fromkeys(f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99"))
    return {
        f"mean_{name}_ms": fmean(ascending),
        f"median_{name}_ms": median(ascending),
        f"std_{name}_ms": pstdev(ascending),
        f"p99_{name}_ms": percentile(ascending, 99),
    }


def table(result: Mapping[str, Any]) -> str:
    """Write a summary for a terminal."""

    def shown(name: str, digits: int = 1) -> str:
        return "-" if result[name] is None else f"{result[name]:,.{digits}f}"

    lines = [
        f"{result['completed']} completed, {result['failed']} failed, in {shown('duration')} s",
        f"{shown('request_throughput', 2)} requests/s, {shown('output_throughput')} tokens/s of answers, "
        f"{shown('total_token_throughput')} tokens/s in all",
        f"{'ms':<26}{'mean':>10}{'median':>10}{'p99':>10}",
    ]
    for name, what in LATENCIES.items():
        values = [shown(f"{kind}_{name}_ms") for kind in ("mean", "median", "p99")]
        lines.append(f"{what:<26}" + "".join(f"{value:>10}" for value in values))
    if result["request_goodput"] is not None:
        lines.append(f"{shown('request_goodput', 2)} requests/s keep the bounds of --goodput")
    return "\n".join(lines)
