"""A made-up profile of a machine, whose times are easy to compute by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.simulate.grid import Grid
from minifuse.simulate.machine_profile import AttentionTables, Host, LayerTables, MachineProfile, Rates
from minifuse.simulate.measured import heads_of, kind_of_layer, layer_weights

TOY = ModelConfig("llama", 100, 8, 2, 2, 1, 4, 10, 64, rotary=Rotary(4))
HOST = {"iteration": 3.0, "layer": 0.0, "sequence": 0.5, "newcomer": 0.0, "token": 0.0}
TOKENS, ROWS, LENGTHS = (1.0, 64.0), (1.0, 16.0), (1.0, 256.0)


def profile(
    config: ModelConfig = TOY,
    ragged: float = 0.5,
    wide: float = 1.0,
    second: float = 1.0,
    shared_s: float = 1e-9,
    index_shared_s: float = 1e-9,
    **changes: Any,
) -> MachineProfile:
    """A machine on which every operator takes a power of its sizes, which grids meet exactly.

    Args:
        second: in which all times are given.
        wide: by which factor a model's sizes may differ from those of `config`.
    """

    def around(size: int) -> tuple[float, ...]:
        return tuple(sorted({size / wide, float(size), size * wide}))

    def grid(seconds: Callable[..., float], **axes: tuple[float, ...]) -> Grid:
        return Grid.of(axes, lambda *point: second * seconds(*point))

    kv, q = {"kv_size": around(config.kv_size)}, {"q_size": around(config.q_size)}
    rows, prompt = {"rows": ROWS, "context": LENGTHS}, {"queries": LENGTHS, "earlier": LENGTHS}
    tables = AttentionTables(
        decode=grid(lambda width, rows, context: rows * context, **kv, **rows),
        prefill=grid(lambda width, queries, earlier: 100 * queries * earlier, **q, **prompt),
        index_decode=grid(lambda width, rows, context: 1e4 * rows, **kv, **rows),
        index_prefill=grid(lambda width, queries, earlier: 1e5 * queries, **kv, **prompt),
        shared=grid(lambda width: shared_s, **q),
        index_shared=grid(lambda width: index_shared_s, **kv),
        ragged=ragged,
    )
    kind = LayerTables(
        heads=[heads_of(config)],
        embed=grid(lambda hidden, tokens: 10 * tokens, hidden_size=around(config.hidden_size), tokens=TOKENS),
        layers=grid(lambda weights, tokens: 1e7 * tokens, weights=around(layer_weights(config)), tokens=TOKENS),
        head=grid(lambda weights, rows: 1e9 * rows, weights=around(config.head_weights), rows=ROWS),
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
        "host": {kind_of_layer(config): {"iteration+contiguous+per_sequence": Host(seconds=HOST)}},
    }
    return MachineProfile(**{**given, **changes})
