"""What Predict may ask about each column of a run (`decisions.js`, `questions.js`), against the trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from minifuse.core.request import Phase, Request
from minifuse.memory.slots.shuffle import shuffle
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.settings import Settings
from minifuse.show.page import PAGE, assemble, bundle
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.techniques import technique
from minifuse.trace.log import Event, read_trace
from minifuse.trace.slot_books import shuffle_windows

from .conftest import Screen
from .crowd import FEW_SLOTS, SWAP, TIERS, WAVES, Options, crowd_album, crowd_trace
from .questions import columns

ROUNDED = 1e-9  # seconds to which the page knows times
RUNS: dict[str, tuple[str, Options, str, int]] = {
    "static": ("static", (), "tiny", 0),
    "orca": ("orca", (), "tiny", 0),
    "swap": ("vllm", SWAP, "tiny", 0),
    "fusion": ("fusion", FEW_SLOTS, "tiny", 0),
    "preprocessors": ("fusion", (*FEW_SLOTS, ("batching.preprocessors", 2)), "tiny", 0),
    "instances": ("instances", (), "tiny", 0),
    "baton-pd": ("baton-pd", (), "tiny", 0),
    "pensieve": ("pensieve", TIERS, "tiny", 0),
    "fastserve": ("fastserve", (), "tiny", 0),
    "fluid": ("fluid", WAVES, "tiny", 0),
    "refused": ("pensieve", TIERS, "tiny", 200 * 2**10),
    "cells": ("cellular", (("batching.workers", 2), ("batching.max_batch", 2)), "seq2seq", 0),
}
SEVERAL_WORKERS = ("fusion", "preprocessors", "instances", "cells")

QUESTIONS = """
const decisions = new Decisions(window.app.main);
const told = {};
for (const kind of Object.keys(QUESTION_KINDS)) {
  told[kind] = stopsOf(decisions, kind).map(({column}) => questionAt(decisions, column, kind));
}
return told;
"""


def script(main: str) -> str:
    """JavaScript of the page's modules as they are, with a function body that uses them."""
    modules = {file.name: file.read_text(encoding="utf-8") for file in PAGE.glob("*.js")}
    used = {"decisions": "Decisions", "questions": "QUESTION_KINDS, questionAt, stopsOf"}
    start = "".join(f'import {{ {name} }} from "./{module}.js";\n' for module, name in used.items())
    return bundle({**modules, "test.js": start}, "test.js") + main


found_before: dict[str, dict[str, list[dict[str, Any]]]] = {}


def questions(screen: Screen, name: str) -> dict[str, list[dict[str, Any]]]:
    """All questions of a run by what is asked about. They are found once."""
    if name not in found_before:
        found_before[name] = screen.show(*crowd_album(RUNS[name], RUNS.values())).js(script(QUESTIONS))
    return found_before[name]


def names(question: dict[str, Any], *, right: bool) -> set[str]:
    return {choice["name"] for choice in question["choices"] if choice["right"] is right}


class Account:
    """Which requests were where when a step was decided, from the steps that were decided before it."""

    def __init__(self, name: str) -> None:
        events = read_trace(crowd_trace(*RUNS[name]))
        self.steps = [event for event in events if event["event"] == "step"]
        self.in_order = sorted(self.steps, key=lambda one: one["step"])
        self.apart = any(step["phase"] == "preprocessing" for step in self.steps)
        self.of_cells = RUNS[name][2] != "tiny"
        self.first_end = min(step["wall"]["end_s"] for step in self.steps) - ROUNDED  # before it nothing can be seen
        self.arrivals = {
            event["id"]: event.get("wall", event)["arrival_s"]
            for event in events
            if event["event"] == "request" and (event.get("after") is None or "wall" in event)
        }
        refused = {event["id"] for event in events if event["event"] == "refused"}
        self.arrivals = {name: arrival for name, arrival in self.arrivals.items() if name not in refused}

    def before(self, step: Event) -> tuple[set[str], set[str], set[str]]:
        """Requests that wait, that are in memory, and those among these whose work another plan is computing."""
        start = step["wall"]["start_s"]
        waiting = {name for name, arrival in self.arrivals.items() if arrival <= start + ROUNDED}
        held: set[str] = set()
        busy: set[str] = set()
        for other in self.in_order:
            ended = other["wall"]["end_s"] <= start + ROUNDED
            if other["step"] >= step["step"] and not ended:
                continue  # of plans that a worker has in its queue a later one of another worker may end before
            evicted, admitted = set(other["evicted"]), set(other["admitted"])
            waiting, held = (waiting | evicted) - admitted, (held - evicted) | admitted
            if ended:
                waiting -= set(other["finished"])
                held -= set(other["finished"])
            else:
                busy |= {work[0] for work in other["work"]}
        return waiting, held, busy

    def others(self, step: Event) -> set[str]:
        """Requests that a step's worker could have computed for."""
        waiting, held, busy = self.before(step)
        ready = held | waiting
        if self.apart:
            ready = held if step["phase"] == "running" else waiting
        return ready if self.of_cells else ready - busy


@pytest.mark.parametrize("name", RUNS)
def test_questions_are_of_what_was_possible_and_their_answers_are_those_of_the_trace(name: str, screen: Screen) -> None:
    found = questions(screen, name)
    steps = columns(*RUNS[name])
    account = Account(name)
    ends = [step["wall"]["end_s"] for step in steps]
    for kind, asked in found.items():
        if kind == "any":  # of each column the question of a kind that is among these
            assert all(question in found[question["kind"]] for question in asked)
            continue
        for question in asked:
            assert kind == question["kind"]
            step = steps[question["column"]]
            start = step["wall"]["start_s"]
            before = question["before"]
            assert before > 0
            assert all(end <= start + ROUNDED for end in ends[:before]), "the reader has seen what had not happened"
            assert ends[before] > start - ROUNDED, "the reader could have seen more"
            right, wrong = names(question, right=True), names(question, right=False)
            assert right
            assert wrong, "every choice is right"
            if question["kind"] == "shuffled":
                continue
            waiting, held, busy = account.before(step)
            decided, possible = {
                "admitted": (set(step["admitted"]), waiting - set(step["evicted"])),
                "evicted": (set(step["evicted"]), held - busy),
                "running": ({work[0] for work in step["work"]}, account.others(step)),
            }[question["kind"]]
            assert right == decided if len(decided) <= 16 else right < decided
            others = possible - decided
            most = max(7, 16 - len(decided))
            assert wrong == others if len(others) <= most else wrong < others and len(wrong) == most


@pytest.mark.parametrize("name", RUNS)
def test_every_admission_and_eviction_that_left_a_choice_is_asked_in_the_order_of_plans(
    name: str, screen: Screen
) -> None:
    found = questions(screen, name)
    account = Account(name)
    steps = columns(*RUNS[name])
    for kind in ("admitted", "evicted"):
        expected = []
        for step in account.in_order:
            waiting, held, busy = account.before(step)
            choice = waiting - set(step["evicted"]) if kind == "admitted" else held - busy
            if step[kind] and choice - set(step[kind]) and step["wall"]["start_s"] >= account.first_end:
                expected.append(step["step"])
        assert [steps[question["column"]]["step"] for question in found[kind]] == expected


@pytest.mark.parametrize("name", RUNS)
def test_every_iteration_of_other_requests_than_those_before_it_is_asked(name: str, screen: Screen) -> None:
    """Before it on its worker, and of the same phase: prompts apart from the batch interrupt nothing."""
    asked = {question["column"] for question in questions(screen, name)["running"]}
    account = Account(name)
    last: dict[tuple[int, str], set[str]] = {}
    number = {step["step"]: i for i, step in enumerate(columns(*RUNS[name])) if step["event"] == "step"}
    for step in account.in_order:
        stream = step["worker"], step["phase"]
        runs = {work[0] for work in step["work"]}
        if runs and runs == last.get(stream, set()):
            assert number[step["step"]] not in asked
        elif runs and number[step["step"]] not in asked and number[step["step"]]:
            assert not account.others(step) - runs or step["wall"]["start_s"] < account.first_end
        if runs:
            last[stream] = runs - set(step["finished"])


def test_a_request_that_is_aborted_in_the_iteration_that_admits_it_is_still_a_right_choice(
    screen: Screen, tmp_path: Path
) -> None:
    """A plan that runs when its request is aborted goes on, and the page shows it as running."""
    source = resolve("tiny")
    path = tmp_path / "aborted.jsonl"
    settings = Settings(clock="virtual", kv_memory=144 * 2**10, stage_options={"batching.instances": 2})
    engine = build_engine(resolve_run(technique("instances"), source, settings), source.load("float32", "cpu", 0), path)
    for i in range(5):
        engine.submit(Request(f"r{i}", source.tokenizer().encode("sort 7 2 5 9 1"), 9, arrival_s=0.0011 * i))
    sequences = engine.sequences
    for _ in engine.run():  # an instance has ended an iteration, the other may be in the one that admits a request
        for name in [
            name
            for name, one in sequences.items()
            if one.phase is Phase.RUNNING and len(one.tokens) == len(one.request.prompt)
        ]:
            engine.abort(name)
    page = tmp_path / "aborted.html"
    page.write_text(assemble(record([read_run(path)])), encoding="utf-8")
    found = screen.open(page).js(script(QUESTIONS))
    events = read_trace(path)
    aborted = {event["id"] for event in events if event["event"] == "aborted"}
    admitting = [event for event in events if event["event"] == "step" and aborted & {*event["admitted"]}]
    assert admitting, "no request was aborted in the iteration that admits it"
    assert all(names(question, right=True) for asked in found.values() for question in asked)
    for request in {name for step in admitting for name in step["admitted"]} & aborted:
        states = screen.js(
            "const r = app.main.requests.findIndex(({id}) => id === arguments[0]);"
            "return app.main.workColumns(r).map((column) => app.main.stateAt(column, r))",
            request,
        )
        assert states == ["running"]


def test_the_runs_have_what_they_are_for(screen: Screen) -> None:
    kinds = {name: {kind for kind, asked in questions(screen, name).items() if asked} for name in RUNS}
    for kind in ("admitted", "evicted", "shuffled", "running"):
        assert any(kind in asked for asked in kinds.values()), kind
    for name in SEVERAL_WORKERS:
        hidden = [one for one in questions(screen, name)["any"] if one["before"] < one["column"]]
        assert hidden, f"{name}: no decision is shown before the column that makes it"


def test_windows_are_those_of_the_shuffle() -> None:
    """Of random buffers: the first of the windows with the fewest copies is that of Algorithm 1."""
    rng = random.Random(5)
    for _ in range(300):
        count = rng.randint(2, 12)
        buffers = rng.sample(range(count), count)
        num_live = rng.randint(1, count)
        live, fixed = {*buffers[:num_live]}, {*buffers[num_live : rng.randint(num_live, count)]}
        windows = shuffle_windows(live, fixed, count)
        best = min(windows, key=lambda one: one.copies)
        right = shuffle(sorted(live), sorted(fixed), count)
        assert (best.first, best.last - best.first + 1) == (right.offset, right.size)
        assert best.copies == len(right.moves)
        assert len(windows) == count - len(fixed) - len(live) + 1


def test_a_shuffle_is_asked_with_the_copies_that_each_window_takes(screen: Screen) -> None:
    steps = columns(*RUNS["fusion"])
    asked = questions(screen, "fusion")["shuffled"]
    shuffles = [i for i, step in enumerate(steps) if any(move[0] == "shuffle" for move in step.get("moves", ()))]
    assert [one["column"] for one in asked] == shuffles
    for one in asked:
        step = steps[one["column"]]
        (right,) = [choice for choice in one["choices"] if choice["right"]]
        copies = {choice["value"]: int(choice["why"].rpartition(": ")[2].split()[0]) for choice in one["choices"]}
        assert copies[right["value"]] == min(copies.values()) == len(step["moves"])
        assert int(right["value"]) == min(int(value) for value, count in copies.items() if count == len(step["moves"]))
        assert len(one["choices"]) <= 8
