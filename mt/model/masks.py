"""Attention masks from token ids: bool, True = may attend.

Every query keeps at least one visible key, so the softmax never meets a row of nothing but -inf.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mt.special_tokens import PAD


def padding_mask(ids: Int[Tensor, "B K"]) -> Bool[Tensor, "B 1 K"]:
    """Hide padding keys. The first key stays visible, even in a row that is all padding."""
    visible = ids != PAD
    visible[:, 0] = True
    return visible[:, None, :]


def causal_mask(length: int, device: torch.device) -> Bool[Tensor, "1 T T"]:
    """Let query i see the keys 0..i. Padding stands at the end of a row, so no real query sees it either."""
    return torch.ones(1, length, length, dtype=torch.bool, device=device).tril()
