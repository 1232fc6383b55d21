"""Everything a run needs, in the order of its cost: values, the model's shape, the requests, and last the weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifuse.cli.checked import Checked
from minifuse.errors import MachineError, UsageError
from minifuse.model.load import ModelSource, load_weights, resolve
from minifuse.model.tokenizer import Tokenizer
from minifuse.parsing import read_lines
from minifuse.request import Request
from minifuse.request_file import read_jsonl
from minifuse.serve import Settings, build_engine
from minifuse.techniques import Technique
from minifuse.workload import (
    RequestDefaults,
    Uniform,
    arrival_times,
    arrive,
    by_request,
    gather,
    synthetic,
)

if TYPE_CHECKING:
    from minifuse.model.transformer import Transformer

__all__ = ["Prepared", "load", "prepare", "rehearse"]

MAX_NEW_TOKENS = 256
REQUESTS = 16
PROMPT_LENGTH, OUTPUT_LENGTH = Uniform(8, 64), Uniform(16, 128)
KV_BYTES, KV_TOKENS = 64 * 2**20, 4096  # the KV budget by default: the larger of the two


@dataclass(frozen=True)
class Prepared:
    """A workload for a model that has been found. Nothing heavy has been loaded."""

    source: ModelSource
    tokenizer: Tokenizer | None
    requests: list[Request]  # a request of several prompts is several here, of one group
    settings: Settings
    expected: dict[str, str] = field(default_factory=dict)  # the right answer of each request that has one

    @property
    def placeholders(self) -> bool:
        """Whether no model runs: random weights in virtual time would say nothing that a placeholder does not."""
        return self.settings.clock == "virtual" and self.source.directory is None

    @property
    def num_requests(self) -> int:
        """The prompts of one request count as one."""
        return len(by_request(self.requests))

    def text(self, token_ids: Sequence[int]) -> str | None:
        """What tokens say, or None for a model without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode(list(token_ids))


def prepare(checked: Checked, typed: list[str]) -> Prepared:
    """Find the model and the requests; `typed` are the prompts of the command line.

    Raises:
        UsageError: the options contradict each other, or a file is not one of requests.
        ModelError: the model cannot be read, or not the text that it was given.
    """
    _refuse_contradictions(checked, typed)
    source = resolve(checked.model)
    tokenizer = source.tokenizer() if source.directory and (source.directory / "tokenizer.json").exists() else None
    made = _Workload(checked, source, tokenizer)
    expected: dict[str, str] = {}
    if typed:
        requests = made.of_texts(typed)
    elif checked.prompts is not None:
        requests = made.of_file(checked.prompts)
    elif checked.model == "tiny" and tokenizer and checked.prompt_length is None and checked.output_length is None:
        requests, expected = made.crowd()
    else:
        requests = made.synthetic()
    token_bytes = source.config.kv_bytes_per_token(checked.dtype)
    settings = Settings(
        dtype=checked.dtype,
        device=checked.device,
        kv_memory=checked.kv_memory or max(KV_BYTES, KV_TOKENS * token_bytes),
        clock=checked.clock,
        hardware=checked.hardware,
        seed=checked.sampling.seed,
        tensor_parallel=checked.tensor_parallel or 1,
        numerics=checked.numerics,
    )
    return Prepared(source, tokenizer, requests, settings, expected)


def _refuse_contradictions(checked: Checked, typed: list[str]) -> None:
    if typed and checked.prompts is not None:
        raise UsageError(f'A typed prompt and --prompts "{checked.prompts}" are both given: give one or the other.')
    made_up = {
        "--requests": checked.requests,
        "--prompts-per-request": checked.prompts_per_request,
        "--prompt-length": checked.prompt_length,
        "--output-length": checked.output_length,
    }
    for flag, value in made_up.items():
        if value is not None and (typed or checked.prompts is not None):
            given = "--prompts" if checked.prompts is not None else "typed prompts"
            raise UsageError(f"{flag} is for made-up requests, and {given} are given: leave one of them out.")


class _Workload:
    """The four ways to a list of requests."""

    def __init__(self, checked: Checked, source: ModelSource, tokenizer: Tokenizer | None) -> None:
        self.checked = checked
        self.source = source
        self.tokenizer = tokenizer
        self.seed = checked.sampling.seed
        self.prompts_per_request = checked.prompts_per_request or 1
        self.defaults = RequestDefaults(
            max_new_tokens=checked.max_new_tokens or MAX_NEW_TOKENS,
            stop_ids=source.config.eos_ids,
            ignore_eos=checked.ignore_eos,
            sampling=checked.sampling,
        )

    def encode(self, text: str) -> tuple[int, ...]:
        if self.tokenizer is None:
            return self.source.tokenizer().encode(text)  # says what is missing
        return self.tokenizer.encode(text)

    def of_texts(self, texts: list[str]) -> list[Request]:
        for i, text in enumerate(texts, start=1):
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # how Python keeps bytes it cannot decode
                raise UsageError(f"Typed prompt {i} is not UTF-8: type it as UTF-8.")
        prompts = [
            Request(
                id=f"r{i}",
                prompt=self.encode(text),
                max_new_tokens=self.defaults.max_new_tokens,
                stop_ids=self.defaults.stop_ids,
                ignore_eos=self.defaults.ignore_eos,
            )
            for i, text in enumerate(texts)
        ]
        return self._seeded(arrive(gather(prompts, self.prompts_per_request), self.checked.arrival, self.seed))

    def of_file(self, path: str) -> list[Request]:
        if path == "-":
            name, lines = "standard input", _standard_input()
        else:
            name, lines = path, list(read_lines(Path(path)))
        times = arrival_times(len(lines), self.checked.arrival, self.seed)  # one for each line is enough

        return read_jsonl(lines, self.encode, lambda i: replace(self.defaults, arrival_s=times[i]), name)

    def crowd(self) -> tuple[list[Request], dict[str, str]]:
        """Tasks of the tiny model, with the right answers."""
        from minifuse.model.tiny.tasks import crowd

        tasks = crowd((self.checked.requests or REQUESTS) * self.prompts_per_request, self.seed)
        requests = self.of_texts([task.prompt for task in tasks])
        if self.checked.ignore_eos:
            return requests, {}  # they go on after the answer
        return requests, {request.id: task.answer for request, task in zip(requests, tasks, strict=True)}

    def synthetic(self) -> list[Request]:
        """Random tokens. --max-new-tokens, where it was typed, cuts what the law of lengths drew."""
        requests = synthetic(
            self.checked.requests or REQUESTS,
            self.checked.prompt_length or PROMPT_LENGTH,
            self.checked.output_length or OUTPUT_LENGTH,
            self.source.config.vocab_size,
            self.checked.arrival,
            self.seed,
            self.defaults,
            self.prompts_per_request,
        )
        limit = self.checked.max_new_tokens
        if limit is not None:
            requests = [replace(request, max_new_tokens=min(request.max_new_tokens, limit)) for request in requests]
        return self._seeded(requests)

    def _seeded(self, requests: list[Request]) -> list[Request]:
        """Each prompt draws from a seed of its own: equal ones should not get equal answers."""
        return [
            replace(request, sampling=replace(self.checked.sampling, seed=self.seed + i))
            for i, request in enumerate(requests)
        ]


def _standard_input() -> list[str]:
    try:
        return sys.stdin.buffer.read().decode().split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: byte {error.start + 1} is not UTF-8: give JSON lines as UTF-8.") from None


def rehearse(row: Technique, prepared: Prepared, options: Mapping[str, Any]) -> None:
    """Plug the stages together without a model: what is wrong with them is said before any weights are loaded.

    Raises:
        UsageError: an option is wrong, or the KV memory is too small for the stages or too large for the machine.
    """
    build_engine(row, prepared.source, replace(prepared.settings, stage_options=options))


def load(prepared: Prepared) -> tuple[Transformer | None, Settings]:
    """Read the weights, and settle on a device.

    Raises:
        ModelError: the checkpoint is not what its config.json says.
        MachineError: there is no such device, or too little memory.
    """
    settings = prepared.settings
    if prepared.placeholders:
        print(
            f"note: in virtual time no weights are made for {prepared.source.name}: every token is the placeholder -1.",
            file=sys.stderr,
        )
        return None, replace(settings, device="cpu")
    settings = replace(settings, device=_device(settings.device))
    model = load_weights(prepared.source, settings.dtype, settings.device, settings.seed, numerics=settings.numerics)
    return model, settings


def _device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            "--device is cuda, and torch finds no CUDA device: use --device cpu, or see minifuse doctor."
        )
    return wanted
