"""The GPT family: GPT-2 (Radford et al., 2019) and OPT (Zhang et al., 2022), which have learned positions, and GPT-J
(Wang and Komatsuzaki, 2021), which has rotary positions and a parallel residual.
"""

from __future__ import annotations

from torch import Tensor, nn

from minifuse.kernels.operators import TORCH, Operators
from minifuse.model.linear import Linear
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.transformer import Layer, Transformer

__all__ = ["GPT", "GPTLayer"]


def _activate(x: Tensor, kind: str) -> Tensor:
    if kind == "relu":
        return nn.functional.relu(x)
    return nn.functional.gelu(x, approximate="tanh" if kind == "gelu_new" else "none")


class GPTLayer(Layer):
    """LayerNorm, multi-head attention, two-layer feed-forward.

    With a parallel residual (GPT-J) both halves read the same normed input: x + attention(norm(x)) + mlp(norm(x)).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.attention_norm = nn.LayerNorm(hidden, config.norm_eps)
        self.qkv = Linear(hidden, config.q_size + 2 * config.kv_size, config.attention_bias)
        self.out = Linear(config.q_size, hidden, config.attention_bias)
        self.mlp_norm = None if config.parallel_residual else nn.LayerNorm(hidden, config.norm_eps)
        self.up = Linear(hidden, config.intermediate_size, config.mlp_bias)
        self.down = Linear(config.intermediate_size, hidden, config.mlp_bias)

    def pre_attention(self, x: Tensor, ops: Operators = TORCH) -> Tensor:
        heads: Tensor = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.config.head_dim))
        return heads

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators = TORCH) -> Tensor:
        attention: Tensor = self.out(attended)
        if self.mlp_norm is None:
            return x + attention + self._mlp(self.attention_norm(x))
        x = x + attention
        return x + self._mlp(self.mlp_norm(x))

    def _mlp(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(_activate(self.up(x), self.config.activation))
        return down


class GPT(Transformer):
    def __init__(self, config: ModelConfig) -> None:
        layers: list[Layer] = [GPTLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, nn.LayerNorm(config.hidden_size, config.norm_eps))
