"""`minifuse check STAGE`: tries a stage against the laws, and shows what it breaks."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from minifuse.cli.declare import argument, json_switch, option, switch, takes, whole
from minifuse.cli.options import SET, stage_options
from minifuse.cli.plugin import load_plugin, plugins
from minifuse.cli.status import Status
from minifuse.cli.streams import print_result
from minifuse.cli.tally import Tally
from minifuse.cli.text import tell
from minifuse.core.errors import CheckerFailed, LawBroken, MachineError, MinifuseError, UsageError
from minifuse.ctrl_c import INTERRUPTED
from minifuse.io.parsing import parse_duration, unknown
from minifuse.serve.interrupt import uninterrupted
from minifuse.stages import KINDS, kinds_of, stages
from minifuse.techniques import TECHNIQUES

SCHEMA = "minifuse.check/1"
UNDECIDED = 1
QUICK_SCENARIOS, LEAST_SCENARIOS = 150, 2  # scenarios of all mixes together, and the minimum of one mix
SCENARIOS = 25  # scenarios of each mix


def _limit(text: str, flag: str) -> float:
    seconds = parse_duration(text, flag)
    if not 1 <= seconds <= 1e6:
        raise UsageError(f'{flag} is "{text}": give a time from 1s to 1e6s.')
    return seconds


STAGE = "a stage (memory.paged: the memory of that name) or a technique"
QUICK = f"about {QUICK_SCENARIOS} scenarios, one comparing law on each: about half a minute on two cores"
LIMIT = "stop after this time, as 10min; without it, when all is tried"


@dataclass(frozen=True)
class CheckOptions:
    """The options of `check`."""

    stage: Annotated[str | None, argument("STAGE", STAGE)] = None
    plugin: Annotated[Sequence[str], option("--plugin", "a file that registers the stage; repeatable", "FILE.py")] = ()
    options: Annotated[Sequence[str], SET(help="try this value alone of an option; repeatable")] = ()
    quick: Annotated[bool, switch("--quick", QUICK)] = False
    scenarios: Annotated[
        int | None, option("--scenarios", f"for each mix: {SCENARIOS}", "N", parse=whole(1, 1_000_000))
    ] = None
    limit: Annotated[float | None, option("--limit", LIMIT, "TIME", parse=_limit)] = None
    seed: Annotated[int, option("--seed", "of the scenarios: the same seed, the same verdict", "N", parse=whole(0))] = 0
    json: Annotated[bool, json_switch()] = False


@takes(CheckOptions)
def check(options: CheckOptions) -> int:
    """Check a stage against the laws, and show the smallest scenario that breaks one.

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
    given = stage_options(options.options)
    broken: LawBroken | None = None
    tally: Tally | None = None
    stopped = False
    try:
        with Status(options.stage) as status:
            for path in options.plugin:
                status.say("loading")
                load_plugin(path)
            _check_name(options.stage)
            status.say("loading")
            mixes, tally = _mixes(options.stage, given)
            try:
                stopped = _search_reading(options, mixes, tally, status)
            except LawBroken as found:
                broken = found
    except KeyboardInterrupt:
        message, code = f"Interrupted: no law was found broken on {tally or 'nothing yet'}.", INTERRUPTED
    except CheckerFailed as failed:
        message, code = f"{failed} See it again with {_again(options)}.", failed.exit_code
    else:
        with uninterrupted():
            return _show(options, tally, broken, stopped)
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
    """Find the mixes of a stage, and make a tally of what is tried."""
    try:
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
    return found, Tally(len(found), *of.applying(found), uncut, unclaimed(name))


def _search_reading(options: CheckOptions, mixes: Any, tally: Tally, status: Status) -> bool:
    """Search, and record which options a plugin's stages never read. Returns whether time ran out."""
    from minifuse.testing.drawn import own_options, recorded

    own = [option for _, row in mixes for option in own_options(row).items()]
    with recorded({declared.options for _, declared in own}) as read:
        stopped = _search(options, mixes, tally, status)
    tally.unread += dict.fromkeys(name for name, declared in own if (declared.options, declared.name) not in read)
    tally.leave_out_uncompared()
    return stopped


def _search(options: CheckOptions, mixes: Any, tally: Tally, status: Status) -> bool:
    """Try scenarios, mix by mix. Returns whether time ran out before the end."""
    from minifuse.testing.search import NO_LIMIT, Limit, Search, compared_laws

    limit = NO_LIMIT if options.limit is None else Limit.of(options.limit, time.monotonic())
    shares = _shares(mixes) if options.quick else [options.scenarios or SCENARIOS] * len(mixes)
    crowded: set[str] | None = None if options.quick else set()
    for number, ((subject, row), each) in enumerate(zip(mixes, shares, strict=True)):
        name = row.name if row.name not in tally.tried else f"{row.name} on {subject.noun}"

        def say(tried: int, law: str, name: str = name, number: int = number, each: int = each) -> None:
            tally.tried[name] = tried
            status.say(f"mix {number + 1} of {len(mixes)}, {name}", f", scenario {tried} of {each}, {law}")

        first = sum(shares[:number]) if options.quick else None
        laws, long = compared_laws(subject), not options.quick
        search = Search(subject, row, laws, first=first, long=long, crowded=crowded, limit=limit, say=say)
        search.run(each, options.seed)
        tally.hits.setdefault(row.memory, []).append(search.hits)
        if search.out_of_time:
            return True
    return False


def _shares(mixes: Any) -> list[int]:
    """Divide the scenarios of --quick among the mixes: half go to techniques."""
    named = [row.name in TECHNIQUES for _, row in mixes]
    part = QUICK_SCENARIOS if len(set(named)) == 1 else QUICK_SCENARIOS // 2
    return [max(LEAST_SCENARIOS, part // named.count(own)) for own in named]


def _show(options: CheckOptions, tally: Tally, broken: LawBroken | None, stopped: bool) -> int:
    """Print the verdict, and return the exit code."""
    from minifuse.cli.verdict import broken_json, broken_text, held_text, undecided_text

    name = str(options.stage)
    kinds = [] if name in TECHNIQUES else kinds_of(name)
    details = None
    if broken is not None:
        verdict, code = "broken", broken.exit_code
        if options.json:
            details = broken_json(broken, kinds)
        else:
            text = broken_text(name, kinds, broken, tally, _again(options))
    elif tally.untried:
        verdict, code, text = "undecided", UNDECIDED, undecided_text(name, tally)
    else:
        verdict, code, text = "holds", 0, held_text(name, tally, stopped, quick=options.quick)
    if options.json:
        text = _document(options, verdict, tally, broken=details, complete=not stopped)
    print_result(text)
    return code


def _document(
    options: CheckOptions,
    verdict: str,
    tally: Tally | None = None,
    *,
    message: str | None = None,
    broken: dict[str, Any] | None = None,
    complete: bool = True,
) -> str:
    """Write the verdict as JSON. `complete` means that time did not run out."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "stage": options.stage,
            "verdict": verdict,
            "message": message,
            "complete": complete,
            "quick": options.quick,
            "seed": options.seed,
            "options": stage_options(options.options),
            **(tally or Tally()).as_json(),
            "broken": broken,
        }
    )


def _again(options: CheckOptions) -> str:
    here = Path.cwd()
    paths = [path.relative_to(here) if path.is_relative_to(here) else path for path in plugins()]
    files = "".join(f" --plugin {shlex.quote(str(path))}" for path in paths)
    given = "".join(f" --set {shlex.quote(text)}" for text in options.options)
    scenarios = f" --scenarios {options.scenarios}" if options.scenarios else ""
    return f"minifuse check{files} {options.stage}{given}{' --quick' * options.quick}{scenarios} --seed {options.seed}"
