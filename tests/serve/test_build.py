"""Building an engine: memory of the budget's size, options that reach their stages, and settings that are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, refusal
from machines import profile

from minifuse.core.errors import MachineError, UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import FinishReason, Request
from minifuse.core.stages import option
from minifuse.memory import Tiered
from minifuse.memory.tiered.profile import ASSUMED, Profile
from minifuse.model.source import Source, resolve
from minifuse.model.text.load import TINY, TextSource
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.serve.texts import ServedText
from minifuse.simulate.cost import HARDWARE, Host, Roofline, hardware
from minifuse.simulate.measured import MeasuredCost
from minifuse.simulate.profiles import KeptProfile
from minifuse.stages import register
from minifuse.techniques import Technique, mix, technique
from minifuse.testing.texts.models import CONFIGS, small_model
from minifuse.trace.log import read_trace

LLAMA = CONFIGS["llama"]
SOURCE = TextSource("random:toy", LLAMA, None)


def _build(name: str = "orca", **settings: Any) -> ServingEngine:
    return build_engine(resolve_run(technique(name), SOURCE, Settings(clock="virtual", **settings)))


def test_kv_memory_holds_a_number_of_tokens() -> None:
    assert LLAMA.kv_elements_per_token == 32  # 2 layers, a key and a value, 2 KV heads of 4
    assert _build(kv_memory=1000, dtype="float32").memory.capacity == 7  # 128 bytes a token
    assert _build(kv_memory=1000, dtype="float64").memory.capacity == 3
    assert _build(kv_memory=1000, dtype="bfloat16").memory.capacity == 15
    assert _build(kv_memory=64, dtype="float16").memory.capacity == 1


def test_kv_memory_of_less_than_a_token() -> None:
    with refusal(UsageError, "63 bytes", "64 bytes", "random:toy", "float16", "--kv-memory"):
        _build(kv_memory=63, dtype="float16")


def test_simulated_hardware_holds_what_its_memory_leaves() -> None:
    """LLaMA-7B in float16 has 13.5 GB of weights, and 512 KiB of KV a token."""
    source = resolve("random:llama-7b")
    settings = Settings(clock="virtual", hardware="a100-40g", dtype="float16")
    assert source.config.num_parameters == 6_738_149_376
    assert resolve_run(technique("orca"), source, settings).capacity == 42_960  # (36e9 - 13,476,298,752) / 2**19
    tiny = resolve("tiny")  # has weights, so that its KV takes memory of this machine
    stored = resolve_run(technique("orca"), tiny, settings)
    assert stored.capacity == 64 * 2**20 // tiny.slot_bytes("float16")
    assert resolve_run(technique("cellular"), resolve("lstm:hidden=1024"), settings).capacity == 2**20
    large = resolve("random:llama-2-70b")
    with refusal(UsageError, "take 139.3 GB", "a100-40g has 40 GB", "shorter --dtype", "--hardware"):
        resolve_run(technique("orca"), large, settings)


@pytest.mark.parametrize("problem", [RuntimeError("out of memory"), MemoryError()])
def test_kv_memory_that_does_not_fit_the_machine(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise problem

    monkeypatch.setattr("minifuse.execute.moving.torch_runner", refuse)
    with refusal(MachineError, "64 MiB", "cpu", "--kv-memory"):
        build_engine(resolve_run(technique("orca"), SOURCE, Settings(dtype="float64")), small_model("llama"))


def test_unknown_hardware() -> None:
    with refusal(UsageError, "'h300'", "h200", "a100-40g"):
        _build(hardware="h300")


def test_iterations_take_the_rooflines_time() -> None:
    requests = [asks("a", 4, 2), asks("b", 2, 2)]
    steps: list[StepReport] = []
    served = serve(_build(hardware="h200", dtype="float16"), requests, on_step=steps.append)
    cost = Roofline(LLAMA, "float16", hardware("h200"))
    assert [step.ended_s - step.started_s for step in steps] == [pytest.approx(cost(step.plan)) for step in steps]
    assert served.answers[0].token_ids == (-1, -1)  # no model: placeholders


def test_the_header_of_the_trace() -> None:
    engine = _build("dynamic", kv_memory=1000, seed=9, stage_options={"batching.max_batch": 4})
    (header,) = engine.trace.events()
    assert header == {
        "event": "run",
        "schema": "minifuse.trace/5",
        "technique": "dynamic",
        "stages": {"batching": "dynamic", "memory": "padded", "attention": "padded"},
        "model": "random:toy",
        "dtype": "float32",
        "clock": "virtual",
        "numerics": "fast",
        "seed": 9,
        "options": {"batching.max_batch": "4"},
        "kv_bytes_per_token": 128,
        "kv_capacity_tokens": 7,
    }


def test_a_trace_in_a_file_tells_texts_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    source = resolve("tiny")
    settings = Settings(clock="virtual")
    prompts = ["add 17 and 25", "count from 3 to 5"]
    requests = [
        Request(f"r{i}", source.tokenizer().encode(text), 12, stop_ids=source.config.eos_ids)
        for i, text in enumerate(prompts)
    ]
    model = source.load()
    path = tmp_path / "trace.jsonl"
    serve(build_engine(resolve_run(technique("orca"), source, settings), model, path), requests)
    events = read_trace(path)
    assert [event["text"] for event in events if event["event"] == "request"] == prompts
    answers = {event["id"]: event["text"].strip() for event in events if event["event"] == "answer"}
    assert answers == {"r0": "42", "r1": "3 4 5"}
    kept = serve(build_engine(resolve_run(technique("orca"), source, settings), model), requests).trace.events()
    assert not any("text" in event for event in kept), "what is kept in memory has the tokens"


def _profile(engine: ServingEngine) -> tuple[Profile, str]:
    """What chunks cost in the memory of an engine, and what its trace tells of where that comes from."""
    given = engine.memory.options.profile  # type: ignore[attr-defined]
    (header,) = engine.trace.events()
    return ASSUMED if given is None else Profile.read(given), header["option_sources"]["memory.profile"]


def test_in_virtual_time_a_chunk_costs_what_the_simulated_machine_takes() -> None:
    found, source = _profile(_build("pensieve", hardware="h200", stage_options={"memory.chunk": "8"}))
    assert source == "computed from the hardware: h200"
    assert found == Roofline(LLAMA, "float32", hardware("h200")).recomputation(8, (8, 16, 32))
    large, _ = _profile(_build("pensieve", stage_options={"memory.chunk": 64}))
    assert large.contexts == (64, 128, 256)  # larger than the model's context
    own = replace(hardware("h200"), flops=1e9)
    found, source = _profile(_build("pensieve", hardware=own))
    assert found == Roofline(LLAMA, "float32", own).recomputation(32, (32, 64, 128))
    assert source == "computed from the hardware: given"


def test_a_profile_that_is_given_is_used_as_it_is() -> None:
    given = Profile(1.0, (8, 16), (3.0, 4.0))
    assert _profile(_build("pensieve", stage_options={"memory.profile": given.text()})) == (given, "given")
    found, source = _profile(_build("pensieve", stage_options={"memory.profile": "none"}))
    assert (found == given, source) == (False, "computed from the hardware: cpu")


def test_in_real_time_a_chunk_costs_what_was_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def built(**options: Any) -> ServingEngine:
        settings = Settings(dtype="float64", stage_options={f"memory.{name}": v for name, v in options.items()})
        return build_engine(resolve_run(technique("pensieve"), SOURCE, settings), small_model("llama"))

    kept = KeptProfile(LLAMA, "float64", "cpu")
    assert _profile(built()) == (ASSUMED, "assumed")
    of_model = profile(LLAMA, dtype="float64")
    kept.write(of_model.model_dump_json())
    measured = MeasuredCost(LLAMA, of_model, "paged").recomputation(32, (32, 64, 128))
    assert _profile(built()) == (measured, f"the cache: {kept.path}")
    assert _profile(built(chunk=16))[0].contexts == (16, 32, 64)
    kept.path.write_text("{")
    with refusal(UsageError, str(kept.path), "minifuse calibrate --model random:toy --dtype float64"):
        built()
    assert _profile(built(profile=measured.text())) == (measured, "given")  # what is damaged is not looked at


def test_in_virtual_time_an_iteration_of_fluid_has_as_many_tokens_as_saturate() -> None:
    """An RTX 4090 does 164 operations while it reads a byte: 128 tokens are too few, 256 are enough."""
    source = resolve("random:opt-6.7b")
    settings = Settings(clock="virtual", hardware="rtx-4090", dtype="float16", kv_memory=2**30)
    engine = build_engine(resolve_run(technique("fluid"), source, settings))
    assert engine.batching.token_budget == 256
    assert engine.attention.options.balance == pytest.approx(165e12 / 1.008e12)  # type: ignore[attr-defined]
    (header,) = engine.trace.events()
    sources = header["option_sources"]
    assert sources.pop("attention.lanes") == "assumed"  # its attention is not simulated in lanes
    unused = {sources.pop(f"memory.{name}") for name in ("beyond", "buffer", "layers", "split")}
    assert unused == {"not needed: memory.turns is none"}
    assert set(sources.values()) == {"computed from the hardware: rtx-4090"}


def test_what_the_host_attends_is_what_gives_most_tokens_per_second() -> None:
    """OPT-6.7B on an RTX 4090, whose host reads a fifth as fast: with much KV on the device one pass, with little two.

    In one pass, the host attends while the device does: a fifth of its tokens. In two it attends all the time, and they
    are faster once the host attends longer than the device computes.
    """
    source = resolve("random:opt-6.7b")

    def options(kv_memory: float, hardware: Any = "rtx-4090", **more: Any) -> Any:
        settings = Settings(
            clock="virtual",
            hardware=hardware,
            dtype="float16",
            kv_memory=int(kv_memory),
            stage_options={"memory.turns": "host", **more},
        )
        run = resolve_run(technique("fluid"), source, settings)
        return run.capacity, run.choices.options["memory"]

    capacity, many = options(10.6e9)
    assert round(many.beyond / capacity, 1) == 0.2
    assert many.split > many.beyond
    capacity, few = options(1.5e9)
    assert capacity < few.split < few.beyond
    assert few.beyond > 2 * capacity
    assert few.split * 524288 / 204.8e9 == pytest.approx(13.3e-3 + 1.5e9 / 1.008e12, rel=0.2)
    _, slow = options(1.5e9, replace(HARDWARE["rtx-4090"], host=Host(50e9, 5e12)))
    assert slow.beyond < few.beyond
    _, none = options(1.5e9, replace(HARDWARE["rtx-4090"], host=None))
    assert (none.split, none.beyond) == (None, None)  # the host is the device: it attends whatever it holds
    _, given = options(1.5e9, **{"memory.beyond": 77, "memory.split": 5})
    assert (given.split, given.beyond) == (5, 77)
    _, always = options(1.5e9, **{"memory.passes": 2})
    assert (always.split, always.passes) == (None, 2)


def test_ranks_share_a_host() -> None:
    virtual = Settings(clock="virtual", hardware="rtx-4090", dtype="float64")
    hosts = []
    for ranks in (1, 2):
        run = resolve_run(technique("fluid"), SOURCE, replace(virtual, tensor_parallel=ranks))
        hosts.append(ServedText(run.choices, SOURCE, run.settings, None).cost.machine.host)
    assert hosts == [Host(204.8e9, 5e12), Host(102.4e9, 2.5e12)]


def test_slots_that_layers_share_leave_half_of_a_small_device() -> None:
    """Two waves of the longest context would take all of it."""
    settings = Settings(dtype="float64", clock="virtual", kv_memory=2**14, stage_options={"memory.turns": "layers"})
    assert resolve_run(technique("fluid"), SOURCE, settings).choices.options["memory"].buffer == 0.5


def test_what_passes_through_shared_slots_is_what_the_link_uploads() -> None:
    """During an iteration with a full device, of 13.3 ms for weights and 1.5 ms for KV: 0.9 of 524 kB a token."""
    source = resolve("random:opt-6.7b")
    settings = Settings(
        clock="virtual",
        hardware="rtx-4090",
        dtype="float16",
        kv_memory=int(1.5e9),
        stage_options={"memory.turns": "layers"},
    )
    own = resolve_run(technique("fluid"), source, settings).choices.options["memory"]
    assert own.layers == 32
    assert own.beyond == pytest.approx(32e9 * 14.85e-3 / 524288, rel=0.01)
    assert own.buffer == pytest.approx(2 * 2048 / 32 / 2861, rel=0.01)  # two waves of the longest context


def test_in_real_time_as_many_as_were_measured_to_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def budget(**options: Any) -> int | None:
        settings = Settings(dtype="float64", stage_options=options)
        return resolve_run(technique("fluid"), SOURCE, settings).choices.policy.token_budget

    assert budget() == 512
    kept = KeptProfile(None, "float64", "cpu")  # the machine's, whose shapes enclose the model's
    kept.write(profile(CONFIGS["opt"], dtype="float64").model_dump_json())
    assert budget() == 512, "another kind of layers was measured"
    kept.write(profile(LLAMA, dtype="float64").model_dump_json())
    assert budget() == 1, "a token takes as long in any iteration"
    assert budget(**{"batching.token_budget": 7}) == 7


@pytest.mark.usefixtures("own_register")
def test_of_an_option_that_no_model_knows_nothing_is_offered() -> None:
    @register
    class Asking(Tiered):
        """It asks for what no model offers."""

        name = "asking"

        @dataclass(frozen=True)
        class Options(Tiered.Options):
            colour: str | None = option(None, "of the memory", offered=True)

    engine = build_engine(resolve_run(mix(technique("pensieve"), memory="asking"), SOURCE, Settings(clock="virtual")))
    (header,) = engine.trace.events()
    sources = {"memory.profile": "computed from the hardware: cpu", "memory.colour": "assumed"}
    assert header["option_sources"] == sources


def test_the_context_and_the_vocabulary_are_the_models() -> None:
    served = serve(_build(), [asks("ok", 40, 8), asks("long", 40, 9), Request("token", (LLAMA.vocab_size,), 1)])
    reasons = [(answer.request.id, answer.finish_reason.value) for answer in served.answers]
    assert reasons == [("ok", "length"), ("long", "refused"), ("token", "refused")]


@pytest.mark.parametrize("option", ["priorities", "max_batches"])
def test_a_transformer_has_one_type_of_cell(option: str) -> None:
    value = "{}=4" if option == "max_batches" else "{}"
    _build("cellular", stage_options={f"batching.{option}": value.format("transformer")})
    with refusal(UsageError, "'decoder'", "type of cell of random:toy", "transformer"):
        _build("cellular", stage_options={f"batching.{option}": value.format("decoder")})


def test_cells_are_materialised_for_the_supported_sizes_when_the_engine_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from minifuse.execute.cells import CellRunner

    sizes: list[tuple[int, ...]] = []
    monkeypatch.setattr(CellRunner, "materialise", lambda self, found: sizes.append(found))
    source = resolve("lstm:hidden=4,vocab=8")
    for options in ({}, {"batching.batch_sizes": "4,1,1000000"}):
        settings = Settings(dtype="float64", kv_memory=2**12, stage_options=options)
        build_engine(resolve_run(technique("cellular"), source, settings), source.load("float64"))
    assert sizes == [(), (1, 4)]


def _toy(**changes: Any) -> dict[str, Any]:
    """What `_built` is given, one thing exchanged."""
    given = {"technique": technique("orca"), "source": SOURCE, "settings": Settings(dtype="float64")}
    return {**given, "model": small_model("llama"), **changes}


def _built(technique: Any, source: Any, settings: Any, model: Any, **more: Any) -> ServingEngine:
    return build_engine(resolve_run(technique, source, settings), model, **more)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"technique": "orca"}, ("the technique 'orca'", "technique('orca')")),
        ({"source": "tiny"}, ("the source 'tiny'", "resolve('tiny')")),
        ({"source": None}, ("the source None",)),
        ({"settings": {"clock": "virtual"}}, ("the settings {'clock': 'virtual'}", "Settings(")),
        ({"settings": None}, ("the settings None",)),
        ({"into": 3}, ("into=3", "a function")),
        ({"model": "tiny"}, ("a str as its model", "source.load")),
        ({"model": small_model("gptj")}, ("is not random:toy",)),
        ({"settings": Settings()}, ("dtype float64", "float32")),
        ({"settings": Settings(dtype="float64", numerics="reference")}, ("numerics fast", "reference")),
        ({"source": resolve("lstm:hidden=8")}, ("a Llama as its model", "source.outline")),
    ],
)
def test_what_is_given_is_checked(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    if "source" in changes:
        changes = {"technique": technique("cellular"), **changes}
    with refusal(UsageError, *parts):
        _built(**_toy(**changes))


def test_a_technique_is_resolved_before_it_is_built() -> None:
    with refusal(UsageError, "the run Technique(", "resolve_run("):
        build_engine(technique("orca"))  # type: ignore[arg-type]


def test_the_device_is_settled_when_the_run_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(clock: Any, device: str) -> str:
        return resolve_run(technique("orca"), SOURCE, Settings(clock=clock, device=device)).settings.device

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert resolved("real", "auto") == "cpu"
    assert resolved("virtual", "cuda") == "cuda"  # which is not used
    with refusal(MachineError, "cuda", "no CUDA device", "cpu"):
        resolved("real", "cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert resolved("real", "auto") == "cuda"
    assert resolved("virtual", "auto") == "cpu"
    with refusal(UsageError, "device cpu", "cuda"):
        _built(**_toy(settings=Settings(dtype="float64", device="cuda")))


def test_cells_are_not_divided_among_ranks() -> None:
    source = resolve("lstm:hidden=8")
    with refusal(UsageError, "tensor-parallel is 2", "cells"):
        resolve_run(technique("cellular"), source, Settings(clock="virtual", tensor_parallel=2))


def test_names_that_are_no_text() -> None:
    for call in (lambda: technique(None), lambda: mix(technique("orca"), batching=5)):  # type: ignore[arg-type]
        with refusal(UsageError, "give"):
            call()


def test_a_path_as_text(tmp_path: Path) -> None:
    engine = _built(**_toy(trace_path=str(tmp_path / "t.jsonl")))
    assert serve(engine, [asks("a")]).answers[0].finish_reason is FinishReason.LENGTH
    assert (tmp_path / "t.jsonl").stat().st_size > 0


@pytest.mark.parametrize(("name", "source"), [("orca", SOURCE), ("cellular", resolve("lstm:hidden=8"))])
def test_without_a_model_real_time_computes_nothing(name: str, source: Source) -> None:
    run = resolve_run(technique(name), source, Settings())
    for model in (None, run.outline):
        with refusal(UsageError, "without a model", "run.load()"):
            build_engine(run, model)


@pytest.mark.parametrize("model", ["random:small", "lstm:hidden=8", "tiny"])
def test_a_run_loads_what_it_needs(model: str) -> None:
    source = resolve(model)
    virtual = resolve_run(_technique_for(source), source, Settings(clock="virtual", seed=3))
    assert virtual.placeholders == (model != "tiny")
    if virtual.placeholders:
        assert virtual.load() is virtual.outline
    assert serve(build_engine(virtual), [Request("a", (3, 4, 5), 4)]).answers[0].complete
    real = resolve_run(_technique_for(source), source, Settings(seed=3))
    assert serve(build_engine(real, real.load()), [Request("a", (3, 4, 5), 4)]).answers[0].complete


def _technique_for(source: Source) -> Technique:
    return technique("cellular" if source.kind == "cells" else "orca")


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        ({"dtype": "float33"}, ("dtype", "'float33'", "float32")),
        ({"device": "gpu"}, ("device", "'gpu'", "cpu")),
        ({"numerics": "exact"}, ("numerics", "'exact'", "reference")),
        ({"seed": "x"}, ("seed", "'x'", "whole number")),
    ],
)
def test_loading_checks_what_it_is_given(wrong: dict[str, Any], parts: tuple[str, ...]) -> None:
    with refusal(UsageError, *parts):
        SOURCE.load(**wrong)


def test_a_device_that_is_not_there() -> None:
    with refusal(MachineError, "'cuda:99'", "CUDA devices"):
        SOURCE.load(device="cuda:99")


def test_a_model_is_named_by_its_name_or_directory() -> None:
    with refusal(UsageError, "None", "'tiny'"):
        resolve(None)  # type: ignore[arg-type]
    assert resolve(TINY).name == str(TINY)


def test_attention_by_the_host_beside_a_gpu_is_refused() -> None:
    settings = Settings(device="cuda", clock="virtual", stage_options={"memory.turns": "host"})
    with refusal(UsageError, "memory.turns is host and the device is a GPU", "another memory.turns"):
        resolve_run(technique("fluid"), resolve("random:small"), settings)
