"""Encoder and decoder layers, pre-norm: x + sublayer(norm(x)) (Xiong et al. 2020)."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mt.model.attention_variants import make_attention
from mt.model.dropout import Dropout


class KeysValues(NamedTuple):
    """What attention looks at, projected and split into heads: the decoder's cache holds these."""

    keys: Float[Tensor, "B K H E"]
    values: Float[Tensor, "B K H E"]

    def rows(self, index: Int[Tensor, "N"]) -> "KeysValues":
        return KeysValues(self.keys[index], self.values[index])


class LayerNorm(nn.LayerNorm):
    """Under autocast its output has autocast's type at once, instead of being cast by each product that takes it."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        h = super().forward(x)
        device = x.device.type
        return h.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else h


class FeedForward(nn.Sequential):
    """max(0, x W₁ + b₁) W₂ + b₂ at every position alone."""

    def __init__(self, *, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__(nn.Linear(d_model, d_ff), nn.ReLU(), Dropout(dropout), nn.Linear(d_ff, d_model))


class EncoderLayer(nn.Module):
    """Every source position looks at every source position, then thinks for itself."""

    def __init__(self, *, attention: str, d_model: int, num_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attention_norm = LayerNorm(d_model)
        self.self_attention = make_attention(attention, d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.feed_forward_norm = LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model=d_model, d_ff=d_ff, dropout=dropout)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], src_mask: Bool[Tensor, "B 1 S"]) -> Float[Tensor, "B S D"]:
        h = self.self_attention_norm(x)
        x = x + self.dropout(self.self_attention(h, h, src_mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class DecoderLayer(nn.Module):
    """Every target position looks back at the target, then at the source, then thinks for itself."""

    def __init__(self, *, attention: str, d_model: int, num_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attention_norm = LayerNorm(d_model)
        self.self_attention = make_attention(attention, d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.cross_attention_norm = LayerNorm(d_model)
        self.cross_attention = make_attention(attention, d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.feed_forward_norm = LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model=d_model, d_ff=d_ff, dropout=dropout)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        tgt_mask: Bool[Tensor, "1 T T"],
        src_mask: Bool[Tensor, "B 1 S"],
    ) -> Float[Tensor, "B T D"]:
        h = self.self_attention_norm(x)
        x = x + self.dropout(self.self_attention(h, h, tgt_mask))
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, src_mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

    def step(
        self,
        x: Float[Tensor, "B W D"],
        past: KeysValues,
        memory: KeysValues,
        src_mask: Bool[Tensor, "B 1 S"],
    ) -> tuple[Float[Tensor, "B W D"], KeysValues]:
        """The last position alone of W hypotheses a sentence: the same numbers as `forward`, without its past.

        past: the self-attention's keys and values so far, one row a hypothesis; comes back with one position more.
        memory: the cross-attention's, one row a sentence. Its hypotheses stand where queries stand: nothing is copied.
        """
        h = self.self_attention_norm(x).flatten(end_dim=1)[:, None]  # B·W 1 D
        keys, values = self.self_attention.project(h)
        past = KeysValues(torch.cat([past.keys, keys], dim=1), torch.cat([past.values, values], dim=1))
        all_visible = torch.ones(1, 1, past.keys.shape[1], dtype=torch.bool, device=x.device)
        x = x + self.self_attention.attend(h, *past, all_visible).view_as(x)
        x = x + self.cross_attention.attend(self.cross_attention_norm(x), *memory, src_mask)
        return x + self.feed_forward(self.feed_forward_norm(x)), past
