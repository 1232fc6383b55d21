"""Whatever a model's directory says: it is read, or refused with an error of minifuse's own. Nothing else is raised."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers import LLAMA3_ROPE, RAW, model_directory, raw_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minifuse.core.errors import MinifuseError
from minifuse.model.text.checkpoint import INDEX, SINGLE
from minifuse.model.text.load import TINY, load_weights, resolve_text
from minifuse.naive import oracle

EXAMPLES = 40  # of each kind; thousands have been run once

FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 8, 37, 2**31 - 1, 2**31, 10**15, 10**400, 0.0, -0.0, 0.5, 1.0, 1e-300, 1e300),
    *(math.nan, math.inf, -math.inf, "", "8", "llama", "gpt2", "llama3", "default", "gelu", "\ud800", "\0", "../x"),
    *([], [3], [-1], ["a"], [[]], [None], {}, {"factor": 2.0}, {"rope_type": "llama3"}, {"type": []}, LLAMA3_ROPE),
]
JUNK = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
MORE_NAMES = [
    *("rope_scaling", "rope_theta", "head_dim", "generation_config", "quantization_config", "mlp_bias", "n_inner"),
    *("partial_rotary_factor", "original_max_position_embeddings", "hidden_size", "num_hidden_layers", "rotary_dim"),
    *("enable_bias", "scale_attn_weights", "layer_norm_epsilon", "tie_word_embeddings", "eos_token_id", "hidden_act"),
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a JSON value: the paths to all parts of it."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _places(part, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, whole: Any, more: list[str] = MORE_NAMES) -> Any:
    """A JSON value with one to three of its parts replaced, taken out, or added."""
    whole = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_places(whole))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return copy.deepcopy(draw(JUNK))
            path = (draw(st.sampled_from(more)),) if more and isinstance(whole, dict) else path
        if path:
            holder = whole
            for key in path[:-1]:
                holder = holder[key]
            if draw(st.booleans()) and (path[-1] in holder if isinstance(holder, dict) else True):
                del holder[path[-1]]
            else:
                holder[path[-1]] = copy.deepcopy(draw(JUNK))
    return whole


def _written(value: Any) -> str:
    return json.dumps(value)


@cache
def _ready(parent: Path, family: str) -> Path:
    directory = model_directory(parent / family, family)
    (directory / "tokenizer.json").write_text((TINY / "tokenizer.json").read_text())
    return directory


def _error(do: Callable[[], Any]) -> str:
    """The sentence of what minifuse raises, "" if it raises nothing."""
    try:
        do()
    except MinifuseError as error:
        return str(error)
    return ""


def _serve(directory: Path) -> None:
    """Find the model, read it, compute something with it."""

    def serve() -> None:
        model = load_weights(resolve_text(str(directory)), "float32")
        oracle.logits(model, [0, 1, 2][: model.config.max_context])

    assert "\n" not in _error(serve)


@pytest.mark.parametrize("family", RAW)
@FEW
@given(data=st.data())
def test_any_config(family: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = _ready(tmp_path_factory.getbasetemp(), family)
    scaled = raw_config(family, **({"rope_scaling": LLAMA3_ROPE} if family == "llama" else {}))
    raw = data.draw(mutated(data.draw(st.sampled_from([RAW[family], scaled]))))
    (directory / "config.json").write_text(_written(raw))
    _serve(directory)


@FEW
@given(data=st.data())
def test_any_generation_config(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = _ready(tmp_path_factory.getbasetemp() / "generation", "opt")
    (directory / "generation_config.json").write_text(_written(data.draw(mutated({"eos_token_id": [3, 4]}, ["x"]))))
    _serve(directory)


@FEW
@given(data=st.data())
def test_any_index(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = _ready(tmp_path_factory.getbasetemp() / "index", "opt")
    shard = "model-1.safetensors"
    if (directory / SINGLE).exists():
        (directory / SINGLE).rename(directory / shard)
    index = {"metadata": {"total_size": 8}, "weight_map": {"lm_head.weight": shard, "b": shard}}
    (directory / INDEX).write_text(_written(data.draw(mutated(index, ["weight_map"]))))
    _serve(directory)


SMALL_TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": 0, "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
    ],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": {"type": "Fuse"},
    "model": {"type": "WordLevel", "vocab": {"<e>": 0, "one": 1, "two": 2}, "unk_token": "<e>"},
}  # fmt: skip


@FEW
@given(data=st.data())
def test_any_tokenizer(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = _ready(tmp_path_factory.getbasetemp() / "tokenizer", "opt")
    tiny = json.loads((TINY / "tokenizer.json").read_text())
    given_one = data.draw(st.sampled_from([SMALL_TOKENIZER, tiny]))
    (directory / "tokenizer.json").write_text(_written(data.draw(mutated(given_one, ["padding"]))))

    def encode() -> None:
        tokenizer = resolve_text(str(directory)).tokenizer()
        tokenizer.decode(list(tokenizer.encode("one two three")))

    assert "\n" not in _error(encode)
