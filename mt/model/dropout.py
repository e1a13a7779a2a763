"""Dropout that a processor can draw quickly.

`torch.nn.functional.dropout` draws one Bernoulli number per element on one thread, which is a fifth of a training
step on two cores. Here one random byte decides about an element, so the probability is rounded to a 256th, but
never to none or all.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout={p} is not in [0, 1)")
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = min(max(round(self.p * 256), 1), 255)
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        # In place, so that 0 and 1 stay bytes: to convert from bool takes ten times as long.
        keep = words.view(torch.uint8)[: x.numel()].view(x.shape).ge_(dropped)
        return x * keep.to(x.dtype).mul_(256 / (256 - dropped))
