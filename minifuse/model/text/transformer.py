"""A decoder-only transformer, split at attention, where every technique plugs in (`minifuse/execute/texts.py`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import cast

import torch
from torch import Tensor, nn

from minifuse.model.operators import Operators, Rotation
from minifuse.model.text.shape import TextShape


class Layer(nn.Module, ABC):
    """One layer in two token-wise halves. Hidden states are [tokens, hidden_size]."""

    @abstractmethod
    def pre_attention(self, x: Tensor, ops: Operators) -> Tensor:
        """Norm, project to query, key and value heads: [tokens, num_heads + 2 * num_kv_heads, head_dim]."""

    @abstractmethod
    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        """Add the projection of `attended` [tokens, num_heads * head_dim], then the feed-forward."""


class Transformer(nn.Module):
    """Embeddings, layers and head. `minifuse.model.text.load` builds it and fills the weights."""

    def __init__(self, config: TextShape, layers: list[Layer], norm: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = cast(Seq[Layer], nn.ModuleList(layers))
        self.norm = norm
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, config.head_bias)
        self.rotary_table: Callable[[Tensor], Rotation] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Token ids and positions, both [tokens] -> hidden states [tokens, hidden_size]."""
        x: Tensor = self.embedding(token_ids)
        return x

    def rotary(self, positions: Tensor) -> Rotation:
        """Look up the angles of positions [tokens]; None where positions are learned."""
        return None if self.rotary_table is None else self.rotary_table(positions)

    def head(self, x: Tensor, ops: Operators) -> Tensor:
        """Hidden states [n, hidden_size] -> logits [n, vocab_size]."""
        logits: Tensor = self.lm_head(self.norm(x))
        return logits
