"""Answers as lines, and consoles for both streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from minifuse.cli.prepare import Prepared
from minifuse.model.cells.config import BUILT_IN, CellConfig
from minifuse.request import FinishReason, Request
from minifuse.serve.run import Answer

__all__ = ["answer_line", "console", "counted", "is_right", "one_line", "shortened"]

PROMPT_WIDTH = 36
PLACEHOLDER = -1
SHOWN = 3  # numbers of a result, and results of a graph


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # called while the error is handled; rich itself would end the program


def console(stderr: bool = False) -> Console:
    """A console whose colours are off where nobody sees them, or where NO_COLOR asks for it."""
    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    return _Console(file=stream, color_system=None if plain else "auto", highlight=False, markup=False, emoji=False)


def one_line(text: str) -> str:
    """What a terminal can show on one line: a newline becomes \\n, and nothing can steer the terminal.

    >>> one_line("a\\nb\\x1b[2J")
    'a\\\\nb\\\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shortened(text: str, width: int = PROMPT_WIDTH) -> str:
    """The beginning and the end of a text, when the whole is too long.

    >>> shortened("count from 10 to 99", 12)
    'count...o 99'
    """
    if len(text) <= width:
        return text
    tail = (width - 3) // 2
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def counted(requests: Iterable[Request]) -> str:
    """What a count of them is one of: requests, or prompts as soon as one of the requests has several."""
    return "requests" if all(request.group is None for request in requests) else "prompts"


def _shown(prepared: Prepared, token_ids: Sequence[int]) -> str:
    if token_ids and set(token_ids) == {PLACEHOLDER}:
        return f"{PLACEHOLDER} x{len(token_ids)}"
    text = prepared.text(token_ids)
    return " ".join(map(str, token_ids)) if text is None else one_line(text.strip())


def _results(prepared: Prepared, answer: Answer) -> str:
    if not answer.results:
        return "not computed"
    config = prepared.source.config
    name = "h" if isinstance(config, CellConfig) and config.kind in BUILT_IN else "output"
    shown = []
    for node, (first, *_) in sorted(answer.results.items())[:SHOWN]:
        numbers = first.flatten()
        some = " ".join(f"{number:.4f}" for number in numbers[:SHOWN].tolist())
        rest = f" ... ({len(numbers)} numbers)" if len(numbers) > SHOWN else ""
        shown.append((f"node {node}: " if len(answer.results) > 1 else "") + f"{name} = {some}{rest}")
    if len(answer.results) > SHOWN:
        shown.append(f"and {len(answer.results) - SHOWN} more nodes")
    return "; ".join(shown)


def is_right(prepared: Prepared, answer: Answer) -> bool | None:
    """Whether a task was solved; None for a request that is no task, or was not answered to its end."""
    expected = prepared.expected.get(answer.request.id)
    if expected is None or answer.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        return None
    return (prepared.text(answer.token_ids) or "").strip() == expected


def answer_line(prepared: Prepared, answer: Answer) -> Text:
    """`r3 [length, wrong: expected 42] add 17 and 25 -> 43`; of several prompts each has a line, `r3/0`, `r3/1`, ...

    A graph of cells that says no tokens: `r3: h = 0.0123 -0.2310 0.0088 ... (1024 numbers)`, which is how the first
    output of its result begins.
    """
    line = Text(one_line(answer.request.id), style="bold")
    marks = [] if answer.finish_reason is FinishReason.STOP else [Text(answer.finish_reason.value, "yellow")]
    right = is_right(prepared, answer)
    if right is not None:
        expected = prepared.expected[answer.request.id]
        marks.append(Text("right", "green") if right else Text(f"wrong: expected {expected}", "red"))
    if marks:
        line = Text.assemble(line, " [", Text(", ").join(marks), "]")
    if prepared.is_cells and not answer.token_ids:
        return Text.assemble(line, ": ", _results(prepared, answer))
    prompt = shortened(_shown(prepared, answer.request.prompt))
    return Text.assemble(line, " ", (prompt, "dim"), " -> ", _shown(prepared, answer.token_ids))
