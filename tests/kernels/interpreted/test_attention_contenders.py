"""The kernels as contenders of Pensieve's Figure 3.17."""

from __future__ import annotations

import pytest
import torch

from minifuse.papers.pensieve.kernels import contenders
from minifuse.papers.pensieve.scene import Scene, error, wanted_of


@pytest.mark.parametrize("pasts", [[20, 20], [0, 33, 17]], ids=str)
def test_the_contenders_compute_the_same(pasts: list[int]) -> None:
    scene = Scene.drawn(3, pasts, (4, 2, 16), torch.float32, torch.device("cpu"), kernels=True)
    wanted = wanted_of(scene)
    for contender in contenders(scene)[0].values():
        assert error(contender.rows(contender.run()), wanted, scene) < 1e-6
