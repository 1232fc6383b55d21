"""`--state FILE.sqlite`: conversations that go on from run to run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from minifuse.cli.declare import option, writable_file
from minifuse.cli.plugin import refuse_overwriting
from minifuse.cli.text import first_few, tell
from minifuse.core.errors import UsageError
from minifuse.model.source import Source

if TYPE_CHECKING:
    from minifuse.serve.conversations import Conversations


HELP = "keep conversations here, as SQLite, and go on with them: a turn is stored before its answer is shown"
STATE = option("--state", HELP, "FILE", panel="Workload", parse=writable_file)
NAMED = 3  # conversations, in a message
BESIDE = ("-wal", "-shm", "-journal")  # what SQLite adds to the names of the files that it keeps beside one


def refuse_overwriting_state(state: Path | None, model: str, prompts: str | None, trace: Path | None) -> None:
    """Refuse a state file that is one of the files which the run reads, or its trace."""
    if state is None:
        return
    refuse_overwriting(state, model, prompts, "--state")
    ours = {Path(f"{state.resolve()}{end}") for end in ("", *BESIDE)}
    if trace is not None and trace.resolve() in ours:
        raise UsageError(f'--trace is "{trace}", which --state keeps its conversations in: give a file of its own.')


def open_state(
    state: Path | None, source: Source, conversations: Iterable[str | None], computes: bool
) -> AbstractContextManager[Conversations | None]:
    """The conversations of a state file, to be used in a `with` block; None without such a file.

    Args:
        conversations: those of the requests; None of one that belongs to none.
        computes: whether a model runs. In virtual time without weights there are no tokens to store.

    Raises:
        UsageError: the file cannot be used, or not for this.
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
    """The conversations that a state file has; none if there is no file, or an empty one. Raises as `open_state`."""
    if state is None or not state.exists() or not state.stat().st_size:
        return []
    from minifuse.serve.history import History

    with History(state) as history:
        return history.conversations()


def report_unstored(conversations: Conversations | None) -> list[str]:
    """Say on stderr which conversations have answers that could not be stored, and return their names."""
    failures = {} if conversations is None else conversations.failures
    for why in dict.fromkeys(failures.values()):
        names = [repr(name) for name in failures if failures[name] == why]
        told = f"answers of {first_few(names, NAMED)} are shown here and not stored, so no later run knows of them"
        tell(f"error: The {told}: {why}")
    return [*failures]
