"""Declares the options that `run` and `compare` share, and refuses contradictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from minifuse.cli.declare import by_itself, json_switch, option, switch, whole
from minifuse.core.errors import UsageError
from minifuse.core.request import Sampling
from minifuse.io.parsing import parse_float, parse_goodput, parse_size
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source
from minifuse.parallel.torchrun import num_ranks
from minifuse.serve.assembly import Choices, choose
from minifuse.serve.settings import CLOCKS, Settings, find_machine, simulated
from minifuse.techniques import Technique
from minifuse.trace.running import GROUPINGS
from minifuse.workload import tour
from minifuse.workload.laws import Arrival, Lengths, parse_arrival, parse_lengths, parse_users


def _hardware(text: str, flag: str) -> str:
    find_machine(text)
    return text


def _temperature(text: str, flag: str) -> float:
    return parse_float(text, flag, 0, 1000)


def _share(text: str, flag: str) -> float:
    value = parse_float(text, flag, 0, 1)
    if value == 0:
        raise UsageError(f'{flag} is "{text}": give a number above 0, up to 1.')
    return value


def _stage_option(text: str, flag: str) -> str:
    if "=" not in text:
        raise UsageError(f'{flag} is "{text}": give stage.option=value, such as batching.max_batch=4.')
    return text


def stage_options(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of --set, as `stage.option` -> text.

    Raises:
        UsageError: an option is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in found:
            raise UsageError(f"--set gives {name} twice: give it once.")
        found[name] = value
    return found


_model, _workload, _technique, _output = (
    partial(option, panel=panel) for panel in ("Model", "Workload", "Technique", "Output")
)
_count = partial(_workload, metavar="N", parse=whole())
_length = partial(_workload, metavar="LAW", parse=by_itself(parse_lengths))
MODEL = "tiny, a directory in Hugging Face's format, random:PRESET, or cells: lstm, seq2seq, treelstm:hidden=256"
KV_MEMORY = "memory for KV, or for states of cells: 64MiB, or more if 4096 tokens need it; on simulated hardware most"
ARRIVAL = "none: all at once; constant:500ms, poisson:50ms or gamma:50ms:cv=2"
WORKLOAD = "crowd:turns=4, tour, sharegpt:scale=0.05, ...; for cells wmt15, wmt15:max=50, treebank, ..."
USERS = "users of synthetic requests: 4, or by their shares of them, 8:1:1"
MAX_BATCH = "requests served at once, at most: the batch size of every stage that has one"
GOODPUT = "latency bounds in ms that a good answer keeps: ttft:200,tpot:50"
SET = partial(option, "--set", metavar="STAGE.OPTION=V", parse=_stage_option)
BY = _output("--by", "latencies of each user, priority or conversation", choices=GROUPINGS)


@dataclass(frozen=True)
class ModelOptions:
    """Options that say which model is loaded, and in which form."""

    model: Annotated[str, _model("--model", MODEL, "MODEL")] = "tiny"
    dtype: Annotated[str, _model("--dtype", "data type to compute in", choices=DTYPE_BYTES)] = "float32"
    device: Annotated[str, _model("--device", "where to compute", choices=("auto", "cpu", "cuda"))] = "auto"


@dataclass(frozen=True)
class Options(ModelOptions):
    """The options that `run` and `compare` share; None if not given."""

    numerics: Annotated[
        str, _model("--numerics", "reference: the same bits from all techniques, slowly", choices=("fast", "reference"))
    ] = "fast"
    tensor_parallel: Annotated[
        int | None,
        _model(
            "--tensor-parallel", "ranks that share the model: 1, torchrun's, or any in virtual time", "N", parse=whole()
        ),
    ] = None
    kv_memory: Annotated[int | None, _model("--kv-memory", KV_MEMORY, "SIZE", parse=parse_size)] = None
    prompts: Annotated[str | None, _workload("--prompts", "requests as JSON lines (- is standard input)", "FILE")] = (
        None
    )
    requests: Annotated[int | None, _count("--requests", "synthetic requests, or conversations: 16")] = None
    workload: Annotated[str | None, _workload("--workload", WORKLOAD, "NAME")] = None
    prompts_per_request: Annotated[int | None, _count("--prompts-per-request", "of synthetic requests: 1")] = None
    users: Annotated[tuple[int, ...] | None, _workload("--users", USERS, "N", parse=by_itself(parse_users))] = None
    prompt_length: Annotated[
        Lengths | None, _length("--prompt-length", "of synthetic prompts: uniform:8:64, fixed:32, ...")
    ] = None
    output_length: Annotated[Lengths | None, _length("--output-length", "of their answers: uniform:16:128, ...")] = None
    arrival: Annotated[Arrival | None, _workload("--arrival", ARRIVAL, "LAW", parse=by_itself(parse_arrival))] = None
    max_new_tokens: Annotated[int | None, _count("--max-new-tokens", "tokens of an answer, at most: 256")] = None
    ignore_eos: Annotated[bool, switch("--ignore-eos", "generate up to the token limit", panel="Workload")] = False
    temperature: Annotated[
        float, _workload("--temperature", "0 takes the most likely token", "T", parse=_temperature)
    ] = 0.0
    top_k: Annotated[
        int, _workload("--top-k", "sample from the K most likely tokens; 0: from all", "K", parse=whole(0))
    ] = 0
    top_p: Annotated[
        float, _workload("--top-p", "sample from the most likely tokens, of total probability P", "P", parse=_share)
    ] = 1.0
    seed: Annotated[
        int, _workload("--seed", "of synthetic requests, random weights and sampling", "N", parse=whole(0))
    ] = 0
    max_batch: Annotated[int | None, _technique("--max-batch", MAX_BATCH, "N", parse=whole())] = None
    set: Annotated[
        Sequence[str], SET(help="an option of a stage, see minifuse explain; repeatable", panel="Technique")
    ] = ()
    clock: Annotated[
        str, option("--clock", "real, or virtual: time from a cost model", choices=CLOCKS, panel="Time")
    ] = "real"
    hardware: Annotated[
        str | None,
        option(
            "--hardware",
            "speed in virtual time: cpu, a100-40g, h200, ..., or a file by minifuse calibrate",
            "NAME",
            panel="Time",
            parse=_hardware,
        ),
    ] = None
    goodput: Annotated[
        dict[str, float] | None, _output("--goodput", GOODPUT, "BOUNDS", parse=by_itself(parse_goodput))
    ] = None
    by: Annotated[str | None, BY] = None
    json: Annotated[bool, json_switch(panel="Output")] = False

    @property
    def is_tour(self) -> bool:
        """Return whether the workload is `tour`, which implies options that are not given."""
        return self.workload == tour.TOUR

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)

    @property
    def settings(self) -> Settings:
        """Return the `Settings` of a run, without its stage options."""
        return Settings(
            dtype=self.dtype,
            device=self.device,
            kv_memory=tour.KV_MEMORY if self.kv_memory is None and self.is_tour else self.kv_memory,
            clock=self.clock,  # type: ignore[arg-type]
            hardware=simulated(self.hardware, self.clock),
            seed=self.seed,
            tensor_parallel=self.tensor_parallel or num_ranks(),
            numerics=self.numerics,  # type: ignore[arg-type]
        )

    def choices(self, row: Technique, known_only: bool = False) -> Choices:
        """Apply --set and --max-batch to a technique.

        Args:
            known_only: whether to ignore options that the technique lacks, instead of refusing them.

        Raises:
            UsageError: the technique lacks an option, or the option does not take the value.
        """
        given, max_batch = stage_options(self.set), self.max_batch
        if self.is_tour:
            given = {**tour.STAGE_OPTIONS.get(row.memory, {}), **given}
        if known_only:
            given = {name: value for name, value in given.items() if name in row.option_names}
            max_batch = max_batch if row.batch_sizes else None
        return choose(row, given, max_batch)


def refuse_contradictions(options: Options, source: Source, texts: Sequence[str] = ()) -> None:
    """Refuse options that contradict each other or have no effect on this kind of model.

    Args:
        texts: the typed prompts.

    Raises:
        UsageError: options contradict each other; the message names them.
    """
    simulated(options.hardware, options.clock)  # must be refused before prompts are read
    _refuse_for_model(options, source, texts)
    if texts and options.prompts is not None:
        raise UsageError(f'A typed prompt and --prompts "{options.prompts}" are both given: give one or the other.')
    lengths = {
        "--prompts-per-request": options.prompts_per_request,
        "--prompt-length": options.prompt_length,
        "--output-length": options.output_length,
    }
    synthetic = {"--requests": options.requests, "--workload": options.workload, "--users": options.users, **lengths}
    for flag, value in synthetic.items():
        if value is not None and (texts or options.prompts is not None):
            given = "--prompts" if options.prompts is not None else "typed prompts"
            raise UsageError(f"{flag} is for synthetic requests, and {given} are given: leave one of them out.")
    for flag, value in lengths.items():
        if value is not None and options.workload is not None:
            raise UsageError(
                f"{flag} and --workload {options.workload} are both given, and a workload fixes its lengths: leave one "
                "of them out."
            )


def _refuse_for_model(options: Options, source: Source, texts: Sequence[str]) -> None:
    """Refuse options that have no effect on this kind of model."""
    kind, named = request_kind(source.config.kind), source.config.kind
    if kind.of_cells and texts:
        raise UsageError(
            f"A typed prompt was given, and {source.name} has no tokenizer: give token ids with --prompts FILE, or "
            f"synthetic requests with --workload {kind.workload}."
        )
    sampled = options.sampling != Sampling(seed=options.seed)
    lacking = {
        "--temperature, --top-k or --top-p": kind.of_cells and sampled,
        "--prompts-per-request": kind.of_cells and options.prompts_per_request is not None,
        "--prompt-length": not kind.reads_sentences and options.prompt_length is not None,
        "--output-length": not kind.produces_tokens and options.output_length is not None,
        "--max-new-tokens": not kind.produces_tokens and options.max_new_tokens is not None,
        "--ignore-eos": not kind.produces_tokens and options.ignore_eos,
    }
    for flag, given in lacking.items():
        if given:
            raise UsageError(f"{flag} is given, which means nothing to a model of {named}: leave it out.")
