"""The verdict of `minifuse check`: on one screen for a reader, and as JSON for a grader."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

import minifuse
from minifuse.cli.plugin import plugin_files
from minifuse.contracts.fault import is_own
from minifuse.core.errors import LawBroken, WrongReturn, one_line, shortened
from minifuse.options import describe_options
from minifuse.show.observed import decided, legend, timeline
from minifuse.stages import KINDS, Kind, stage
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing.statements import OWN_LAWS, statement
from minifuse.trace.step import step_decisions

if TYPE_CHECKING:
    from minifuse.testing.hits import Hits
    from minifuse.testing.observation import Observation


NARROWEST, WIDEST = 40, 80
MOST_DECISIONS = 3
MOST_PLACES = 3
LONGEST = 3 * WIDEST - 10  # of what happened


@dataclass
class Tally:
    """How far a check has come: scenarios tried, by mix; of how many mixes; and on which laws."""

    tried: dict[str, int]
    mixes: int
    laws: dict[str, int]  # with the number of mixes that each applies to
    left_out: dict[str, str]  # laws that apply to none, with what the stages lack
    uncut: list[str]  # policies that always have a budget, and do not declare `cuts`
    unclaimed: list[str]  # what the policy claims nothing about
    unread: list[str] = field(default_factory=list)  # options that a stage of a plugin never read
    hits: dict[str, list[Hits]] = field(default_factory=dict)  # of each memory, by mix

    @property
    def unfound(self) -> list[str]:
        """The memories that are not minifuse's own, and kept or shared KV which no newcomer ever found."""
        own = self._of_plugins().items()
        return [name for name, hits in own if any(one.kept for one in hits) and not any(one.found for one in hits)]

    @property
    def uncompared(self) -> dict[str, tuple[int, int]]:
        """Count the runs that second life does not compare, and all runs, by memory.

        Of memories of plugins that keep KV, and have no option `keep`, which that law would turn off.
        """
        told = {}
        for name, hits in self._of_plugins().items():
            left, runs = sum(one.left for one in hits), sum(one.runs for one in hits)
            if left and all(option["name"] != "keep" for option in describe_options(stage("memory", name).Options)):
                told[name] = left, runs
        return told

    def leave_out_uncompared(self) -> None:
        """Count second life among the laws left out if it compared no run."""
        told = self.uncompared
        if told and told.keys() == self.hits.keys() and all(left == runs for left, runs in told.values()):
            self.laws.pop("second life", None)
            self.left_out["second life"] = "a run at whose end memory keeps no KV"

    def _of_plugins(self) -> dict[str, list[Hits]]:
        return {name: hits for name, hits in self.hits.items() if not is_own(stage("memory", name))}

    @property
    def scenarios(self) -> int:
        return sum(self.tried.values())

    @property
    def untried(self) -> int:
        """The mixes that no scenario was tried on."""
        return self.mixes - sum(number > 0 for number in self.tried.values())

    def __str__(self) -> str:
        tried = self.mixes - self.untried
        mixes = f"{tried} of {self.mixes} mixes" if self.untried else _count(self.mixes, "mix")
        return f"{_count(self.scenarios, 'scenario')} in {mixes}"


class Place(NamedTuple):
    """Where to look: a method of a stage, and where it is written."""

    method: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.method}  ({self.file}, line {self.line})"


def _width() -> int:
    """Columns that a verdict takes on this terminal."""
    return max(NARROWEST, min(WIDEST, get_terminal_size().columns))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'es' * noun.endswith('x') or 's'}" if number != 1 else f"1 {noun}"


def held_text(name: str, tally: Tally, stopped: bool, advice: str, *, quick: bool) -> str:
    """What is shown of a stage that kept the laws. `stopped`: as far as time went; `quick`: laws were dealt out."""
    verdict = f"HOLDS{' so far' * stopped}: {name} kept all {len(tally.laws)} laws on {tally}"
    if quick:
        verdict = f"HOLDS{' so far' * stopped}: {name} kept the laws that were tried on it, on {tally}"
        verdict += ": all that one run shows, and on each scenario one of those that compare runs"
    return "\n".join(_told(verdict + (", where time ran out." if stopped else "."), tally, advice))


def undecided_text(name: str, tally: Tally) -> str:
    """What is shown of a stage that was not tried in each of its mixes."""
    verdict = f"UNDECIDED: no law was found broken, and time ran out when {name} had been tried on {tally}."
    return "\n".join(_told(verdict, tally, "Give more time: a longer --limit, or none."))


def _told(verdict: str, tally: Tally, advice: str) -> list[str]:
    laws = (f"{law} (in {count} mixes)" if count < tally.mixes else law for law, count in tally.laws.items())
    left_out = (f"{law} (needs {what})" for law, what in tally.left_out.items())
    mixes = ", ".join(f"{mix} ({number})" for mix, number in tally.tried.items() if number) or "none"
    lines = [*_wrapped(verdict), "", *_wrapped(f"laws   {', '.join(laws)}", 7)]
    if tally.left_out:
        lines += _wrapped(f"not    {', '.join(left_out)}", 7)
    lines += [*_wrapped(f"mixes  {mixes}", 7), ""]
    if tally.unclaimed:
        about = " or ".join(tally.unclaimed)
        lines += _wrapped(f"warning: the policy claims nothing about {about}, so no law checked that (docs/stages.md).")
    for name in tally.uncut:
        lines += _wrapped(
            f"warning: {name} has a token_budget by default, and was mixed with no attention that computes whole "
            "rectangles: if it has one whatever its options, declare cuts = True, and it is refused with them."
        )
    for name in tally.unread:
        lines += _wrapped(f"warning: no scenario made the stage read its option {name}.")
    for name in tally.unfound:
        lines += _wrapped(f"warning: {name} keeps or shares KV, and no newcomer found any: no law says that one must.")
    for name, (left, runs) in tally.uncompared.items():
        lines += _wrapped(
            f"warning: {name} kept KV at the end of {left} of {runs} runs, which second life does not compare."
        )
    return [*lines, *_wrapped(advice)]


def broken_text(name: str, kinds: list[Kind], broken: LawBroken, tally: Tally, again: str) -> str:
    """What is shown of a stage that broke a law."""
    seen: Observation | None = broken.seen
    lines = [f'BROKEN: {name} breaks the law "{broken.law}".', ""]
    lines += _wrapped(f"the law   {statement(broken.law).says}", 10)
    lines += _wrapped(f"happened  {shortened(brief(broken.what), LONGEST)}", 10)
    if seen is not None:
        lines += [*_wrapped(f"where     {shortened(_where(seen), 2 * LONGEST)}", 10), ""]
        lines += [*_run(seen, broken.what, _width(), places=kinds != ["batching"]), ""]
    lines += _listed("look at", [str(place) for place in look_at(broken, kinds)])
    lines += _listed("read", read(broken.law, seen.case.row if seen is not None else None))
    lines += _wrapped(f"found     on scenario {tally.scenarios}; again with {again}", 10)
    return "\n".join(lines)


def _run(seen: Observation, what: str, width: int, places: bool) -> list[str]:
    """The run as a timeline, and the last decisions in it."""
    try:
        picture = timeline(seen, what, width)
        decisions = decided(seen, MOST_DECISIONS, places)
    except Exception:  # a stage may have decided anything
        return _wrapped(
            shortened(f"proposed: {seen.proposals[-1] if seen.proposals else 'nothing'}", LONGEST), 4, width
        )
    lines = [*picture, *_wrapped(f"({legend(picture)})", width=width), ""]
    return lines + [part for line in decisions for part in _wrapped(shortened(line, 2 * width - 10), 4, width)]


def _listed(head: str, items: list[str]) -> list[str]:
    return [line for i, item in enumerate(items) for line in _wrapped(f"{head if not i else '':<10}{item}", 10)]


def _wrapped(text: str, indent: int = 0, width: int | None = None) -> list[str]:
    width = width or _width()
    return textwrap.wrap(one_line(text), width, subsequent_indent=" " * indent, break_on_hyphens=False) or [""]


def _where(seen: Observation) -> str:
    """The mix and the settings of a run, and what is unusual about its requests."""
    case = seen.case
    usual = {option["name"]: option["default"] for option in case.row.described_options()}
    settings = ", ".join(f"{name}={value}" for name, value in case.settings.items() if value != usual[name])
    parts = [f"{case.row.name} in {_count(case.capacity, 'slot')}" + (f", with {settings}" if settings else "")]
    groups: dict[str, list[str]] = {}
    users: dict[str, list[str]] = {}
    for request in case.requests:
        if request.group is not None:
            groups.setdefault(request.group, []).append(request.id)
        if request.user is not None:
            users.setdefault(request.user, []).append(request.id)
        if request.priority:
            parts.append(f"{request.id} has priority {request.priority}")
        if request.stop_ids and not request.ignore_eos:
            parts.append(f"{request.id} stops at {' or '.join(map(str, request.stop_ids))}")
        if not request.sampling.greedy:
            parts.append(f"{request.id} is sampled")
    parts += [f"{', '.join(names)} of user {user}" for user, names in users.items()]
    parts += [f"{' and '.join(names)} are the prompts of one request" for names in groups.values() if len(names) > 1]
    parts += [f"{name} is aborted after {_count(step, 'step')}" for step, name in case.scenario.aborts]
    return "; ".join(parts)


def brief(text: str) -> str:
    """What went wrong, with every request as its id alone, every plan as its step, and work as its span.

    >>> brief("Request(id='r0', prompt=(1, 2), max_new_tokens=3) got (4,), the oracle (5,)")
    'r0 got (4,), the oracle (5,)'
    """
    while (found := re.search(r"Request\(id='([^']*)'|Plan\(step=(\d+)", text)) is not None:
        stop = text.index("(", found.start()) + 1
        depth = 1
        while depth and stop < len(text):
            depth += (text[stop] == "(") - (text[stop] == ")")
            stop += 1
        text = f"{text[: found.start()]}{found[1] or f'step {found[2]}'}{text[stop:]}"
    text = re.sub(r"Work\(sequence='([^']*)', start=(\d+), stop=(\d+), cell='[^']*'\)", r"\1 [\2, \3)", text)
    return re.sub(r"\('(device|host)', (\d+)\)", r"slot \2 of the \1", text)


def look_at(broken: LawBroken, kinds: list[Kind]) -> list[Place]:
    """Where in the stages under test the law is kept or broken; where an error was raised, if one was."""
    seen: Observation | None = broken.seen
    if seen is None:
        return []
    words = statement(broken.law)
    likely = [*words.methods] if kinds else [*words.methods][:2]  # of a technique
    classes = {cls: kind for kind in likely if kind in (kinds or KINDS) for cls in _halves(kind, seen.case.row)}
    if isinstance(wrong := broken.__cause__, WrongReturn) and (place := _method(type(wrong.stage), wrong.method)):
        return [place]
    if broken.__cause__ is not None and (raised := _raised(broken.__cause__, _sources(*classes, bases=True))):
        return [raised]
    raised = _raised(broken, _sources(*classes))
    found = [raised] if raised is not None else []
    for cls, kind in classes.items():
        names = words.methods[kind]
        own = [place for name in _overriding(cls, names) if (place := _method(cls, name)) is not None]
        if own and not _overriding(cls, names, called=False):
            own.insert(0, _class(cls))
        inherited = next((place for name in names if (place := _method(cls, name)) is not None), None)
        # Of the likeliest stage at least what it inherits.
        found += own if own or found or inherited is None else [_class(cls), inherited]
    return found[:MOST_PLACES]


def _halves(kind: str, row: Technique) -> list[type[Any]]:
    """A stage's class, and of an attention the one with tensors."""
    cls = stage(kind, row.stages[kind])  # type: ignore[index, arg-type]  # one of KINDS
    if kind != "attention" or not cls.tensors:
        return [cls]
    module, _, name = cls.tensors.partition(":")
    return [cls, getattr(importlib.import_module(module), name)]


def _method(cls: type[Any], name: str) -> Place | None:
    """A method as the class that defines it has it; None: it has none, or none that is written in Python."""
    for owner in cls.__mro__:
        if name in vars(owner):
            held = vars(owner)[name]
            function = held.fget if isinstance(held, property) else inspect.unwrap(getattr(held, "__func__", held))
            code = getattr(function, "__code__", None)
            return (
                None
                if code is None
                else Place(f"{owner.__name__}.{name}", _file(code.co_filename), code.co_firstlineno)
            )
    return None


def _overriding(cls: type[Any], names: Iterable[str], *, called: bool = True) -> list[str]:
    """Those of these methods that a class has itself, and what it has itself that inherited ones of them call."""
    found: dict[str, None] = {}
    for name in names:
        if name in vars(cls):
            found[name] = None
        elif called:
            found |= dict.fromkeys(other for other in _calls(cls, name, set()) if other in vars(cls))
    return list(found)


def _calls(cls: type[Any], name: str, seen: set[str]) -> Iterator[str]:
    """The methods of a class whose names the code of this one has, and theirs."""
    function = inspect.unwrap(getattr(cls, name, None) or object)
    for other in getattr(getattr(function, "__code__", None), "co_names", ()):
        if other not in seen and callable(getattr(cls, other, None)):
            seen.add(other)
            yield other
            yield from _calls(cls, other, seen)


def _class(cls: type[Any]) -> Place:
    return Place(f"class {cls.__name__}", _file(inspect.getsourcefile(cls) or ""), inspect.getsourcelines(cls)[1])


def _sources(*classes: type[Any], bases: bool = False) -> set[str]:
    """The files of these classes, of their bases too if wanted, and of plugins."""
    owners = {owner for cls in classes for owner in (cls.__mro__ if bases else (cls,))}
    files = [getattr(sys.modules[owner.__module__], "__file__", None) for owner in owners]
    return {*map(str, plugin_files()), *(file for file in files if file)}


def _raised(error: BaseException, files: set[str]) -> Place | None:
    """The last line in these files that an error passed through, but for the checks of a memory's own books."""
    place, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename in files and code.co_name != "check_integrity":
            place = Place(code.co_qualname, _file(code.co_filename), traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


HOME = Path(minifuse.__file__).parent.parent


def _file(name: str) -> str:
    path = Path(name)
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else path.name


def read(law: str, row: Technique | None) -> list[str]:
    """What explains a law, and the paper that a shipped technique is from."""
    if law in OWN_LAWS:
        own = OWN_LAWS[law]
        return [str(Place(own.function.__name__, _file(own.file), own.line))]
    page = statement(law).read
    found = [page if page.startswith("docs/laws.md") else f"docs/laws.md, and {page}"]
    known = None if row is None else TECHNIQUES.get(row.name)
    return found + [f"{known.paper}, {known.section}" for known in [known] if known is not None and known.paper != "-"]


def broken_json(broken: LawBroken, kinds: list[Kind]) -> dict[str, Any]:
    """A broken law for a grader."""
    seen: Observation | None = broken.seen
    told = {
        "law": broken.law,
        "says": statement(broken.law).says,
        "message": brief(broken.what),
        "error": None if broken.__cause__ is None else type(broken.__cause__).__name__,
        "look_at": [place._asdict() for place in look_at(broken, kinds)],
        "read": read(broken.law, None),
    }
    if seen is None:
        return told
    return {
        **told,
        "mix": seen.case.row.name,
        "stages": seen.case.row.stages,
        "capacity": seen.case.capacity,
        "settings": plain(seen.case.settings),
        "scenario": plain(seen.case.scenario),
        "steps": [step_decisions(step) for step in seen.steps],
        "run": _run(seen, broken.what, WIDEST, places=True),
    }


def plain(value: Any) -> Any:
    """A value of dataclasses, tuples and enums for JSON; what JSON does not have as it prints."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (tuple, list)):
        return [plain(held) for held in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else repr(value)
