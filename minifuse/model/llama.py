"""LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al., 2023)."""

from __future__ import annotations

from torch import Tensor, nn

from minifuse.model.config import ModelConfig
from minifuse.model.layers import Linear, RMSNorm, apply_rotary
from minifuse.model.transformer import Layer, RotaryRows, Transformer

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

    def pre_attention(self, x: Tensor, rotary: RotaryRows) -> tuple[Tensor, Tensor, Tensor]:
        assert rotary is not None  # a LLaMA always has a rotary table
        c = self.config
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, c.head_dim))  # [tokens, q | k | v heads, head_dim]
        rotated = apply_rotary(heads[:, : c.num_heads + c.num_kv_heads], rotary, interleaved=False)
        return rotated[:, : c.num_heads], rotated[:, c.num_heads :], heads[:, c.num_heads + c.num_kv_heads :]

    def post_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        down: Tensor = self.down(nn.functional.silu(gate) * up)
        return x + down


class Llama(Transformer):
    def __init__(self, config: ModelConfig) -> None:
        layers: list[Layer] = [LlamaLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, RMSNorm(config.hidden_size, config.norm_eps))
