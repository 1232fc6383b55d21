"""The four contenders of Pensieve's Figure 3.17 against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import sentence

from minifuse.core.errors import MachineError
from minifuse.naive import layers
from minifuse.papers.pensieve import kernels as module
from minifuse.papers.pensieve.kernels import contenders
from minifuse.papers.pensieve.scene import ALLOWED, PAGE, Scene, error, wanted_of

CPU = torch.device("cpu")


GQA, MHA = (6, 2, 16), (2, 2, 8)
PASTS: list[list[int]] = [[40] * 4, [3, 70, 15, 16, 29], [0, 1], [9]]


def drawn(pasts: Sequence[int], heads: tuple[int, int, int] = GQA, dtype: torch.dtype = torch.float64) -> Scene:
    return Scene.drawn(3, pasts, heads, dtype, CPU, seed=1)


def test_what_is_wanted_is_the_last_rows_of_the_oracles_attention() -> None:
    scene = drawn([3, 20])
    for s, rows in wanted_of(scene).items():
        slots = scene.slots(s)
        q = torch.zeros(len(slots), *scene.q.shape[1:], dtype=torch.float64)
        q[-3:] = scene.q[3 * s : 3 * s + 3]
        whole = layers.attention(q, scene.keys[slots], scene.values[slots])
        torch.testing.assert_close(rows.flatten(1), whole[-3:], rtol=0, atol=1e-12)


def test_a_scene_lies_in_blocks_of_its_own_in_no_order() -> None:
    scene = drawn([100] * 6)
    blocks = [block for table in scene.tables for block in table]
    assert sorted(blocks) == list(range(len(scene.keys) // PAGE))
    assert blocks != sorted(blocks)
    assert set(map(len, scene.tables)) == {-(-103 // PAGE)}
    assert scene.contexts == [103] * 6
    assert torch.equal(drawn([100] * 6).keys, scene.keys)
    assert Scene.drawn(3, [100] * 6, GQA, torch.float64, CPU, seed=2).tables != scene.tables


@pytest.mark.parametrize("pasts", PASTS, ids=str)
@pytest.mark.parametrize("heads", [GQA, MHA], ids=str)
def test_the_four_compute_the_same(pasts: list[int], heads: tuple[int, int, int]) -> None:
    scene = drawn(pasts, heads)
    wanted = wanted_of(scene)
    four, fused = contenders(scene)
    assert list(four) == ["ideal", "ours", "copied", "rounds"]
    assert fused
    for contender in four.values():
        rows = contender.rows(contender.run())
        assert rows.shape == scene.q.shape
        assert error(rows, wanted, scene) < 1e-12
        assert contender.index_s > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_allowed_and_a_lost_token_is_not(dtype: torch.dtype) -> None:
    scene = drawn([200] * 2, dtype=dtype)
    contenders(scene)
    wanted = wanted_of(replace(scene, contexts=[202] * 2))  # every query one token too early
    four, _ = contenders(scene)
    for contender in four.values():
        assert error(contender.rows(contender.run()), wanted, scene) > 2 * ALLOWED[dtype]


@pytest.mark.parametrize("pasts", PASTS, ids=str)
@pytest.mark.parametrize("way", ["_rectangle", "_one_by_one", "_lower_right"])
def test_every_way_of_fused_attention(pasts: list[int], way: str) -> None:
    if way == "_lower_right" and min(pasts) < max(pasts):
        return
    scene = drawn(pasts)
    fused = getattr(module, way)(scene)
    found = fused.rows(fused.attend(scene.keys[fused.slots], scene.values[fused.slots]))
    assert error(found, wanted_of(scene), scene) < 1e-12


def test_a_contender_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "attend", lambda q, *rest: torch.full_like(q, float("nan")))
    with pytest.raises(MachineError) as refused:
        contenders(drawn([5]))
    sentence(refused.value, "ours is off by inf", "--dtype")


def test_the_fastest_way_that_is_right_is_the_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scene: Scene) -> Any:
        raise RuntimeError("no such kernel")

    def wrong(scene: Scene) -> Any:
        return replace(module._rectangle(scene), name="wrong", attend=lambda k, v: torch.zeros(2, 2, 9, 16))

    def offered(*ways: Any) -> Any:
        return lambda scene: [lambda way=way: way(scene) for way in ways]

    scene = drawn([9, 5])
    monkeypatch.setattr(module, "ways", offered(broken, wrong, module._one_by_one))
    assert contenders(scene)[1] == "a call for each request"
    both = module._one_by_one, module._rectangle
    for seconds, name in (([1.0, 2.0], "a call for each request"), ([2.0, 1.0], "a rectangle with a mask")):
        left = list(seconds)
        monkeypatch.setattr(module, "ways", offered(*both))
        monkeypatch.setattr(module, "timed", lambda *arguments, left=left: left.pop(0))
        assert contenders(scene)[1] == name
    monkeypatch.setattr(module, "ways", offered(broken))
    with pytest.raises(MachineError) as refused:
        contenders(scene)
    sentence(refused.value, "fused attentions")
