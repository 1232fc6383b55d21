"""LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al., 2023)."""

from __future__ import annotations

from torch import Tensor

from minifuse.kernels.operators import TORCH, Operators
from minifuse.model.linear import Linear
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.layers import RMSNorm
from minifuse.model.text.transformer import Layer, Transformer

__all__ = ["Llama", "LlamaLayer"]


class LlamaLayer(Layer):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, bias = config.hidden_size, config.attention_bias
        self.attention_norm = RMSNorm(hidden, config.norm_eps)
        self.qkv = Linear(hidden, config.q_size + 2 * config.kv_size, bias)
        self.out = Linear(config.q_size, hidden, bias)
        self.mlp_norm = RMSNorm(hidden, config.norm_eps)
        self.gate_up = Linear(hidden, 2 * config.intermediate_size, config.mlp_bias)
        self.down = Linear(config.intermediate_size, hidden, config.mlp_bias)

    def pre_attention(self, x: Tensor, ops: Operators = TORCH) -> Tensor:
        heads: Tensor = self.qkv(self.attention_norm(x, ops)).unflatten(-1, (-1, self.config.head_dim))
        return heads

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators = TORCH) -> Tensor:
        norm = self.mlp_norm
        normed, x = ops.add_rms_norm(self.out(attended), x, norm.weight, norm.eps)
        down: Tensor = self.down(ops.silu_mul(self.gate_up(normed)))
        return x + down


class Llama(Transformer):
    def __init__(self, config: ModelConfig) -> None:
        layers: list[Layer] = [LlamaLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, RMSNorm(config.hidden_size, config.norm_eps))
