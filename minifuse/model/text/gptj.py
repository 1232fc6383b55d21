"""GPT-J (Wang and Komatsuzaki, 2021): a GPT with rotary positions and a parallel residual."""

from __future__ import annotations

from torch import Tensor, nn

from minifuse.model.operators import Operators
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.gpt import GPTLayer
from minifuse.model.text.layers import RotaryTable
from minifuse.model.text.transformer import Layer, Transformer


class GPTJLayer(GPTLayer):
    """Both halves read the same normed input: x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        del self.mlp_norm

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        out: Tensor = x + self.out(attended) + self.down(self.activation(self.up(self.attention_norm(x))))
        return out


class GPTJ(Transformer):
    def __init__(self, config: ModelConfig) -> None:
        layers: list[Layer] = [GPTJLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, nn.LayerNorm(config.hidden_size, config.norm_eps))
        assert config.rotary is not None
        self.rotary_table = RotaryTable(config.rotary, config.max_context)
