"""`minifuse chat`: a conversation that shows how many tokens each turn reused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from minifuse.cli.declare import option, takes
from minifuse.cli.files import refuse_overwriting
from minifuse.cli.requests import check_sampling
from minifuse.cli.run import RunOptions, chosen, load
from minifuse.cli.state import open_state, report_unstored
from minifuse.cli.status import loading
from minifuse.cli.streams import print_result, silence
from minifuse.cli.text import tell
from minifuse.core.errors import ModelError, RequestRefused, UsageError, one_line
from minifuse.core.request import DEFAULT, FinishReason, Request
from minifuse.core.submitted import check_name
from minifuse.ctrl_c import INTERRUPTED, dealt_with
from minifuse.io.lines import BYTE_ORDER_MARK, MOST_LINE, too_long
from minifuse.io.parsing import number as counted
from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.model.text.spelling import UNFINISHED
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.serve.build import build_engine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.resolve import resolve_run
from minifuse.serve.talk import Exchange, Talk

SCHEMA = "minifuse.chat/1"
TECHNIQUE = "pensieve"
CONVERSATION = "chat"
PROMPT = "> "
NOT_HERE = (
    *("texts", "prompts", "requests", "workload", "prompts_per_request", "prompt_length", "output_length", "arrival"),
    *("users", "ignore_eos", "clock", "hardware", "goodput", "by", "trace", "why", "live", "replay", "max_batch"),
)
STATED = f"which of the state file's to go on with: {CONVERSATION}"


@dataclass(frozen=True)
class ChatOptions(RunOptions):
    """The options of `chat`: the options of `run` that apply to a single user."""

    technique: Annotated[
        str | None, option("--technique", f"see minifuse list: {TECHNIQUE}", "NAME", panel="Technique")
    ] = None
    conversation: Annotated[
        str | None, option("--conversation", STATED, "NAME", panel="Workload", parse=check_name)
    ] = None


@takes(ChatOptions, without=NOT_HERE)
def chat(options: ChatOptions) -> int:
    """Talk to the model over several turns: a line of standard input is a prompt.

    The shipped model can look up what it was told in an earlier turn:

    \b
        printf 'remember ann 17\\nsort 7 2 5\\nrecall ann\\n' | minifuse chat

    After each answer a line on stderr tells how many tokens of the text before it were reused on the device, swapped
    in from the host and recomputed, and how many were new: the prompt, and the last token of the answer before it.

    Ctrl-C ends an answer, and what it has said stays in the text; Ctrl-D ends the chat. With --state FILE the next
    chat goes on, and every answer that has ended is stored before its line is shown; one that Ctrl-C ended is stored
    with the next.
    """
    source = resolve(options.model)
    if not isinstance(source, TextSource) or not source.has_tokenizer:
        raise UsageError(
            f"minifuse chat reads text, and {source.name} has no tokenizer: choose another --model, or give token ids "
            "with minifuse run --prompts."
        )
    if options.conversation is not None and options.state is None:
        raise UsageError(
            f"--conversation is {options.conversation!r}, one of those that a state file has: add --state FILE, or "
            "leave it out."
        )
    row = chosen(options, source.kind, TECHNIQUE)
    refuse_overwriting([("--state", options.state)], [options.model])
    check_sampling([Request("", (), sampling=options.sampling)], options)
    choices, tokenizer = options.choices(row), source.tokenizer()
    with loading(source.name):
        resolved = resolve_run(choices, source, options.settings)
    name = CONVERSATION if options.conversation is None else options.conversation
    with open_state(options.state, source, [name], computes=True) as conversations:
        engine = build_engine(resolved, load(resolved), into=lambda event: None)
        try:
            talk = Talk(engine, name, conversations)
            code = _Chat(talk, options, source, tokenizer).run()
        except KeyboardInterrupt:  # there was no answer to end
            code = INTERRUPTED
        except BrokenPipeError:
            silence()
            return 1  # the reader went away
        finally:
            engine.close()
        return int(bool(report_unstored(conversations))) or code


class _Chat:
    def __init__(self, talk: Talk, options: ChatOptions, source: TextSource, tokenizer: Tokenizer) -> None:
        self.talk, self.options, self.source, self.tokenizer = talk, options, source, tokenizer
        self.on_terminal = sys.stdin is not None and sys.stdin.isatty()
        self.code = 0

    def run(self) -> int:
        """Answer until the input ends; return the exit code."""
        if self.on_terminal:
            tell(f"{self.source.name}: Ctrl-C ends an answer, Ctrl-D the chat.")
        if self.talk.num_turns:
            _note(f"goes on behind {self.talk.num_turns} turns of {self.talk.num_tokens} tokens")
        for number, line in enumerate(self._lines(), start=1):
            if text := (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).strip():
                try:
                    exchange = self._turn(text)
                except (RequestRefused, ModelError) as error:
                    self._refused(number, text, str(error))
                    continue
                if exchange.answer.finish_reason is FinishReason.ABORTED:
                    if not self.on_terminal:
                        return INTERRUPTED  # without a terminal, nobody can type another line
                    dealt_with()
        return self.code

    def _lines(self) -> Iterator[str]:
        if sys.stdin is None:
            raise UsageError("Standard input is closed: type prompts, or redirect it from a file of them.")
        if not self.on_terminal:
            lines = iter(partial(sys.stdin.buffer.readline, MOST_LINE + 1), b"")
            for number, line in enumerate(lines, start=1):
                if len(line) > MOST_LINE:
                    raise too_long(f"Line {number} of standard input", MOST_LINE)
                try:
                    yield line.decode()
                except UnicodeDecodeError as error:
                    self._refused(number, "", f"Byte {error.start + 1} is not UTF-8: give UTF-8.")
                    yield ""
            return
        import readline  # noqa: F401 (input() then lets the user edit the line)

        while True:
            try:
                yield input(PROMPT)
            except EOFError:
                print(file=sys.stderr)
                return
            except KeyboardInterrupt:  # the Ctrl-C had nothing to end
                dealt_with()
                print("\nCtrl-D ends the chat.", file=sys.stderr)
            except UnicodeDecodeError:
                self._refused(0, "", "The line is not UTF-8: type it as UTF-8.")

    def _turn(self, text: str) -> Exchange:
        prompt = self.tokenizer.encode(text, continues=self.talk.num_tokens > 0)
        room = self.source.config.max_context - self.talk.num_tokens - len(prompt)
        if len(prompt) >= self.source.config.max_context:
            raise RequestRefused(
                f"The prompt has {len(prompt)} tokens, and the context is {self.source.config.max_context}: shorten it."
            )
        if room < 1:
            raise RequestRefused(
                f"The text so far has {self.talk.num_tokens} tokens and the prompt {len(prompt)}, and the context is "
                f"{self.source.config.max_context}: begin another chat, or with --state another --conversation."
            )
        stream = _Stream(self.tokenizer, shown=not self.options.json)
        exchange = self.talk.say(
            prompt,
            stream.add,
            max_new_tokens=self.options.max_new_tokens or DEFAULT,
            clip=True,
            stop_ids=self.source.config.eos_ids,
            sampling=self.options.sampling,
        )
        with uninterrupted():
            stream.end()
            if exchange.answer.finish_reason is FinishReason.NAN:
                self.code = 1
            if self.options.json:
                print_result(json.dumps(self._as_json(text, exchange)))
            else:
                _note(self._told(exchange))
        return exchange

    def _told(self, exchange: Exchange) -> str:
        """Write `turn 3: 12 reused on the device, ...; 5 tokens in 0.12 s`."""
        answer = exchange.answer
        found = f"{exchange.on_device} reused on the device, {exchange.on_host} swapped in"
        seconds = (answer.finish_s or 0.0) - answer.request.arrival_s
        said = f"{counted(len(answer.token_ids), 'token')} in {seconds:.2f} s"
        why = f", {answer.finish_reason.value}" if answer.finish_reason is not FinishReason.STOP else ""
        counts = f"{found}, {exchange.recomputed} recomputed, {exchange.new} new"
        return f"turn {self.talk.num_turns}: {counts}; {said}{why}{self._stored(exchange)}"

    def _stored(self, exchange: Exchange) -> str:
        conversations = self.talk.conversations
        if conversations is None:
            return ""
        if exchange.stored:
            return ", stored"
        ended = exchange.answer.finish_reason
        later = (ended is FinishReason.ABORTED and self.on_terminal) or ended is FinishReason.NAN
        later &= not conversations.failures
        return ", to be stored with the next answer, if there is one" if later else ", not stored"

    def _as_json(self, text: str, exchange: Exchange) -> dict[str, Any]:
        answer = exchange.answer
        return {
            "schema": SCHEMA,
            "turn": self.talk.num_turns,
            "prompt": text,
            "text": self.tokenizer.decode(list(answer.token_ids)),
            **answer.row(),
            "reused_on_device": exchange.on_device,
            "swapped_in": exchange.on_host,
            "recomputed": exchange.recomputed,
            "new": exchange.new,
            "stored": exchange.stored,
            "prompt_token_ids": list(answer.new_prompt),
            "token_ids": list(answer.token_ids),
        }

    def _refused(self, number: int, text: str, why: str) -> None:
        self.code = 1
        tell(f"error: {f'line {number}: ' if number and not self.on_terminal else ''}{why}")
        if self.options.json:
            refused = {"schema": SCHEMA, "turn": None, "prompt": text, "finish_reason": "refused", "error": why}
            print_result(json.dumps(refused))


class _Stream:
    """Prints an answer as it comes, without the tokenizer's leading space."""

    def __init__(self, tokenizer: Tokenizer, shown: bool) -> None:
        self._tokenizer, self._shown = tokenizer, shown
        self._tokens: list[int] = []
        self._printed = ""

    def add(self, tokens: tuple[int, ...]) -> None:
        self._tokens += tokens
        text = self._tokenizer.decode(self._tokens).lstrip()
        if self._shown and not text.endswith(UNFINISHED):
            self._print(text)

    def end(self) -> None:
        if self._shown:
            self._print(self._tokenizer.decode(self._tokens).strip())
            print(flush=True)

    def _print(self, text: str) -> None:
        new = text[len(self._printed) :]
        print("\n".join(map(one_line, new.split("\n"))), end="", flush=True)
        self._printed += new


def _note(text: str) -> None:
    tell(f"({text})")
