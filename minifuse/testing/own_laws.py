"""Registers and checks a researcher's own laws, in addition to those of the kit.

    @law("fewest first", "no request is admitted while one that asks for fewer tokens waits")
    def fewest_first(case, seen):
        ...                      # return None if the law holds, otherwise a sentence that says what was seen

docs/stages.md shows a whole law.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import TypeVar

from minifuse.contracts.fault import Hung, last_line, shown
from minifuse.core.errors import CheckerFailed, LawBroken, UsageError
from minifuse.testing.alarm import alarm
from minifuse.testing.observation import Observation
from minifuse.testing.observed import PATIENCE_S
from minifuse.testing.statements import OWN_LAWS, OwnLaw, is_of_kit
from minifuse.testing.subject import Case

NAME = re.compile(r"[a-z]+( [a-z]+)*")
Function = Callable[[Case, Observation], str | None]
F = TypeVar("F", bound=Function)


def law(name: str, says: str) -> Callable[[F], F]:
    """Register a law: a function of a case and its observed run.

    The function returns None if the law holds, otherwise a sentence that says what was seen. If the function raises an
    error, the law is at fault.

    Raises:
        UsageError: the name is taken, or is not words in small letters; `says` is empty; or no function is decorated.
    """

    def register(function: F) -> F:
        if not isinstance(function, FunctionType):
            raise UsageError(f"The law {name!r} is put on {shown(function)}: put it on a function.")
        own = OwnLaw(says, function)
        known = OWN_LAWS.get(name)
        if is_of_kit(name) or (known is not None and (known.file, known.line) != (own.file, own.line)):
            raise UsageError(f"There is a law {name!r} already: give yours another name.")
        OWN_LAWS[name] = own
        return function

    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise UsageError(f"A law has the name {name!r}: give words in small letters, such as 'fewest first'.")
    if not (isinstance(says, str) and says.strip()):
        raise UsageError(f"The law {name!r} says nothing: give a sentence, which is shown where it is broken.")
    return register


def check_own_laws(case: Case, seen: Observation) -> None:
    """Raise `LawBroken` with the name of the first registered law that a run breaks."""
    for name, own in OWN_LAWS.items():
        try:
            with alarm(PATIENCE_S):
                found = own.function(case, seen)
        except (LawBroken, CheckerFailed, UsageError):
            raise
        except (Exception, SystemExit, Hung) as error:
            file = Path(own.file)
            place = last_line(error.__traceback__, (file.parent.resolve(),)) or f"{file.name}, line {own.line}"
            what = f"{type(error).__name__}: {error}" if not isinstance(error, Hung) else "it does not return"
            raise _at_fault(name, f"failed at {place} ({what})") from error
        if found is not None and not (isinstance(found, str) and found):
            raise _at_fault(name, f"returned {shown(found)}, and may return None or a sentence")
        if found is not None:
            raise LawBroken(name, found)


def _at_fault(name: str, what: str) -> CheckerFailed:
    return CheckerFailed(f"The law {name!r} {what}: it is at fault, not the stages.")
