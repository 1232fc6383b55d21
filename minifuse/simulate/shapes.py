"""The models that calibration measures if none is named. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from minifuse.model.source import Source, resolve
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.load import TextSource
from minifuse.model.text.presets import preset

SIZES = ((128, 2), (256, 4), (512, 8), (768, 12))  # hidden size and layers of the transformers
CELLS = (64, 256, 1024)  # hidden sizes of the models of cells


def shapes() -> list[Source]:
    """Return llama, opt and three models of cells, in several sizes."""
    found: list[Source] = []
    for base in (preset("small"), preset("small-opt")):
        for hidden, layers in SIZES:
            config = resized(base, hidden, layers)
            found.append(TextSource(f"{config.family} {layers}x{hidden}", config, None))
    found += [resolve(f"{kind}:hidden={hidden}") for kind in ("lstm", "seq2seq", "treelstm") for hidden in CELLS]
    return found


def resized(base: ModelConfig, hidden: int, layers: int) -> ModelConfig:
    """Return a shape with another hidden size and heads of 64 numbers.

    The feed-forward layer keeps its proportion to the hidden size.
    """
    return replace(
        base,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=hidden // 64,
        num_kv_heads=hidden // 64,
        head_dim=64,
        intermediate_size=base.intermediate_size * hidden // base.hidden_size,
        rotary=base.rotary and replace(base.rotary, dim=64),
    )
