"""The shape of a transformer of any family, from a `config.json` or a preset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from minifuse.core.errors import ModelError
from minifuse.model.dtypes import DTYPE_BYTES
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
        """Count the numbers cached per token: a key and a value in every layer."""
        return 2 * self.num_layers * self.kv_size

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the bytes of a token's KV; in int8 each head's scales take 8 more."""
        if dtype == "int8":
            return self.kv_elements_per_token + 4 * 2 * self.num_layers * self.num_kv_heads
        return self.kv_elements_per_token * DTYPE_BYTES[dtype]

    @property
    def num_matrix_weights(self) -> int:
        """Count the weights every token is multiplied with: matrices and head, not embeddings.

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
        """Count all parameters except biases and norms, which are under a thousandth of them."""
        embeddings = 0 if self.tied_embeddings else self.head_weights
        learned = 0 if self.rotary else (self.max_context + self.position_offset) * self.hidden_size
        return self.num_matrix_weights + embeddings + learned
