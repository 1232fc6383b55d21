"""Pensieve's Figure 3.17: its four contenders against float64, how they are timed, and what is shown and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import sentence

from minifuse.cli.reproduce import AskedOfFigure, reproduce
from minifuse.errors import MachineError, UsageError
from minifuse.naive import oracle
from minifuse.reproduce import EXPERIMENTS, Conditions, Point, experiments, pensieve_contenders, pensieve_fused
from minifuse.reproduce import pensieve_fig317 as figure
from minifuse.reproduce.pensieve_contenders import contenders
from minifuse.reproduce.pensieve_notes import notes
from minifuse.reproduce.pensieve_scene import ALLOWED, PAGE, Scene, error, take_turns, wanted_of

NAME = "pensieve-fig3.17"
CPU = torch.device("cpu")
GQA, MHA = (6, 2, 16), (2, 2, 8)
PASTS: list[list[int]] = [[40] * 4, [3, 70, 15, 16, 29], [0, 1], [9]]


def drawn(pasts: Sequence[int], heads: tuple[int, int, int] = GQA, dtype: torch.dtype = torch.float64) -> Scene:
    return Scene.drawn(3, pasts, heads, dtype, CPU, seed=1)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of few points, whose batch is as large as the paper's."""
    scale = figure.SCALES["quick"]
    monkeypatch.setitem(figure.SCALES, "quick", replace(scale, pasts=(8, 32), uneven=(16,), queries_at=16, rounds=2))


def test_what_is_wanted_is_the_last_rows_of_the_oracles_attention() -> None:
    scene = drawn([3, 20])
    for s, rows in wanted_of(scene).items():
        slots = scene.slots(s)
        q = torch.zeros(len(slots), *scene.q.shape[1:], dtype=torch.float64)
        q[-3:] = scene.q[3 * s : 3 * s + 3]
        whole = oracle.attention(q, scene.keys[slots], scene.values[slots])
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
    fused = getattr(pensieve_fused, way)(scene)
    found = fused.rows(fused.attend(scene.keys[fused.slots], scene.values[fused.slots]))
    assert error(found, wanted_of(scene), scene) < 1e-12


def test_a_contender_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pensieve_contenders, "attend", lambda q, *rest: torch.full_like(q, float("nan")))
    with pytest.raises(MachineError) as refused:
        contenders(drawn([5]))
    sentence(refused.value, "ours is off by inf", "--dtype")


def test_the_fastest_way_that_is_right_is_the_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scene: Scene) -> Any:
        raise RuntimeError("no such kernel")

    def wrong(scene: Scene) -> Any:
        return replace(pensieve_fused._rectangle(scene), name="wrong", attend=lambda k, v: torch.zeros(2, 2, 9, 16))

    def offered(*ways: Any) -> Any:
        return lambda scene: [lambda way=way: way(scene) for way in ways]

    scene = drawn([9, 5])
    monkeypatch.setattr(pensieve_contenders, "ways", offered(broken, wrong, pensieve_fused._one_by_one))
    assert contenders(scene)[1] == "a call for each request"
    both = pensieve_fused._one_by_one, pensieve_fused._rectangle
    for seconds, name in (([1.0, 2.0], "a call for each request"), ([2.0, 1.0], "a rectangle with a mask")):
        left = list(seconds)
        monkeypatch.setattr(pensieve_contenders, "ways", offered(*both))
        monkeypatch.setattr(pensieve_contenders, "take_turns", lambda *given, left=left: {"it": (left.pop(0),)})
        assert contenders(scene)[1] == name
    monkeypatch.setattr(pensieve_contenders, "ways", offered(broken))
    with pytest.raises(MachineError) as refused:
        contenders(scene)
    sentence(refused.value, "fused attentions")


def test_contenders_take_turns_after_a_round_that_does_not_count() -> None:
    order: list[str] = []
    taken = take_turns({name: lambda name=name: order.append(name) for name in "abc"}, 3, CPU)
    assert order == [*"cab", *"abc", *"bca", *"cab"]
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(second > 0 for seconds in taken.values() for second in seconds)


def test_uneven_lengths_have_the_mean_of_equal_ones() -> None:
    lengths = figure.spread(1000, 32, 0)
    assert (len(lengths), sum(lengths)) == (32, 32000)
    assert 250 <= min(lengths) < 600
    assert 1400 < max(lengths) <= 1750
    assert figure.spread(1000, 32, 1) != lengths


def test_the_exponent_of_a_power_law() -> None:
    assert figure.slope([(x, 5 * x**2) for x in (1, 3, 10)]) == pytest.approx(2)
    assert figure.slope([(128, 7.0), (256, -0.1), (512, 28.0)]) == pytest.approx(1)
    assert figure.slope([(128, 7.0), (256, -0.1)]) is None


@pytest.mark.usefixtures("few")
def test_the_figure_tells_the_papers_order_beside_what_was_measured() -> None:
    row = EXPERIMENTS[NAME]
    said: list[str] = []
    finding = row.prepare(Conditions(scale="quick", dtype="float32", tokens=6, rounds=3))(said.append)
    assert said[:3] == ["8 past tokens", "32 past tokens", said[2]]
    equal, uneven, varied = finding.panels
    assert [point.at["past_tokens"] for point in equal.points] == [8, 32]
    assert [point.at["tokens"] for point in varied.points] == [3, 6, 12]
    assert uneven.points[0].at["shortest"] < 16 < uneven.points[0].at["longest"]  # type: ignore[operator]
    for panel in (equal, uneven, varied):
        papers = panel is equal
        assert panel.title.startswith("Not in the paper") != papers
        assert any(column.part == "paper" for column in panel.columns) == papers
        for point in panel.points:
            assert point.paper == ({"ours": "<1", "copied": ">1", "rounds": ">1"} if papers else {})
            assert len(point.measured["ours_rounds_ms"]) == 3  # type: ignore[arg-type]
            for name in point.paper:
                assert point.measured[name] == point.measured[f"{name}_ms"] / point.measured["ideal_ms"]  # type: ignore[operator]
    as_json = json.loads(json.dumps(row.as_json(finding)))
    assert (as_json["model"], as_json["batch"], as_json["tokens"], as_json["rounds"]) == ("random:small", 32, 6, 3)
    assert (as_json["num_heads"], as_json["num_kv_heads"], as_json["head_dim"]) == (8, 4, 32)
    text = " ".join(finding.notes)
    assert "once an iteration" in text
    assert "gives no numbers" in text
    assert "medians of 3 rounds" in text


def test_the_notes_name_what_is_not_as_in_the_paper() -> None:
    def point(past: int, ours: float, copied: float, rounds: float) -> Point:
        return Point({"past_tokens": past}, {"ours": ours, "copied": copied, "rounds": rounds, "fused": "f"}, {})

    facts = {
        **dict.fromkeys(("model", "dtype", "num_heads", "head_dim", "num_kv_heads", "rounds", "num_layers"), 1),
        "device": "cuda",
    }
    slopes = {"copied": 0.98, "rounds": None}
    as_told = notes(facts, slopes, [point(1, 0.95, 2.0, 8.0)], [])
    assert "The order of the bars is the paper's everywhere." in as_told
    assert any("0.98 (paper: proportional, 1)" in note and "(too few points to tell)" in note for note in as_told)
    assert not any("On a CPU" in note for note in as_told)
    missed = notes(facts, slopes, [point(128, 1.5, 1.25, 8.0), point(2048, 0.9, 0.8, 9.0)], [])
    assert (
        "Not as in the paper: ours is slower than the ideal at 128 (1.50x); copying out is faster than the ideal at "
        "2,048 (0.80x); ours is slower than copying out or rounds at 128, 2,048."
    ) in missed


@pytest.mark.usefixtures("few")
def test_files_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = AskedOfFigure("pensieve", False, "quick", None, "auto", None, "1", "0", False, str(tmp_path))
    assert reproduce(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{NAME}: attention of 8 query tokens")
    assert max(len(line.rstrip()) for line in lines[1:] if not line.startswith("- ")) <= 80
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{NAME}-quick.json", f"{NAME}-quick.md"]
    assert (tmp_path / f"{NAME}-quick.md").read_text().startswith(f"# {NAME}: Pensieve, Fig. 3.17\n")


def test_the_group_is_the_papers_name() -> None:
    assert NAME in [row.name for row in experiments("pensieve")]
    assert EXPERIMENTS[NAME].group == "pensieve"
    with pytest.raises(UsageError) as refused:
        experiments("pensieve-fig3.16")
    sentence(refused.value, f'did you mean "{NAME}"')


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"tokens": 257}, ["--tokens is 257", "at most 256"]),
        ({"model": "medium"}, ["'medium'", "random:medium"]),
        ({"model": "random:none"}, ["'none'"]),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(conditions: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        EXPERIMENTS[NAME].prepare(Conditions(**conditions))
    sentence(refused.value, *words)


def test_contexts_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "free_bytes", lambda device: 10**9)
    with pytest.raises(UsageError) as refused:
        EXPERIMENTS[NAME].prepare(Conditions(model="random:opt-13b", dtype="bfloat16"))
    # 5 times 32 contexts of 4112 tokens, each of 2 x 40 heads of 128 in 2 bytes
    sentence(refused.value, f"{5 * 32 * 4112 * 2 * 40 * 128 * 2 / 1e9:.1f} GB", "1.0 GB are free on cpu", "--model")


def test_the_papers_scale_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MachineError) as refused:
        EXPERIMENTS[NAME].prepare(Conditions(scale="paper"))
    sentence(refused.value, "--scale is paper", "no CUDA device", "--scale cpu or quick")


def test_with_a_gpu_kernels_and_the_papers_dtype_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(figure, "free_bytes", lambda device: 80 * 10**9)
    facts = figure.Setting(Conditions(scale="paper")).facts()
    assert (facts["model"], facts["dtype"], facts["device"], facts["rounds"]) == (
        "random:opt-13b",
        "float16",
        "cuda",
        20,
    )
    assert figure.Setting(Conditions(scale="quick")).device == "cuda"
    assert figure.Setting(Conditions(scale="cpu")).device == "cpu"
    with pytest.raises(UsageError) as refused:
        figure.Setting(Conditions(scale="quick", dtype="float64"))
    sentence(refused.value, "--dtype is float64", "bfloat16", "--scale cpu")


IN_THE_INTERPRETER = """
import torch
from minifuse.reproduce.pensieve_contenders import contenders
from minifuse.reproduce.pensieve_scene import Scene, error, wanted_of
for pasts in ([20, 20], [0, 33, 17]):
    scene = Scene.drawn(3, pasts, (4, 2, 16), torch.float32, torch.device("cpu"), kernels=True)
    wanted = wanted_of(scene)
    for contender in contenders(scene)[0].values():
        assert error(contender.rows(contender.run()), wanted, scene) < 1e-6
"""


def test_the_kernels_compute_the_same() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IN_THE_INTERPRETER]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    finding = EXPERIMENTS[NAME].prepare(Conditions(scale="quick"))(lambda what: None)
    assert finding.facts["device"] == "cuda"
    assert all(point.measured["ours_ms"] > 0 for panel in finding.panels for point in panel.points)  # type: ignore[operator]
