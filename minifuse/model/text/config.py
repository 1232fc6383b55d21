"""The shape of a transformer: a frozen description for all families, from a Hugging Face `config.json` or a preset."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from minifuse.core.errors import ModelError
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.fields import Fields
from minifuse.model.text.shape import TextShape

Family = Literal["llama", "gpt2", "gptj", "opt"]
Activation = Literal["silu", "gelu_new", "gelu", "relu"]


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling of the slow rotary frequencies (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding of the first `dim` dimensions of each head (Su et al., 2021).

    `interleaved` pairs neighbours (0, 1), (2, 3), ... as GPT-J does; otherwise, as in LLaMA, dimension i pairs with
    i + dim/2.
    """

    dim: int
    theta: float = 10000.0
    interleaved: bool = False
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig(TextShape):
    """A shape that has been checked, and the tokens that end an answer."""

    kind: ClassVar[str] = "transformer"
    family: Family
    activation: Activation = "silu"
    rotary: Rotary | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly: "
                "correct num_key_value_heads in config.json."
            )
        if self.rotary is not None and (self.rotary.dim % 2 or self.rotary.dim > self.head_dim):
            raise ModelError(
                f"{self.rotary.dim} dimensions cannot be rotated in pairs in heads of {self.head_dim}: correct "
                "rotary_dim or head_dim in config.json."
            )

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers cached per token: a key and a value in every layer."""
        return 2 * self.num_layers * self.kv_size

    def kv_bytes_per_token(self, dtype: str) -> int:
        return self.kv_elements_per_token * DTYPE_BYTES[dtype]

    @property
    def num_matrix_weights(self) -> int:
        """Weights that every token is multiplied with: the layers' matrices and the head, not the embeddings.

        Each costs two flops per token (2N, Kaplan et al., 2020), and an iteration reads each at least once.
        """
        gates = 3 if self.family == "llama" else 2
        attention = self.hidden_size * (self.q_size + 2 * self.kv_size) + self.q_size * self.hidden_size
        return self.num_layers * (attention + gates * self.hidden_size * self.intermediate_size) + self.head_weights

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters but biases and norms, which are under a thousandth of the whole."""
        embeddings = 0 if self.tied_embeddings else self.head_weights
        learned = 0 if self.rotary else (self.max_context + self.position_offset) * self.hidden_size
        return self.num_matrix_weights + embeddings + learned

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        """Read a Hugging Face `config.json`; a field that is missing has transformers' default.

        Raises:
            ModelError: the architecture is not one of the four families, a field makes no sense, or the checkpoint
                uses a variant that is not built here (named in the message).
        """
        kind = raw.get("model_type")
        named = raw.get("architectures")
        architecture = named[0] if isinstance(named, list) and named else kind
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise ModelError(
                f"{source} describes the architecture {reprlib.repr(architecture)}; minifuse has "
                f"{', '.join(sorted(_READERS))}: choose a model of one of these families."
            )
        for name in ("quantization_config", "compression_config"):
            if raw.get(name) is not None:
                raise _unsupported(f"quantised weights ({name} in {source})", "weights that are not quantised")
        return reader(Fields(raw, source, reprlib.repr(architecture)))


_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}


def _activation(fields: Fields, default: str) -> Activation:
    name = fields.text("activation_function", default)
    if name not in _ACTIVATIONS:
        raise _unsupported(f"the activation {name!r}", " or ".join(map(repr, _ACTIVATIONS)))
    return _ACTIVATIONS[name]


def _unsupported(what: str, allowed: str) -> ModelError:
    return ModelError(f"The checkpoint uses {what}, which minifuse does not build: use one with {allowed}.")


def _head_dim(hidden: int, heads: int) -> int:
    """The head size of a config that has no `head_dim`.

    Raises:
        ModelError: the hidden size is not a multiple of the number of heads.
    """
    if hidden % heads:
        raise ModelError(f"A hidden size of {hidden} does not divide into {heads} heads: correct config.json.")
    return hidden // heads


def _rotary(fields: Fields, head_dim: int, max_context: int) -> Rotary:
    """The rotary embedding of a LLaMA: of `rope_scaling` if there is one, as in transformers, or `rope_parameters`."""
    parameters = fields.object("rope_scaling") or fields.object("rope_parameters") or fields
    older = parameters is fields  # the angle alone, in a field of its own
    theta = (parameters if "rope_theta" in parameters else fields).number("rope_theta", 10000.0, least=1.0)
    kind = "default"
    if not older:
        kind = parameters.text("rope_type", parameters.text("type", "default"))
    for given in (fields, parameters):
        if given.number("partial_rotary_factor", 1.0) != 1.0:
            raise _unsupported("rotation of a part of each head (partial_rotary_factor)", "none, or with 1.0")
    if kind == "default":
        return Rotary(head_dim, theta)
    if kind != "llama3":
        raise _unsupported(f"rotary scaling {kind!r}", "'default' or 'llama3'")
    context = "original_max_position_embeddings"
    scaling = Llama3Scaling(
        factor=parameters.number("factor", least=1.0),
        low_freq_factor=parameters.number("low_freq_factor"),
        high_freq_factor=parameters.number("high_freq_factor"),
        original_context=(fields if context in fields else parameters).whole(context, max_context),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise parameters.wrong("low_freq_factor", f"below high_freq_factor, {scaling.high_freq_factor:g}")
    return Rotary(head_dim, theta, scaling=scaling)


def _llama(fields: Fields) -> ModelConfig:
    hidden, heads = fields.whole("hidden_size", 4096), fields.whole("num_attention_heads", 32)
    max_context = fields.whole("max_position_embeddings", 2048)
    head_dim = fields.whole("head_dim", None) or _head_dim(hidden, heads)
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise _unsupported(f"the activation {activation!r} in a LLaMA", "'silu'")
    return ModelConfig(
        family="llama",
        vocab_size=fields.whole("vocab_size", 32000),
        hidden_size=hidden,
        num_layers=fields.whole("num_hidden_layers", 32),
        num_heads=heads,
        num_kv_heads=fields.whole("num_key_value_heads", None) or heads,
        head_dim=head_dim,
        intermediate_size=fields.whole("intermediate_size", 11008),
        max_context=max_context,
        norm_eps=fields.number("rms_norm_eps", 1e-6, most=1.0),
        rotary=_rotary(fields, head_dim, max_context),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        eos_ids=fields.token_ids("eos_token_id"),
    )


def _gpt(
    fields: Fields, vocab_size: int, hidden_size: int, num_layers: int, num_heads: int, max_context: int, tied: bool
) -> ModelConfig:
    """What GPT-2 and GPT-J have in common, as GPT-2 has it; the sizes are the defaults."""
    hidden = fields.whole("n_embd", hidden_size, alias="hidden_size")
    heads = fields.whole("n_head", num_heads, alias="num_attention_heads")
    return ModelConfig(
        family="gpt2",
        vocab_size=fields.whole("vocab_size", vocab_size),
        hidden_size=hidden,
        num_layers=fields.whole("n_layer", num_layers, alias="num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=_head_dim(hidden, heads),
        intermediate_size=fields.whole("n_inner", None) or 4 * hidden,
        max_context=fields.whole("n_positions", max_context, alias="max_position_embeddings"),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5, most=1.0),
        activation=_activation(fields, "gelu_new"),
        attention_bias=True,
        mlp_bias=True,
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        eos_ids=fields.token_ids("eos_token_id"),
    )


def _gpt2(fields: Fields) -> ModelConfig:
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    if by_layer or not fields.flag("scale_attn_weights", True):
        raise _unsupported("attention scaled by layer, or not at all", "plain scaling")
    return _gpt(fields, 50257, hidden_size=768, num_layers=12, num_heads=12, max_context=1024, tied=True)


def _gptj(fields: Fields) -> ModelConfig:
    config = _gpt(fields, 50400, hidden_size=4096, num_layers=28, num_heads=16, max_context=2048, tied=False)
    return replace(
        config,
        family="gptj",
        rotary=Rotary(fields.whole("rotary_dim", 64), interleaved=True),
        parallel_residual=True,
        attention_bias=False,
        head_bias=True,
    )


def _opt(fields: Fields) -> ModelConfig:
    if not fields.flag("do_layer_norm_before", True):
        raise _unsupported("layer norm after the residual (OPT-350M)", "do_layer_norm_before: true")
    hidden = fields.whole("hidden_size", 768)
    if (fields.whole("word_embed_proj_dim", None) or hidden) != hidden:
        raise _unsupported("projected word embeddings (OPT-350M)", "word_embed_proj_dim equal to hidden_size")
    without = fields.flag("_remove_final_layer_norm", False)
    if without or not fields.flag("layer_norm_elementwise_affine", True):
        raise _unsupported("a layer norm without weights", "ordinary layer norms")
    heads, bias = fields.whole("num_attention_heads", 12), fields.flag("enable_bias", True)
    return ModelConfig(
        family="opt",
        vocab_size=fields.whole("vocab_size", 50272),
        hidden_size=hidden,
        num_layers=fields.whole("num_hidden_layers", 12),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=_head_dim(hidden, heads),
        intermediate_size=fields.whole("ffn_dim", 3072),
        max_context=fields.whole("max_position_embeddings", 2048),
        activation=_activation(fields, "relu"),
        position_offset=2,
        attention_bias=bias,
        mlp_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        eos_ids=fields.token_ids("eos_token_id"),
    )


_READERS = {"llama": _llama, "gpt2": _gpt2, "gptj": _gptj, "opt": _opt}
