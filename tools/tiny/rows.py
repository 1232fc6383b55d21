"""Training texts: conversations cut into rows of equal length, so that no token is padding."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minifuse.model.tiny.tasks import Dialogue, Task
from minifuse.model.tiny.words import NAMES
from tools.tiny.vocabulary import EOS_ID

__all__ = ["IGNORED", "Rows", "make_rows", "task_ids"]

IGNORED = -100  # the label of a token that is not to be predicted


def task_ids(task: Task, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The token ids of a task's prompt, and of its answer with a space before it and EOS after it."""
    prompt, answer = tokenizer.encode_batch([task.prompt, f" {task.answer}"])
    return prompt.ids, [*answer.ids, EOS_ID]


@dataclass(frozen=True)
class Rows:
    """A batch of texts.

    Attributes:
        ids: [rows, length], the input tokens.
        labels: [rows, length], the token after each input; `IGNORED` where that belongs to a prompt.
        turns: for each row, (kind, start, stop) of the labels that are one task's whole answer.
    """

    ids: Tensor
    labels: Tensor
    turns: list[list[tuple[str, int, int]]]


def make_rows(rng: Random, tokenizer: Tokenizer, count: int, length: int, held_out: bool = False) -> Rows:
    """`count` conversations, each cut after `length + 1` tokens.

    A row has few or many names (1 to all), so that the model is trained on the first question as on the sixtieth.
    """
    ids, labels, turns = [], [], []
    for _ in range(count):
        dialogue = Dialogue(rng, held_out, max_facts=rng.randint(1, len(NAMES)), max_count=min(250, length // 2))
        tokens: list[int] = []
        targets: list[int] = []
        whole_turns = []
        while len(tokens) <= length:
            task = dialogue.next()
            prompt, answer = task_ids(task, tokenizer)
            tokens += prompt + answer
            targets += [IGNORED] * len(prompt) + answer
            if len(tokens) <= length + 1:
                whole_turns.append((task.kind, len(tokens) - len(answer) - 1, len(tokens) - 1))
        ids.append(tokens[:length])
        labels.append(targets[1 : length + 1])
        turns.append(whole_turns)
    return Rows(torch.tensor(ids), torch.tensor(labels), turns)
