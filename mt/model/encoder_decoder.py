"""What training, search and inspection need of a model, whatever is inside it."""

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from mt.model.embedding import Embedding


class EncoderDecoder(nn.Module, ABC):
    """Whole sequences for training; start, step, select for search. Attention holds AttentionWeights to be drawn."""

    embedding: Embedding

    def forward(self, src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the piece that follows each piece of tgt_in, which begins with BOS."""
        return self.logits(self.decode(self.encode(src), src, tgt_in))

    @abstractmethod
    def encode(self, src: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]: ...

    @abstractmethod
    def decode(
        self, memory: Float[Tensor, "B S D"], src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]: ...

    def logits(self, x: Float[Tensor, "*T D"]) -> Float[Tensor, "*T V"]:
        return nn.functional.linear(x, self.embedding.token.weight)

    @abstractmethod
    def start(self, src: Int[Tensor, "B S"]) -> Any:
        """The state before the first step, with one hypothesis a sentence."""

    @abstractmethod
    def step(self, state: Any, last: Int[Tensor, "B W"]) -> tuple[Any, Float[Tensor, "B W V"]]:
        """Logits of the piece that follows `last`, the newest piece of every hypothesis (BOS at first)."""

    @abstractmethod
    def select(self, state: Any, sentences: Int[Tensor, "B"], parents: Int[Tensor, "B W"]) -> Any:
        """The state whose sentence i is the old `sentences[i]`, and its hypothesis j the old `parents[i, j]`."""
