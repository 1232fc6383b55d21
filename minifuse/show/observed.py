"""Draws a short observed run in characters: a row for each sequence."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from minifuse.core.errors import one_line, shortened
from minifuse.core.places import Pages, Runs, State
from minifuse.core.plan import TRANSFORMER, Extent, Move, Place, Plan, Proposal, Work
from minifuse.core.request import Request
from minifuse.io.parsing import number

if TYPE_CHECKING:
    from minifuse.testing.observation import Observation


BROKEN = "!!"
CUT = "..."
MOST_DECISIONS = 3
LONGEST = 230  # characters of a text that says what happened
MOST_ROWS = 20  # if there are more rows, only those that ran most or went wrong are shown


def timeline(seen: Observation, what: str, width: int) -> list[str]:
    """Draw the run, with a line of text for each row.

    Args:
        what: the message about what went wrong. Sequences that it names are marked; if it names none, the last step is.
        width: the most characters of a line. If the run is too long, only its last steps are drawn.
    """
    columns = list(_columns(seen))
    labels = _labels(seen, columns)
    named = [request.id for request in seen.case.requests if re.search(rf"\b{re.escape(request.id)}\b", what)]
    columns.append(dict.fromkeys(named or ["step"], BROKEN))
    widths = [max(map(len, column.values())) + 2 for column in columns]
    indent = max(map(len, labels.values()))
    left, first = width - indent - len(CUT), len(columns)
    while first and widths[first - 1] <= left:
        first -= 1
        left -= widths[first]
    lines = []
    shown = [
        name
        for name in labels
        if len(labels) <= MOST_ROWS or any(column.get(name, ".") != "." for column in columns[first:])
    ]
    if len(shown) > MOST_ROWS:  # those that went wrong, and those that were computed most
        done = Counter({name: sum(column.get(name, "-") != "-" for column in columns[first:]) for name in shown})
        most = {name for name, _ in done.most_common(MOST_ROWS)} | {*named}
        shown = [name for name in shown if name in most]
    for name in shown:
        label = labels[name]
        cut = CUT if first and name == "step" else "   "
        cells = (f"{columns[i].get(name, ''):>{widths[i]}}" for i in range(first, len(columns)))
        lines.append(f"{label:<{indent}}{cut if first else ''}{''.join(cells)}".rstrip())
    if len(shown) < len(labels):
        lines.append(f"{len(labels) - len(shown)} others wait, have ended, or have not arrived")
    return lines


def legend(lines: list[str]) -> str:
    """Explain the signs in these lines of a picture."""
    text = "\n".join(lines)
    signs = {
        r"\d\+\d+ tokens": "1+2: a prompt of 1 and at most 2 new tokens",
        r"(?m)^step.* \?": "?: proposed, not begun",
        r"\s\.(\s|$)": ".: waits",
        r"\s-(\s|$)": "-: admitted, and not computed",
        r"\sout(\s|$)": "out: evicted",
        r"\d\|": "|: ends",
        r" after r\d": "after r0: when r0 has ended, behind its text",
        BROKEN: f"{BROKEN}: here",
    }
    numbers = "the numbers: " + ("tokens computed" if "tokens" in text else "nodes computed")
    return "; ".join([numbers, *(means for sign, means in signs.items() if re.search(sign, text))])


def _labels(seen: Observation, columns: list[dict[str, str]]) -> dict[str, str]:
    """Write the text on the left of each row."""
    requests = seen.case.requests
    texts = {request.id: f"{len(request.prompt)}+{request.max_new_tokens} tokens" for request in requests}
    texts |= {request.id: request.structure.kind for request in requests if request.structure is not None}
    name, text = (max(map(len, column)) for column in (texts, texts.values()))
    labels = {"step": "step", "ms": "decided at, in ms"}
    if len({column["worker"] for column in columns}) > 1:
        labels["worker"] = "worker"
    labels |= {r.id: f"{r.id:<{name}} {texts[r.id]:<{text}} {_arrival(r)}" for r in requests}
    return labels | ({"idle": "computed in vain"} if any("idle" in column for column in columns) else {})


def _arrival(request: Request) -> str:
    if request.after is None:
        return f"at {_ms(request.arrival_s)} ms"
    return f"{_ms(request.delay_s)} ms after {request.after}"


def _ms(seconds: float) -> str:
    ms = seconds * 1000
    return f"{ms:.0f}" if ms >= 10_000 else f"{ms:.4g}"


def _columns(seen: Observation) -> Iterator[dict[str, str]]:
    """Yield a column for each step, failed ones included; a column maps rows to texts."""
    reports = {step.plan.step: step for step in seen.steps}
    inside: set[str] = set()
    gone: set[str] = set()
    plans = [plan for plan in seen.plans.values() if plan.work]
    for plan in plans:
        now = seen.submitted_s[plan.step]
        report = reports.get(plan.step)
        finished = report.finished if report is not None else {}
        gone |= {name for name, end_s in seen.ended_s.items() if end_s <= now and name not in plan.sequences}
        inside = (inside | {*plan.admitted}) - {*plan.evicted}
        column = {"step": str(plan.step), "ms": _ms(now), "worker": str(plan.worker)}
        column |= _states(seen, now, inside, gone)
        column |= dict.fromkeys(plan.evicted, "out")
        for name in plan.sequences:
            column[name] = _work(plan.work, name) + "|" * (name in finished)
        if plan.num_idle:
            column["idle"] = str(plan.num_idle)
        yield column
        gone |= finished.keys()
    wanted = [proposed for proposed in seen.proposals if proposed.proposal is None or proposed.proposal.work]
    if len(wanted) > len(plans):
        now, worker, proposal = wanted[-1]
        column = {"step": "?", "ms": _ms(now), "worker": str(worker)} | _states(seen, now, inside, gone)
        if proposal is not None:
            column |= {sequence.id: "out" for sequence in proposal.evict}
            column |= {work.sequence: _work(proposal.work, work.sequence) for work in proposal.work}
        yield column
    elif seen.proposals and seen.usage_at_end is None and wanted[-1:] != seen.proposals[-1:]:
        now, worker, _ = seen.proposals[-1]
        yield {"step": "wait", "ms": _ms(now), "worker": str(worker)} | _states(seen, now, inside, gone)


def _states(seen: Observation, now: float, inside: set[str], gone: set[str]) -> dict[str, str]:
    """Return a sign for each sequence that has arrived and not ended: admitted, or waiting."""
    arrived = [name for name, arrival_s in seen.arrived_s.items() if arrival_s <= now and name not in gone]
    return {name: "-" if name in inside else "." for name in arrived}


def _work(every: Iterable[Work], name: str) -> str:
    """Write the tokens or nodes of one sequence: `0-3`, `4`, or in pieces `0-3+8`.

    >>> _work([Work("a", 0, 4), Work("b", 2, 3), Work("a", 8, 9)], "a")
    '0-3+8'
    """
    spans: list[tuple[int, int]] = []
    for work in every:
        if work.sequence != name:
            continue
        if spans and work.cell != TRANSFORMER and spans[-1][1] == work.start:
            spans[-1] = (spans[-1][0], work.stop)
        else:
            spans.append((work.start, work.stop))
    return "+".join(_span(*span) for span in spans)


def _span(start: int, stop: int) -> str:
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"


def decided(seen: Observation, most: int, places: bool) -> list[str]:
    """Return the last decisions as lines: what was proposed, and where memory placed it.

    A wait with the same reasons as the previous one is left out.
    """
    plans = iter([plan for plan in seen.plans.values() if plan.work])
    several = any(proposed.worker for proposed in seen.proposals)
    lines: list[str] = []
    last: dict[int, Proposal] = {}
    for now, worker, proposal in seen.proposals:
        when = f"at {_ms(now)} ms" + (f", worker {worker}" if several else "")
        if proposal is None:
            lines.append(f"step ? {when}: no proposal: an error, or no end")
        elif proposal.work:
            plan = next(plans, None)
            placed = _placed(plan) if places else ""
            lines.append(f"step {'?' if plan is None else plan.step} {when}: {_proposal(proposal)}{placed}")
        elif last.get(worker) != proposal:
            lines.append(f"waits  {when}: {_proposal(proposal)}")
        if proposal is not None:
            last[worker] = proposal
    return lines[-most:]


def _proposal(proposal: Proposal) -> str:
    parts = []
    if proposal.evict:
        parts.append(f"evict {', '.join(sequence.id for sequence in proposal.evict)}")
    if proposal.admit:
        parts.append(f"admit {', '.join(sequence.id for sequence in proposal.admit)}")
    if proposal.work:
        names = dict.fromkeys(work.sequence for work in proposal.work)
        parts.append("compute " + ", ".join(f"{name} {_work(proposal.work, name)}" for name in names))
    parts += [str(reason) if hasattr(reason, "text") else repr(reason) for reason in proposal.reasons]
    if proposal.wake_at is not None and not proposal.work:
        parts.append(f"ask again at {_ms(proposal.wake_at)} ms")
    return "; ".join(parts) or "no work, and no reason"


def _placed(plan: Plan | None) -> str:
    if plan is None:
        return ""
    places = dict(zip((work.sequence for work in plan.work), plan.places, strict=False))
    text = ", ".join(f"{name} in {_place(place)}" for name, place in places.items())
    moves = "; ".join(map(_move, plan.moves))
    return f" -> {text}" + (f"; {moves}" if moves else "")


def _place(place: Place) -> str:
    if isinstance(place, Extent):
        return f"slots {_span(place.offset, place.offset + place.capacity)}"
    if isinstance(place, Runs):
        return f"slots {'+'.join(_span(slot, slot + length) for slot, length in place.runs)}"
    if isinstance(place, Pages):
        tier = "" if place.tier == "device" else f"{place.tier} "
        return f"{tier}blocks {' '.join(map(str, place.blocks))}"
    assert isinstance(place, State)
    return f"slot {place.slot}" + (f" (reads {' '.join(map(str, place.reads))})" if place.reads else "")


def _move(move: Move) -> str:
    source, target = (_span(first, first + move.num_tokens) for first in (move.source, move.target))
    tiers = [f"{tier} " if move.crosses else "" for tier in (move.source_tier, move.target_tier)]
    return f"{move.kind} {tiers[0]}{source} to {tiers[1]}{target}"


def told_run(seen: Observation, what: str, width: int, *, places: bool) -> list[str]:
    """Draw a run as a timeline, and write its last decisions below.

    Args:
        places: also write where the KV of each sequence lies.
    """
    try:
        picture = timeline(seen, what, width)
        decisions = decided(seen, MOST_DECISIONS, places)
    except Exception:  # a stage may have decided something that cannot be drawn
        last = seen.proposals[-1] if seen.proposals else "nothing"
        return wrapped(shortened(f"proposed: {last}", LONGEST), width, 4)
    lines = [*picture, *wrapped(f"({legend(picture)})", width), ""]
    return lines + [part for line in decisions for part in wrapped(shortened(line, 2 * width - 10), width, 4)]


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Break a text into lines; `indent` is for all but the first."""
    return textwrap.wrap(one_line(text), width, subsequent_indent=" " * indent, break_on_hyphens=False) or [""]


def told_case(seen: Observation) -> str:
    """Describe the case: the mix, the settings, and what is unusual about the requests."""
    case = seen.case
    usual = {option["name"]: option["default"] for option in case.row.described_options()}
    settings = ", ".join(f"{name}={value}" for name, value in case.settings.items() if value != usual[name])
    parts = [f"{case.row.name} in {number(case.capacity, 'slot')}" + (f", with {settings}" if settings else "")]
    groups, users = defaultdict(list), defaultdict(list)
    for request in case.requests:
        groups[request.group].append(request.id)
        users[request.user].append(request.id)
        if request.priority:
            parts.append(f"{request.id} has priority {request.priority}")
        if request.stop_ids and not request.ignore_eos:
            parts.append(f"{request.id} stops at {' or '.join(map(str, request.stop_ids))}")
        if not request.sampling.greedy:
            parts.append(f"{request.id} is sampled")
    parts += [f"{', '.join(names)} of user {user}" for user, names in users.items() if user is not None]
    several = [names for group, names in groups.items() if group is not None and len(names) > 1]
    parts += [f"{' and '.join(names)} are the prompts of one request" for names in several]
    parts += [f"{name} is aborted after {number(step, 'step')}" for step, name in case.scenario.aborts]
    return "; ".join(parts)


def brief(text: str) -> str:
    """Shorten a message: requests to their ids, plans to their steps, work to its spans.

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
