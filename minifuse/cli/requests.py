"""Makes the requests of a run: typed, read from a file, or synthetic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from minifuse.cli.options import Options
from minifuse.cli.text import tell
from minifuse.core.errors import UsageError
from minifuse.core.request import DEFAULT, Request
from minifuse.core.submitted import by_request, fits_utf8
from minifuse.io.lines import BYTE_ORDER_MARK, read_bounded, read_lines, split_lines
from minifuse.io.parsing import all_of, number
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.serve.assembly import Choices
from minifuse.techniques import TECHNIQUES
from minifuse.workload import tour
from minifuse.workload.cells import RESERVED, cell_workload
from minifuse.workload.conversations import NAME, as_requests, conversation_stream, conversations, parse_asked
from minifuse.workload.laws import Uniform, parse_arrival
from minifuse.workload.sharegpt import read_sharegpt
from minifuse.workload.synthetic import (
    RequestDefaults,
    arrival_times,
    arrive,
    gather,
    share_out,
    synthetic,
    synthetic_stream,
)

MAX_PROMPTS = 1_000_000
REQUESTS = 16
TINY, CROWD = "tiny", "crowd"  # the shipped model, and the workload that it has learnt
AT_ONCE = parse_arrival("none")
PROMPT_LENGTH, OUTPUT_LENGTH = Uniform(8, 64), Uniform(16, 128)


@dataclass(frozen=True)
class Workload:
    """Requests for a model, whose tokenizer is loaded and whose weights are not."""

    source: Source
    tokenizer: Tokenizer | None
    requests: list[Request]  # neighbours of one group are the prompts of one request
    expected: dict[str, str] = field(default_factory=dict)  # request -> right answer, if there is one

    @property
    def num_requests(self) -> int:
        """Count the requests; the prompts of one request count as one."""
        return len([*by_request(self.requests)])

    def text(self, token_ids: Sequence[int]) -> str | None:
        """Return the text of these tokens, or None for a model without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode(list(token_ids))


def make_workload(options: Options, source: Source, texts: Sequence[str] = (), begun: Collection[str] = ()) -> Workload:
    """Make the requests that the options describe.

    Args:
        texts: typed prompts.
        begun: conversations that already have a text, as for `read_jsonl`.

    Raises:
        UsageError: a file does not hold requests, or a workload does not suit the model.
        ModelError: the tokenizer cannot be read, or there is none for a typed prompt.
    """
    workload = _Maker(options, source, begun).make(texts)
    check_sampling(workload.requests, options)
    if options.by is not None and all(getattr(request, options.by) is None for request in workload.requests):
        synthetic = "--users 4" if options.by == "user" else f"--workload {NAME}"
        raise UsageError(
            f"--by is {options.by}, and no request has one: give it in the lines of --prompts, or {synthetic}."
        )
    return workload


def stream_requests(options: Options, source: Source) -> Iterator[Request] | None:
    """Make synthetic requests one by one, in the order of arrival; None for other requests.

    Raises:
        UsageError: as `make_workload`.
    """
    stream = _Maker(options, source, ()).stream()
    if stream is None:
        return None
    first = next(stream)
    check_sampling([first], options)
    return chain([first], stream)


def check_sampling(requests: Sequence[Request], options: Options) -> None:
    """Refuse --top-k and --top-p if all requests are greedy; for a file, print a note.

    Raises:
        UsageError: an option was typed, and all requests are greedy.
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
        tell(
            "note: top_k or top_p without a temperature above 0 changes nothing; given by "
            f"{number(len(unused), 'request')}, the first {unused[0]!r}."
        )


def note_priorities(workload: Workload, served: Iterable[Choices]) -> None:
    """Print on stderr which techniques ignore the requests' priorities."""
    others = [one.row for one in served if getattr(one.options["batching"], "order", None) != "priority"]
    if others and any(request.priority for request in workload.requests):
        names = all_of([row.name for row in others])
        able = [row.name for row in others if "batching.order" in row.option_names]
        advice = f"add --set batching.order=priority, for {all_of(able)}" if able else "see minifuse list --json"
        tell(f"note: the priorities of the requests are not followed by {names}: {advice}.")


def note_techniques(texts: Iterable[str]) -> None:
    """Print on stderr which typed prompts are the names of techniques."""
    for name in dict.fromkeys(text for text in texts if text in TECHNIQUES):
        tell(f"note: {name} is served as a prompt: --technique {name} chooses the technique of that name.")


class _Maker:
    def __init__(self, options: Options, source: Source, begun: Collection[str]) -> None:
        self.options = options
        self.source = source
        self.begun = begun
        self.kind = request_kind(source.config.kind)
        self.tokenizer = source.tokenizer() if source.has_tokenizer else None
        self.arrival = options.arrival or AT_ONCE
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

    @property
    def named(self) -> str | None:
        """Return the workload, given or by default; None: random tokens, with random lengths."""
        options = self.options
        of_lengths = options.prompt_length is not None or options.output_length is not None
        named = options.workload or (None if of_lengths else self.kind.workload)
        if named is None and options.model == TINY and self.tokenizer and not of_lengths:
            named = CROWD
        return named

    def stream(self) -> Iterator[Request] | None:
        """Make synthetic requests one by one; None for other requests."""
        options, named = self.options, self.named
        if options.prompts is not None:
            return None
        if named is None:
            requests = self._random(synthetic_stream)
        elif named.strip().partition(":")[0] == NAME and parse_asked(named).file is None:
            requests = self._completed(self._conversations(named, conversation_stream))
        else:
            return None
        return requests if options.users is None else share_out(requests, options.users, self.seed)

    def make(self, texts: Sequence[str]) -> Workload:
        options, named, expected = self.options, self.named, dict[str, str]()
        name = "" if named is None else named.strip().partition(":")[0]
        requests: Iterable[Request]
        if texts:
            requests = self._of_texts(texts)
        elif options.prompts is not None:
            requests = self._of_file(options.prompts)
        elif named is None:
            requests = self._random(synthetic)
        elif name == CROWD:
            requests, expected = self._crowd(named)
        elif named == tour.TOUR:
            requests = self._tour()
        elif name == NAME:
            requests = self._completed(self._conversations(named, conversations))
        else:
            config = self.source.config
            requests = self._completed(
                cell_workload(named, config.kind, self.count, config.vocab_size, self.arrival, self.seed)
            )
        if options.users is not None:
            requests = share_out(requests, options.users, self.seed)
        return Workload(self.source, self.tokenizer, [*requests], expected)

    def _encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        tokenizer = self.tokenizer or self.source.tokenizer()  # the latter raises an error that says what is missing
        return tokenizer.encode(text, continues=continues)

    def _of_texts(self, texts: Sequence[str]) -> Iterator[Request]:
        for i, text in enumerate(texts, start=1):
            if not fits_utf8(text):  # surrogates are how Python keeps bytes that it cannot decode
                raise UsageError(f"Typed prompt {i} is not UTF-8: type it as UTF-8.")
        limit, ignore_eos = self.defaults.max_new_tokens, self.defaults.ignore_eos
        encoded = [self._encode(text.removeprefix(BYTE_ORDER_MARK)) for text in texts]
        prompts = [Request("", prompt, limit, ignore_eos=ignore_eos) for prompt in encoded]
        return self._completed(arrive(gather(prompts, self.prompts_per_request), self.arrival, self.seed))

    def _tour(self) -> list[Request]:
        """Read the requests of `tour`."""
        given = {"--requests": self.options.requests, "--arrival": self.options.arrival}
        for flag, value in given.items():
            if value is not None:
                raise UsageError(
                    f"{flag} and --workload tour are both given, and its 20 requests are fixed: leave one out."
                )
        self._check_tiny(tour.TOUR)
        tell(f"note: --workload tour implies, where they are not given, {tour.IMPLIED}.")
        return self._of_file(str(tour.REQUESTS))

    def _of_file(self, path: str) -> list[Request]:
        from minifuse.model.cells.trees import read_tree
        from minifuse.workload.files import read_jsonl  # imports pydantic, which `--help` does not need

        if path == "-":
            name, lines = "standard input", _standard_input()
        else:
            name, lines = path, list(read_lines(Path(path)))
        times = arrival_times(len(lines), self.arrival, self.seed)  # one newline per line is enough
        requests = read_jsonl(
            lines,
            self._encode,
            lambda index: replace(self.defaults, arrival_s=times[index]),
            name,
            tree=partial(read_tree, vocab_size=self.source.config.vocab_size) if self.kind.reads_trees else None,
            limit=self._limit if self.kind.extra_tokens is not None and not self.options.max_new_tokens else None,
            begun=self.begun,
        )
        problem = f"has a temperature, and {self.source.name} produces the most likely token: leave it out."
        return [
            replace(request, problem=request.problem or problem)
            if self.kind.of_cells and not request.sampling.greedy
            else request
            for request in requests
        ]

    def _limit(self, prompt: Sequence[int]) -> int:
        """Return an answer's limit: the length of its prompt and some more tokens."""
        return len(prompt) + (self.kind.extra_tokens or 0)

    def _conversations(self, text: str, make: Callable[..., Iterable[Request]]) -> Iterable[Request]:
        config = self.source.config
        if config.max_context is None:
            raise UsageError(
                f'The workload is "{text}", of conversations, and {self.source.name} is made of cells: give '
                f"{self.kind.workload}, or a transformer as --model."
            )
        asked = parse_asked(text)
        if asked.file is None:
            size = config.vocab_size, config.max_context
            return make(asked, self.count, *size, self.arrival, self.seed, self.defaults.stop_ids)
        found = read_sharegpt(asked.file, self._encode, self.count, config.max_context, asked.min_turns)
        left_out = {"too long": found.too_long, "too short or without an answer": found.too_short}
        told = [f"conversations left out as {why}: {count:,}" for why, count in left_out.items() if count]
        if (have := len(found.conversations)) < self.count:
            told.append(f"conversations served: {have:,} of the {self.count:,} that --requests asks for")
        if told:
            tell(f"note: {asked.file}: {'; '.join(told)}.")
        return as_requests(found.conversations, asked.reaction, self.arrival, self.seed)

    def _crowd(self, text: str) -> tuple[list[Request], dict[str, str]]:
        """Make tasks that the model tiny has learnt, and their right answers."""
        from minifuse.model.tiny.tasks import crowd
        from minifuse.workload.talk import parse_talk, talk

        self._check_tiny(text)
        asked, ignore_eos = parse_talk(text), self.options.ignore_eos
        if asked.turns > 1:
            turns, expected = talk(
                asked, self.count, self._encode, self.defaults.max_new_tokens, self.arrival, self.seed
            )
            requests = [*self._completed(replace(turn, ignore_eos=ignore_eos) for turn in turns)]
        else:
            tasks = crowd(self.count * self.prompts_per_request, self.seed)
            requests = [*self._of_texts([task.prompt for task in tasks])]
            expected = {request.id: task.answer for request, task in zip(requests, tasks, strict=True)}
        return requests, {} if ignore_eos else expected  # with ignore_eos, the text goes on after the answer

    def _check_tiny(self, workload: str) -> None:
        if self.options.model != TINY or self.tokenizer is None:
            raise UsageError(
                f'The workload is "{workload}", of tasks that the model tiny has learnt, and --model is '
                f"{self.options.model}: leave one of them out."
            )

    def _random(self, make: Callable[..., Iterable[Request]]) -> Iterator[Request]:
        """Make requests of random tokens, with random lengths."""
        stop_ids = RESERVED if self.kind.of_cells else self.defaults.stop_ids  # tokens that prompts must not contain
        requests = make(
            self.count,
            self.options.prompt_length or PROMPT_LENGTH,
            self.options.output_length or OUTPUT_LENGTH,
            self.source.config.vocab_size,
            self.arrival,
            self.seed,
            replace(self.defaults, stop_ids=stop_ids),
            self.prompts_per_request,
        )
        by_default = self.options.output_length is None
        return (replace(request, clip=by_default) for request in self._completed(requests))

    def _completed(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Give each request stop tokens, a limit, and a seed of its own.

        With different seeds, equal prompts get different answers when sampled.
        """
        for i, request in enumerate(requests):
            yield replace(
                request,
                stop_ids=self.defaults.stop_ids,
                max_new_tokens=min(request.max_new_tokens, self.options.max_new_tokens or request.max_new_tokens),
                sampling=replace(self.options.sampling, seed=self.seed + i),
            )


def _standard_input() -> list[str]:
    if sys.stdin is None:
        raise UsageError("--prompts is -, and standard input is closed: give a file, or redirect standard input.")
    return list(split_lines(read_bounded(sys.stdin.buffer, "standard input"), "standard input"))
