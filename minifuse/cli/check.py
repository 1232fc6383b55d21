"""`minifuse check STAGE`: put a stage through the laws, and show what it breaks."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from minifuse.cli.declare import argument, json_switch, option, switch, takes, whole
from minifuse.cli.options import parse_stage_options
from minifuse.cli.plugin import load_plugin, plugins
from minifuse.cli.streams import print_result
from minifuse.cli.text import tell
from minifuse.core.errors import CheckerFailed, LawBroken, MachineError, MinifuseError, UsageError, one_line, shortened
from minifuse.ctrl_c import INTERRUPTED
from minifuse.io.parsing import parse_duration, unknown
from minifuse.serve.interrupt import uninterrupted
from minifuse.stages import KINDS, kinds_of, stages
from minifuse.techniques import TECHNIQUES

if TYPE_CHECKING:
    from minifuse.cli.verdict import Tally


SCHEMA = "minifuse.check/1"
UNDECIDED = 1
QUICK_SCENARIOS, LEAST_SCENARIOS = 150, 2  # of all mixes together, and of one
SCENARIOS = 25  # of each mix
GAP_S = 0.2  # between two lines of progress on a terminal


def _limit(text: str, flag: str) -> float:
    seconds = parse_duration(text, flag)
    if not 1 <= seconds <= 1e6:
        raise UsageError(f'{flag} is "{text}": give a time from 1s to 1e6s.')
    return seconds


PLUGIN = "a file that registers the stage; repeatable"
QUICK = f"about {QUICK_SCENARIOS} scenarios, one comparing law on each: about half a minute on two cores"
LIMIT = "stop after this time, as 10min; without it, when all is tried"
SET = "try this value alone of an option: batching.max_batch=4; repeatable"


@dataclass(frozen=True)
class CheckOptions:
    """The options of `check`."""

    stage: Annotated[str | None, argument("STAGE", "a stage (memory.paged: the memory of that name) or a technique")]
    plugin: Annotated[list[str], option("--plugin", PLUGIN, "FILE.py", repeatable=True)]
    options: Annotated[
        dict[str, str], option("--set", SET, "STAGE.OPTION=V", parse=parse_stage_options, repeatable=True)
    ]
    quick: Annotated[bool, switch("--quick", QUICK)]
    scenarios: Annotated[
        int | None, option("--scenarios", f"for each mix: {SCENARIOS}", "N", parse=whole(1, 1_000_000))
    ]
    limit: Annotated[float | None, option("--limit", LIMIT, "TIME", parse=_limit)]
    seed: Annotated[
        int, option("--seed", "of the scenarios: the same seed, the same verdict", "N", parse=whole(0), default="0")
    ]
    json: Annotated[bool, json_switch()]


@takes(CheckOptions)
def check(options: CheckOptions) -> int:
    """Put a stage of yours through the laws, and show the smallest scenario that breaks one.

    Exit code 0: the laws hold. 1: one is broken, time ran out before each mix was tried, or a law failed. 2: bad usage,
    or a class that cannot be a stage. 3: the test extra is not installed. With --json each prints a document.
    """
    try:
        return _check(options)
    except MinifuseError as error:
        if options.json:
            print_result(_document(options, "unusable", message=str(error)))
        raise


def _check(options: CheckOptions) -> int:
    if options.stage is None:
        raise UsageError("No stage was named: give the name of one, such as iteration, or of a technique.")
    if options.quick and options.scenarios is not None:
        raise UsageError("--quick and --scenarios are both given: give one of them.")
    found: LawBroken | None = None
    tally: Tally | None = None
    with _Progress(options.stage) as progress:
        try:
            if options.plugin:
                progress.say("loading")
            for path in options.plugin:
                load_plugin(path)
            _check_name(options.stage)
            progress.say("loading")
            mixes, tally = _mixes(options.stage, options.options)
            try:
                stopped = _search_reading(options, mixes, tally, progress)
            except LawBroken as broken:
                found, stopped = broken, False
        except KeyboardInterrupt:
            progress.stop()
            message = f"Interrupted: no law was found broken on {tally or 'nothing yet'}."
            return _show_undecided(options, tally, message, INTERRUPTED)
        except CheckerFailed as failed:
            progress.stop()
            return _show_undecided(options, tally, f"{failed} See it again with {_again(options)}.", failed.exit_code)
    with uninterrupted():
        return _show(options, tally, found, stopped)


def _show_undecided(options: CheckOptions, tally: Tally | None, message: str, code: int) -> int:
    """Say what ended the check before its end, and return the exit code."""
    with uninterrupted():
        if options.json:
            print_result(_document(options, "undecided", tally, message=message, complete=False))
        tell(f"error: {message}")
    return code


def _check_name(name: str) -> None:
    if name not in TECHNIQUES and not kinds_of(name):
        known = dict.fromkeys([*TECHNIQUES, *(known for kind in KINDS for known in stages(kind))])
        raise unknown("technique or stage", name, known)


def _mixes(name: str, given: Mapping[str, str]) -> tuple[Any, Tally]:
    """The mixes that a stage is in, and an empty tally of them. Imports torch and hypothesis."""
    try:
        from minifuse.cli.verdict import Tally
        from minifuse.testing import mixes as of
        from minifuse.testing.applies import unclaimed
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hypothesis":
            raise
        raise MachineError(
            "minifuse check makes scenarios up with hypothesis, which is not installed: "
            "pip install -e '.[test]' -c constraints.txt."
        ) from None
    mixes = of.mixes_of(name)
    if not mixes:
        raise UsageError(f"The stage {name!r} fits no other stages: see what they `offer`, `read` and `serve`.")
    uncut = of.unclaimed_cuts(mixes)
    found = [mix for mix in of.with_options(mixes, given) if of.can_be_computed(mix[1])]
    if not found:
        raise UsageError(f"No mix of {name!r} can keep its token_budget: give none, or choose other stages.")
    return found, Tally({}, len(found), *of.applying(found), uncut, unclaimed(name))


def _search_reading(options: CheckOptions, mixes: Any, tally: Tally, progress: _Progress) -> bool:
    """Search, and note which options the stages of a plugin never read. Return whether time ran out."""
    from minifuse.testing.drawn import own_options, recorded

    own = [option for _, row in mixes for option in own_options(row).items()]
    with recorded({declared.options for _, declared in own}) as read:
        stopped = _search(options, mixes, tally, progress)
    tally.unread += dict.fromkeys(name for name, declared in own if (declared.options, declared.name) not in read)
    tally.leave_out_uncompared()
    return stopped


def _search(options: CheckOptions, mixes: Any, tally: Tally, progress: _Progress) -> bool:
    """Try scenarios, mix by mix. Return whether time ran out before the last."""
    from minifuse.testing.search import NO_LIMIT, Limit, Search, compared_laws

    limit = NO_LIMIT if options.limit is None else Limit.of(options.limit, time.monotonic())
    shares = _shares(mixes) if options.quick else [options.scenarios or SCENARIOS] * len(mixes)
    crowded: set[str] | None = None if options.quick else set()
    for number, ((subject, row), each) in enumerate(zip(mixes, shares, strict=True)):
        name = row.name if row.name not in tally.tried else f"{row.name} on {subject.noun}"

        def say(tried: int, law: str, name: str = name, number: int = number, each: int = each) -> None:
            tally.tried[name] = tried
            progress.say(f"mix {number + 1} of {len(mixes)}, {name}", f"scenario {tried} of {each}, {law}")

        first = sum(shares[:number]) if options.quick else None
        laws, long = compared_laws(subject), not options.quick
        search = Search(subject, row, laws, first=first, long=long, crowded=crowded, limit=limit, say=say)
        search.run(each, options.seed)
        tally.hits.setdefault(row.memory, []).append(search.hits)
        if search.out_of_time:
            return True
    return False


def _shares(mixes: Any) -> list[int]:
    """The scenarios of each mix in the quick form: half of all are the techniques', if there are any."""
    named = [row.name in TECHNIQUES for _, row in mixes]
    part = QUICK_SCENARIOS if len(set(named)) == 1 else QUICK_SCENARIOS // 2
    return [max(LEAST_SCENARIOS, part // named.count(own)) for own in named]


def _show(options: CheckOptions, tally: Tally, broken: LawBroken | None, stopped: bool) -> int:
    """Print the verdict, and return the exit code."""
    from minifuse.cli.verdict import broken_json, broken_text, held_text, undecided_text

    name = str(options.stage)
    kinds = [] if name in TECHNIQUES else kinds_of(name)
    if broken is not None:
        verdict, code = "broken", broken.exit_code
    else:
        verdict, code = ("undecided", UNDECIDED) if tally.untried else ("holds", 0)
    if options.json:
        details = None if broken is None else broken_json(broken, kinds)
        print_result(_document(options, verdict, tally, broken=details, complete=not stopped))
    elif broken is not None:
        print_result(broken_text(name, kinds, broken, tally, _again(options)))
    elif verdict == "undecided":
        print_result(undecided_text(name, tally))
    else:
        advice = (
            "Without --quick every scenario meets all laws, and long runs of many requests are tried."
            if options.quick
            else "More scenarios: --scenarios 300; others: --seed 1."
        )
        print_result(held_text(name, tally, stopped, advice, quick=options.quick))
    return code


def _document(
    options: CheckOptions, verdict: str, tally: Tally | None = None, *, complete: bool = True, **more: Any
) -> str:
    """The verdict as JSON; `complete`: time did not run out."""
    result = {
        "schema": SCHEMA,
        "stage": options.stage,
        "verdict": verdict,
        "message": None,
        "complete": complete,
        "quick": options.quick,
        "seed": options.seed,
        "options": options.options,
        "laws": [] if tally is None else [*tally.laws],
        "in_mixes": {} if tally is None else tally.laws,
        "left_out": {} if tally is None else tally.left_out,
        "unclaimed": [] if tally is None else tally.unclaimed,
        "uncut": [] if tally is None else tally.uncut,
        "unread": [] if tally is None else tally.unread,
        "unfound": [] if tally is None else tally.unfound,
        "uncompared": {} if tally is None else tally.uncompared,
        "mixes": {} if tally is None else tally.tried,
        "scenarios": 0 if tally is None else tally.scenarios,
        "broken": None,
    }
    return json.dumps(result | more)


def _again(options: CheckOptions) -> str:
    here = Path.cwd()
    paths = [path.relative_to(here) if path.is_relative_to(here) else path for path in plugins()]
    files = "".join(f" --plugin {shlex.quote(str(path))}" for path in paths)
    given = "".join(f" --set {shlex.quote(f'{name}={value}')}" for name, value in options.options.items())
    scenarios = f" --scenarios {options.scenarios}" if options.scenarios else ""
    return f"minifuse check{files} {options.stage}{given}{' --quick' * options.quick}{scenarios} --seed {options.seed}"


class _Progress:
    """What is being checked, on stderr: a line that changes on a terminal, elsewhere a line for each mix."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""
        self._next_s = 0.0
        self._live: Any = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            self._live = sys.stderr
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the line away."""
        if self._live is not None:
            with uninterrupted():
                self._live.write("\r\x1b[K")
                self._live.flush()
                self._live = None

    def say(self, what: str, more: str = "") -> None:
        if self._live is not None:
            if what == self._last and time.monotonic() < self._next_s:
                return
            self._next_s = time.monotonic() + GAP_S
            text = f"{self._name}: {what}{', ' * bool(more)}{more}"
            self._live.write(f"\r\x1b[K{shortened(one_line(text), get_terminal_size().columns - 1)}")
            self._live.flush()
        elif what != self._last:
            tell(f"{self._name}: {what}")
        self._last = what
