"""The sizes and the arithmetic of a decoder-only transformer (`config.py` reads them)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextShape:
    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # groups of num_heads / num_kv_heads query heads share a key and a value
    head_dim: int
    intermediate_size: int
    max_context: int
    norm_eps: float = 1e-5
    activation: str = "silu"
    rotary: Any = None  # how positions are rotated; None: they are learned
    position_offset: int = 0  # OPT's table of learned positions has two rows before position 0
    parallel_residual: bool = False  # GPT-J: attention and feed-forward read the same normed input
    attention_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied_embeddings: bool = False

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
