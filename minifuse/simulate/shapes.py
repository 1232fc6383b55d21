"""The models that calibration measures if none is named. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minifuse.model.source import Source, resolve
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.load import TextSource
from minifuse.model.text.presets import preset

# Hidden size and layers of the transformers. They lie closest where the weights begin to exceed a processor's cache.
SIZES = ((128, 2), (256, 4), (320, 5), (448, 7), (576, 9), (768, 12))
CELLS = (64, 256, 384, 640, 1024)  # hidden sizes of the models of cells
HOSTS = (64, 128, 320, 576, 640)  # hidden sizes of the models with which the host is measured


def shapes() -> list[Source]:
    """Return llama, opt and three models of cells, in several sizes."""
    found: list[Source] = []
    for base in (preset("small"), preset("small-opt")):
        for hidden, layers in SIZES:
            config = resized(base, hidden, layers)
            found.append(TextSource(f"{config.family} {layers}x{hidden}", config, None))
    found += [resolve(f"{kind}:hidden={hidden}") for kind in ("lstm", "seq2seq", "treelstm") for hidden in CELLS]
    return found


def of_hosts(sources: Sequence[Source]) -> list[Source]:
    """Return the models with which the host is measured."""
    configs: dict[str, Any] = {source.name: source.config for source in sources}
    return [source for source in sources if configs[source.name].hidden_size in HOSTS]


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
