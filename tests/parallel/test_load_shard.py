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
from minifuse.parallel.shard import Shard, load_shard, part_of

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
    for rank in range(SIZE):
        expected = Shard(source.config, rank, SIZE, "float64", "cpu").fill(
            (name, parameter.detach()) for name, parameter in whole.named_parameters()
        )
        found = parts(source, rank)
        assert found.keys() == dict(expected.named_parameters()).keys()
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(found[name], parameter, rtol=0, atol=0)
    cut = {name: parameter.detach() for name, parameter in whole.named_parameters()}
    for rank, num_bytes in enumerate(read):  # no more than its parts
        assert num_bytes == sum(part_of(name, source.config, rank, SIZE).of(one).nbytes for name, one in cut.items())
        assert num_bytes < 0.75 * sum(one.nbytes for one in cut.values())


def test_a_rank_may_have_no_row_of_the_head(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama", vocab_size=9, num_attention_heads=4, num_key_value_heads=4)
    source = resolve(str(tmp_path))
    assert isinstance(source, TextSource)
    heads = [parts(source, rank, 4)["lm_head.part.weight"] for rank in range(4)]
    assert [len(one) for one in heads] == [3] * 4
    whole = load_weights(source, "float64", pack=False).lm_head.weight
    torch.testing.assert_close(torch.cat(heads[:3]), whole, rtol=0, atol=0)
    assert not heads[3].any()


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
