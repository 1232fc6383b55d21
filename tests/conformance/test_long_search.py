"""A longer search: logits against the oracle's, requests and aborts of threads, state files under every technique."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import pytest
import torch
from helpers import asks, make_engine, make_real_engine

from minifuse.core.errors import UsageError
from minifuse.core.request import FinishReason, Request
from minifuse.model.source import resolve
from minifuse.naive.oracle import logits
from minifuse.serve.conversations import Conversations
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import serve
from minifuse.techniques import Technique, serving
from minifuse.testing import TEXTS, observe
from minifuse.testing.drawn import try_each
from minifuse.testing.laws import of_one_run
from minifuse.testing.texts import TextCase, TextScenario
from minifuse.testing.texts.models import expected_answer, small_model

ROWS = {row.name: row for row in TEXTS.mixes()}
SHARING = [name for name in serving("transformer") if "memory.share" in ROWS[name].option_names]
DISPLACING = ("fastserve", "srpt")
SEEDS = [0, *[pytest.param(number, marks=pytest.mark.long) for number in range(1, 40)]]


def _logits_are_the_oracles(row: Technique, examples: int, number: int, *kinds: str) -> int:
    """Compare the logits that every token was drawn from. Returns the number of tokens."""
    compared = 0

    def attempt(scenario: TextScenario) -> None:
        nonlocal compared
        if scenario.replayed:
            return
        case = TextCase(row, scenario)
        try:
            runner = case.runner()
        except UsageError:  # these options do not go together
            return
        seen = observe(case, run=runner)
        of_one_run(case, seen)
        for sequence in seen.answers.values():
            expected = logits(small_model(scenario.model), sequence.tokens)
            for position in range(len(sequence.request.prompt), len(sequence.tokens)):
                found = runner.logits[sequence.id, position]
                torch.testing.assert_close(found, expected[position - 1], rtol=1e-9, atol=1e-9)
                compared += 1

    try_each(TEXTS.scenarios(row, kinds), attempt, examples, seed=number)
    return compared


@pytest.mark.parametrize("number", SEEDS[:2])
@pytest.mark.parametrize("name", SHARING)
def test_logits_are_those_of_the_oracle(name: str, number: int) -> None:
    """Sharing, with sequences that are displaced where the policy displaces any."""
    kinds = ("few", "growing", "displacing") if name in DISPLACING else ("few", "growing", "talk")
    assert _logits_are_the_oracles(ROWS[name], 6 if number == 0 else 200, number, *kinds) > 10


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_logits_are_those_of_the_oracle_in_every_mix(name: str) -> None:
    assert _logits_are_the_oracles(ROWS[name], 100, number=7)


@pytest.mark.parametrize("number", SEEDS)
def test_threads_submit_and_abort(number: int) -> None:
    """In real time: each answer is the oracle's, or the beginning of it where the request was aborted."""
    names = serving("transformer")
    engine = make_real_engine(names[number % len(names)], model="llama")
    requests = {f"{i}/{j}": _request(f"{i}/{j}", Random(100 * number + 10 * i + j)) for i in range(3) for j in range(6)}

    def go(i: int) -> None:
        rng = Random(number + i)
        for j in range(6):
            time.sleep(rng.uniform(0, 0.004))
            engine.submit(requests[f"{i}/{j}"])
            if rng.random() < 0.4:
                time.sleep(rng.uniform(0, 0.004))
                engine.abort(f"{i}/{rng.randint(0, j)}")

    threads = [threading.Thread(target=go, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or engine.requests.unfinished:
        list(engine.run())
    engine.close()
    assert engine.finished.keys() == requests.keys()
    for name, sequence in engine.finished.items():
        expected = expected_answer("llama", requests[name])
        assert tuple(sequence.answer) == expected[: len(sequence.answer)]
        if sequence.finish_reason is not FinishReason.ABORTED:
            assert len(sequence.answer) == len(expected)
    usage = engine.memory.usage()
    assert (usage.used, usage.reserved, usage.host) == (0, 0, 0)


def _request(name: str, rng: Random) -> Request:
    prompt = tuple([7, 8, 9, 4, 5][: rng.randint(1, 5)] + [rng.randrange(20) for _ in range(rng.randint(1, 6))])
    request: Request = asks(name, prompt, rng.randint(1, 10), priority=rng.randint(0, 2))
    return request


@pytest.mark.parametrize("number", SEEDS)
def test_a_state_file_goes_from_technique_to_technique(number: int, tmp_path: Path) -> None:
    """Some turns a run, by any technique, some of them aborted: the next run goes on behind what is stored."""
    rng, path = Random(number), tmp_path / "state.sqlite"
    texts: dict[str, tuple[int, ...]] = {"a": (), "b": (), "c": ()}
    for run in range(5):
        name = rng.choice(serving("transformer"))
        with Conversations(path, resolve("random:small")) as conversations:
            engine = make_engine(name, model="llama")
            requests = [_turn(f"{of}{run}", of, rng) for of in rng.sample(sorted(texts), rng.randint(1, 3))]
            aborted = rng.choice(requests).id if rng.random() < 0.3 else None

            def step(_: object, engine: ServingEngine = engine, aborted: str | None = aborted) -> None:
                if aborted is not None:
                    engine.abort(aborted)

            served = serve(engine, requests, on_step=step, conversations=conversations)
            stored = {of: conversations.history.turns(of) for of in texts}
        for request, answer in zip(requests, served.answers, strict=True):
            of = str(request.conversation)
            expected = expected_answer("llama", asks("", texts[of] + request.prompt, request.max_new_tokens))
            assert answer.token_ids == expected[: len(answer.token_ids)]
            if answer.finish_reason is not FinishReason.ABORTED:
                assert answer.token_ids == expected
                texts[of] += request.prompt + expected
            assert texts[of] == tuple(token for turn in stored[of] for part in turn[:2] for token in part)


def _turn(name: str, conversation: str, rng: Random) -> Request:
    prompt = tuple(rng.randrange(20) for _ in range(rng.randint(1, 2)))
    request: Request = asks(name, prompt, rng.randint(1, 4), conversation=conversation)
    return request
