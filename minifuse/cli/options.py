"""The options that `run` and `compare` share, what they mean for a technique, and which contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from minifuse.cli.declare import DTYPES, choice, option, switch, whole
from minifuse.errors import UsageError
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source
from minifuse.parsing import parse_float, parse_goodput, parse_size
from minifuse.request import Sampling
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import hardware
from minifuse.techniques import Technique, check_settings
from minifuse.workload.laws import Arrival, Lengths, parse_arrival, parse_lengths

__all__ = ["Options", "refuse_contradictions"]


def _hardware(text: str, flag: str) -> str:
    hardware(text)
    return text


def _share(text: str, flag: str) -> float:
    value = parse_float(text, flag, 0, 1)
    if value == 0:
        raise UsageError(f'{flag} is "{text}": give a number above 0, up to 1.')
    return value


def _stage_options(texts: list[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f'{flag} is "{text}": give stage.option=value, such as batching.max_batch=4.')
        if name in found:
            raise UsageError(f"{flag} gives {name} twice: give it once.")
        found[name] = value
    return found


@dataclass(frozen=True)
class Options:
    """The options that `run` and `compare` share, as values. None: not given, and without a default of its own."""

    model: str = option(
        "--model",
        "tiny, a directory in Hugging Face's format, random:PRESET, or cells: lstm, seq2seq, treelstm:hidden=256",
        "MODEL",
        panel="Model",
        default="tiny",
    )
    dtype: str = option(
        *("--dtype", "data type to compute in", "|".join(DTYPES)),
        panel="Model",
        default="float32",
        parse=choice(*DTYPES),
    )
    numerics: Literal["fast", "reference"] = option(
        *("--numerics", "reference: the same bits under every technique, slowly", "fast|reference"),
        panel="Model",
        default="fast",
        parse=choice("fast", "reference"),
    )
    device: str = option(
        *("--device", "where to compute", "auto|cpu|cuda"),
        panel="Model",
        default="auto",
        parse=choice("auto", "cpu", "cuda"),
    )
    tensor_parallel: int = option(
        *("--tensor-parallel", "processes that share the model", "N"), panel="Model", default="1", parse=whole()
    )
    kv_memory: int | None = option(
        "--kv-memory",
        "budget of the KV cache, or of the states of cells: 64MiB, or more if 4096 tokens need it",
        "SIZE",
        panel="Model",
        parse=parse_size,
    )
    prompts: str | None = option("--prompts", "requests as JSON lines (- is standard input)", "FILE", panel="Workload")
    requests: int | None = option(
        "--requests", "number of synthetic requests, if none are given: 16", "N", panel="Workload", parse=whole()
    )
    workload: str | None = option(
        *("--workload", "synthetic requests: wmt15, wmt15:max=50, treebank, identical-trees, ...", "NAME"),
        panel="Workload",
    )
    prompts_per_request: int | None = option(
        "--prompts-per-request", "prompts of each synthetic request: 1", "N", panel="Workload", parse=whole()
    )
    prompt_length: Lengths | None = option(
        *("--prompt-length", "synthetic prompts of random tokens: uniform:8:64, fixed:32, ...", "LAW"),
        panel="Workload",
        parse=lambda text, flag: parse_lengths(text),
    )
    output_length: Lengths | None = option(
        *("--output-length", "lengths of their answers: uniform:16:128, ...", "LAW"),
        panel="Workload",
        parse=lambda text, flag: parse_lengths(text),
    )
    arrival: Arrival = option(
        *("--arrival", "none, constant:500ms, poisson:50ms or gamma:50ms:cv=2", "LAW"),
        panel="Workload",
        default="none",
        parse=lambda text, flag: parse_arrival(text),
    )
    max_new_tokens: int | None = option(
        "--max-new-tokens", "tokens of an answer, at most: 256", "N", panel="Workload", parse=whole()
    )
    ignore_eos: bool = switch("--ignore-eos", "generate up to the token limit", panel="Workload")
    temperature: float = option(
        *("--temperature", "0 always takes the most likely token", "T"),
        panel="Workload",
        default="0",
        parse=lambda text, flag: parse_float(text, flag, 0, 1000),
    )
    top_k: int = option(
        *("--top-k", "sample from the K most likely tokens; 0: from all", "K"),
        panel="Workload",
        default="0",
        parse=whole(0),
    )
    top_p: float = option(
        *("--top-p", "sample from the most likely tokens, of total probability P", "P"),
        panel="Workload",
        default="1",
        parse=_share,
    )
    seed: int = option(
        *("--seed", "of synthetic requests, random weights and sampling", "N"),
        panel="Workload",
        default="0",
        parse=whole(0),
    )
    max_batch: int | None = option(
        *("--max-batch", "requests served at once, at most: max_batch, instances or slots of a stage", "N"),
        panel="Technique",
        parse=whole(),
    )
    set: dict[str, str] = option(
        *("--set", "an option of a stage, see minifuse explain; repeatable", "STAGE.OPTION=V"),
        panel="Technique",
        parse=_stage_options,
        repeatable=True,
    )
    clock: Literal["real", "virtual"] = option(
        *("--clock", "real, or virtual: time from a cost model", "real|virtual"),
        panel="Time",
        default="real",
        parse=choice("real", "virtual"),
    )
    hardware: str | None = option(
        "--hardware", "whose speed virtual time has: cpu, a100-40g, h200, ...", "NAME", panel="Time", parse=_hardware
    )
    goodput: dict[str, float] | None = option(
        *("--goodput", "latency bounds in ms that a good answer keeps: ttft:200,tpot:50", "BOUNDS"),
        panel="Output",
        parse=lambda text, flag: parse_goodput(text),
    )
    json: bool = switch("--json", "one JSON object on stdout", panel="Output")

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
            hardware=self.hardware or "cpu",
            seed=self.seed,
            tensor_parallel=self.tensor_parallel,
            numerics=self.numerics,
        )

    def stage_options(self, row: Technique, known_only: bool = False) -> dict[str, Any]:
        """What --set and --max-batch mean for a technique, as `stage.option: value`.

        A mix of a batching with a max_batch and a memory of slots has two batch sizes. --max-batch sets both: slots
        left at their default would still bound the batch, and with --max-batch 32 no more than 8 would ever run.

        Args:
            known_only: leave out what the technique has no option for, instead of refusing it.

        Raises:
            UsageError: the technique has no such option, or the option does not take the value.
        """
        known = row.option_names
        found: dict[str, Any] = {k: v for k, v in self.set.items() if k in known or not known_only}
        if self.max_batch is not None:
            sizes = row.batch_sizes
            if not sizes and not known_only:
                raise UsageError(
                    f"--max-batch is {self.max_batch}, and neither the batching {row.batching!r} nor the memory "
                    f"{row.memory!r} of {row.name} has a batch size: leave it out, or choose another --technique, "
                    "--batching or --memory."
                )
            if sizes and sizes[0] in found:
                raise UsageError(f"--max-batch and --set {sizes[0]} are both given: give one of them.")
            found |= {name: self.max_batch for name in sizes if name not in found}
        check_settings(row, found)
        return found


def refuse_contradictions(options: Options, source: Source, texts: Sequence[str] = ()) -> None:
    """Refuse options that contradict each other or mean nothing to the model; `texts` are typed prompts.

    Raises:
        UsageError: there are some; the message names them.
    """
    if options.hardware is not None and options.clock == "real":
        raise UsageError(
            f'--hardware is "{options.hardware}" and the clock is real: add --clock virtual, or leave --hardware out.'
        )
    _refuse_for_model(options, source, texts)
    if texts and options.prompts is not None:
        raise UsageError(f'A typed prompt and --prompts "{options.prompts}" are both given: give one or the other.')
    lengths = {
        "--prompts-per-request": options.prompts_per_request,
        "--prompt-length": options.prompt_length,
        "--output-length": options.output_length,
    }
    for flag, value in {"--requests": options.requests, "--workload": options.workload, **lengths}.items():
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
        if options.tensor_parallel > 1:
            raise UsageError(
                f"--tensor-parallel is {options.tensor_parallel}, {of_cells}, which are not divided among processes: "
                "leave it out."
            )
        if options.numerics == "reference":
            raise UsageError(
                f"--numerics is reference, which is for transformers, {of_cells}: leave it out; in --dtype float64 "
                "results agree to nine digits."
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
