"""The ways to a list of requests: typed texts, a file, a named workload, laws of lengths, and tiny's own tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minifuse.cli.checked import Checked
from minifuse.errors import ModelError, UsageError
from minifuse.model.cells.source import CellSource
from minifuse.model.text.load import TextSource
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.parsing import read_lines
from minifuse.request import Request
from minifuse.workload.cells import RESERVED, cell_workload, default_workload
from minifuse.workload.files import read_jsonl
from minifuse.workload.laws import Uniform
from minifuse.workload.synthetic import RequestDefaults, arrival_times, arrive, gather, synthetic

__all__ = ["Requests"]

MAX_NEW_TOKENS = 256
EXTRA_STEPS = 20  # words of a translation beyond those of its source, at most, when nothing is said
REQUESTS = 16
PROMPT_LENGTH, OUTPUT_LENGTH = Uniform(8, 64), Uniform(16, 128)


class Requests:
    """What is asked of a model, as the options have it."""

    def __init__(self, checked: Checked, source: TextSource | CellSource, tokenizer: Tokenizer | None) -> None:
        self.checked = checked
        self.source = source
        self.tokenizer = tokenizer
        self.seed = checked.sampling.seed
        self.count = checked.requests or REQUESTS
        self.prompts_per_request = checked.prompts_per_request or 1
        self.defaults = RequestDefaults(
            max_new_tokens=checked.max_new_tokens or MAX_NEW_TOKENS,
            stop_ids=source.config.eos_ids,
            ignore_eos=checked.ignore_eos,
            sampling=checked.sampling,
        )

    def asked(self, typed: list[str]) -> tuple[list[Request], dict[str, str]]:
        """The requests, and the right answer of each that has one."""
        checked = self.checked
        by_law = checked.prompt_length is not None or checked.output_length is not None
        if typed:
            return self._of_texts(typed), {}
        if checked.prompts is not None:
            return self._of_file(checked.prompts), {}
        if checked.workload is not None:
            return self._of_workload(checked.workload), {}
        if by_law:
            return self._synthetic(), {}
        if checked.cells is not None:
            return self._of_workload(default_workload(checked.cells.config.kind)), {}
        if checked.model == "tiny" and self.tokenizer:
            return self._crowd()
        return self._synthetic(), {}

    def _encode(self, text: str) -> tuple[int, ...]:
        if isinstance(self.source, CellSource):
            raise ModelError(f"{self.source.name} has no tokenizer: give prompt_token_ids instead.")
        if self.tokenizer is None:
            return self.source.tokenizer().encode(text)  # says what is missing
        return self.tokenizer.encode(text)

    def _of_texts(self, texts: list[str]) -> list[Request]:
        for i, text in enumerate(texts, start=1):
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # how Python keeps bytes it cannot decode
                raise UsageError(f"Typed prompt {i} is not UTF-8: type it as UTF-8.")
        prompts = [
            Request(
                id=f"r{i}",
                prompt=self._encode(text),
                max_new_tokens=self.defaults.max_new_tokens,
                stop_ids=self.defaults.stop_ids,
                ignore_eos=self.defaults.ignore_eos,
            )
            for i, text in enumerate(texts)
        ]
        return self._seeded(arrive(gather(prompts, self.prompts_per_request), self.checked.arrival, self.seed))

    def _of_file(self, path: str) -> list[Request]:
        if path == "-":
            name, lines = "standard input", _standard_input()
        else:
            name, lines = path, list(read_lines(Path(path)))
        times = arrival_times(len(lines), self.checked.arrival, self.seed)  # one for each line is enough

        def defaults(index: int) -> RequestDefaults:
            return replace(self.defaults, arrival_s=times[index])

        if self.checked.cells is None:
            return read_jsonl(lines, self._encode, defaults, name)
        config = self.checked.cells.config

        def tree(text: str) -> Any:
            from minifuse.model.cells.trees import read_tree

            return read_tree(text, config.vocab_size)

        limit = None if config.kind != "seq2seq" or self.checked.max_new_tokens else _source_and_extra
        requests = read_jsonl(
            lines, self._encode, defaults, name, tree=None if config.kind in ("lstm", "seq2seq") else tree, limit=limit
        )
        return [request if request.sampling.greedy else self._drawn(request) for request in requests]

    def _drawn(self, request: Request) -> Request:
        why = f"has a temperature, and {self.source.name} says the likeliest token: leave it out."
        return replace(request, problem=request.problem or why)

    def _of_workload(self, text: str) -> list[Request]:
        config = self.source.config
        kind = self.checked.cells.config.kind if self.checked.cells else "transformer"
        requests = cell_workload(text, kind, self.count, config.vocab_size, self.checked.arrival, self.seed)
        return self._seeded(self._cut([replace(request, stop_ids=config.eos_ids) for request in requests]))

    def _crowd(self) -> tuple[list[Request], dict[str, str]]:
        """Tasks of the tiny model, with the right answers."""
        from minifuse.model.tiny.tasks import crowd

        tasks = crowd(self.count * self.prompts_per_request, self.seed)
        requests = self._of_texts([task.prompt for task in tasks])
        if self.checked.ignore_eos:
            return requests, {}  # they go on after the answer
        return requests, {request.id: task.answer for request, task in zip(requests, tasks, strict=True)}

    def _synthetic(self) -> list[Request]:
        """Random tokens, of a law of lengths."""
        defaults = self.defaults
        if self.checked.cells is not None:
            defaults = replace(defaults, stop_ids=RESERVED)  # not to be drawn
        requests = synthetic(
            self.count,
            self.checked.prompt_length or PROMPT_LENGTH,
            self.checked.output_length or OUTPUT_LENGTH,
            self.source.config.vocab_size,
            self.checked.arrival,
            self.seed,
            defaults,
            self.prompts_per_request,
        )
        if self.checked.cells is not None:
            requests = [replace(request, stop_ids=self.defaults.stop_ids) for request in requests]
        return self._seeded(self._cut(requests))

    def _cut(self, requests: list[Request]) -> list[Request]:
        """--max-new-tokens, where it was typed, cuts what a law of lengths drew."""
        limit = self.checked.max_new_tokens
        if limit is None:
            return requests
        return [replace(request, max_new_tokens=min(request.max_new_tokens, limit)) for request in requests]

    def _seeded(self, requests: list[Request]) -> list[Request]:
        """Each prompt draws from a seed of its own: equal ones should not get equal answers."""
        return [
            replace(request, sampling=replace(self.checked.sampling, seed=self.seed + i))
            for i, request in enumerate(requests)
        ]


def _source_and_extra(prompt: Sequence[int]) -> int:
    """The longest translation of a sentence: "the input sequence length plus a fixed threshold" (BatchMaker, 2.7.4)."""
    return len(prompt) + EXTRA_STEPS


def _standard_input() -> list[str]:
    try:
        return sys.stdin.buffer.read().decode().split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: byte {error.start + 1} is not UTF-8: give JSON lines as UTF-8.") from None
