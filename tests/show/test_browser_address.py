"""The page's address, in a browser: it names what is shown, and what it names in vain is told."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run

from .conftest import Pages, Screen, Traces


def test_an_address_names_a_step_and_follows_the_reader(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=vllm&b=static&i=7&request=r3&by=token&mode=time&theme=dark")
    state = screen.state()
    assert (state["a"], state["b"], state["position"], state["request"]) == ("vllm", "static", 7, 3)
    assert (state["by"], state["mode"], state["theme"]) == ("token", "time", "dark")
    screen.press("right")
    screen.until("return location.hash.includes('i=8')")
    assert "run=vllm&b=static&i=8&request=r3&by=token&mode=time&theme=dark" in screen.js("return location.hash")
    screen.js("location.hash = '#run=static&i=3'")
    screen.until("return app.main.run.title === 'static' && app.position === 3")


@pytest.mark.parametrize(
    ("address", "notice"),
    [
        ("#run=nothing", 'names the run "nothing", and this page has static, vllm'),
        ("#i=9999", 'names column "9999": give a whole number from 0 to'),
        ("#i=abc", 'names column "abc"'),
        ("#i=", 'names column "": give a whole number'),
        ("#run=vllm&b=static&i=3&j=9999", 'names column j of B "9999": give a whole number from 0 to'),
        ("#run=vllm&i=3&j=2", "names a column j of B, and no run as B"),
        ("#request=r99", 'names the request "r99"'),
        ("#mode=sideways", "mode=sideways: give iterations or time"),
        ("#run=static&b=static", "names static as A and as B"),
        ("#colour=red", "colour, which means nothing here"),
    ],
)
def test_what_an_address_names_in_vain_is_told(screen: Screen, pages: Pages, address: str, notice: str) -> None:
    screen.show(pages("static", "vllm"), 0)
    screen.js("location.hash = arguments[0]", address)
    screen.until("return document.getElementById('notices').textContent.includes(arguments[0])", notice)


def test_an_address_without_an_iteration_begins_at_the_first(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion")
    assert screen.state()["position"] == 0
    screen.press("right", "right")
    screen.js("location.hash = '#run=static'")
    screen.until("return app.main.run.title === 'static' && app.position === 0")


def test_the_dialog_of_keys_lists_what_an_address_takes(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#nothing=1")
    known = screen.text("notices").split("give ")[-1].rstrip(".").split(", ")
    assert len(known) > 5
    told = screen.text("keys")
    assert [key for key in known if f"{key}=" not in told] == []
    for value in ("mode=time", "mode=iterations", "theme=dark", "theme=light", "by=time", "by=token"):
        assert value in told
    assert "esc" in told


def test_in_a_frame_the_page_has_an_address_of_its_own(screen: Screen, traces: Traces, tmp_path: Path) -> None:
    """As in a notebook, where the address of the frame's document is not that of the page around it."""
    told = record([read_run(path) for path in traces("static", "vllm")])
    around = tmp_path / "around.html"
    text = html.escape(assemble(told, "run=vllm&b=static&i=7&theme=dark"))
    around.write_text(f'<!doctype html><iframe srcdoc="{text}" width="1000" height="600"></iframe>', encoding="utf-8")
    screen.driver.get(around.as_uri())
    screen.driver.switch_to.frame(0)
    screen.until("return document.documentElement.dataset.ready === 'yes'")
    state = screen.state()
    assert (state["a"], state["b"], state["position"], state["theme"]) == ("vllm", "static", 7, "dark")
    screen.click("#on")
    screen.until("return location.hash.includes('i=8')")  # nor does the console complain
    screen.driver.switch_to.default_content()
    assert screen.js("return location.hash") == ""
