"""A made-up profile of a machine, whose times are easy to compute by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.simulate.grid import Grid
from minifuse.simulate.machine_profile import AttentionTables, Host, LayerTables, MachineProfile, Rates
from minifuse.simulate.measured import kind_of_layer, layer_weights

TOY = ModelConfig("llama", 100, 8, 2, 2, 1, 4, 10, 64, rotary=Rotary(4))
TOKENS, ROWS, LENGTHS = (1.0, 64.0), (1.0, 16.0), (1.0, 256.0)


def _grid(seconds: Callable[..., float], **axes: tuple[float, ...]) -> Grid:
    return Grid.of(axes, seconds)


def profile(config: ModelConfig = TOY, ragged: float = 0.5, **changes: Any) -> MachineProfile:
    """A machine on which every operator takes a power of its sizes, which grids meet exactly."""
    width = {"kv_size": (float(config.kv_size),)}
    tables = AttentionTables(
        decode=_grid(lambda width, rows, context: rows * context, **width, rows=ROWS, context=LENGTHS),
        prefill=_grid(
            lambda width, queries, context: 100 * queries * context,
            q_size=(float(config.q_size),),
            queries=LENGTHS,
            context=LENGTHS,
        ),
        index_decode=_grid(lambda width, rows, context: 1e4 * rows, **width, rows=ROWS, context=LENGTHS),
        index_prefill=_grid(lambda width, queries, context: 1e5 * queries, **width, queries=LENGTHS, context=LENGTHS),
        ragged=ragged,
    )
    kind = LayerTables(
        layers=_grid(lambda weights, tokens: 1e7 * tokens, weights=(float(layer_weights(config)),), tokens=TOKENS),
        head=_grid(lambda weights, rows: 1e9 * rows, weights=(float(config.head_weights),), rows=ROWS),
        attention=dict.fromkeys(("per_sequence", "paged", "padded", "packed", "slots"), tables),
    )
    given: dict[str, Any] = {
        "machine": "toy",
        "device": "cpu",
        "dtype": "float32",
        "torch": "2",
        "models": {"toy": 1},
        "rounds": 1,
        "spread": 0.0,
        "others": 0.0,
        "rates": Rates(bandwidth=1e9, flops=1e9, memory=1e9),
        "kinds": {kind_of_layer(config): kind},
        "host": {"iteration+contiguous+per_sequence": Host(seconds={"iteration": 3.0, "sequence": 0.5})},
    }
    return MachineProfile(**{**given, **changes})
