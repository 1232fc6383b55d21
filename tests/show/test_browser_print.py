"""A page as it is printed and saved: pictures as SVG, beside each other in one document."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run

from .conftest import Pages, Screen
from .crowd import SWAP, WAVES, crowd_page, crowd_trace
from .memory_map import columns
from .pictures import GUTTER, Shape, colours, drawn

GROUND = ("panel", "stripe", "chosen", "grid", "line", "accent")


def test_pictures_are_saved_as_svg(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=vllm&i=4&request=r1")
    screen.click("#save")
    screen.until("return document.getElementById('pictures').open")
    labels = screen.js("return [...document.querySelectorAll('#picture-list button')].map((one) => one.textContent)")
    assert labels == ["Lanes of vllm", "Charts of vllm", "Memory of vllm"]
    for button in screen.driver.find_elements("css selector", "#picture-list button"):
        button.click()
    names = {f"vllm-{what}-iteration_4.svg" for what in ("lanes", "charts", "memory")}
    deadline = time.monotonic() + 20
    while not names <= {path.name for path in screen.downloads.iterdir()}:
        assert time.monotonic() < deadline, f"only {[*screen.downloads.iterdir()]} were saved"
        time.sleep(0.02)
    for name in names:
        root = ElementTree.fromstring((screen.downloads / name).read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len([*root.iter()]) > 20
    lanes = ElementTree.parse(screen.downloads / "vllm-lanes-iteration_4.svg")
    assert {"r0", "r1", "r5"} <= {one.text for one in lanes.getroot().iter()}
    screen.press("escape")


def saved_picture(screen: Screen, what: str) -> ElementTree.Element:
    """A picture as the page saves it."""
    before = {*screen.downloads.iterdir()}
    screen.click("#save")
    next(
        one for one in screen.driver.find_elements("css selector", "#picture-list button") if one.text.startswith(what)
    ).click()
    screen.press("escape")
    deadline = time.monotonic() + 20
    while not (new := [one for one in {*screen.downloads.iterdir()} - before if one.suffix == ".svg"]):
        assert time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.02)
    root = ElementTree.fromstring(new[0].read_text())
    new[0].unlink()
    return root


@pytest.mark.parametrize(
    ("what", "legend"), [("Lanes", "#legend li"), ("Charts", ".chart-key li"), ("Memory", ".memory-legend li")]
)
def test_a_saved_picture_has_its_legend_under_it(screen: Screen, what: str, legend: str) -> None:
    """The page's own legends are elements beside the pictures. In narrow slots there is no room for names."""
    screen.resize(800, 900)
    screen.open(crowd_page("fluid", WAVES), "#i=20")
    told = screen.js("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", legend)
    assert len(told) > 2
    drawn_high = screen.js(f"return document.querySelector('#{what.lower()}-a canvas').getBoundingClientRect().height")
    root = saved_picture(screen, what)
    assert float(root.get("height", 0)) > drawn_high
    svg = "{http://www.w3.org/2000/svg}"
    under = [one for one in root.iter(f"{svg}text") if float(one.get("y", 0)) > drawn_high]
    texts = [one.text for one in under]
    assert texts[: len(told)] == told
    if what == "Memory":
        held = screen.js(
            "const {frame, model} = app.a.memory; const runs = [...frame.device, ...frame.host, ...frame.waves.flat()];"
            "return [...new Set(runs.flatMap(({owners}) => owners))].map((r) => model.requests[r].id)"
        )
        assert sorted(texts[len(told) :]) == sorted(held)
        assert len(held) > 3
    assert all(0 < float(one.get("y", 0)) < float(root.get("height", 0)) for one in under)
    assert all(0 < float(one.get("x", 0)) < float(root.get("width", 0)) for one in under)
    assert len([*root.iter(f"{svg}g")]) >= len(texts), "each has a sample"


def test_printing_puts_pictures_in_the_place_of_canvases(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#i=0")
    screen.js(
        "addEventListener('afterprint', () => { window.printed = window.during; });"
        "addEventListener('beforeprint', () => { window.during = document.querySelectorAll('.printed svg').length; })"
    )
    assert len(screen.driver.print_page()) > 1000
    assert screen.js("return window.printed") == 3
    assert screen.js("return document.querySelectorAll('.printed').length") == 0


def test_printing_is_light_and_whole_and_shows_each_picture_once(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#theme=dark&i=5&run=static&b=vllm&request=r1")
    screen.js(
        "const look = () => ({fills: [...document.querySelectorAll('.printed svg > rect:first-of-type')]"
        "    .map((one) => one.getAttribute('fill')),"
        "  ids: [...document.querySelectorAll('.printed [id]')].map((one) => one.id)});"
        "addEventListener('beforeprint', () => { window.during = look(); });"
    )
    assert len(screen.driver.print_page()) > 1000
    during = screen.js("return window.during")
    assert len(during["fills"]) == 6
    assert set(during["fills"]) == {"#ffffff"}
    assert len(during["ids"]) == len(set(during["ids"]))
    assert screen.js("return document.documentElement.dataset.theme") == "dark"
    assert screen.state()["theme"] == "dark"
    screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = screen.js(
            "const of = (css, name) => [...document.querySelectorAll(css)].map((one) => getComputedStyle(one)[name]);"
            "return {back: of('body', 'backgroundColor'), panel: of('section', 'backgroundColor'),"
            "  pictures: of('.lanes .pin, .charts .pin, .memory-stage', 'display'),"
            "  most: of('.why, .story, .answers', 'maxHeight'), over: of('.why, .story, .answers', 'overflowY')}"
        )
    finally:
        screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown["back"] == ["rgb(255, 255, 255)"]
    assert set(shown["panel"]) == {"rgb(255, 255, 255)"}
    assert set(shown["pictures"]) == {"none"}
    assert len(shown["pictures"]) == 6
    assert (set(shown["most"]), set(shown["over"])) == ({"none"}, {"visible"})


def test_no_picture_uses_what_another_defines(screen: Screen, pages: Pages) -> None:
    """Patterns of B's lanes are not those of A's, and charts are not clipped as lanes are."""
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=5")
    screen.js("window.dispatchEvent(new Event('beforeprint'))")
    used, foreign = screen.js(
        "const pictures = [...document.querySelectorAll('svg')];"
        "const uses = pictures.flatMap((picture) => [...picture.innerHTML.matchAll(/url\\(#([^)]+)\\)/g)]"
        ".map(([, id]) => [picture, id]));"
        "return [uses.length, uses.filter(([picture, id]) => document.getElementById(id)?.closest('svg') !== picture)"
        ".map(([, id]) => id)]"
    )
    screen.js("window.dispatchEvent(new Event('afterprint'))")
    assert used > 10
    assert foreign == []


def beyond(shapes: list[Shape], edge: float, ground: set[str]) -> list[Shape]:
    """What is drawn on the right of an edge, but for the ground and the words that are there to be read."""
    found = []
    for one in shapes:
        if one.kind == "text" and one.text == "not to be seen yet":
            continue
        grounds = one.fill in ground or one.fill.startswith("url(") or (one.kind == "polyline" and len(one.points) == 2)
        right = max((x for x, _ in one.points), default=one.right)
        if not grounds and right > edge + 1.1:
            found.append(one)
    return found


@pytest.mark.parametrize(("by", "mode"), [("time", "iterations"), ("token", "time")])
def test_what_may_not_be_seen_yet_is_neither_printed_nor_saved(
    by: str, mode: str, screen: Screen, tmp_path: Path
) -> None:
    page = tmp_path / "two.html"
    runs = [read_run(crowd_trace("vllm", SWAP)), read_run(crowd_trace("fluid", WAVES))]
    page.write_text(assemble(record(runs)), encoding="utf-8")
    stop = next(i for i, step in enumerate(columns("vllm", SWAP)) if step.get("evicted"))
    address = f"#run=vllm&b=fluid&i=0&by={by}&mode={mode}&request=r0"
    screen.open(page, address)
    screen.press("0")
    ground = set(colours(screen, *GROUND).values())
    hosts = [f"{what}-{side}" for what in ("lanes", "charts") for side in "ab"]
    edges = "return app.sides().map(({axis}, k) => axis.right([app.index, app.indexOther][k]) - axis.left)"
    screen.js("app.select(arguments[0])", stop - 1)
    whole = {host: drawn(screen, host) for host in hosts}
    for host, edge in zip(hosts, [*screen.js(edges)] * 2, strict=True):
        assert beyond(whole[host], GUTTER + edge, ground), "later columns must show something otherwise"
    screen.open(page, f"{address}&stops={stop}")
    screen.press("0", "end")
    assert screen.js("return document.body.classList.contains('asking')")
    assert screen.state()["position"] == stop - 1
    covered = {host: drawn(screen, host) for host in hosts}
    for host, edge in zip(hosts, [*screen.js(edges)] * 2, strict=True):
        assert beyond(covered[host], GUTTER + edge, ground) == [], host
        assert any(one.text == "not to be seen yet" for one in covered[host]), host
        assert any(one.kind != "text" and one not in covered[host] for one in whole[host]), host
    screen.click("#save")
    for button in screen.driver.find_elements("css selector", "#picture-list button"):
        if "Memory" not in button.text:
            button.click()
    number = screen.js("return app.main.run.steps[app.index].n")
    saved = screen.downloads / f"vllm-lanes-iteration_{number}.svg"
    deadline = time.monotonic() + 20
    while not saved.exists():
        assert time.monotonic() < deadline, f"only {[*screen.downloads.iterdir()]} were saved"
        time.sleep(0.02)
    texts = [one.text for one in ElementTree.parse(saved).getroot().iter()]
    saved.unlink()
    screen.press("escape")
    assert "not to be seen yet" in texts
    screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        cards = screen.js(
            "return [...document.querySelectorAll('.card canvas, .card .figures, .card .actions')]"
            ".map((one) => getComputedStyle(one).visibility)"
        )
    finally:
        screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert set(cards) == {"hidden"}
