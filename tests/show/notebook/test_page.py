"""The replay page in a notebook: the whole record, nothing of it as markup, and no warning."""

from __future__ import annotations

import base64
import gzip
import json
import re
import warnings
from html.parser import HTMLParser
from typing import Any

import pytest
from IPython.display import HTML

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import colour_numbers
from minifuse.show.notebook.page import Page, replay
from minifuse.show.notebook.played import play
from minifuse.show.notebook.prompts import asks, turns
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun

from .runs import run_of


class Attributes(HTMLParser):
    """The first element of a name, as a browser reads it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.name = name
        self.found: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == self.name:
            self.found.append(dict(attrs))


def test_the_frame_holds_the_page_and_the_page_its_record() -> None:
    runs = run_of("static"), run_of("orca")
    page = replay(*runs)
    (frame,) = Attributes("iframe", page._repr_html_()).found
    assert frame["srcdoc"] == page.text
    told = told_of(page)
    assert told == json.loads(json.dumps(record([TracedRun(run.name, run.events) for run in runs])))
    assert [run["title"] for run in told["runs"]] == ["static", "orca"]
    assert {one["answer"] for one in told["runs"][0]["requests"]} >= {" 2 5 7", " 42"}  # texts are in the trace


def told_of(page: Page) -> Any:
    packed = re.search(r'<script type="application/gzip;base64" id="record">([^<]*)</script>', page.text)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_runs_are_called_by_their_labels() -> None:
    few = asks((2, 4), (3, 4))
    runs = play("fusion", few, label="as it is"), play("fusion", few, memory__shuffle=False, label="unshuffled")
    assert [run["title"] for run in told_of(replay(*runs))["runs"]] == ["as it is", "unshuffled"]
    unlabelled = play("fusion", few), play("fusion", few, memory__shuffle=False)
    assert [run["title"] for run in told_of(replay(*unlabelled))["runs"]] == ["fusion 1", "fusion 2"]


def test_requests_have_the_colours_of_the_pictures() -> None:
    """Turns stand in the record as they arrive in the first run."""
    requests = [*turns("a", "count from 3 to 20", "add 1 and 2"), *turns("b", "sort 2 1", "add 3 and 4")]
    runs = play("serial", requests), play("orca", requests)
    assert [*runs[0].history.stories] != [*runs[1].history.stories]
    for order in (runs, runs[::-1]):
        for run, told in zip(order, told_of(replay(*order))["runs"], strict=True):
            numbers = {one["id"]: one.get("colour", i) for i, one in enumerate(told["requests"])}
            assert numbers == colour_numbers(run)
            assert any("colour" in one for one in told["requests"])


def test_an_address_is_no_markup() -> None:
    address = 'i=3&run="><script>alert(1)</script>'
    text = replay(run_of("orca"), address=address).text
    (page,) = Attributes("html", text).found
    assert page["data-address"] == address
    assert "<script>alert" not in text
    assert Attributes("html", replay(run_of("orca")).text).found[0]["data-address"] == ""


def test_the_height_is_the_frame_s() -> None:
    assert "height: 432px" in replay(run_of("orca"), height=432)._repr_html_()


def test_ipython_does_not_warn() -> None:
    shown = replay(run_of("orca"))._repr_html_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HTML(shown)
        with pytest.raises(UserWarning):  # which is what the frame alone would bring
            HTML(shown.removeprefix("<div>").removesuffix("</div>"))


@pytest.mark.parametrize("height", [0, -3, 2.5, "600"])
def test_a_height_is_a_number_of_pixels(height: Any) -> None:
    with pytest.raises(UsageError, match=r"height is .*: give pixels"):
        replay(run_of("orca"), height=height)


def test_runs_of_other_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="orca and serial are runs of different workloads"):
        replay(run_of("orca"), play("serial", asks("sort 2 1")))
    with pytest.raises(UsageError, match="replay was given nothing"):
        replay()
