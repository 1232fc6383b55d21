"""The requests of a run: from typed texts, a file, a named workload, laws of lengths, or tiny's own tasks."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minifuse.cli.options import Options
from minifuse.cli.text import tell
from minifuse.core.errors import UsageError
from minifuse.core.request import DEFAULT, Request
from minifuse.core.submitted import by_request
from minifuse.io.lines import BYTE_ORDER_MARK, read_bounded, read_lines, split_lines
from minifuse.io.parsing import all_of
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.serve.assembly import Choices
from minifuse.workload.cells import RESERVED, cell_workload
from minifuse.workload.conversations import NAME, as_requests, conversations, parse_asked
from minifuse.workload.laws import Uniform
from minifuse.workload.sharegpt import Found, read_sharegpt
from minifuse.workload.synthetic import RequestDefaults, arrival_times, arrive, gather, share_out, synthetic

MAX_PROMPTS = 1_000_000
REQUESTS = 16
TINY, CROWD = "tiny", "crowd"  # the shipped model, and the workload that it has learnt
PROMPT_LENGTH, OUTPUT_LENGTH = Uniform(8, 64), Uniform(16, 128)


@dataclass(frozen=True)
class Workload:
    """Requests for a model that has been found, nothing of which has been loaded but the tokenizer."""

    source: Source
    tokenizer: Tokenizer | None
    requests: list[Request]  # neighbours of one group are the prompts of one request
    expected: dict[str, str] = field(default_factory=dict)  # the right answer of each request that has one

    @property
    def num_requests(self) -> int:
        """The prompts of one request count as one."""
        return len(by_request(self.requests))

    def text(self, token_ids: Sequence[int]) -> str | None:
        """The text of these tokens, or None for a model without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode(list(token_ids))


def make_workload(options: Options, source: Source, texts: Sequence[str] = (), begun: Collection[str] = ()) -> Workload:
    """The requests that the options describe; `texts` are typed prompts, `begun` as for `read_jsonl`.

    Raises:
        UsageError: a file does not hold requests, or a workload does not suit the model.
        ModelError: the tokenizer cannot be read, or there is none for a typed prompt.
    """
    workload = _Maker(options, source, begun).make(texts)
    tell_of_unused_sampling(workload.requests, options)
    if options.by is not None and all(getattr(request, options.by) is None for request in workload.requests):
        synthetic = "--users 4" if options.by == "user" else f"--workload {NAME}"
        raise UsageError(
            f"--by is {options.by}, and no request has one: give it in the lines of --prompts, or {synthetic}."
        )
    return workload


def tell_of_unused_sampling(requests: Sequence[Request], options: Options) -> None:
    """Refuse a top-k or top-p that no request can use, as each takes the most likely token; note those of a file.

    Raises:
        UsageError: they were typed.
    """
    unused = [r.id for r in requests if r.sampling.greedy and (r.sampling.top_k or r.sampling.top_p < 1)]
    typed = {"--top-k": options.top_k != 0, "--top-p": options.top_p < 1}
    if any(typed.values()):
        if len(unused) == len(requests):
            flags = " and ".join(flag for flag, given in typed.items() if given)
            raise UsageError(
                f"{flags} given without a temperature, where every request takes the most likely token: add "
                "--temperature, such as 0.8."
            )
    elif unused:
        several = f"{len(unused):,} requests, the first {unused[0]!r}, have"
        tell(
            f"note: {several if len(unused) > 1 else f'request {unused[0]!r} has'} a top_k or top_p and no "
            "temperature, without which the most likely token is taken: give a temperature above 0."
        )


def note_priorities(workload: Workload, served: Iterable[Choices]) -> None:
    """Say once, on stderr, which techniques serve requests of different priorities in another order."""
    if not any(request.priority for request in workload.requests):
        return
    others = [one.row for one in served if getattr(one.options["batching"], "order", None) != "priority"]
    if not others:
        return
    lacking = [row.name for row in others if "batching.order" not in row.option_names]
    if len(lacking) < len(others):
        advice = "add --set batching.order=priority"
        advice += f", an option that {_listed(lacking, 'lacks', 'lack')}" if lacking else ""
    else:
        advice = "choose a technique with the option batching.order, see minifuse list --json"
    follow = _listed([row.name for row in others], "does", "do")
    tell(f"note: the requests have priorities, which {follow} not follow: {advice}.")


def _listed(names: list[str], one: str, several: str) -> str:
    """These names as a subject, with its verb: `a does`, or `a, b and c do`."""
    return f"{all_of(names)} {one if len(names) == 1 else several}"


class _Maker:
    def __init__(self, options: Options, source: Source, begun: Collection[str]) -> None:
        self.options = options
        self.source = source
        self.begun = begun
        self.kind = request_kind(source.config.kind)
        self.tokenizer = source.tokenizer() if source.has_tokenizer else None
        self.seed = options.seed
        self.count = options.requests or REQUESTS
        self.prompts_per_request = options.prompts_per_request or 1
        if self.count * self.prompts_per_request > MAX_PROMPTS:
            given = f"{self.count} synthetic requests of {self.prompts_per_request} prompts"
            raise UsageError(f"{given} are asked for: give at most {MAX_PROMPTS:,} prompts in all.")
        self.defaults = RequestDefaults(
            max_new_tokens=options.max_new_tokens or DEFAULT,
            stop_ids=source.config.eos_ids,
            ignore_eos=options.ignore_eos,
            sampling=options.sampling,
        )

    def make(self, texts: Sequence[str]) -> Workload:
        options = self.options
        of_lengths = options.prompt_length is not None or options.output_length is not None
        named = options.workload or (None if of_lengths else self.kind.workload)
        expected: dict[str, str] = {}
        if texts:
            requests = self._of_texts(texts)
        elif options.prompts is not None:
            requests = self._of_file(options.prompts)
        elif named is not None and named.strip().partition(":")[0] == CROWD:
            requests, expected = self._crowd(named)
        elif named is not None:
            requests = self._of_workload(named)
        elif options.model == TINY and self.tokenizer and not of_lengths:
            requests, expected = self._crowd(CROWD)
        else:
            requests = self._random()
        if options.users is not None:
            requests = share_out(requests, options.users, self.seed)
        return Workload(self.source, self.tokenizer, requests, expected)

    def _encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        tokenizer = self.tokenizer or self.source.tokenizer()  # the latter raises, saying what is missing
        return tokenizer.encode(text, continues=continues)

    def _of_texts(self, texts: Sequence[str]) -> list[Request]:
        for i, text in enumerate(texts, start=1):
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # how Python keeps bytes it cannot decode
                raise UsageError(f"Typed prompt {i} is not UTF-8: type it as UTF-8.")
        defaults = self.defaults
        prompts = [
            Request(
                "",
                self._encode(text.removeprefix(BYTE_ORDER_MARK)),
                defaults.max_new_tokens,
                ignore_eos=defaults.ignore_eos,
            )
            for text in texts
        ]
        return self._completed(arrive(gather(prompts, self.prompts_per_request), self.options.arrival, self.seed))

    def _of_file(self, path: str) -> list[Request]:
        from minifuse.workload.files import read_jsonl  # imports pydantic, which `--help` does not need

        if path == "-":
            name, lines = "standard input", _standard_input()
        else:
            name, lines = path, list(read_lines(Path(path)))
        times = arrival_times(len(lines), self.options.arrival, self.seed)  # one for each line is enough
        requests = read_jsonl(
            *(lines, self._encode, lambda index: replace(self.defaults, arrival_s=times[index]), name),
            tree=self._read_tree if self.kind.reads_trees else None,
            limit=self._limit if self.kind.extra_tokens is not None and not self.options.max_new_tokens else None,
            begun=self.begun,
        )
        return [self._check_sampling(request) for request in requests]

    def _read_tree(self, text: str) -> Any:
        from minifuse.model.cells.trees import read_tree

        return read_tree(text, self.source.config.vocab_size)

    def _limit(self, prompt: Sequence[int]) -> int:
        """Tokens of an answer that is as long as its prompt, and some more."""
        return len(prompt) + (self.kind.extra_tokens or 0)

    def _check_sampling(self, request: Request) -> Request:
        if request.sampling.greedy or not self.kind.of_cells:
            return request
        problem = f"has a temperature, and {self.source.name} produces the most likely token: leave it out."
        return replace(request, problem=request.problem or problem)

    def _of_workload(self, text: str) -> list[Request]:
        if text.strip().partition(":")[0] == NAME:
            return self._completed(self._of_conversations(text))
        config = self.source.config
        requests = cell_workload(text, config.kind, self.count, config.vocab_size, self.options.arrival, self.seed)
        return self._completed(requests)

    def _of_conversations(self, text: str) -> list[Request]:
        config, arrival = self.source.config, self.options.arrival
        if config.max_context is None:
            raise UsageError(
                f'The workload is "{text}", of conversations, and {self.source.name} is made of cells: give '
                f"{self.kind.workload}, or a transformer as --model."
            )
        asked = parse_asked(text)
        if asked.file is None:
            size = config.vocab_size, config.max_context
            return conversations(asked, self.count, *size, arrival, self.seed, self.defaults.stop_ids)
        found = read_sharegpt(asked.file, self._encode, self.count, config.max_context, asked.min_turns)
        self._note_left_out(asked.file, found)
        return as_requests(found.conversations, asked.reaction, arrival, self.seed)

    def _note_left_out(self, path: str, found: Found) -> None:
        """Say on stderr which conversations of a file are left out, or missing."""
        left_out = {"too long": found.too_long, "too short or without an answer": found.too_short}
        told = [f"conversations left out as {why}: {count:,}" for why, count in left_out.items() if count]
        if (have := len(found.conversations)) < self.count:
            told.append(f"conversations served: {have:,} of the {self.count:,} that --requests asks for")
        if told:
            tell(f"note: {path}: {'; '.join(told)}.")

    def _crowd(self, text: str) -> tuple[list[Request], dict[str, str]]:
        """Tasks of the tiny model, with the right answers."""
        from minifuse.model.tiny.tasks import crowd
        from minifuse.workload.talk import parse_talk, talk

        if self.options.model != TINY or self.tokenizer is None:
            raise UsageError(
                f'The workload is "{text}", of tasks that the model tiny has learnt, and --model is '
                f"{self.options.model}: leave one of them out."
            )
        asked = parse_talk(text)
        if asked.turns > 1:
            limit, arrival = self.defaults.max_new_tokens, self.options.arrival
            turns, expected = talk(asked, self.count, self._encode, limit, arrival, self.seed)
            requests = self._completed([replace(turn, ignore_eos=self.options.ignore_eos) for turn in turns])
        else:
            tasks = crowd(self.count * self.prompts_per_request, self.seed)
            requests = self._of_texts([task.prompt for task in tasks])
            expected = {request.id: task.answer for request, task in zip(requests, tasks, strict=True)}
        return requests, {} if self.options.ignore_eos else expected  # with it they go on after the answer

    def _random(self) -> list[Request]:
        """Random tokens, of a law of lengths."""
        stop_ids = RESERVED if self.kind.of_cells else self.defaults.stop_ids  # not to be drawn
        requests = synthetic(
            self.count,
            self.options.prompt_length or PROMPT_LENGTH,
            self.options.output_length or OUTPUT_LENGTH,
            self.source.config.vocab_size,
            self.options.arrival,
            self.seed,
            replace(self.defaults, stop_ids=stop_ids),
            self.prompts_per_request,
        )
        by_default = self.options.output_length is None
        return [replace(request, clip=by_default) for request in self._completed(requests)]

    def _completed(self, requests: list[Request]) -> list[Request]:
        """With the model's stop tokens, --max-new-tokens over drawn lengths, and a seed for each prompt.

        Prompts that are equal should not have equal answers.
        """
        return [
            replace(
                request,
                stop_ids=self.defaults.stop_ids,
                max_new_tokens=min(request.max_new_tokens, self.options.max_new_tokens or request.max_new_tokens),
                sampling=replace(self.options.sampling, seed=self.seed + i),
            )
            for i, request in enumerate(requests)
        ]


def _standard_input() -> list[str]:
    if sys.stdin is None:
        raise UsageError("--prompts is -, and standard input is closed: give a file, or redirect standard input.")
    return list(split_lines(read_bounded(sys.stdin.buffer, "standard input"), "standard input"))
