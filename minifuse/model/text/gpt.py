"""GPTs with learned positions: GPT-2 (Radford, 2019) and OPT (Zhang, 2022)."""

from torch import Tensor, nn

from minifuse.model.operators import Operators
from minifuse.model.text.shape import TextShape
from minifuse.model.text.transformer import Layer, Transformer

ACTIVATIONS = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_new": nn.GELU(approximate="tanh")}


class GPTLayer(Layer):
    def __init__(self, config: TextShape) -> None:
        super().__init__()
        size = config.hidden_size
        self.head_dim, self.activation = config.head_dim, ACTIVATIONS[config.activation]
        self.attention_norm = nn.LayerNorm(size, config.norm_eps)
        self.qkv = nn.Linear(size, config.q_size + 2 * config.kv_size, config.attention_bias)
        self.out = nn.Linear(config.q_size, size, config.attention_bias)
        self.mlp_norm = nn.LayerNorm(size, config.norm_eps)
        self.up = nn.Linear(size, config.intermediate_size, config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, size, config.mlp_bias)

    def pre_attention(self, x: Tensor, ops: Operators) -> Tensor:
        heads: Tensor = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim))
        return heads

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        x = x + self.out(attended)
        out: Tensor = x + self.down(self.activation(self.up(self.mlp_norm(x))))
        return out


class GPT(Transformer):
    def __init__(self, config: TextShape) -> None:
        layers: list[Layer] = [GPTLayer(config) for _ in range(config.num_layers)]
        super().__init__(config, layers, nn.LayerNorm(config.hidden_size, config.norm_eps))
        self.position_embedding = nn.Embedding(config.max_context + config.position_offset, config.hidden_size)

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embedding(token_ids) + self.position_embedding(positions + self.config.position_offset)
        return x
