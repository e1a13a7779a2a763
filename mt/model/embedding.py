"""Token embeddings and the positions that are added to them (Vaswani et al. 2017, sections 3.4, 3.5)."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@lru_cache(maxsize=1_000)  # decoding asks for one position after another, for every sentence anew
@torch.inference_mode(False)  # so that what decoding has computed can be trained with
def sinusoidal_positions(start: int, end: int, d_model: int, device: torch.device) -> Float[Tensor, "T D"]:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(p / 10000^(2i/D)) for the positions p = start..end-1."""
    position = torch.arange(start, end, dtype=torch.float32, device=device)
    frequency = torch.exp(torch.arange(0, d_model, 2, device=device) * (-math.log(10_000) / d_model))
    angle = torch.outer(position, frequency)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(start_dim=1)


class SinusoidalPositions(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(f"d_model={d_model} is odd: sine and cosine positions come in pairs")
        self.d_model = d_model

    def forward(self, start: int, end: int, device: torch.device) -> Float[Tensor, "T D"]:
        return sinusoidal_positions(start, end, self.d_model, device)


class LearnedPositions(nn.Module):
    """A vector for each of the first 512 positions (Gehring et al. 2017); all later ones share the last."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(512, d_model)
        nn.init.normal_(self.table.weight, std=0.02)  # next to nothing where training never comes

    def forward(self, start: int, end: int, device: torch.device) -> Float[Tensor, "T D"]:
        return self.table(torch.arange(start, end, device=device).clamp(max=self.table.num_embeddings - 1))


class NoPositions(nn.Module):
    """Attention alone sees a set; a recurrent layer, or the causal mask, still tells some order."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, start: int, end: int, device: torch.device) -> Float[Tensor, "T D"]:
        return torch.zeros(end - start, self.d_model, device=device)


POSITIONS = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions, "none": NoPositions}


class Embedding(nn.Module):
    """Token embedding · √D + position. Its matrix is also the output projection (Press & Wolf 2017)."""

    def __init__(self, *, vocab_size: int, d_model: int, positions: str) -> None:
        super().__init__()
        if positions not in POSITIONS:
            raise ValueError(f"positions={positions} is none of {', '.join(POSITIONS)}")
        self.token = nn.Embedding(vocab_size, d_model)
        # Half the usual spread: at first, positions count for more.
        nn.init.normal_(self.token.weight, std=0.5 * d_model**-0.5)
        self.positions = POSITIONS[positions](d_model)

    def start_near(self, vectors: Float[Tensor, "V D"]) -> None:
        """Turn the random start towards vectors of length 1; where one is 0, and in its lengths, it stays as it is."""
        with torch.no_grad():
            weight = self.token.weight
            lengths = weight.norm(dim=1, keepdim=True)
            # The random rest tells pieces apart that always stand together.
            weight.copy_(nn.functional.normalize(vectors + 0.2 * weight / lengths, dim=1) * lengths)

    def forward(self, ids: Int[Tensor, "B T"], start: int = 0) -> Float[Tensor, "B T D"]:
        """start: the position of the first column."""
        tokens = self.token(ids) * math.sqrt(self.token.embedding_dim)
        return tokens + self.positions(start, start + ids.shape[1], ids.device).to(tokens.dtype)
