"""Trains tiny from nothing: `python -m tools.tiny.train --seed 0 --out DIR`.

The model learns the answers (with EOS) and not the prompts. Rows are short at first, on which the tasks are learnt
fastest, and fill the whole context at the end, when only distance is left to learn.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from minifuse.kernels.operators import TORCH
from minifuse.model.text.checkpoint import write_weights
from minifuse.model.text.hugging_face import read_config
from minifuse.model.text.load import build
from minifuse.model.text.transformer import Transformer
from tools.tiny.forward import hidden_states
from tools.tiny.rows import IGNORED, Rows, make_rows
from tools.tiny.vocabulary import EOS_ID, build_tokenizer

__all__ = ["Recipe", "config", "exact_turns", "main", "new_model", "train"]

REPORT_EVERY = 200  # steps


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the weights, apart from the code and torch's version."""

    seed: int = 0
    steps: int = 4200
    tokens_per_step: int = 2048
    peak_rate: float = 3e-3
    warmup: int = 100
    decay: float = 0.1  # AdamW's weight decay
    max_norm: float = 1.0

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a hundredth."""
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * max(0.0, progress)))
        return self.peak_rate * min(1.0, (step + 1) / self.warmup) * cosine

    def row_length(self, step: int, rng: Random) -> int:
        """Short rows in the first half; then half of the steps take longer ones."""
        if step < self.steps // 2 or rng.random() < 0.5:
            return 128
        return rng.choice((256, 512, 1024))


def config(vocab_size: int) -> dict[str, object]:
    """tiny's `config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }


def new_model(raw: dict[str, object], seed: int) -> Transformer:
    """A model at the start of its training.

    Matrices are normal; those that add to the residual stream start small, so that at first the tokens themselves
    dominate it. Two measures shorten the long search for the first useful attention heads:

    - All embeddings share one random vector. LLaMA has no biases, so without a common part no query or key could
      depend on position alone.
    - In the first layer a query is its token's key, rotated back by as many positions as the number of its head: a
      token first attends to itself, to equal tokens and, a little, to the token that many positions before.
    """
    model = build(read_config(raw)).requires_grad_(True).train()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                adds = name.endswith(("out.weight", "down.weight"))
                spread = 0.5 if name == "embedding.weight" else (0.1 if adds else 1.0) / math.sqrt(parameter.shape[1])
                parameter.normal_(0.0, spread, generator=generator)
        embeddings = model.embedding.weight
        embeddings += torch.empty_like(embeddings[0]).normal_(0.0, 0.5, generator=generator)
        _tie_queries_to_keys(model)
    return model


def _tie_queries_to_keys(model: Transformer) -> None:
    """Set the first layer's queries to q_h = R(-h) k, where R(n) is the rotation by n positions."""
    c = model.config
    weight = model.get_parameter("layers.0.qkv.weight")
    heads = weight.unflatten(0, (-1, c.head_dim))  # a view: [q | k | v heads, head_dim, hidden_size]
    group = c.num_heads // c.num_kv_heads
    for head in range(c.num_heads):
        rows = model.rotary(torch.tensor([head]))
        assert rows is not None  # a LLaMA always has a rotary table
        cos, sin = (row[0, 0, :, None] for row in (rows.cos, rows.sin))  # [head_dim, 1]
        key = heads[c.num_heads + head // group]
        heads[head] = key * cos - key.roll(c.head_dim // 2, 0) * sin


@torch.no_grad()
def exact_turns(model: Transformer, rows: Rows) -> tuple[Counter[str], Counter[str]]:
    """Per kind of task, the number of answers, and the number that greedy decoding would get right.

    An answer is right if each of its tokens, EOS included, is the likeliest one after the right tokens before it: that
    is equivalent to decoding it greedily, in one pass. Earlier turns have their right answers.
    """
    right = model.head(hidden_states(model, rows.ids), TORCH).argmax(-1) == rows.labels
    answers: Counter[str] = Counter()
    exact: Counter[str] = Counter()
    for row, turns in enumerate(rows.turns):
        for kind, start, stop in turns:
            answers[kind] += 1
            exact[kind] += int(right[row, start:stop].all())
    return answers, exact


def train(model: Transformer, recipe: Recipe, report: Callable[[int, float], None] | None = None) -> list[float]:
    """Train in place.

    Args:
        report: called after every `REPORT_EVERY` steps with the number of steps and the mean loss since the last call.

    Returns:
        The loss of every step.
    """
    tokenizer = build_tokenizer()
    rng = Random(f"train {recipe.seed}")
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    gains = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=recipe.decay)
    losses: list[float] = []
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        length = recipe.row_length(step, rng)
        rows = make_rows(rng, tokenizer, recipe.tokens_per_step // length, length)
        wanted = rows.labels != IGNORED
        hidden = hidden_states(model, rows.ids)
        loss = cross_entropy(model.head(hidden[wanted], TORCH), rows.labels[wanted])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
        optimizer.step()
        losses.append(loss.item())
        if report and (step + 1) % REPORT_EVERY == 0:
            report(step + 1, sum(losses[-REPORT_EVERY:]) / REPORT_EVERY)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--threads", type=int, default=1, help="sums, and so the weights, depend on this number")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = build_tokenizer()
    raw = config(tokenizer.get_vocab_size())
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    model = new_model(raw, arguments.seed)
    start = time.perf_counter()

    def report(steps: int, loss: float) -> None:
        """Print the exact answers on held-out rows of each length, and save the weights so far."""
        print(f"step {steps}, {time.perf_counter() - start:.0f} s, loss {loss:.4f}", flush=True)
        for length in (128, 1024):
            rows = make_rows(Random(steps), tokenizer, 4096 // length, length, held_out=True)
            answers, exact = exact_turns(model, rows)
            shares = (f"{kind} {exact[kind] / answers[kind]:.0%}" for kind in sorted(answers))
            print(f"  {length:>4} tokens: {', '.join(shares)}", flush=True)
        write_weights(model, arguments.out)

    train(model, Recipe(seed=arguments.seed, steps=arguments.steps), report)
    write_weights(model, arguments.out)


if __name__ == "__main__":
    main()
