"""Costs from a profile: sums of operators by hand, and what a profile does not tell."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import refusal
from machines import HOST, TOY, profile

from minifuse.core.errors import UsageError
from minifuse.core.plan import Extent, Layout, Plan, Span, Work
from minifuse.core.shapes import Rectangle, Region
from minifuse.memory.tiered.profile import Profile
from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.grid import Grid
from minifuse.simulate.look_up import BeyondProfile
from minifuse.simulate.machine_profile import FORMAT, Host, MachineProfile
from minifuse.simulate.measured import MeasuredCost, layer_weights
from minifuse.simulate.profiles import VERSION
from minifuse.techniques import technique
from minifuse.workload.laws import parse_lengths
from minifuse.workload.synthetic import synthetic

MIX = "iteration+contiguous+per_sequence"


def _cost(attention: str = "per_sequence", **changes: Any) -> MeasuredCost:
    return MeasuredCost(TOY, profile(**changes), attention)


def _plan(*work: Work, **layout: Any) -> Plan:
    return Plan(0, 0, work, tuple(Extent(0, 64) for _ in work), layout=Layout(**layout))


def test_operators_add_up() -> None:
    """A prompt of 3 tokens after 7, and tokens 10 and 20 of two others: 5 tokens in 2 layers, 3 rows in the head.

    The two contexts of 10 and 20 tokens count as 15 + 0.5 x 5 = 17.5 each.
    """
    plan = _plan(Work("a", 7, 10), Work("b", 9, 10), Work("c", 19, 20))
    embed, layers, head, index, attention = 50, 2 * 5e7, 3e9, 3e5 + 2e4, 2 * (100 * 3 * 7 + 2 * 17.5)
    assert _cost()(plan) == pytest.approx(embed + layers + head + index + attention)
    assert _cost().attention_s(plan) == [pytest.approx(attention)]
    host = MeasuredCost(TOY, profile(), "per_sequence", MIX)
    assert host.host_s(plan) == 3.0 + 3 * 0.5
    assert host(plan) == pytest.approx(_cost()(plan) + 4.5)


def test_each_wave_attends_by_itself() -> None:
    plan = _plan(Work("a", 3, 6), Work("b", 9, 10), waves=(Span(0, 1), Span(1, 2)))
    assert _cost().attention_s(plan) == [pytest.approx(2 * 900), pytest.approx(2 * 10)]


def test_shapes_are_computed_whole() -> None:
    """A region of 4 buffers reads each up to 10 tokens; 3 rows of a rectangle attend 2 columns of 6."""
    region = _plan(Work("a", 9, 10), shape=Region(0, 4, 16))
    assert _cost("slots").attention_s(region) == [pytest.approx(2 * 4 * 10)]
    prompts = _plan(Work("a", 0, 2), shape=Rectangle(0, 3, 8, 4, 6))
    assert _cost("padded").attention_s(prompts) == [pytest.approx(2 * 3 * 100 * 2 * 4)]
    single = _plan(Work("a", 1, 2), shape=Rectangle(0, 3, 8, 5, 6, begin=1))
    assert _cost("padded").attention_s(single) == [pytest.approx(2 * 3 * 5)]
    assert _cost("padded")(prompts) == pytest.approx(60 + 2 * 6e7 + 1e9 + 3 * 2e5 + 2 * 3 * 800)


def test_what_is_attended_together_shares_its_overhead() -> None:
    """Two prompts and a wave's single queries are three parts, which take the shared 100 s twice less."""
    made = profile(shared_s=100.0, index_shared_s=1e4)
    plan = _plan(Work("a", 4, 8), Work("b", 3, 6), Work("c", 9, 10), Work("d", 9, 10))
    alone = (100 * 16, 100 * 9, 2 * 10)
    assert MeasuredCost(TOY, made, "packed").attention_s(plan) == [pytest.approx(2 * (sum(alone) - 2 * 100))]
    prompts = _plan(Work("a", 0, 4), shape=Rectangle(0, 3, 8, 2, 6))
    cost = MeasuredCost(TOY, made, "padded")
    assert cost.attention_s(prompts) == [pytest.approx(2 * (3 * 100 * 4 * 2 - 2 * 100))]
    assert cost(prompts) == pytest.approx(120 + 2 * 12e7 + 1e9 + 3 * 4e5 - 2e4 + 2 * (2400 - 200))
    much = MeasuredCost(TOY, profile(shared_s=1e6), "packed")
    assert much.attention_s(plan) == [pytest.approx(2 * max(alone))], "as long as the longest part, at least"


def test_what_stages_ask_of_a_machine() -> None:
    cost = _cost()
    assert cost.recomputation(4, (8, 16)) == Profile(pytest.approx(2 * 4e7), (8, 16), pytest.approx((3200, 9600)))  # type: ignore[arg-type]
    assert cost.saturating_tokens() == 1  # a token takes as long in any iteration
    assert cost.reading_s(10) == 10 * TOY.kv_elements_per_token * 4 / 1e9
    assert cost.num_lanes is None


def test_beyond_the_last_point_it_warns_once_and_goes_on() -> None:
    cost = _cost()
    with pytest.warns(BeyondProfile, match="up to 256 tokens of context, and an iteration has 300"):
        assert cost.attention_s(_plan(Work("a", 299, 300))) == [pytest.approx(600)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost.attention_s(_plan(Work("a", 300, 301)))


def test_several_workers_are_as_fast_as_with_models_of_this_size() -> None:
    """Halfway between a model at which two workers are no faster than one, and one at which they are four times."""
    sizes = Grid(axes={"weights": (layer_weights(TOY) / 2, layer_weights(TOY) * 2)}, seconds=(1.0, 4.0))
    hosts = {"llama": {MIX: Host(seconds=HOST, together=sizes)}}
    assert MeasuredCost(TOY, profile(host=hosts), "per_sequence", MIX).machine.together == pytest.approx(2.0)
    assert MeasuredCost(TOY, profile(), "per_sequence", MIX).machine.together == 1.0


def test_a_term_of_the_host_that_was_not_measured() -> None:
    cost = MeasuredCost(TOY, profile(), "per_sequence", MIX)
    known = _plan(Work("a", 9, 10))
    with pytest.warns(BeyondProfile, match="counts 1 under .wave., and no measured one"):
        assert cost.host_s(_plan(Work("a", 9, 10), Work("b", 9, 10), waves=(Span(0, 1), Span(1, 2)))) == 4.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cost.host_s(known) == 3.5
        assert MeasuredCost(TOY, profile(), "per_sequence").host_s(known) == 0.0


def test_heads_that_were_not_measured() -> None:
    with pytest.warns(BeyondProfile, match="heads of 4 numbers, 2 of queries.*heads of 4 numbers, 1 of queries"):
        MeasuredCost(TOY, profile(replace(TOY, num_kv_heads=2, num_heads=2), wide=4.0), "paged")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "gptj"}, ["'gptj'", "llama", "minifuse calibrate"]),
        ({"num_kv_heads": 2}, ["weights in a layer", "--model"]),
        ({"vocab_size": 101}, ["weights in the head", "808", "800"]),
    ],
)
def test_a_model_that_was_not_measured(changes: Mapping[str, Any], words: list[str]) -> None:
    with refusal(UsageError, *words):
        MeasuredCost(replace(TOY, **changes), profile(), "paged")


def test_stages_that_were_not_measured() -> None:
    with refusal(UsageError, "attention 'mine'", "paged", "minifuse calibrate"):
        _cost("mine")
    with refusal(UsageError, "stages 'a+b+c'", MIX):
        MeasuredCost(TOY, profile(), "paged", "a+b+c")


def test_a_run_in_virtual_time_takes_what_the_profile_tells(tmp_path: Path) -> None:
    source = resolve("random:small")
    assert isinstance(source, TextSource)
    path = tmp_path / "machine.json"
    path.write_text(profile(source.config).model_dump_json())
    run = resolve_run(technique("orca"), source, Settings(clock="virtual", hardware=str(path)))
    requests = synthetic(4, parse_lengths("fixed:8"), parse_lengths("fixed:3"), 100)
    engine = build_engine(run)
    served = serve(engine, requests)
    cost = MeasuredCost(source.config, profile(source.config), "per_sequence", MIX)
    steps = [event for event in engine.trace.events() if event.get("event") == "step"]
    assert steps
    assert served.answers[0].finish_s == pytest.approx(
        cost(_plan(*(Work(f"r{i}", 0, 8) for i in range(4))))
        + cost(_plan(*(Work(f"r{i}", 8, 9) for i in range(4))))
        + cost(_plan(*(Work(f"r{i}", 9, 10) for i in range(4))))
    )
    with refusal(UsageError, "measured in float32", "float16"):
        resolve_run(technique("orca"), source, Settings(clock="virtual", hardware=str(path), dtype="float16"))
    with refusal(UsageError, "stages", "minifuse calibrate"):
        resolve_run(technique("vllm"), source, Settings(clock="virtual", hardware=str(path)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["no profile", "minifuse calibrate"]),
        ('{"format": "another"}', ["no profile", "format"]),
        (profile().model_dump_json().replace('"rounds":1', '"rounds":0'), ["no profile", "rounds"]),
        (profile().model_dump_json().replace('"rounds":1', '"rounds":1,"more":1'), ["no profile", "more"]),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with refusal(UsageError, str(path), *words):
        Settings(clock="virtual", hardware=str(path))
    with refusal(UsageError, "nowhere.json", "cannot be read"):
        Settings(clock="virtual", hardware=str(tmp_path / "nowhere.json"))
    with refusal(UsageError, str(tmp_path), "cannot be read"):
        Settings(clock="virtual", hardware=str(tmp_path))


def test_a_profile_may_have_any_name_but_that_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here", "cpu"):
        Path(name).write_text(profile().model_dump_json())
    assert isinstance(Settings(clock="virtual", hardware="here").hardware, MachineProfile)
    assert Settings(clock="virtual", hardware="cpu").hardware == "cpu"


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(profile().model_dump_json(indent=1))
    assert MachineProfile.read(str(path)) == profile()
    assert FORMAT.endswith(f" {VERSION}"), "the cache's file is named after the format"
