"""Other ways to score a key against a query, to compare with the scaled dot product; the rest stays as it is."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mt.model.attention import MultiHeadAttention


class DotProductAttention(MultiHeadAttention):
    """qᵀk: its spread grows with √E, and a softmax of large scores has next to no gradient."""

    def scores(self, q: Float[Tensor, "B Q H E"], k: Float[Tensor, "B K H E"]) -> Float[Tensor, "B H Q K"]:
        return torch.einsum("bqhe,bkhe->bhqk", q, k)


class CosineAttention(MultiHeadAttention):
    """g · cos(q, k), with a learnt g per head (Henry et al. 2020; Liu et al. 2022, section 3.2).

    Without g the scores lie in [-1, 1], and no key could get more than e² = 7.4 times the weight of another.
    """

    def __init__(self, *, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__(d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.gain = nn.Parameter(torch.full((num_heads,), 10.0))

    def scores(self, q: Float[Tensor, "B Q H E"], k: Float[Tensor, "B K H E"]) -> Float[Tensor, "B H Q K"]:
        # Heads apart in memory, so that the two gradients of q (and of k) are added in the order in which they lie.
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        lengths = torch.einsum("bhq,bhk->bhqk", q.norm(dim=-1), k.norm(dim=-1))
        cosine = torch.einsum("bhqe,bhke->bhqk", q, k) / lengths.clamp(min=1e-6)
        return self.gain[:, None, None] * cosine


class AdditiveAttention(MultiHeadAttention):
    """vᵀ tanh(q + k), with a learnt v per head: q and k are the W s and U h of Bahdanau et al. 2015, section A.1.2."""

    def __init__(self, *, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__(d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.direction = nn.Parameter(torch.empty(num_heads, d_model // num_heads))
        nn.init.xavier_uniform_(self.direction)

    def scores(self, q: Float[Tensor, "B Q H E"], k: Float[Tensor, "B K H E"]) -> Float[Tensor, "B H Q K"]:
        return torch.einsum("bqkhe,he->bhqk", torch.tanh(q[:, :, None] + k[:, None]), self.direction)


class ParameterFreeAttention(MultiHeadAttention):
    """softmax(X Xᵀ / √E) X: nothing is learnt, a head is a slice of the input."""

    def __init__(self, *, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__(d_model=d_model, num_heads=num_heads, dropout=dropout)
        for name in ("query", "key", "value", "output"):
            self.register_module(name, nn.Identity())

    def start_alike(self) -> None:
        """Nothing to start with."""


ATTENTION: dict[str, type[MultiHeadAttention]] = {
    "scaled_dot_product": MultiHeadAttention,
    "dot_product": DotProductAttention,
    "cosine": CosineAttention,
    "additive": AdditiveAttention,
    "parameter_free": ParameterFreeAttention,
}


def make_attention(name: str, *, d_model: int, num_heads: int, dropout: float) -> MultiHeadAttention:
    """ValueError for a name that is none of ATTENTION."""
    if name not in ATTENTION:
        raise ValueError(f"attention={name} is none of {', '.join(ATTENTION)}")
    return ATTENTION[name](d_model=d_model, num_heads=num_heads, dropout=dropout)
