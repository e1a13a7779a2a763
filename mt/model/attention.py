"""Multi-head attention by hand, "Attention Is All You Need" (Vaswani et al. 2017), section 3.2.

The letters of every einsum are the axis legend in lower case:
B batch, Q query, K key, D d_model, H heads, E width of one head.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mt.model.dropout import Dropout


class AttentionWeights(nn.Module):
    """Softmax over the visible keys. A module of its own, so that a forward hook sees the weights.

    Rows sum to 1, hidden keys get exactly 0, and dropout has not touched them yet.
    """

    def forward(self, scores: Float[Tensor, "B H Q K"], mask: Bool[Tensor, "#B #Q K"]) -> Float[Tensor, "B H Q K"]:
        return scores.masked_fill(~mask[:, None], -torch.inf).softmax(dim=-1)


class MultiHeadAttention(nn.Module):
    """softmax(Q Kᵀ / √E) V in num_heads subspaces of width E = d_model / num_heads."""

    def __init__(self, *, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}")
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.weights = AttentionWeights()
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(d_model, d_model)

    def start_alike(self) -> None:
        """Start with W_k = W_q and W_o = W_vᵀ: see what is like you, and take over what you see.

        Two positions then attract each other as far as they are alike, and what is attended to arrives as what it was,
        so that gradients find words soon (after Trockman & Kolter 2023, "Mimetic Initialization").
        """
        with torch.no_grad():
            self.key.weight.copy_(self.query.weight)
            self.output.weight.copy_(self.value.weight.T)

    def forward(
        self,
        queries: Float[Tensor, "B Q D"],
        keys_values: Float[Tensor, "B K D"],
        mask: Bool[Tensor, "#B #Q K"],
    ) -> Float[Tensor, "B Q D"]:
        """Self-attention where both inputs are the same, cross-attention where they differ."""
        return self.attend(queries, *self.project(keys_values), mask)

    def project(self, keys_values: Float[Tensor, "B K D"]) -> tuple[Float[Tensor, "B K H E"], Float[Tensor, "B K H E"]]:
        """Keys and values per head: what a decoder that works piece by piece can keep."""
        return self._split(self.key(keys_values)), self._split(self.value(keys_values))

    def attend(
        self,
        queries: Float[Tensor, "B Q D"],
        k: Float[Tensor, "B K H E"],
        v: Float[Tensor, "B K H E"],
        mask: Bool[Tensor, "#B #Q K"],
    ) -> Float[Tensor, "B Q D"]:
        q = self._split(self.query(queries))
        weights = self.dropout(self.weights(self.scores(q, k), mask))
        context = torch.einsum("bhqk,bkhe->bqhe", weights, v)
        return self.output(context.flatten(start_dim=2))

    def scores(self, q: Float[Tensor, "B Q H E"], k: Float[Tensor, "B K H E"]) -> Float[Tensor, "B H Q K"]:
        """How well a key answers a query. Others are in `mt.model.attention_variants`, the default's among them."""
        return torch.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(q.shape[-1])

    def _split(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q H E"]:
        return x.unflatten(-1, (self.num_heads, -1))
