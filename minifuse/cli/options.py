"""The options that `run` and `compare` share, what they mean for a technique, and which contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from minifuse.cli.declare import by_itself, json_switch, option, switch, whole
from minifuse.core.errors import UsageError
from minifuse.core.request import Sampling
from minifuse.io.parsing import parse_float, parse_goodput, parse_size
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source
from minifuse.serve.assembly import Choices, choose
from minifuse.serve.settings import CLOCKS, Settings, simulated
from minifuse.simulate.cost import hardware
from minifuse.techniques import Technique
from minifuse.trace.metrics import GROUPINGS
from minifuse.workload.laws import Arrival, Lengths, parse_arrival, parse_lengths, parse_users


def _hardware(text: str, flag: str) -> str:
    hardware(text)
    return text


def _temperature(text: str, flag: str) -> float:
    return parse_float(text, flag, 0, 1000)


def _share(text: str, flag: str) -> float:
    value = parse_float(text, flag, 0, 1)
    if value == 0:
        raise UsageError(f'{flag} is "{text}": give a number above 0, up to 1.')
    return value


def parse_stage_options(texts: list[str], flag: str) -> dict[str, str]:
    """The values typed as `stage.option=value`, by `stage.option`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f'{flag} is "{text}": give stage.option=value, such as batching.max_batch=4.')
        if name in found:
            raise UsageError(f"{flag} gives {name} twice: give it once.")
        found[name] = value
    return found


_model, _workload, _technique, _time, _output = (
    partial(option, panel=panel) for panel in ("Model", "Workload", "Technique", "Time", "Output")
)
_length = partial(_workload, metavar="LAW", parse=by_itself(parse_lengths))
MODEL = "tiny, a directory in Hugging Face's format, random:PRESET, or cells: lstm, seq2seq, treelstm:hidden=256"
REFERENCE = "reference: the same bits under every technique, slowly"
KV_MEMORY = (
    "budget of the KV cache, or of the states of cells: 64MiB, or more if 4096 tokens need it; on simulated hardware "
    "90% of its memory, less the weights"
)
SYNTHETIC = (
    "conversations: crowd:turns=4 for tiny, sharegpt:scale=0.05, ... for any transformer; for cells: wmt15, "
    "wmt15:max=50, treebank, ..."
)
BY = option("--by", "latencies of each user, priority or conversation", choices=GROUPINGS, panel="Output")


@dataclass(frozen=True)
class ModelOptions:
    """Which model is loaded, and as what."""

    model: Annotated[str, _model("--model", MODEL, "MODEL", default="tiny")]
    dtype: Annotated[str, _model("--dtype", "data type to compute in", choices=tuple(DTYPE_BYTES), default="float32")]
    device: Annotated[str, _model("--device", "where to compute", choices=("auto", "cpu", "cuda"), default="auto")]


@dataclass(frozen=True)
class Options(ModelOptions):
    """The options that `run` and `compare` share, as values. None: not given, and without a default of its own."""

    numerics: Annotated[
        Literal["fast", "reference"], _model("--numerics", REFERENCE, choices=("fast", "reference"), default="fast")
    ]
    tensor_parallel: Annotated[
        int, _model("--tensor-parallel", "processes that share the model", "N", parse=whole(), default="1")
    ]
    kv_memory: Annotated[int | None, _model("--kv-memory", KV_MEMORY, "SIZE", parse=parse_size)]
    prompts: Annotated[str | None, _workload("--prompts", "requests as JSON lines (- is standard input)", "FILE")]
    requests: Annotated[
        int | None, _workload("--requests", "number of synthetic requests, or of conversations: 16", "N", parse=whole())
    ]
    workload: Annotated[str | None, _workload("--workload", SYNTHETIC, "NAME")]
    prompts_per_request: Annotated[
        int | None, _workload("--prompts-per-request", "prompts of each synthetic request: 1", "N", parse=whole())
    ]
    users: Annotated[
        tuple[int, ...] | None,
        _workload(
            *("--users", "users of synthetic requests: 4, or by their shares of them, 8:1:1", "N"),
            parse=by_itself(parse_users),
        ),
    ]
    prompt_length: Annotated[
        Lengths | None, _length("--prompt-length", "synthetic prompts of random tokens: uniform:8:64, fixed:32, ...")
    ]
    output_length: Annotated[
        Lengths | None, _length("--output-length", "lengths of their answers: uniform:16:128, ...")
    ]
    arrival: Annotated[
        Arrival,
        _workload(
            *("--arrival", "none, constant:500ms, poisson:50ms or gamma:50ms:cv=2", "LAW"),
            parse=by_itself(parse_arrival),
            default="none",
        ),
    ]
    max_new_tokens: Annotated[
        int | None, _workload("--max-new-tokens", "tokens of an answer, at most: 256", "N", parse=whole())
    ]
    ignore_eos: Annotated[bool, switch("--ignore-eos", "generate up to the token limit", panel="Workload")]
    temperature: Annotated[
        float, _workload("--temperature", "0 always takes the most likely token", "T", parse=_temperature, default="0")
    ]
    top_k: Annotated[
        int, _workload("--top-k", "sample from the K most likely tokens; 0: from all", "K", parse=whole(0), default="0")
    ]
    top_p: Annotated[
        float,
        _workload(
            *("--top-p", "sample from the most likely tokens, of total probability P", "P"), parse=_share, default="1"
        ),
    ]
    seed: Annotated[
        int, _workload("--seed", "of synthetic requests, random weights and sampling", "N", parse=whole(0), default="0")
    ]
    max_batch: Annotated[
        int | None,
        _technique(
            *("--max-batch", "requests served at once, at most: the batch size of every stage that has one", "N"),
            parse=whole(),
        ),
    ]
    set: Annotated[
        dict[str, str],
        _technique(
            *("--set", "an option of a stage, see minifuse explain; repeatable", "STAGE.OPTION=V"),
            parse=parse_stage_options,
            repeatable=True,
        ),
    ]
    clock: Annotated[
        Literal["real", "virtual"],
        _time("--clock", "real, or virtual: time from a cost model", choices=CLOCKS, default="real"),
    ]
    hardware: Annotated[
        str | None,
        _time("--hardware", "whose speed virtual time has: cpu, a100-40g, h200, ...", "NAME", parse=_hardware),
    ]
    goodput: Annotated[
        dict[str, float] | None,
        _output(
            *("--goodput", "latency bounds in ms that a good answer keeps: ttft:200,tpot:50", "BOUNDS"),
            parse=by_itself(parse_goodput),
        ),
    ]
    by: Annotated[str | None, BY]
    json: Annotated[bool, json_switch(panel="Output")]

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)

    @property
    def settings(self) -> Settings:
        """How a run is set up, but for the options of its stages."""
        return Settings(
            dtype=self.dtype,
            device=self.device,
            kv_memory=self.kv_memory,
            clock=self.clock,
            hardware=simulated(self.hardware, self.clock),
            seed=self.seed,
            tensor_parallel=self.tensor_parallel,
            numerics=self.numerics,
        )

    def choices(self, row: Technique, known_only: bool = False) -> Choices:
        """A technique with what --set and --max-batch mean for it.

        Args:
            known_only: leave out what the technique has no option for, instead of refusing it.

        Raises:
            UsageError: the technique has no such option, or the option does not take the value.
        """
        if known_only:
            known = row.option_names
            max_batch = self.max_batch if row.batch_sizes else None
            return choose(row, {name: value for name, value in self.set.items() if name in known}, max_batch)
        return choose(row, self.set, self.max_batch)


def refuse_contradictions(options: Options, source: Source, texts: Sequence[str] = ()) -> None:
    """Refuse options that contradict each other or mean nothing to the model; `texts` are typed prompts.

    Raises:
        UsageError: there are some; the message names them.
    """
    simulated(options.hardware, options.clock)  # refused before prompts are read
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
                f"{flag} and --workload {options.workload} are both given, and a workload fixes the lengths of its "
                "requests: leave one of them out."
            )


def _refuse_for_model(options: Options, source: Source, texts: Sequence[str]) -> None:
    """Refuse what means nothing to a kind of model."""
    kind = request_kind(source.config.kind)
    if kind.of_cells:
        of_cells = f"and {source.name} is made of cells"
        if texts:
            raise UsageError(
                f"A typed prompt was given, and {source.name} has no tokenizer: give token ids with --prompts FILE, or "
                f"synthetic requests with --workload {kind.workload}."
            )
        if options.sampling != Sampling(seed=options.seed):
            raise UsageError(
                f"--temperature, --top-k or --top-p is given, {of_cells}, which produce the most likely token: "
                "leave it out."
            )
        if options.prompts_per_request is not None:
            raise UsageError(
                f"--prompts-per-request is {options.prompts_per_request}, {of_cells}, where a request is one graph: "
                "leave it out."
            )
    if not kind.reads_sentences and options.prompt_length is not None:
        raise UsageError(
            f"--prompt-length is for synthetic prompts, and {source.config.kind} reads trees: give --workload treebank "
            "or identical-trees."
        )
    for flag, given in {
        "--output-length": options.output_length is not None,
        "--max-new-tokens": options.max_new_tokens is not None,
        "--ignore-eos": options.ignore_eos,
    }.items():
        if given and not kind.produces_tokens:
            raise UsageError(f"{flag} is for answers in tokens, and {source.config.kind} produces none: leave it out.")
