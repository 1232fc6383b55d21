"""Conversations that go on from run to run: behind which text, what is stored when, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from helpers import asks, lines_of, make_engine, refusal, sentence

from minifuse.core.errors import LawBroken, UsageError
from minifuse.core.request import FinishReason, Request
from minifuse.model.source import resolve
from minifuse.serve.conversations import Conversations
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import Answer, Served, serve
from minifuse.techniques import serving
from minifuse.testing.texts.models import expected_answer

SOURCE = resolve("random:small")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def run(
    state: Path, *requests: Request, technique: str = "pensieve", on_answer: Callable[[Answer], Any] = lambda _: None
) -> Served:
    """A whole run on a state file, as a process of its own would have it: nothing is left of it but that file."""
    with Conversations(state, SOURCE) as conversations:
        engine = make_engine(technique, model="llama")
        served = serve(engine, requests, on_answer, conversations=conversations)
        assert not conversations.failures
        return served


def test_another_engine_on_the_same_state_goes_on_behind_the_turns_of_the_first(state: Path) -> None:
    prompts = ((5, 6), (7,), (8, 9))
    with Conversations(state, SOURCE) as conversations:
        for i, prompt in enumerate(prompts):
            request = asks(f"r{i}", prompt, 3, conversation="c")
            serve(make_engine(model="llama"), [request], conversations=conversations)
    assert turns(state, "c") == by_oracle(*prompts)


def turns(state: Path, conversation: str) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    with Conversations(state, SOURCE) as conversations:
        return [(*turn,) for turn in conversations.history.turns(conversation)]


def by_oracle(*prompts: tuple[int, ...], new: int = 3) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    """The turns of one conversation, each answered by the naive reference with the full history in front of it."""
    text: tuple[int, ...] = ()
    found = []
    for prompt in prompts:
        answer = expected_answer("llama", Request("", text + prompt, new))
        text += prompt + answer
        found.append((prompt, answer, "length"))
    return found


@pytest.mark.parametrize("technique", serving("transformer"))
def test_the_next_run_goes_on_behind_all_turns_under_every_technique(technique: str, state: Path) -> None:
    first, second = asks("a", (5, 6), conversation="c"), asks("b", (7,), conversation="c", after="a")
    run(state, first, second, asks("x", (1, 2), conversation="d"), technique=technique)
    served = run(state, asks("a", (8, 9), conversation="c"), asks("x", (3,)), technique=technique)
    assert turns(state, "c") == by_oracle((5, 6), (7,), (8, 9))
    assert turns(state, "d") == by_oracle((1, 2))
    assert [(row["prompt_tokens"], row["history_tokens"]) for row in served.rows()] == [(2, 9), (1, 0)]
    assert served.metrics()["tokens"]["recomputed"] >= 8  # all of the history but its last token, in this run


def test_a_turn_is_in_the_file_when_its_answer_is_shown(state: Path) -> None:
    """As another process would find it that reads a copy of the files, which is what a crash leaves."""
    found = []

    def look(answer: Answer) -> None:
        for path in state.parent.glob("state.sqlite*"):
            (state.parent / path.name.replace("state", "copy")).write_bytes(path.read_bytes())
        found.append(len(turns(state.parent / "copy.sqlite", "c")))

    run(state, asks("a", (5, 6), conversation="c"), asks("b", (7,), conversation="c", after="a"), on_answer=look)
    assert found == [1, 2]


def test_a_turn_that_was_cut_off_leaves_no_trace(state: Path) -> None:
    def cut(answer: Answer) -> None:
        if answer.request.id == "a":
            raise KeyboardInterrupt

    requests = [asks("a", (5, 6), conversation="c"), asks("b", (7,), 20, conversation="c", after="a")]
    served = run(state, *requests, asks("x", (1,), 40, conversation="d"), on_answer=cut)
    assert [a.finish_reason for a in served.answers] == [FinishReason.LENGTH, *[FinishReason.INTERRUPTED] * 2]
    assert turns(state, "c") == by_oracle((5, 6))
    assert turns(state, "d") == []
    run(state, asks("b", (7,), conversation="c"))
    assert turns(state, "c") == by_oracle((5, 6), (7,))


def test_a_refused_turn_leaves_no_trace(state: Path) -> None:
    served = run(state, asks("a", (5, 6), conversation="c"), asks("b", (7,), 90, conversation="c", after="a"))
    assert served.answers[1].finish_reason is FinishReason.REFUSED
    run(state, asks("b", (8,), conversation="c"))
    assert turns(state, "c") == by_oracle((5, 6), (8,))


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_aborted_turn_is_stored_with_the_turn_that_goes_on_behind_it(goes_on: bool, state: Path) -> None:
    with Conversations(state, SOURCE) as conversations:
        engine = make_engine(model="llama")
        requests = [asks("a", (5, 6), 20, conversation="c")]
        requests += [asks("b", (7,), conversation="c", after="a")] if goes_on else []

        def step(report: Any) -> None:
            if report.plan.step == 2:
                engine.abort("a")

        serve(engine, requests, on_step=step, conversations=conversations)
    cut_off = expected_answer("llama", Request("", (5, 6), 3))
    text = (5, 6, *cut_off, 7)
    both = [((5, 6), cut_off, "aborted"), ((7,), expected_answer("llama", Request("", text, 3)), "length")]
    assert turns(state, "c") == (both if goes_on else [])


def test_a_request_that_is_submitted_meanwhile_goes_on_as_well(state: Path) -> None:
    run(state, asks("a", (5, 6), conversation="c"))
    with Conversations(state, SOURCE) as conversations:
        engine = make_engine(model="llama")
        late = asks("late", (7,), conversation="c")
        serve(
            engine, [asks("x", 2)], lambda a: a.request.id == "x" and engine.submit(late), conversations=conversations
        )
    assert turns(state, "c") == by_oracle((5, 6), (7,))


def test_a_conversation_with_another_model_is_refused_and_the_others_are_served(state: Path, tmp_path: Path) -> None:
    run(state, asks("a", (5, 6), conversation="c"))
    with Conversations(state, resolve("random:medium")) as conversations:
        requests = [asks("a", (7,), conversation="c"), asks("b", (7,), conversation="d")]
        served = serve(make_engine(), requests, conversations=conversations)
        why = served.answers[0].why_refused
        assert conversations.history.text("c") == (5, 6, *expected_answer("llama", Request("", (5, 6), 3)))
    assert why is not None
    for part in ("'a'", "'c'", str(state), "random:small", "random:medium", "give that model"):
        assert part in why
    assert why.endswith(".")
    assert [a.finish_reason.value for a in served.answers] == ["refused", "length"]


def test_a_conversation_that_is_damaged_is_refused_and_the_others_are_served(state: Path) -> None:
    run(state, asks("a", (5, 6), conversation="c"), asks("x", (1, 2), conversation="d"))
    with sqlite3.connect(state) as file:
        file.execute("UPDATE turn SET answer = '[1, ' WHERE conversation = 'c'")
    file.close()
    c, d = run(state, asks("a", (7,), conversation="c"), asks("x", (3,), conversation="d")).answers
    assert (c.finish_reason, d.num_history) == (FinishReason.REFUSED, 5)
    sentence(UsageError(c.why_refused), "'a'", "'c'", str(state), "is damaged", "restore it")


def test_what_a_state_file_is_not_for(state: Path) -> None:
    with refusal(UsageError, str(state), "lstm", "made of cells"):
        Conversations(state, resolve("lstm:hidden=16"))
    assert not state.exists()
    engine = make_engine()
    engine.trace.header["model"] = "tiny"
    with Conversations(state, SOURCE) as conversations, refusal(UsageError, "random:small", "tiny", "give both"):
        serve(engine, [asks("a")], conversations=conversations)


def test_placeholders_are_not_stored(state: Path) -> None:
    with Conversations(state, SOURCE) as conversations:
        served = serve(make_engine(), [asks("a", conversation="c")], conversations=conversations)
        assert "placeholders" in conversations.failures["c"]
    assert served.answers[0].complete
    assert turns(state, "c") == []


def test_a_store_that_fails_in_the_middle_takes_no_answer_away_and_is_tried_again(state: Path) -> None:
    """Nothing of c is stored while the disk is full; then its turns are stored together. d has no turn after that."""
    requests = [
        *(asks("a", (5, 6), conversation="c"), asks("x", (1, 2), 4, conversation="d")),
        *(asks("b", (7,), 3, conversation="c", after="a"), asks("e", (8,), 3, conversation="c", after="b")),
    ]
    with Conversations(state, SOURCE) as conversations:
        add = conversations.history.add
        seen = []

        def full(*given: Any) -> None:
            with conversations.history._named():
                raise sqlite3.OperationalError("database or disk is full")

        def shown(answer: Answer) -> None:
            seen.append((answer.request.id, sorted(conversations.failures)))
            if answer.request.id == "b":
                conversations.history.add = add  # type: ignore[method-assign]

        conversations.history.add = full  # type: ignore[method-assign]
        served = serve(make_engine(model="llama"), requests, shown, conversations=conversations)
        assert all(answer.complete for answer in served.answers)
        assert seen == [("a", ["c"]), ("x", ["c", "d"]), ("b", ["c", "d"]), ("e", ["d"])]
        sentence(UsageError(conversations.failures["d"]), str(state), "full")
    assert turns(state, "c") == by_oracle((5, 6), (7,), (8,))
    assert turns(state, "d") == []


def test_a_stage_that_fails_leaves_what_was_answered(state: Path) -> None:
    engine = make_engine(model="llama")
    proposed = engine.batching.propose

    def propose(*given: Any) -> Any:
        if "a" in engine.finished:
            raise LawBroken("budget", "of this test")
        return proposed(*given)

    engine.batching.propose = propose  # type: ignore[method-assign]
    requests = [asks("a", (5, 6), conversation="c"), asks("b", (7,), conversation="c", after="a")]
    with Conversations(state, SOURCE) as conversations, pytest.raises(LawBroken):
        serve(engine, requests, conversations=conversations)
    assert turns(state, "c") == by_oracle((5, 6))


# --- killed

PROMPTS = {f"c{i}": [(3 + i, 9), (5,), (6 + i,), (7, 8)] for i in range(3)}  # of the turns of each conversation


def go_on(state: Path, shown: Path) -> None:
    """One run: what is left of every conversation. Each answer that is shown is a line of a file."""
    with Conversations(state, SOURCE) as conversations, shown.open("ab", buffering=0) as out:
        requests = []
        for name, prompts in PROMPTS.items():
            done = len(conversations.history.turns(name))
            ids = [f"{name}/{i}" for i in range(done, len(prompts))]
            for id, before, prompt in zip(ids, [None, *ids], prompts[done:], strict=False):
                requests.append(asks(id, prompt, conversation=name, after=before))

        def show(answer: Answer) -> None:
            line = [answer.request.conversation, list(answer.new_prompt), list(answer.token_ids)]
            out.write(json.dumps(line).encode() + b"\n")

        serve(_engine(), requests, show, conversations=conversations)


def _engine() -> ServingEngine:
    settings = {"memory.chunk": 4, "memory.host": 16, "memory.ahead": 0.9}
    return make_engine("pensieve", model="llama", capacity=64, settings=settings)


def killed(do: Callable[[], object], after: int) -> bool:
    """Do something in a process of its own, which ends with SIGKILL after so many lines of Python, or with the work."""
    child = os.fork()
    if child == 0:
        left = after

        def count(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            left -= event == "line"
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return count

        try:
            sys.settrace(count)
            do()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check(state: Path, shown: Path) -> None:
    """Every turn that was shown is there, in order; and every turn is what the reference answers to all before it."""
    lines = [json.loads(line) for line in shown.read_text().splitlines()] if shown.exists() else []
    for name, prompts in PROMPTS.items():
        there = turns(state, name)
        assert there == by_oracle(*prompts[: len(there)])
        was_shown = [(tuple(prompt), tuple(answer), "length") for whose, prompt, answer in lines if whose == name]
        assert [turn for turn in there if turn in was_shown] == was_shown


@pytest.fixture(scope="module")
def num_lines(tmp_path_factory: pytest.TempPathFactory) -> int:
    folder = tmp_path_factory.mktemp("whole")
    return lines_of(lambda: go_on(folder / "state.sqlite", folder / "shown"))[1]


def kill_and_go_on(seed: int, num_lines: int, folder: Path) -> int:
    """Kill runs at random points until one of them reaches its end. Returns how many were killed."""
    state, shown = folder / "state.sqlite", folder / "shown"
    rng = Random(seed)
    num_killed = 0
    while num_killed < 4 and killed(lambda: go_on(state, shown), int(rng.uniform(0, 0.9) * num_lines)):
        num_killed += 1
        check(state, shown)
    go_on(state, shown)
    check(state, shown)
    assert {name: len(turns(state, name)) for name in PROMPTS} == {name: len(of) for name, of in PROMPTS.items()}
    return num_killed


def test_killed_at_random_points_every_shown_turn_is_there_and_the_next_goes_on(num_lines: int, tmp_path: Path) -> None:
    assert kill_and_go_on(1, num_lines, tmp_path) >= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 42))
def test_killed_at_many_points(seed: int, num_lines: int, tmp_path: Path) -> None:
    kill_and_go_on(seed, num_lines, tmp_path)
