"""Reads a Hugging Face `config.json`; missing fields have the defaults of transformers."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, model_validator

from minifuse.core.errors import ModelError
from minifuse.model.text.config import Llama3Scaling, ModelConfig, Rotary
from minifuse.model.text.fields import checked

LARGEST = 2**31 - 1  # the largest size: no model comes near, and products of some such sizes are still exact

Size = Annotated[int, Field(ge=1, le=LARGEST)]
Token = Annotated[int, Field(ge=0, le=LARGEST)]  # published ids may lie outside of the vocabulary
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=1)]
One = Annotated[float, Field(ge=1, le=1)]  # LLaMA with partly rotated heads is not supported
TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")  # names of one activation
Activation = Annotated[
    Literal["relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"],
    AfterValidator(lambda name: "gelu_new" if name in TANH else name),
]


def _named(default: Any, *names: str) -> Any:
    """Declare a field; the first of these names in a file gives its value."""
    return Field(default, validation_alias=AliasChoices(*names))


class Ending(BaseModel):
    """The tokens that end an answer, as config.json or generation_config.json names them."""

    model_config = ConfigDict(strict=True)

    eos_token_id: Token | list[Token] | None = None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """List the ids, each once."""
        ids = self.eos_token_id
        return () if ids is None else (ids,) if isinstance(ids, int) else tuple(dict.fromkeys(ids))


class _Rope(BaseModel):
    model_config = ConfigDict(strict=True)

    rope_type: Literal["default", "llama3"] = _named("default", "rope_type", "type")
    rope_theta: AtLeastOne | None = None
    partial_rotary_factor: One = 1.0


class _Llama3(_Rope):
    factor: AtLeastOne
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Size | None = None

    @model_validator(mode="after")
    def _below(self) -> _Llama3:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")
        return self


class _Llama(Ending):
    """LLaMA's fields; fields shared with `ModelConfig` have the same names."""

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    num_layers: Size = _named(32, "num_hidden_layers")
    num_heads: Size = _named(32, "num_attention_heads")
    num_kv_heads: Size | None = _named(None, "num_key_value_heads")
    head_dim: Size | None = None
    intermediate_size: Size = 11008
    max_context: Size = _named(2048, "max_position_embeddings")
    norm_eps: Epsilon = _named(1e-6, "rms_norm_eps")
    activation: Literal["silu"] = _named("silu", "hidden_act")
    attention_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = _named(False, "tie_word_embeddings")
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_theta: AtLeastOne = 10000.0
    partial_rotary_factor: One = 1.0
    original_max_position_embeddings: Size | None = None

    def rest(self, head_dim: int, source: str) -> dict[str, Any]:
        """Read the rotary embedding from `rope_scaling`, else `rope_parameters`, as transformers does."""
        name = "rope_scaling" if self.rope_scaling else "rope_parameters"
        parameters = self.rope_scaling or self.rope_parameters or {}
        rope = checked(_Rope, parameters, f"{name} of {source}")
        theta = self.rope_theta if rope.rope_theta is None else rope.rope_theta
        if rope.rope_type == "default":
            return {"rotary": Rotary(head_dim, theta)}
        llama3 = checked(_Llama3, parameters, f"{name} of {source}")
        context = self.original_max_position_embeddings or llama3.original_max_position_embeddings or self.max_context
        scaling = Llama3Scaling(llama3.factor, llama3.low_freq_factor, llama3.high_freq_factor, context)
        return {"rotary": Rotary(head_dim, theta, scaling=scaling)}


class _GPT2(Ending):
    vocab_size: Size = 50257
    hidden_size: Size = _named(768, "n_embd", "hidden_size")
    num_layers: Size = _named(12, "n_layer", "num_hidden_layers")
    num_heads: Size = _named(12, "n_head", "num_attention_heads")
    intermediate_size: Size | None = _named(None, "n_inner")
    max_context: Size = _named(1024, "n_positions", "max_position_embeddings")
    norm_eps: Epsilon = _named(1e-5, "layer_norm_epsilon")
    activation: Activation = _named("gelu_new", "activation_function")
    tied_embeddings: bool = _named(True, "tie_word_embeddings")
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    scale_attn_weights: Literal[True] = True

    @model_validator(mode="before")
    @classmethod
    def _agree(cls, raw: Any) -> Any:
        """Raise `ValueError` if two names of one field have different values."""
        for field in cls.model_fields.values():
            names = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else ()
            given = [(name, raw[name]) for name in names if name in raw]
            if any(value != given[0][1] for _, value in given):
                shown = " and ".join(f"{name} {reprlib.repr(value)}" for name, value in given)
                raise ValueError(f"{shown} are names of one number")
        return raw

    def rest(self, head_dim: int, source: str) -> dict[str, Any]:
        return {"attention_bias": True, "mlp_bias": True}


class _GPTJ(_GPT2):
    vocab_size: Size = 50400
    hidden_size: Size = _named(4096, "n_embd", "hidden_size")
    num_layers: Size = _named(28, "n_layer", "num_hidden_layers")
    num_heads: Size = _named(16, "n_head", "num_attention_heads")
    max_context: Size = _named(2048, "n_positions", "max_position_embeddings")
    tied_embeddings: bool = _named(False, "tie_word_embeddings")
    rotary_dim: Size = 64

    def rest(self, head_dim: int, source: str) -> dict[str, Any]:
        rotary = Rotary(self.rotary_dim, interleaved=True)
        return {"rotary": rotary, "parallel_residual": True, "mlp_bias": True, "head_bias": True}


class _OPT(Ending):
    """OPT, except OPT-350M, which norms after the residual and projects its embeddings."""

    vocab_size: Size = 50272
    hidden_size: Size = 768
    num_layers: Size = _named(12, "num_hidden_layers")
    num_heads: Size = _named(12, "num_attention_heads")
    intermediate_size: Size = _named(3072, "ffn_dim")
    max_context: Size = _named(2048, "max_position_embeddings")
    activation: Activation = _named("relu", "activation_function")
    attention_bias: bool = _named(True, "enable_bias")
    mlp_bias: bool = _named(True, "enable_bias")
    tied_embeddings: bool = _named(True, "tie_word_embeddings")
    word_embed_proj_dim: Size | None = None
    do_layer_norm_before: Literal[True] = True
    remove_final_layer_norm: Literal[False] = _named(False, "_remove_final_layer_norm")
    layer_norm_elementwise_affine: Literal[True] = True

    @model_validator(mode="after")
    def _embeds_as_wide(self) -> _OPT:
        if self.word_embed_proj_dim not in (None, self.hidden_size):
            raise ValueError("word_embed_proj_dim must be hidden_size")
        return self

    def rest(self, head_dim: int, source: str) -> dict[str, Any]:
        return {"position_offset": 2}


_FAMILIES: dict[str, type[_Llama | _GPT2 | _OPT]] = {"gpt2": _GPT2, "gptj": _GPTJ, "llama": _Llama, "opt": _OPT}
_SHAPE = {field.name for field in fields(ModelConfig)}


def read_config(raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Check the object of a config.json, and make a `ModelConfig` of it.

    Raises:
        ModelError: the architecture is not one of the four families, a field makes no sense, or the checkpoint uses a
            variant that is not built here (named in the message).
    """
    family = raw.get("model_type")
    named = raw.get("architectures")
    if not isinstance(family, str) or family not in _FAMILIES:
        architecture = named[0] if isinstance(named, list) and named else family
        raise ModelError(
            f"{source} describes the architecture {reprlib.repr(architecture)}; minifuse has "
            f"{', '.join(_FAMILIES)}: choose a model of one of these families."
        )
    for name in ("quantization_config", "compression_config"):
        if raw.get(name) is not None:
            raise ModelError(f"{source} has {name}: take weights that are not quantised.")
    found = checked(_FAMILIES[family], raw, source)
    shape = found.model_dump(include=_SHAPE, exclude_none=True)
    hidden, heads = found.hidden_size, found.num_heads
    if "head_dim" not in shape and hidden % heads:
        raise ModelError(
            f"{source} has a hidden size of {hidden}, which does not divide into {heads} heads: correct it."
        )
    shape = {
        "family": family,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "intermediate_size": 4 * hidden,
        **shape,
    }
    return ModelConfig(**shape, **found.rest(shape["head_dim"], source), eos_ids=found.eos_ids)
