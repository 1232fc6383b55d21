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
        "surface.rect = (x, y, w, h) => w === 2 && h === 4 && marks.push([y, x]);"
        "app.overview.drawCard(card, surface, 1000);"
        "delete surface.rect; return [marks, actions.map(({kind}) => kind), [...model.starts], app.overview.last]"
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
    assert " · 1 iteration · " in said["vllm"]
    assert "nothing was evicted" in said["vllm"]
    told["runs"][1]["notice"] = "It was cut off."
    page.write_text(assemble(told))
    assert "nothing was evicted" not in cards(screen.open(page))["vllm"], "it may have been, later"


MEMORY = """
const proto = CanvasRenderingContext2D.prototype, {lineTo} = proto, found = []; let least;
proto.lineTo = function (x, y) { least = Math.min(least, y); return lineTo.call(this, x, y); };
for (const card of app.overview.cards) {
  least = 1e9;
  app.overview.drawCard(card, card.surface, 300);
  const {model: {reserved, used}} = card;
  found.push([card.canvas.clientHeight - 1 - least, Math.max(...reserved, ...used)]);
}
Object.assign(proto, {lineTo});
return found;
"""


def test_memory_has_one_scale_in_all_cards_and_a_card_says_what_is_beyond_it(
    screen: Screen, traces: Traces, tmp_path: Path
) -> None:
    told = record([read_run(trace) for trace in traces("static", "vllm", "orca")])
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    screen.open(page)
    assert "on one scale" in screen.text("overview")
    assert "beyond" not in "".join(cards(screen).values())
    drawn = screen.js(MEMORY)
    top = max(most for _, most in drawn)
    assert len({most for _, most in drawn}) > 1, "they must differ for the test to mean something"
    assert [height for height, _ in drawn] == pytest.approx([14 * most / top for _, most in drawn])
    for step in told["runs"][0]["steps"]:
        if "kv" in step:
            step["kv"][1] *= 100
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    most = max(step["kv"][1] for step in told["runs"][0]["steps"] if "kv" in step)
    assert f"{most:,} slots at most: beyond the scale" in said["static"]
    assert "beyond" not in said["vllm"] + said["orca"]
    drawn = screen.js(MEMORY)[1:]
    top = max(most for _, most in drawn)
    assert [height for height, _ in drawn] == pytest.approx([14 * most / top for _, most in drawn])


MOMENTS = """
return app.overview.cards.map(({root, canvas}) => {
  const [line, box] = [root.querySelector(".moment"), canvas].map((one) => one.getBoundingClientRect());
  return (line.left - box.left) / (box.width - 2);
});
"""


def test_a_line_in_each_card_is_at_the_moment_that_is_shown(screen: Screen, traces: Traces, pages: Pages) -> None:
    """Nothing is drawn for it. After A's end it goes on with B."""
    ends = {}
    for name, path in zip(names := ("static", "vllm", "orca"), traces(*names), strict=True):
        ends[name] = [event["wall"]["end_s"] for event in read_trace(path) if event["event"] in ("step", "wait")]
    last = max(map(max, ends.values()))
    assert len({max(own) for own in ends.values()}) > 1
    screen.open(pages(*names))
    screen.js(
        "app.setRuns(app.runs[1], app.runs[0]); window.drawn = 0;"
        "const proto = CanvasRenderingContext2D.prototype, {fillRect} = proto;"
        "proto.fillRect = function (...all) { window.drawn += Boolean(this.canvas.closest('.card'));"
        " return fillRect.apply(this, all); }"
    )
    for i in (0, 5, len(ends["vllm"]) - 1):
        screen.js("app.select(arguments[0])", i)
        assert screen.js(MOMENTS) == pytest.approx([ends["vllm"][i] / last] * 3, abs=0.005)
    screen.press("end")
    assert screen.state()["position"] > i, "B must last longer for the test to mean something"
    assert screen.js(MOMENTS) == pytest.approx([ends["static"][-1] / last] * 3, abs=0.005)
    assert screen.js("return window.drawn") == 0
    screen.js("app.overview.layout()")
    assert screen.js("return window.drawn") > 0


def test_cards_are_low_until_the_reader_wants_all_that_they_tell(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm", "orca"))
    height, told = "return app.overview.cards[0].canvas.clientHeight", "return app.overview.cards[0].root.innerText"
    low = screen.js(height)
    assert low < 80
    idea = screen.js("return app.runs[0].run.summary")
    assert idea not in screen.js(told)
    assert screen.find("#more").get_attribute("aria-expanded") == "false"
    screen.click("#more")
    assert screen.js(height) >= low + 20
    assert idea in screen.js(told)
    assert screen.find("#more").get_attribute("aria-expanded") == "true"
    screen.click("#more")
    assert screen.js(height) == low
