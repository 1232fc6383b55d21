"""The shipped model: its size, its tokenizer, its tasks, and its answers."""

from __future__ import annotations

import re
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.request import Request
from minifuse.model.text.load import TINY, load_weights, resolve_text
from minifuse.model.tiny.tasks import KINDS, Dialogue, Task, conversation, crowd, is_held_out
from minifuse.model.tiny.words import MAX_NUMBER, NAMES, vocabulary
from minifuse.naive import oracle
from tools.tiny.evaluate import Student, table
from tools.tiny.rows import IGNORED, make_rows
from tools.tiny.train import Recipe, config, new_model, train
from tools.tiny.vocabulary import EOS, EOS_ID, build_tokenizer


@pytest.fixture(scope="module")
def student() -> Student:
    return Student(TINY)


def expected(task: Task, facts: dict[str, int]) -> str:
    """The right answer, derived from the prompt and the earlier facts; facts of the prompt are added to `facts`."""
    numbers = [int(number) for number in re.findall(r"\d+", task.prompt)]
    facts |= {name: int(number) for name, number in re.findall(r"([a-z]+) (\d+)", task.prompt) if name in NAMES}
    last = re.findall(r"\w+", task.prompt)[-1]
    match task.kind:
        case "count":
            first, stop = numbers
            return " ".join(str(number) for number in range(first, stop + 1))
        case "sort":
            return " ".join(str(number) for number in sorted(numbers))
        case "reverse":
            things = re.sub(r"^(reverse|say backwards:) ", "", task.prompt).split()
            return " ".join(things[::-1])
        case "repeat":
            return " ".join([task.prompt.split()[1]] * numbers[0])
        case "add":
            expression = re.sub(r"add (\d+) and|what is (\d+) \+", r"\1\2 +", task.prompt).rstrip("?")
            return str(eval(expression))
        case "tell":
            return "ok"
        case _:
            return f"{last} {facts[last]}"


def test_is_small() -> None:
    parameters = sum(parameter.numel() for parameter in load_weights(resolve_text("tiny")).parameters())
    assert parameters <= 2_000_000
    assert (TINY / "model.safetensors").stat().st_size <= 4_000_000


def test_context_and_eos_come_from_config_json() -> None:
    source = resolve_text("tiny")
    assert source.config.max_context >= 1024
    assert source.config.eos_ids == (EOS_ID,)
    assert source.config.vocab_size == build_tokenizer().get_vocab_size()


def test_the_shipped_tokenizer_is_the_one_the_script_builds() -> None:
    assert (TINY / "tokenizer.json").read_text() == build_tokenizer().to_str(pretty=True)


@settings(deadline=None)
@given(st.text())
def test_any_text_encodes_and_decodes_to_itself(text: str) -> None:
    tokenizer = resolve_text("tiny").tokenizer()
    assert tokenizer.decode(list(tokenizer.encode(text))) == text.replace(EOS, "")


def test_known_words_are_single_tokens() -> None:
    tokenizer = build_tokenizer()
    assert all(len(tokenizer.encode(word).ids) == 1 for word in vocabulary())
    assert len(tokenizer.encode(f"count from 0 to {MAX_NUMBER}").ids) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_right(kind: str) -> None:
    rng = Random(kind)
    for task in (KINDS[kind](rng) for _ in range(200)):
        assert task.answer == expected(task, {}), task.prompt


@pytest.mark.parametrize("seed", range(10))
def test_a_conversation_asks_for_its_own_facts(seed: int) -> None:
    facts: dict[str, int] = {}
    turns = conversation(30, seed)
    for task in turns:
        known = len(facts)
        assert task.answer == expected(task, facts), task.prompt
        assert task.kind != "ask" or len(facts) == known
    assert [turns[0].kind, turns[-1].kind] == ["tell", "ask"]


def test_tasks_are_the_same_every_time() -> None:
    assert crowd(20) == crowd(30)[:20]
    assert crowd(20) != crowd(20, seed=1)
    assert conversation(12, seed=3) == conversation(12, seed=3)
    assert [len(conversation(turns)) for turns in range(5)] == [0, 1, 2, 3, 4]


def test_a_crowd_is_distinct_and_mixed_and_of_varied_length() -> None:
    tasks = crowd(500)
    lengths = [len(task.answer.split()) for task in tasks]
    assert len({task.prompt for task in tasks}) == 500
    assert {task.kind for task in tasks} == set(KINDS)
    assert min(lengths) == 1
    assert max(lengths) >= 200


def test_held_out_prompts_are_never_trained_on() -> None:
    assert all(is_held_out(task.prompt) for task in crowd(200))
    assert all(is_held_out(t.prompt) for seed in range(5) for t in conversation(40, seed) if t.kind != "ask")
    dialogue = Dialogue(Random(0), held_out=False, max_facts=24, max_count=250)
    assert not any(is_held_out(dialogue.next().prompt) for _ in range(1000))


def test_only_answers_are_labelled() -> None:
    tokenizer = build_tokenizer()
    rows = make_rows(Random(0), tokenizer, count=3, length=128)
    assert rows.ids.shape == rows.labels.shape == (3, 128)
    for ids, labels, turns in zip(rows.ids, rows.labels, rows.turns, strict=True):
        known = labels[:-1] != IGNORED
        assert torch.equal(ids[1:][known], labels[:-1][known])
        for _, start, stop in turns:
            assert labels[start - 1] == IGNORED or start == 0
            assert labels[stop - 1] == EOS_ID
            assert EOS_ID not in labels[start : stop - 1]


def test_held_out_prompts_are_answered_exactly(student: Student) -> None:
    tasks = [task for task in crowd(100) if len(task.answer.split()) <= 40][:60]
    outcomes = student.alone(tasks)
    assert sum(outcome.exact for outcome in outcomes) >= 0.98 * len(tasks), table(outcomes)


def test_conversations_are_answered_exactly(student: Student) -> None:
    outcomes = [outcome for seed in range(100, 105) for outcome in student.together(conversation(20, seed))]
    assert len(outcomes) == 100
    assert sum(outcome.exact for outcome in outcomes) >= 98, table(outcomes)


def test_a_long_answer_ends_by_itself(student: Student) -> None:
    task = max(crowd(100), key=lambda task: len(task.answer.split()))
    (outcome,) = student.alone([task])
    assert outcome.exact
    assert outcome.num_tokens == len(task.answer.split()) + 1 >= 200


def test_the_evaluation_with_a_cache_agrees_with_the_oracle(student: Student) -> None:
    tasks = conversation(6)
    tokens: list[int] = []
    for task, outcome in zip(tasks, student.together(tasks), strict=True):
        tokens += student.tokenizer.encode(task.prompt)
        request = Request("r", tuple(tokens), stop_ids=(EOS_ID,))
        new = oracle.answer(student.model, request)
        tokens += new
        assert student.tokenizer.decode(new) == outcome.text


def test_training_is_the_same_from_the_same_seed() -> None:
    raw = config(build_tokenizer().get_vocab_size())
    recipe = Recipe(seed=7, steps=2, tokens_per_step=256)
    models = [new_model(raw, seed=7) for _ in range(2)]
    losses = [train(model, recipe) for model in models]
    assert losses[0] == losses[1]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
