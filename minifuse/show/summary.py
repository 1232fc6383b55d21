"""Summarises a run: timeline, waits, and the longest gaps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from minifuse.core.errors import one_line, shortened
from minifuse.io.parsing import number
from minifuse.show.figures import first_few, in_time, plain
from minifuse.show.timeline import Timeline, draw_timeline
from minifuse.trace.gaps import Gap
from minifuse.trace.history import History
from minifuse.trace.waits import Waited

SCHEMA = "minifuse.trace-summary/2"
LABEL_WIDTH = 20  # of a request's name
IDLE, MEMORY = "idle/10", "mem/10"
NAMED = 4  # requests that a sentence names
SHARES = {
    IDLE: "of the tokens computed, tenths that were idle; blank: none",
    MEMORY: "of the memory, tenths in use",
}


def timeline_of(history: History, width: int, most_rows: int) -> Timeline:
    """Draw the first requests of a run, in lines of at most `width` characters."""
    names = [_label(story.id) for story in history.by_arrival[:most_rows]]
    return draw_timeline(history, width - 1 - max(map(len, [IDLE, *names])), most_rows)


def as_lines(history: History, timeline: Timeline, waits: list[Waited], gaps: list[Gap], width: int) -> Iterator[str]:
    """Write the summary as text, no line longer than `width`."""
    yield from _wrapped(_title(history), 0, width)
    yield ""
    yield from picture(history, timeline, width)
    yield ""
    yield from _waiting(waits, width)
    yield ""
    yield from _gaps(history, gaps, width)


def as_json(
    history: History, timeline: Timeline, waits: list[Waited], gaps: list[Gap], notice: str | None
) -> dict[str, Any]:
    """Return the summary as plain values; times are seconds."""
    noun = "tokens" if history.has_tokens else "iterations"
    return {
        "schema": SCHEMA,
        **{name: history.header.get(name) for name in ("technique", "model", "clock")},
        "notice": notice,
        "requests": {"total": len(history.stories) + len(history.refused), **_ended(history)},
        "iterations": sum(bool(one.work) for one in history.iterations),
        "last_s": history.last_s,
        "timeline": _fields(timeline),
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
            {**_fields(gap), "between": noun, "seconds": gap.seconds, "sentence": _told(history, gap)} for gap in gaps
        ],
    }


def _fields(of: Timeline | Gap) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}


def _title(history: History) -> str:
    header = history.header
    ended = ", ".join(f"{count} {reason}" for reason, count in _ended(history).items())
    total = number(len(history.stories) + len(history.refused), "request")
    iterations = number(sum(bool(one.work) for one in history.iterations), "iteration")
    first_s = min((story.arrival_s for story in history.stories.values()), default=history.last_s)
    seconds = in_time(max(0.0, history.last_s - first_s))
    what = f"{header.get('technique')} on {header.get('model')}, {header.get('clock')} time"
    return f"{what}: {total}{f' ({ended})' * bool(ended)}, {iterations} in {seconds}"


def _ended(history: History) -> dict[str, int]:
    """Count the requests that ended for each reason."""
    found: dict[str, int] = {}
    for story in history.stories.values():
        found[story.reason] = found.get(story.reason, 0) + 1
    return found | ({"refused": len(history.refused)} if history.refused else {})


def _label(name: str) -> str:
    return shortened(one_line(name), LABEL_WIDTH)


def picture(history: History, timeline: Timeline, width: int) -> Iterator[str]:
    """Write the rows of a timeline, and explain columns and signs."""
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
    names = {name: _label(name) for name in timeline.rows}
    indent = max(map(len, [IDLE, *names.values()])) + 1
    for name, signs in timeline.rows.items():
        yield f"{names[name]:<{indent}}{signs}".rstrip()
    shares = {label: signs for label, signs in ((IDLE, timeline.idle), (MEMORY, timeline.memory)) if signs.strip()}
    for label, signs in shares.items():
        yield f"{label:<{indent}}{signs}".rstrip()
    if timeline.left_out:
        yield f"{number(timeline.left_out, 'more request')} left out."
    explained = timeline.legend | {label: SHARES[label] for label in shares}
    legend = "; ".join(f"{sign} {means}" for sign, means in explained.items())
    if several and timeline.rows:
        legend += "; of several in a column, the most frequent, and every end"
    yield from _wrapped(legend, 0, width)


def _waiting(waits: list[Waited], width: int) -> Iterator[str]:
    if not waits:
        yield "No request waited."
        return
    yield "Waited for"
    for one in waits:
        name, longest_s = one.longest
        requests, longest = number(len(one.seconds), "request"), f"{in_time(longest_s)} {_label(name)}"
        yield from _wrapped(f"{one.code}: {requests}, {in_time(one.total_s)}, longest {longest}", 2, width, 0)
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
        names = _label(first) + (f" (and {number(len(alike), 'other')} alike)" if alike else "")
        head = f"{in_time(gap.seconds):>8}  {names}, {what}, from {gap.start_s:.3f} s: "
        yield from _wrapped(head + _told(history, gap), 10, width, first=0)


def _told(history: History, gap: Gap) -> str:
    """Describe what happened in a gap, the longest part first."""
    unit = "node" if history.of_cells else "token"
    parts: list[tuple[float, str]] = []
    why = f" ({'; '.join(gap.why)})" if gap.why else ""
    meanwhile = f", while {number(gap.others, 'iteration')} ran without it" if gap.others else ""
    if gap.suspended_s:
        parts.append((gap.suspended_s, f"suspended for {in_time(gap.suspended_s)}{why}{meanwhile}"))
    if gap.ready_s:
        told = "" if gap.suspended_s else why + meanwhile
        parts.append((gap.ready_s, f"waited to join for {in_time(gap.ready_s)}{told}"))
    if gap.others_s:
        waited = gap.suspended_s or gap.ready_s
        ran = "other iterations" if waited else f"{number(gap.others, 'iteration')} without it"
        parts.append((gap.others_s, f"{ran}, {in_time(gap.others_s)}"))
    if gap.own:
        anew = f" ({gap.computed} {unit}s of it computed)" if gap.computed > gap.own else ""
        parts.append((gap.own_s, f"{number(gap.own, 'iteration')} with it{anew}, {in_time(gap.own_s)}"))
    if gap.nothing_s > gap.seconds / 1000:
        parts.append((gap.nothing_s, f"nothing ran for {in_time(gap.nothing_s)}"))
    said = [text for _, text in sorted(parts, key=lambda part: -part[0])]
    if gap.prompts:
        names = first_few(list(gap.prompts), NAMED)
        said.append(f"{plain(sum(gap.prompts.values()))} prompt tokens of {names} computed meanwhile")
    if gap.moves:
        kinds = ", ".join(f"{tokens:,} {kind}" for kind, tokens in sorted(gap.moves.items()))
        waited = max(gap.moving_s, gap.exposed_s)
        said.append(f"KV tokens moved: {kinds}" + (f", waited for {in_time(waited)}" if waited else ""))
    return "; ".join(said)


def _wrapped(text: str, indent: int, width: int, first: int | None = None) -> list[str]:
    return textwrap.wrap(
        one_line(text), width, initial_indent=" " * (indent if first is None else first), subsequent_indent=" " * indent
    ) or [""]
