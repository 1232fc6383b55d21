"""How often tiny is right: `python -m tools.tiny.evaluate [--model DIR] [--prompts 500]`.

Every answer is decoded greedily, token by token, from the stored weights read into float32, and compared as text.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from minifuse.kernels.operators import TORCH
from minifuse.model.text.checkpoint import read_weights
from minifuse.model.text.load import TINY, build, resolve_text
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.model.text.transformer import Transformer
from minifuse.model.tiny.tasks import Task, conversation, crowd
from tools.tiny.forward import Cache, hidden_states

__all__ = ["Outcome", "Student", "main", "table"]


@dataclass(frozen=True)
class Outcome:
    """The model's answer to a task."""

    task: Task
    text: str
    num_tokens: int  # of the answer, EOS included
    start: int  # position of the answer's first token in the conversation

    @property
    def exact(self) -> bool:
        return self.text.strip() == self.task.answer


class Student:
    """A model under evaluation, decoded greedily."""

    def __init__(self, directory: Path) -> None:
        source = resolve_text(str(directory))
        self.tokenizer: Tokenizer = source.tokenizer()
        self.model: Transformer = build(source.config)
        read_weights(self.model, directory)
        (self.eos,) = source.config.eos_ids

    @torch.no_grad()
    def _next(self, ids: Tensor, cache: Cache) -> Tensor:
        """Feed ids [rows, tokens]; return the likeliest next token of each row, [rows]."""
        return self.model.head(hidden_states(self.model, ids, cache)[:, -1], TORCH).argmax(-1)

    def _answer(self, prompts: Tensor, cache: Cache) -> list[list[int]]:
        """The rows' answers, each up to and including its EOS, or up to the end of the context.

        Finished rows are decoded until all rows have finished, and their surplus tokens are dropped. The cache does not
        hold the last token.
        """
        token = self._next(prompts, cache)
        answers = [[int(t)] for t in token]
        while any(answer[-1] != self.eos for answer in answers):
            if cache[0][0].shape[2] == self.model.config.max_context:
                break
            token = self._next(token[:, None], cache)
            for answer, new in zip(answers, token.tolist(), strict=True):
                if answer[-1] != self.eos:
                    answer.append(new)
        return answers

    def alone(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Decode each task as a prompt of its own; prompts of the same length are decoded together."""
        outcomes = []
        encoded = sorted(((self.tokenizer.encode(task.prompt), task) for task in tasks), key=lambda pair: len(pair[0]))
        for _, group in groupby(encoded, key=lambda pair: len(pair[0])):
            prompts, same_length = zip(*group, strict=True)
            answers = self._answer(torch.tensor(prompts), [])
            outcomes += [
                Outcome(task, self.tokenizer.decode(answer), len(answer), len(prompt))
                for prompt, task, answer in zip(prompts, same_length, answers, strict=True)
            ]
        return outcomes

    def together(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Decode the tasks as turns of one conversation that contains the model's own answers, right or wrong.

        Turns that no longer fit the context are left out.
        """
        outcomes = []
        cache: Cache = []
        pending: list[int] = []  # the last answer's last token, which has been sampled and not yet fed
        for task in tasks:
            prompt = [*pending, *self.tokenizer.encode(task.prompt)]
            start = (cache[0][0].shape[2] if cache else 0) + len(prompt)
            if start + len(self.tokenizer.encode(f" {task.answer}")) >= self.model.config.max_context:
                break
            (answer,) = self._answer(torch.tensor([prompt]), cache)
            outcomes.append(Outcome(task, self.tokenizer.decode(answer), len(answer), start))
            pending = answer[-1:]
        return outcomes


def table(outcomes: Iterable[Outcome], name: str = "all") -> list[str]:
    """One line per kind of task and one for all: exact answers, answers, percentage, shortest and longest."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.task.kind].append(outcome)
        groups[name].append(outcome)
    lines = [f"{'task':<12} {'exact':>5} {'of':>5} {'%':>6}  answer tokens"]
    for kind in (*sorted(set(groups) - {name}), name):
        exact = sum(outcome.exact for outcome in groups[kind])
        lengths = [outcome.num_tokens for outcome in groups[kind]]
        share = 100 * exact / len(lengths)
        lines.append(f"{kind:<12} {exact:>5} {len(lengths):>5} {share:>6.1f}  {min(lengths)} to {max(lengths)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--prompts", type=int, default=500, help="prompts of one turn")
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--turns", type=int, default=130, help="at most, as far as they fit the context")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    student = Student(arguments.model)
    alone = student.alone(crowd(arguments.prompts, arguments.seed))
    print(f"{arguments.prompts} held-out prompts, one turn each", *table(alone), sep="\n")
    seeds = range(arguments.seed, arguments.seed + arguments.conversations)
    turns = [o for seed in seeds for o in student.together(conversation(arguments.turns, seed))]
    if turns:
        print(f"\n{arguments.conversations} held-out conversations", *table(turns), sep="\n")
        print("\nthe same turns by the position of the answer", *_by_position(turns), sep="\n")
    wrong = [outcome for outcome in (*alone, *turns) if not outcome.exact]
    for o in wrong:
        print(f"wrong at {o.start}: {o.task.prompt!r} was answered {o.text!r}, not {o.task.answer!r}")


def _by_position(turns: list[Outcome], width: int = 128) -> list[str]:
    lines = [f"{'position':<12} {'exact':>5} {'of':>5} {'%':>6}"]
    for first in range(0, 1 + max(outcome.start for outcome in turns), width):
        here = [outcome for outcome in turns if first <= outcome.start < first + width]
        exact, share = sum(outcome.exact for outcome in here), 100 / max(1, len(here))
        lines.append(f"{f'{first}..{first + width - 1}':<12} {exact:>5} {len(here):>5} {exact * share:>6.1f}")
    return lines


if __name__ == "__main__":
    main()
