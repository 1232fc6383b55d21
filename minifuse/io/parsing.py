"""Parses values that users type: durations, sizes, numbers, words.

Every refusal has one form: what was given, then what to give. `what` is the subject of the sentence, usually
an option: `--kv-memory is "64 apples": give ...`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping

from minifuse.core.errors import UsageError, one_line, shortened
from minifuse.core.submitted import INT64

MANY = 2**31 - 1  # the largest number of anything that is counted
LONGEST_S = 1e5  # more than a day: a million such gaps end before the latest arrival that an engine accepts
LONGEST_WORD = 100  # for longer words no suggestion is made
LEAST_LIKENESS = 0.6  # minimum ratio for a suggestion, as in `difflib.get_close_matches`
QUOTED = 60  # maximum characters of a value in a message

_QUANTITY = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # fits 64 bits
_BOUNDS = ("ttft", "tpot", "e2e")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}


def parse_duration(text: str, what: str = "The duration", most: float = math.inf) -> float:
    """Parse seconds, given as `500ms`, `2s`, `50us` or `1.5min`.

    The unit must be given: a bare 500 is ambiguous.

    Raises:
        UsageError: `text` is anything else, or more than `most`.
    """
    value, unit = _quantity(text)
    if unit not in _SECONDS or not math.isfinite(value * _SECONDS[unit]):
        raise UsageError(f"{what} is {quoted(text)}: give a number with a unit (us, ms, s, min), such as 500ms or 2s.")
    if value * _SECONDS[unit] > most:
        raise UsageError(f"{what} is {quoted(text)}: give at most {most:g}s.")
    return value * _SECONDS[unit]


def parse_size(text: str, what: str = "The size") -> int:
    """Parse bytes, given as `64MiB` (powers of 1024), `64MB` (powers of 1000) or `4096`.

    Case does not matter.

    >>> parse_size("64MiB"), parse_size("64MB"), parse_size("4096")
    (67108864, 64000000, 4096)

    Raises:
        UsageError: `text` is anything else, less than one byte, or 2**63 or more.
    """
    value, unit = _quantity(text)
    size = value * _BYTES.get(unit.lower(), 0)
    if not 1 <= size <= INT64[1]:
        raise UsageError(
            f"{what} is {quoted(text)}: give at least one byte and less than {(INT64[1] + 1) // 2**40}TiB, as a number "
            "with or without a unit (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), such as 64MiB or 1GiB."
        )
    return int(size)


def parse_int(text: str, what: str, low: int, high: int) -> int:
    """Parse a whole number from `low` to `high`, both included.

    Raises:
        UsageError: `text` is no whole number, or is out of range.
    """
    stripped = text.strip()
    if not _INTEGER.fullmatch(stripped) or not low <= int(stripped) <= high:
        raise UsageError(f"{what} is {quoted(text)}: give a whole number from {low} to {high}.")
    return int(stripped)


def parse_float(text: str, what: str, low: float, high: float) -> float:
    """Parse a number from `low` to `high`, both included.

    Raises:
        UsageError: `text` is no number, not finite, or out of range.
    """
    value, unit = _quantity(text)
    if unit or not low <= value <= high:
        raise UsageError(f"{what} is {quoted(text)}: give a number from {low:g} to {high:g}.")
    return value


def check_word(text: str, what: str, words: Collection[str]) -> None:
    """Raise `UsageError` unless the text is one of these words."""
    if text not in words:
        raise UsageError(f"{what} is {quoted(str(text))}{did_you_mean(str(text), words)}: give {one_of(words)}.")


def parse_goodput(text: str) -> dict[str, float]:
    """Parse latency bounds in milliseconds: ttft (first token), tpot (each further token), e2e.

    >>> parse_goodput("ttft:200,tpot:50")
    {'ttft': 0.2, 'tpot': 0.05}

    Raises:
        UsageError: a bound is unknown, given twice, or not a time.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, limit = (piece.strip() for piece in part.partition(":"))
        if name not in _BOUNDS:
            hint = did_you_mean(name, _BOUNDS)
            allowed = f"{one_of(_BOUNDS)}, as in ttft:200"
            raise UsageError(f"The goodput bound {quoted(part)} is unknown{hint}: give {allowed}.")
        if name in bounds:
            raise UsageError(f"The goodput bounds are {quoted(text)}, with {name} twice: give each at most once.")
        bounds[name] = parse_float(limit, f"The goodput bound {name} (milliseconds)", 0, 1e9) / 1000
    return bounds


def check_goodput(bounds: Mapping[str, float]) -> None:
    """Raise `UsageError` unless these are bounds such as `parse_goodput` returns."""
    for name, limit in bounds.items():
        if name not in _BOUNDS or not isinstance(limit, (int, float)) or not 0 <= limit < math.inf:
            raise UsageError(f"The goodput bound {name!r} is {limit!r}: give seconds for {one_of(_BOUNDS)}.")


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ` (did you mean "poisson"?)`, or "" if no word is near."""
    if not isinstance(word, str) or len(word) > LONGEST_WORD:
        return ""
    matcher = difflib.SequenceMatcher(b=word.casefold())

    def likeness(name: str) -> float:
        matcher.set_seq1(name.casefold())
        return matcher.ratio()

    best = max(known, key=likeness, default=word)  # of equally near words, takes the first
    return f' (did you mean "{best}"?)' if best != word and likeness(best) >= LEAST_LIKENESS else ""


def quoted(text: str) -> str:
    """Quote a typed text on one line, shortened to fit a sentence.

    >>> quoted("64 apples\\n")
    '"64 apples\\\\n"'
    """
    return f'"{shortened(one_line(text), QUOTED)}"'


def number(count: int, noun: str) -> str:
    """Write `1 request`, `2 requests`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def one_of(words: Iterable[str], conjunction: str = "or") -> str:
    """Join the allowed words for a sentence: `a, b or c`."""
    *rest, last = words
    return f"{', '.join(rest)} {conjunction} {last}" if rest else last


def all_of(words: Iterable[str]) -> str:
    """Join words for a sentence: `a, b and c`."""
    return one_of(words, "and")


def unknown(what: str, given: object, known: Iterable[str]) -> UsageError:
    """Return the error for a name that is not one of `known`.

    >>> print(unknown("technique", "orka", ["static", "orca"]))
    There is no technique 'orka' (did you mean "orca"?): give static or orca.
    """
    known = list(known)
    return UsageError(
        f"There is no {what} {shortened(repr(given), QUOTED)}{did_you_mean(given, known)}: give {one_of(known)}."
    )


def keyed(text: str, examples: Mapping[str, str]) -> dict[str, str]:
    """Split a workload's options into texts: `sharegpt:scale=0.1,reaction=30s` has two.

    Args:
        examples: option -> an example of its value, for each option of the workload.

    Raises:
        UsageError: an option is unknown, has no value, or is given twice.
    """
    name, colon, rest = text.strip().partition(":")
    given: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if key not in examples or not equals or not value:
            options = one_of(f"{known}={example}" for known, example in examples.items())
            raise UsageError(
                f"The workload is {quoted(text)}, with the option {quoted(part)}{did_you_mean(key, examples)}: give "
                f"{name}, or it with {options}, separated by commas."
            )
        if key in given:
            raise UsageError(f"The workload is {quoted(text)}, with {key} twice: give it once.")
        given[key] = value
    return given


def _quantity(text: str) -> tuple[float, str]:
    """Parse a number with its unit; return NaN for a text that is neither."""
    match = _QUANTITY.fullmatch(text.strip())
    return (float(match[1]), match[2]) if match else (math.nan, "")
