"""A run's summary as text: who ran when, who waited for what, and the longest gaps with their reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from minifuse.cli.tables import in_time, plain
from minifuse.cli.text import LABEL_WIDTH, first_few
from minifuse.core.errors import one_line, shortened
from minifuse.show.timeline import Timeline, draw_timeline
from minifuse.trace.gaps import Gap
from minifuse.trace.history import History
from minifuse.trace.waits import Waited

SCHEMA = "minifuse.trace-summary/1"
TABLE_WIDTH = 70  # of the table of reasons: in narrower lines it is told in words
IDLE, MEMORY = "idle/10", "mem/10"
NAMED = 4  # requests, in a sentence
SHARES = {
    IDLE: "of the tokens computed, tenths that were idle; blank: none",
    MEMORY: "of the memory, tenths in use",
}


def timeline_of(history: History, width: int, most_rows: int) -> Timeline:
    """The picture of a run, in lines of this width."""
    return draw_timeline(history, width - _indent(history, most_rows), most_rows)


def as_lines(history: History, timeline: Timeline, waits: list[Waited], gaps: list[Gap], width: int) -> Iterator[str]:
    """The summary as text, no line longer than `width`."""
    yield from _wrapped(_title(history), 0, width)
    yield ""
    yield from _picture(history, timeline, width)
    yield ""
    yield from _waiting(waits, width)
    yield ""
    yield from _gaps(history, gaps, width)


def as_json(
    history: History, timeline: Timeline, waits: list[Waited], gaps: list[Gap], notice: str | None
) -> dict[str, Any]:
    """The same as plain values; times are seconds."""
    ended = _ended(history)
    return {
        "schema": SCHEMA,
        "technique": history.header.get("technique"),
        "model": history.header.get("model"),
        "clock": history.header.get("clock"),
        "notice": notice,
        "requests": {"total": len(history.stories) + len(history.refused), **ended},
        "iterations": sum(bool(one.work) for one in history.iterations),
        "last_s": history.last_s,
        "timeline": {
            "columns": timeline.num_columns,
            "columns_in_all": timeline.in_all,
            "per_column": timeline.per_column,
            "rows": timeline.rows,
            "idle_tenths": timeline.idle,
            "memory_tenths": timeline.memory,
            "legend": timeline.legend,
            "left_out": timeline.left_out,
        },
        "waits": [
            {
                "code": one.code,
                "requests": len(one.seconds),
                "total_s": one.total_s,
                "longest_s": one.longest[1],
                "longest_request": one.longest[0],
                "sentence": one.sentence,
            }
            for one in waits
        ],
        "gaps": [
            {
                "requests": gap.requests,
                "between": "tokens" if history.has_tokens else "iterations",
                "index": gap.index,
                "start_s": gap.start_s,
                "end_s": gap.end_s,
                "seconds": gap.seconds,
                "own_s": gap.own_s,
                "own_iterations": gap.own,
                "own_tokens": gap.computed,
                "suspended_s": gap.suspended_s,
                "ready_s": gap.ready_s,
                "others_s": gap.others_s,
                "other_iterations": gap.others,
                "nothing_s": gap.nothing_s,
                "prompts": gap.prompts,
                "moves": dict(gap.moves),
                "moving_s": gap.moving_s,
                "exposed_s": gap.exposed_s,
                "reasons": gap.why,
                "sentence": _told(history, gap),
            }
            for gap in gaps
        ],
    }


def _title(history: History) -> str:
    header = history.header
    ended = ", ".join(f"{number} {reason}" for reason, number in _ended(history).items())
    total = len(history.stories) + len(history.refused)
    num = sum(bool(one.work) for one in history.iterations)
    what = f"{header.get('technique')} on {header.get('model')}, {header.get('clock')} time"
    first_s = min((story.arrival_s for story in history.stories.values()), default=history.last_s)
    return (
        f"{what}: {_number(total, 'request')}" + (f" ({ended})" if ended else "")
        + f", {_number(num, 'iteration')} in {in_time(max(0.0, history.last_s - first_s))}"
    )  # fmt: skip


def _ended(history: History) -> dict[str, int]:
    """How many requests ended for which reason."""
    found: dict[str, int] = {}
    for story in history.stories.values():
        found[story.reason] = found.get(story.reason, 0) + 1
    return found | ({"refused": len(history.refused)} if history.refused else {})


def _indent(history: History, most_rows: int) -> int:
    names = [_label(story.id) for story in history.by_arrival[:most_rows]]
    return max(map(len, [IDLE, *names])) + 1


def _label(name: str) -> str:
    return shortened(one_line(name), LABEL_WIDTH)


def _picture(history: History, timeline: Timeline, width: int) -> Iterator[str]:
    if not timeline.num_columns:
        yield "Nothing was computed."
        return
    several = timeline.per_column > 1
    columns = f"a column is {timeline.per_column} iterations" if several else "a column is an iteration"
    if any(pause.reasons for pause in history.pauses):
        columns += ", or a pause in which nothing ran"
    if timeline.num_columns < timeline.in_all:
        columns += f"; the first {timeline.num_columns:,} of {timeline.in_all:,}, in which these requests are served"
    yield from _wrapped(f"Timeline: {columns}", 0, width)
    indent = _indent(history, len(timeline.rows))
    shares = {}
    for name, signs in timeline.rows.items():
        yield f"{_label(name):<{indent}}{signs}".rstrip()
    for label, signs in ((IDLE, timeline.idle), (MEMORY, timeline.memory)):
        if signs.strip():
            yield f"{label:<{indent}}{signs}".rstrip()
            shares[label] = SHARES[label]
    if timeline.left_out:
        every = timeline.left_out + len(timeline.rows)
        yield from _wrapped(
            f"{_number(timeline.left_out, 'more request')} left out: --rows {every} shows all.", 0, width
        )
    legend = "; ".join(f"{sign} {means}" for sign, means in (timeline.legend | shares).items())
    if several and timeline.rows:
        legend += "; of several in a column, the most frequent, and every end"
    yield from _wrapped(legend, 0, width)


def _waiting(waits: list[Waited], width: int) -> Iterator[str]:
    if not waits:
        yield "No request waited."
        return
    wide = width >= TABLE_WIDTH
    yield f"{'Waited for':<20}{'requests':>9}{'total':>10}{'longest':>10}" if wide else "Waited for"
    for one in waits:
        name, longest_s = one.longest
        number, total, longest = len(one.seconds), in_time(one.total_s), in_time(longest_s)
        if wide:
            yield f"{one_line(one.code):<20}{number:>9}{total:>10}{longest:>10} {_label(name)}"
        else:
            line = f"{one_line(one.code)}: {_number(number, 'request')}, {total}, longest {longest} {_label(name)}"
            yield from _wrapped(line, 2, width, first=0)
        yield from _wrapped(one.sentence, 4, width)


def _gaps(history: History, gaps: list[Gap], width: int) -> Iterator[str]:
    noun = "tokens" if history.has_tokens else "iterations"
    if not gaps:
        yield f"No request has two {noun} with time between them."
        return
    yield from _wrapped(f"The longest gaps between two {noun} of a request", 0, width)
    for gap in gaps:
        what = f"{noun[:-1]}s {gap.index - 1} and {gap.index}"
        first, *alike = gap.requests
        names = _label(first) + (f" (and {_number(len(alike), 'other')} alike)" if alike else "")
        head = f"{in_time(gap.seconds):>8}  {names}, {what}, from {gap.start_s:.3f} s: "
        yield from _wrapped(head + _told(history, gap), 10, width, first=0)


def _told(history: History, gap: Gap) -> str:
    """What happened in a gap, what took longest first."""
    unit = "node" if history.of_cells else "token"
    parts: list[tuple[float, str]] = []
    why = f" ({'; '.join(gap.why)})" if gap.why else ""
    meanwhile = f", while {_number(gap.others, 'iteration')} ran without it" if gap.others else ""
    if gap.suspended_s:
        parts.append((gap.suspended_s, f"suspended for {in_time(gap.suspended_s)}{why}{meanwhile}"))
    if gap.ready_s:
        told = "" if gap.suspended_s else why + meanwhile
        parts.append((gap.ready_s, f"waited to join for {in_time(gap.ready_s)}{told}"))
    if gap.others_s:
        waited = gap.suspended_s or gap.ready_s
        ran = "other iterations" if waited else f"{_number(gap.others, 'iteration')} without it"
        parts.append((gap.others_s, f"{ran}, {in_time(gap.others_s)}"))
    if gap.own:
        anew = f" ({gap.computed} {unit}s of it computed)" if gap.computed > gap.own else ""
        parts.append((gap.own_s, f"{_number(gap.own, 'iteration')} with it{anew}, {in_time(gap.own_s)}"))
    if gap.nothing_s > gap.seconds / 1000:
        parts.append((gap.nothing_s, f"nothing ran for {in_time(gap.nothing_s)}"))
    said = [text for _, text in sorted(parts, key=lambda part: -part[0])]
    if gap.prompts:
        names = first_few(list(gap.prompts), NAMED)
        said.append(f"{plain(sum(gap.prompts.values()))} prompt tokens of {names} computed meanwhile")
    if gap.moves:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(gap.moves.items()))
        waited = max(gap.moving_s, gap.exposed_s)
        said.append(f"KV tokens moved: {kinds}" + (f", waited for {in_time(waited)}" if waited else ""))
    return "; ".join(said)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _wrapped(text: str, indent: int, width: int, first: int | None = None) -> list[str]:
    return textwrap.wrap(
        one_line(text), width, initial_indent=" " * (indent if first is None else first), subsequent_indent=" " * indent
    ) or [""]
