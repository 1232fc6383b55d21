"""Families with rotary positions: LLaMA (Touvron et al., 2023), GPT-J (Wang and Komatsuzaki, 2021)."""

from __future__ import annotations

from torch import Tensor, nn

from minifuse.model.operators import Operators
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.gpt import GPTLayer
from minifuse.model.text.layers import RMSNorm, RotaryTable
from minifuse.model.text.transformer import Layer, Transformer


class RotaryTransformer(Transformer):
    """A transformer that rotates queries and keys by the angles of their positions."""

    def __init__(self, config: ModelConfig, layers: list[Layer], norm: nn.Module) -> None:
        super().__init__(config, layers, norm)
        assert config.rotary is not None
        self.rotary_table = RotaryTable(config.rotary, config.max_context)


class LlamaLayer(Layer):
    """RMSNorm, grouped-query attention, SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, bias = config.hidden_size, config.attention_bias
        self.attention_norm = RMSNorm(hidden, config.norm_eps)
        self.qkv = nn.Linear(hidden, config.q_size + 2 * config.kv_size, bias)
        self.out = nn.Linear(config.q_size, hidden, bias)
        self.mlp_norm = RMSNorm(hidden, config.norm_eps)
        self.gate_up = nn.Linear(hidden, 2 * config.intermediate_size, config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, hidden, config.mlp_bias)

    def pre_attention(self, x: Tensor, ops: Operators) -> Tensor:
        heads: Tensor = self.qkv(self.attention_norm(x, ops)).unflatten(-1, (-1, self.config.head_dim))
        return heads

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        norm = self.mlp_norm
        normed, x = ops.add_rms_norm(self.out(attended), x, norm.weight, norm.eps)
        out: Tensor = x + self.down(ops.silu_mul(self.gate_up(normed)))
        return out


class Llama(RotaryTransformer):
    def __init__(self, config: ModelConfig) -> None:
        layers: list[Layer] = [LlamaLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, RMSNorm(config.hidden_size, config.norm_eps))

    def head(self, x: Tensor, ops: Operators) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(x, ops))
        return logits


class GPTJLayer(GPTLayer):
    """Both halves read the same normed input: x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        del self.mlp_norm

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        out: Tensor = x + self.out(attended) + self.down(self.activation(self.up(self.attention_norm(x))))
        return out


class GPTJ(RotaryTransformer):
    def __init__(self, config: ModelConfig) -> None:
        layers: list[Layer] = [GPTJLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, nn.LayerNorm(config.hidden_size, config.norm_eps))
