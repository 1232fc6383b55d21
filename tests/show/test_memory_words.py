"""What the memory map says in words, against what the trace counts: for every technique there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.techniques import TECHNIQUES
from minifuse.trace.log import Event

from .conftest import Screen
from .crowd import (
    BLOCKS,
    FEW_SLOTS,
    LAYERS,
    SHARE,
    SHARE_SWAP,
    SHORT,
    SWAP,
    WAVES,
    Run,
    crowd_album,
    crowd_page,
    crowd_trace,
)
from .memory_map import WORDS, columns, read

CELLS = ("cellular", "graph-padded", "graph-merged")
RUNS: dict[str, Run] = {
    **{name: (name, FEW_SLOTS if name == "fusion" else (), "lstm" if name in CELLS else "tiny") for name in TECHNIQUES},
    "vllm, swapping": ("vllm", SWAP, "tiny"),
    "vllm, sharing": ("vllm", SHARE, "tiny"),
    "vllm, sharing and swapping": ("vllm", SHARE_SWAP, "tiny", SHORT),
    "pd, prompts make way": ("pd", (), "tiny", SHORT),
    "fluid, small blocks": ("fluid", WAVES, "tiny"),
}
NUMBER = r"([\d,]+)"
IN_USE = re.compile(rf"^{NUMBER} of {NUMBER} slots on the device in use, for {NUMBER} requests?;")
AMOUNTS = {
    "empty": rf"; {NUMBER} reserved and empty;",
    "kept": rf"; {NUMBER} kept;",
    "free": rf"; {NUMBER} free[;,.]",
    "host": rf"; {NUMBER} tokens? on the host alone[;.]",
    "kept on the host": rf"; {NUMBER} tokens? kept on the host alone[;.]",
}
PADDING = rf"; {NUMBER} of them padding, or of rows that have ended;"
SUBMITTED = rf"; {NUMBER} of them taken for iterations that have been submitted and have not begun;"
MEANWHILE = rf"; {NUMBER} more written meanwhile by iterations beside this one;"
# The words of every column, and how many of its slots are drawn as written.
SAID = """
const {app} = window; const found = [];
for (let i = 0; i < app.main.length; i++) {
  app.select(i);
  const written = app.a.memory.frame.device.reduce((sum, {state, count}) => sum + (state === "written" ? count : 0), 0);
  found.push([document.querySelector(arguments[0]).textContent, written]);
}
return found;
"""


def amount(pattern: str, words: str) -> int:
    """The number in these words; 0 if they do not tell it."""
    found = re.search(pattern, words)
    return int(found[1].replace(",", "")) if found else 0


def overlapped(step: Event, steps: list[Event]) -> bool:
    """Whether another plan is under way when this one ends."""
    end = step["wall"]["end_s"]
    return any(one["wall"]["start_s"] < end and one["step"] != step["step"] and _later(one, step) for one in steps)


def _later(one: Event, step: Event) -> bool:
    return bool(one["wall"]["end_s"] >= step["wall"]["end_s"])


@pytest.mark.parametrize("run", RUNS)
def test_the_numbers_in_words_are_those_of_the_trace(run: str, screen: Screen) -> None:
    events = columns(*RUNS[run])
    steps = [event for event in events if event["event"] == "step"]
    screen.show(*crowd_album(RUNS[run], RUNS.values()))
    told = 0
    for event, (words, written) in zip(events, screen.js(SAID, WORDS), strict=True):
        if event["event"] == "wait":
            assert words.startswith("Nothing runs, and the trace counts no slots"), words
            continue
        used, reserved, capacity, host = event["kv"]
        kept, kept_on_host = event.get("kept", (0, 0))
        said = IN_USE.search(words)
        assert said is not None, words
        assert [int(one.replace(",", "")) for one in said.groups()[:2]] == [used, capacity], words
        right = {
            "empty": max(0, reserved - used),
            "kept": kept,
            "free": capacity - max(used, reserved) - kept,
            "host": host,
            "kept on the host": kept_on_host,
        }
        assert {what: amount(pattern, words) for what, pattern in AMOUNTS.items()} == right, words
        # Where the picture has other slots than the trace counts, the words say why, and how many.
        causes = [amount(pattern, words) for pattern in (PADDING, SUBMITTED, MEANWHILE)]
        assert causes[0] + causes[1] - causes[2] == used - written, words
        assert not causes[0] or any(step["shape"] for step in steps)
        assert not causes[1] or RUNS[run][2] == "lstm"
        assert not causes[2] or overlapped(event, steps), words
        told += 1
    assert told


def test_the_words_of_a_single_worker_tell_of_no_iterations_beside_this_one(screen: Screen, tmp_path: Path) -> None:
    """Also where the trace counts a slot too few."""
    told = record([read_run(crowd_trace("vllm", BLOCKS))])
    assert told["runs"][0]["workers"] == 1
    for step in told["runs"][0]["steps"]:
        if "kv" in step:
            step["kv"] = [step["kv"][0] - 1, *step["kv"][1:]]
    page = tmp_path / "page.html"
    page.write_text(assemble(told), encoding="utf-8")
    screen.open(page)
    iterations = 0
    for words, written in screen.js(SAID, WORDS):
        if found := IN_USE.search(words):
            iterations += 1
            assert written == int(found[1]) + 1
            assert not amount(MEANWHILE, words), words
    assert iterations


def test_where_layers_take_turns_each_slot_holds_one_layer_at_a_time(screen: Screen) -> None:
    """The trace tells the room in tokens of all layers, and places in slots of one: neither is called the other."""
    steps = columns("fluid", LAYERS)
    i = next(i for i, step in enumerate(steps) if any(len(place) == 4 for place in step.get("places", ())))
    screen.open(crowd_page("fluid", LAYERS), f"#i={i}")
    told = read(screen, WORDS)
    assert "each holds the KV of one layer at a time, and all are empty between iterations" in told
    (first,) = {step["kv"][2] for step in steps if "kv" in step}
    assert f"the layers share the slots from {first} on (memory.turns=layers)" in told
    passing = [work for work, place in zip(steps[i]["work"], steps[i]["places"], strict=True) if len(place) == 4]
    tokens = sum(work[2] for work in passing)
    assert tokens
    assert f"the KV of {tokens} tokens of {len(passing)} request" in told


def test_what_is_not_set_aside_is_not_called_reserved(screen: Screen) -> None:
    """Rows of a batch that grows column by column: the trace counts only the columns in use."""
    assert all(step["kv"][0] == step["kv"][1] for step in columns("baton") if step["event"] == "step")
    screen.open(crowd_page("baton"), "#i=3")
    assert "reserved" not in screen.text("memory-a")
    assert "room in its row, not set aside yet" in screen.text("memory-a")
    screen.open(crowd_page("vllm", BLOCKS), "#i=5")
    assert "reserved, still empty" in screen.text("memory-a")
