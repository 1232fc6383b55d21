"""The shape of a transformer: a frozen description for all families, from a Hugging Face `config.json` or a preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from minifuse.errors import ModelError
from minifuse.model.dtypes import DTYPE_BYTES

__all__ = ["Llama3Scaling", "ModelConfig", "Rotary"]


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
class ModelConfig:
    """Everything that fixes the shapes and the arithmetic of a decoder-only transformer."""

    kind: ClassVar[str] = "transformer"
    family: Family
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_context: int
    norm_eps: float = 1e-5
    activation: Activation = "silu"
    rotary: Rotary | None = None  # None: learned positions
    position_offset: int = 0  # OPT's table of learned positions has two rows before position 0
    parallel_residual: bool = False  # GPT-J: attention and feed-forward read the same normed input
    attention_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied_embeddings: bool = False
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly: "
                "correct num_key_value_heads in config.json."
            )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

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
        """Read a Hugging Face `config.json`.

        Raises:
            ModelError: the architecture is not one of the four families, a field is missing, or the checkpoint uses a
                variant that is not built here (named in the message).
        """
        kind = raw.get("model_type")
        named = raw.get("architectures")
        architecture = named[0] if isinstance(named, list) and named else kind
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise ModelError(
                f"{source} describes the architecture {architecture!r}; minifuse has {', '.join(sorted(_READERS))}: "
                "choose a model of one of these families."
            )
        for name in _WHOLE & raw.keys():
            if type(raw[name]) is not int or raw[name] < 1:
                if raw[name] is None and name in _OPTIONAL:
                    continue
                raise ModelError(
                    f"{source} has {name} {raw[name]!r}, which must be a whole number of at least 1: "
                    "take the config.json that came with the weights."
                )
        try:
            return reader(raw)
        except KeyError as missing:
            raise ModelError(
                f"{source} has no field {missing.args[0]!r}, which {architecture} needs: take the config.json "
                "that came with the weights."
            ) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"{source} has a field of the wrong kind ({error}): take the config.json that came with the weights."
            ) from None


_OPTIONAL = {"num_key_value_heads", "head_dim", "n_inner", "rotary_dim"}
_WHOLE = _OPTIONAL | {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "ffn_dim"),
    *("max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "word_embed_proj_dim"),
}

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}


def _activation(raw: Mapping[str, Any], default: str) -> Activation:
    name = raw.get("activation_function", default)
    if name not in _ACTIVATIONS:
        raise _unsupported(f"the activation {name!r}", " or ".join(map(repr, _ACTIVATIONS)))
    return _ACTIVATIONS[name]


def _eos(raw: Mapping[str, Any]) -> tuple[int, ...]:
    eos = raw.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)


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


def _rotary(raw: Mapping[str, Any], head_dim: int) -> Rotary:
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise _unsupported(f"rope_parameters {parameters!r}", "an object there")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta = float(parameters.get("rope_theta", raw.get("rope_theta", 10000.0)))
    if kind == "default":
        return Rotary(head_dim, theta)
    if kind != "llama3":
        raise _unsupported(f"rotary scaling {kind!r}", "'default' or 'llama3'")
    scaling = Llama3Scaling(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_context=int(parameters["original_max_position_embeddings"]),
    )
    return Rotary(head_dim, theta, scaling=scaling)


def _llama(raw: Mapping[str, Any]) -> ModelConfig:
    heads = raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or _head_dim(raw["hidden_size"], heads)
    if raw.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"the activation {raw['hidden_act']!r} in a LLaMA", "'silu'")
    return ModelConfig(
        family="llama",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate_size=raw["intermediate_size"],
        max_context=raw["max_position_embeddings"],
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rotary=_rotary(raw, head_dim),
        attention_bias=raw.get("attention_bias", False),
        mlp_bias=raw.get("mlp_bias", False),
        tied_embeddings=raw.get("tie_word_embeddings", False),
        eos_ids=_eos(raw),
    )


def _gpt2(raw: Mapping[str, Any]) -> ModelConfig:
    if raw.get("scale_attn_by_inverse_layer_idx") or not raw.get("scale_attn_weights", True):
        raise _unsupported("attention scaled by layer, or not at all", "plain scaling")
    return ModelConfig(
        family="gpt2",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["n_embd"],
        num_layers=raw["n_layer"],
        num_heads=raw["n_head"],
        num_kv_heads=raw["n_head"],
        head_dim=_head_dim(raw["n_embd"], raw["n_head"]),
        intermediate_size=raw.get("n_inner") or 4 * raw["n_embd"],
        max_context=raw["n_positions"],
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        activation=_activation(raw, "gelu_new"),
        attention_bias=True,
        mlp_bias=True,
        tied_embeddings=raw.get("tie_word_embeddings", True),
        eos_ids=_eos(raw),
    )


def _gptj(raw: Mapping[str, Any]) -> ModelConfig:
    head_dim = _head_dim(raw["n_embd"], raw["n_head"])
    return ModelConfig(
        family="gptj",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["n_embd"],
        num_layers=raw["n_layer"],
        num_heads=raw["n_head"],
        num_kv_heads=raw["n_head"],
        head_dim=head_dim,
        intermediate_size=raw.get("n_inner") or 4 * raw["n_embd"],
        max_context=raw["n_positions"],
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        activation=_activation(raw, "gelu_new"),
        rotary=Rotary(raw.get("rotary_dim") or head_dim, interleaved=True),
        parallel_residual=True,
        mlp_bias=True,
        head_bias=True,
        tied_embeddings=raw.get("tie_word_embeddings", False),
        eos_ids=_eos(raw),
    )


def _opt(raw: Mapping[str, Any]) -> ModelConfig:
    if not raw.get("do_layer_norm_before", True):
        raise _unsupported("layer norm after the residual (OPT-350M)", "do_layer_norm_before: true")
    if raw.get("word_embed_proj_dim", raw["hidden_size"]) != raw["hidden_size"]:
        raise _unsupported("projected word embeddings (OPT-350M)", "word_embed_proj_dim equal to hidden_size")
    if raw.get("_remove_final_layer_norm") or not raw.get("layer_norm_elementwise_affine", True):
        raise _unsupported("a layer norm without weights", "ordinary layer norms")
    return ModelConfig(
        family="opt",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_attention_heads"],
        head_dim=_head_dim(raw["hidden_size"], raw["num_attention_heads"]),
        intermediate_size=raw["ffn_dim"],
        max_context=raw["max_position_embeddings"],
        activation=_activation(raw, "relu"),
        position_offset=2,
        attention_bias=raw.get("enable_bias", True),
        mlp_bias=raw.get("enable_bias", True),
        tied_embeddings=raw.get("tie_word_embeddings", True),
        eos_ids=_eos(raw),
    )


_READERS = {"llama": _llama, "gpt2": _gpt2, "gptj": _gptj, "opt": _opt}
