"""`--state FILE.sqlite`: conversations that go on from run to run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from minifuse.cli.declare import option
from minifuse.cli.files import writable_file
from minifuse.cli.text import tell
from minifuse.core.errors import UsageError
from minifuse.model.source import Source
from minifuse.show.figures import first_few

if TYPE_CHECKING:
    from minifuse.serve.conversations import Conversations


HELP = "keep conversations here, as SQLite, and go on with them: a turn is stored before its answer is shown"
STATE = option("--state", HELP, "FILE", panel="Workload", parse=writable_file)
NAMED = 3  # how many conversations a message names


def open_state(
    state: Path | None, source: Source, conversations: Iterable[str | None], computes: bool
) -> AbstractContextManager[Conversations | None]:
    """Open a state file's conversations for a `with` block; None without a file.

    Args:
        conversations: each request's conversation, or None if it belongs to no conversation.
        computes: whether a model runs. Without one, as in virtual time without weights, there are no tokens to store.

    Raises:
        UsageError: the file cannot be used, no request names a conversation, or no model runs.
    """
    if state is None:
        return nullcontext()
    from minifuse.serve.conversations import Conversations  # SQLite takes a moment to import

    if not any(name is not None for name in conversations):
        raise UsageError(
            f'--state is "{state}", and no request names a conversation: give requests that do with --prompts, as '
            '{"prompt": "recall ann", "conversation": "c"}, or talk with minifuse chat.'
        )
    if not computes:
        raise UsageError(
            f'--state is "{state}", and in virtual time no weights are made for {source.name}, so there are no tokens '
            "to store: give --clock real or a model with weights, or leave --state out."
        )
    return Conversations(state, source)


def begun(state: Path | None) -> list[str]:
    """List the conversations of a state file. Raises the errors of `History`."""
    if state is None or not state.exists() or not state.stat().st_size:
        return []
    from minifuse.serve.history import History

    with History(state) as history:
        return history.conversations()


def report_unstored(conversations: Conversations | None) -> list[str]:
    """Print on stderr which conversations have an unstored answer; return their names."""
    failures = {} if conversations is None else conversations.failures
    for why in dict.fromkeys(failures.values()):
        names = first_few([repr(name) for name in failures if failures[name] == why], NAMED)
        tell(f"error: The answers of {names} are shown here and not stored, so no later run knows of them: {why}")
    return [*failures]
