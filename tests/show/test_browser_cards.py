"""All runs at a glance, in a browser."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.trace.log import Event, read_trace

from .conftest import Pages, Screen, Traces
from .crowd import BLOCKS, FEW_SLOTS, SHARE, TIERS, WAVES, Options, crowd_trace


def cards(screen: Screen) -> dict[str, str]:
    """What the card of each run says, by its title."""
    found = screen.js(
        "return Object.fromEntries(app.overview.cards.map(({root, model}) =>"
        " [model.run.title, [...root.querySelectorAll('p:not([hidden])')].map((one) => one.textContent).join(' | ')]))"
    )
    assert isinstance(found, dict)
    return found


def test_cards_choose_a_and_b(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    screen.click("button[aria-label='Show vllm as A']")
    screen.click("button[aria-label='Show static as B']")
    state = screen.state()
    assert (state["a"], state["b"]) == ("vllm", "static")


ACTIONS: dict[str, tuple[str, Options, str]] = {
    "evicted": ("vllm", BLOCKS, "{} evictions"),
    "found": ("pensieve", TIERS, "KV found for {} prompts"),
    "shuffle": ("fusion", FEW_SLOTS, "{} shuffles"),
    "copy": ("vllm", SHARE, "{} blocks copied on write"),
    "embed": ("baton-pd", (), "prompts embedded {} times"),
    "waves": ("fluid", WAVES, "{} iterations in waves"),
}


def counts(steps: list[Event], kind: str) -> dict[int, int]:
    """How often something was done, by column, as the trace tells it."""
    found: Counter[int] = Counter()
    seen: set[str] = set()
    for column, step in enumerate(steps):
        kinds = [move[0] for move in step.get("moves", ())]
        found[column] = {
            "evicted": len(step.get("evicted", ())),
            "found": sum(one[0] not in seen for one in step.get("reused", ())),
            "waves": int(len(step.get("waves", ())) > 1),
            "copy": kinds.count("copy"),
        }.get(kind, int(kind in kinds))
        seen |= {work[0] for work in step.get("work", ())}
    return {column: count for column, count in found.items() if count}


@pytest.mark.parametrize("kind", ACTIONS)
def test_cards_count_what_was_done_and_mark_when(screen: Screen, tmp_path: Path, kind: str) -> None:
    name, options, words = ACTIONS[kind]
    trace = crowd_trace(name, options)
    told = counts([event for event in read_trace(trace) if event["event"] in ("step", "wait")], kind)
    assert len(told) > 1, "it is done in this run, and more than once"
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(trace), read_run(trace)])))
    assert words.format(sum(told.values())) in next(iter(cards(screen.open(page)).values()))
    marks, kinds, starts, end = screen.js(
        "const [card] = app.overview.cards, {surface, model, actions} = card, marks = [];"
        "surface.rect = (x, y, w, h) => h === 4 && marks.push([y, x]); app.overview.drawCard(card, surface, 1000);"
        "delete surface.rect; return [marks, actions.map(({kind}) => kind), [...model.starts], card.longest]"
    )
    rows: dict[float, list[float]] = {}
    for y, x in marks:
        rows.setdefault(y, []).append(x)
    begin, expected = min(starts), [0.0]
    for column in told:
        expected.append(max((starts[column] - begin) * 998 / (end - begin), expected[-1] + 2 * (len(expected) > 1)))
    assert rows[sorted(rows)[kinds.index(kind)]] == pytest.approx(expected[1:])


def test_cards_say_when_an_idea_has_nothing_to_do(screen: Screen, traces: Traces, tmp_path: Path) -> None:
    names = ("static", "fusion", "vllm", "pensieve", "fluid")
    ideas = ("no shuffle was needed", "nothing was evicted", "no history was found", "nothing was evicted")
    told = record([read_run(trace) for trace in traces(*names)])
    page = tmp_path / "page.html"
    for run in told["runs"]:
        for step in run["steps"]:
            for key in ("m", "e", "wv", "ru"):
                step.pop(key, None)
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    for name, idea in zip(names[1:], ideas, strict=True):
        assert idea in said[name]
    assert not any(idea in said["static"] for idea in ideas)
    for run in told["runs"]:
        first, last = next(step for step in run["steps"] if "w" in step), run["steps"][-1]
        last["m"], last["e"] = [["shuffle", 0, 1, 1, "device", "device", "first", 0]], [0]
        last["wv"] = [[0, 0], [0, len(last.get("w", []))]]
        first["ru"] = [[first["w"][0][0], 1, 0]]
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    assert not any(idea in text for idea in ideas for text in said.values())


def test_cards_tell_the_median_of_an_even_number_of_first_tokens(screen: Screen, traces: Traces, pages: Pages) -> None:
    """Between the two in the middle."""
    events = read_trace(traces("static")[0])
    arrivals = {event["id"]: event["arrival_s"] for event in events if event["event"] == "request"}
    first: dict[str, float] = {}
    for event in events:
        for name, tokens in event.get("tokens", {}).items():
            if tokens:
                first.setdefault(name, event["wall"]["end_s"] - arrivals[name])
    waits = sorted(first.values())
    middle = len(waits) // 2
    assert len(waits) % 2 == 0
    assert waits[middle] > 1.1 * waits[middle - 1], "they must differ for the test to mean something"
    (told,) = re.findall(r"median TTFT ([0-9.]+) ms", cards(screen.open(pages("static", "vllm")))["static"])
    assert float(told) / 1000 == pytest.approx(median(waits), rel=0.01)


def test_cards_mark_a_run_that_was_cut_off_and_count_one_iteration(
    screen: Screen, traces: Traces, tmp_path: Path
) -> None:
    told = record([read_run(trace) for trace in traces("static", "vllm")])
    told["runs"][0]["notice"] = "It was cut off."
    told["runs"][1]["steps"] = told["runs"][1]["steps"][:1]
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    assert "cut off" in said["static"]
    assert "cut off" not in said["vllm"]
    assert "1 iteration in " in said["vllm"]
    assert "nothing was evicted" in said["vllm"]
    told["runs"][1]["notice"] = "It was cut off."
    page.write_text(assemble(told))
    assert "nothing was evicted" not in cards(screen.open(page))["vllm"], "it may have been, later"


def test_cards_have_scales_of_their_own_where_one_run_sets_aside_far_more(
    screen: Screen, traces: Traces, tmp_path: Path
) -> None:
    told = record([read_run(trace) for trace in traces("static", "vllm", "orca")])
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    screen.open(page)
    assert "on one scale" in screen.text("overview")
    for step in told["runs"][0]["steps"]:
        if "kv" in step:
            step["kv"][1] *= 100
    page.write_text(assemble(told))
    screen.open(page)
    assert "on a scale of each card" in screen.text("overview")
    highest = screen.js(
        "const proto = CanvasRenderingContext2D.prototype, {lineTo} = proto, found = []; let least;"
        "proto.lineTo = function (x, y) { least = Math.min(least, y); return lineTo.call(this, x, y); };"
        "for (const card of app.overview.cards) { least = 1e9;"
        "  app.overview.drawCard(card, card.surface, 300); found.push(card.canvas.clientHeight - least); }"
        "Object.assign(proto, {lineTo}); return found"
    )
    assert min(highest) > 20, "the memory of every run is seen"
