"""Two ranks whose layers have the device in turn."""

from __future__ import annotations

from parallel.test_transfers import TIGHT, serve_all

from minifuse.attention.layouts import PagedStage
from minifuse.memory import Waves
from minifuse.model.text.load import TextSource
from minifuse.parallel.launch import launch
from minifuse.parallel.order import Setup
from minifuse.testing.texts.models import CONFIGS


def test_layers_in_turn() -> None:
    """Both ranks have a device for four tokens of both layers, three of which are for six of one layer."""
    source, attention = TextSource("llama", CONFIGS["llama"], None), PagedStage().backend("cpu", "float64")
    memory = Waves(TIGHT // 2, Waves.Options(block_size=2, turns="layers", layers=2, buffer=0.75, host=8 * TIGHT))
    tiers = {"host_capacity": memory.host_capacity, "shared_capacity": memory.shared_capacity}
    with launch(Setup(source, attention, memory.capacity, 2, seed=7, **tiers, dtype="float64")) as run:
        steps = serve_all(run, memory)
    assert max(len(step.plan.waves) for step in steps) > 1
