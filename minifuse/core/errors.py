"""What can go wrong, as types.

Every message is one sentence: what was given, what is allowed, what to do.
"""

from __future__ import annotations

from typing import Any

LONGEST = 1000  # characters of a message


class MinifuseError(Exception):
    """Base of every error a user can cause; the command line returns its `exit_code`.

    The message may quote whatever a user gave: it is escaped, and cut in its middle if it is too long.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(shortened(one_line(str(message)), LONGEST))


def one_line(text: str) -> str:
    """Escape what a terminal cannot show on one line: newlines, and codes that steer it.

    >>> one_line("a\\nb\\x1b[2J")
    'a\\\\nb\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shortened(text: str, width: int) -> str:
    """Shorten a text that is too long by cutting out its middle.

    >>> shortened("count from 10 to 99", 12)
    'count...o 99'
    """
    if len(text) <= width:
        return text
    tail = (width - 3) // 2
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def brief(value: object) -> str:
    """Write a value as Python does, shortened to fit a sentence."""
    try:
        text = repr(value)
    except ValueError:  # Python spells no number of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


class UsageError(MinifuseError):
    """A bad option, file or value: nothing was started."""


class ModelError(MinifuseError):
    """A checkpoint that cannot be read as it is."""


class RequestRefused(MinifuseError):
    """One request can never be served; the others go on."""

    exit_code = 1


class MachineError(MinifuseError):
    """This machine lacks something: a device, memory, an optional package."""

    exit_code = 3


class KernelError(MinifuseError):
    """A kernel's launcher was given tensors that it cannot take."""


class LawBroken(MinifuseError):
    """A stage did what no stage may do (docs/laws.md): a defect in code.

    `law` names the law, and `what` describes how it was broken. `seen` is the observed run that showed it, if any
    (`minifuse.testing.observation.Observation`).
    """

    exit_code = 1

    def __init__(self, law: str, what: str, seen: Any = None) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law
        self.what = what
        self.seen = seen


class StageFault(LawBroken):
    """A user's stage returned or raised what its contract does not allow (docs/stages.md).

    `what` is the sentence: the class, the method, its file and line, what it returned or raised, and what is allowed.
    `law` is "contract", or the law whose check failed during the stage's call.
    """

    def __init__(self, what: str, law: str = "contract") -> None:
        super().__init__(law, what)


class WrongReturn(LawBroken):
    """A method of a stage returned what its contract does not allow."""

    def __init__(self, stage: object, method: str, value: object, allowed: str) -> None:
        super().__init__("contract", f"{type(stage).__qualname__}.{method} returned {value!r:.120}: {allowed}")
        self.stage, self.method, self.value, self.allowed = stage, method, value, allowed


class StageFailed(LawBroken):
    """A stage raised an error in an observed run, or never returned."""


class CheckerFailed(MinifuseError):
    """A law, or its bookkeeping, raised an error: nothing is known about the stage."""

    exit_code = 1
