"""Each rank reads its own slices of a checkpoint, and holds no more of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import model_directory

from minifuse.model.source import resolve
from minifuse.model.text import checkpoint
from minifuse.model.text.load import TextSource, draw_weights, load_weights
from minifuse.parallel.order import Setup
from minifuse.parallel.shard import Shard, load_shard

SIZE = 2
FAMILIES = {"llama": {}, "gpt2": {}, "gptj": {"n_embd": 32, "n_head": 4}, "opt": {}}


def setup_of(source: TextSource, rank: int, size: int = SIZE) -> Setup:
    return Setup(source, None, 8, size, rank=rank, dtype="float64")  # type: ignore[arg-type]


def parts(source: TextSource, rank: int, size: int = SIZE) -> dict[str, torch.Tensor]:
    return dict(load_shard(setup_of(source, rank, size)).named_parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_a_checkpoint_are_the_parts_of_the_whole_model(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_directory(tmp_path, family, **FAMILIES[family])
    source = resolve(str(tmp_path))
    assert isinstance(source, TextSource)
    whole = load_weights(source, "float64", pack=False)
    read: list[int] = []
    original = checkpoint.read_weights
    monkeypatch.setattr("minifuse.parallel.shard.read_weights", lambda *given: read.append(original(*given)))
    num_bytes = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    for rank in range(SIZE):
        expected = Shard(source.config, rank, SIZE, "float64", "cpu").fill(
            (name, parameter.detach()) for name, parameter in whole.named_parameters()
        )
        found = parts(source, rank)
        assert found.keys() == dict(expected.named_parameters()).keys()
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(found[name], parameter, rtol=0, atol=0)
    assert len(read) == SIZE
    assert all(one < num_bytes for one in read)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_random_weights_are_those_of_the_whole_model(size: int) -> None:
    source = resolve("random:small")
    assert isinstance(source, TextSource)
    whole = dict(load_weights(source, "float64", seed=3, pack=False).named_parameters())
    drawn = dict(draw_weights(load_weights(source, "float64", seed=9, pack=False), 3, "cpu"))
    assert all(torch.equal(drawn[name].double(), whole[name]) for name in whole)
    found = [dict(load_shard(setup_of(source, rank, size)._replace(seed=3)).named_parameters()) for rank in range(size)]
    down = torch.cat([one["layers.0.down.part.weight"] for one in found], dim=1)
    torch.testing.assert_close(down, whole["layers.0.down.weight"], rtol=0, atol=0)
    head = torch.cat([one["lm_head.part.weight"] for one in found])[: source.config.vocab_size]
    torch.testing.assert_close(head, whole["lm_head.weight"], rtol=0, atol=0)


def test_a_rank_holds_its_share_and_what_every_rank_has() -> None:
    source = resolve("random:small")
    assert isinstance(source, TextSource)
    config = source.config
    [held] = {sum(one.numel() for one in parts(source, rank).values()) for rank in range(SIZE)}
    everywhere = config.vocab_size * config.hidden_size + (2 * config.num_layers + 1) * config.hidden_size
    assert held == everywhere + (config.num_matrix_weights // SIZE)
