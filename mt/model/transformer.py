"""The encoder-decoder transformer: training's two whole sequences, and the piece-by-piece steps that search takes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mt.model.attention import MultiHeadAttention
from mt.model.dropout import Dropout
from mt.model.embedding import Embedding
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.layers import DecoderLayer, EncoderLayer, KeysValues, LayerNorm
from mt.model.masks import causal_mask, padding_mask


class Encoder(nn.Module):
    def __init__(self, layers: Iterable[EncoderLayer], *, d_model: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(d_model)

    def forward(self, x: Float[Tensor, "B S D"], src_mask: Bool[Tensor, "B 1 S"]) -> Float[Tensor, "B S D"]:
        for layer in self.layers:
            x = layer(x, src_mask)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, layers: Iterable[DecoderLayer], *, d_model: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(d_model)  # float32 also under autocast: the loss of fp16 needs it

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        tgt_mask: Bool[Tensor, "1 T T"],
        src_mask: Bool[Tensor, "B 1 S"],
    ) -> Float[Tensor, "B T D"]:
        for layer in self.layers:
            x = layer(x, memory, tgt_mask, src_mask)
        return self.norm(x)

    def project(self, memory: Float[Tensor, "B S D"]) -> tuple[KeysValues, ...]:
        """The cross-attention's keys and values of every layer."""
        return tuple(KeysValues(*layer.cross_attention.project(memory)) for layer in self._layers())

    def step(
        self,
        x: Float[Tensor, "B W D"],
        past: tuple[KeysValues, ...],
        memory: tuple[KeysValues, ...],
        src_mask: Bool[Tensor, "B 1 S"],
    ) -> tuple[Float[Tensor, "B W D"], tuple[KeysValues, ...]]:
        """`DecoderLayer.step` through all layers."""
        longer = []
        for layer, layer_past, layer_memory in zip(self._layers(), past, memory, strict=True):
            x, grown = layer.step(x, layer_past, layer_memory, src_mask)
            longer.append(grown)
        return self.norm(x), tuple(longer)

    def _layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.layers)


@dataclass(frozen=True)
class DecoderState:
    """What the steps of a search need to know: B sentences with W hypotheses each, of the same length."""

    length: int
    width: int
    past: tuple[KeysValues, ...]
    """A layer's self-attention, one row a hypothesis (B·W)."""
    memory: tuple[KeysValues, ...]
    """A layer's cross-attention, one row a sentence (B): computed once."""
    src_mask: Bool[Tensor, "B 1 S"]


class Transformer(EncoderDecoder):
    """Pre-norm; one matrix for source and target embedding and output projection.

    Masks are made here from the ids, so no caller can get one wrong.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        attention: str,
        positions: str,
        d_model: int,
        num_heads: int,
        d_ff: int,
        encoder_layers: int,
        decoder_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "d_model": d_model, "num_heads": num_heads, "d_ff": d_ff}
        for name, size in {**sizes, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers}.items():
            if size < 1:
                raise ValueError(f"{name}={size} is less than 1")
        self.embedding = Embedding(vocab_size=vocab_size, d_model=d_model, positions=positions)
        self.dropout = Dropout(dropout)
        self.encoder = Encoder(
            [
                EncoderLayer(attention=attention, d_model=d_model, num_heads=num_heads, d_ff=d_ff, dropout=dropout)
                for _ in range(encoder_layers)
            ],
            d_model=d_model,
        )
        self.decoder = Decoder(
            [
                DecoderLayer(attention=attention, d_model=d_model, num_heads=num_heads, d_ff=d_ff, dropout=dropout)
                for _ in range(decoder_layers)
            ],
            d_model=d_model,
        )
        for parameter in [*self.encoder.parameters(), *self.decoder.parameters()]:
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.start_alike()

    def encode(self, src: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        return self.encoder(self.dropout(self.embedding(src)), padding_mask(src))

    def decode(
        self, memory: Float[Tensor, "B S D"], src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        tgt_mask = causal_mask(tgt_in.shape[1], tgt_in.device)
        return self.decoder(self.dropout(self.embedding(tgt_in)), memory, tgt_mask, padding_mask(src))

    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        memory = self.decoder.project(self.encode(src))
        empty = tuple(KeysValues(keys[:, :0], values[:, :0]) for keys, values in memory)
        return DecoderState(length=0, width=1, past=empty, memory=memory, src_mask=padding_mask(src))

    def step(self, state: DecoderState, last: Int[Tensor, "B W"]) -> tuple[DecoderState, Float[Tensor, "B W V"]]:
        x = self.embedding(last.flatten()[:, None], start=state.length).view(*last.shape, -1)
        x, past = self.decoder.step(x, state.past, state.memory, state.src_mask)
        return replace(state, length=state.length + 1, past=past), self.logits(x)

    def select(self, state: DecoderState, sentences: Int[Tensor, "B"], parents: Int[Tensor, "B W"]) -> DecoderState:
        """What stays as it is is not copied."""
        hypotheses = (sentences[:, None] * state.width + parents).flatten()
        past, memory, src_mask = state.past, state.memory, state.src_mask
        if not _is_identity(hypotheses, state.width * len(src_mask)):
            past = tuple(layer.rows(hypotheses) for layer in past)
        if not _is_identity(sentences, len(src_mask)):
            memory, src_mask = tuple(layer.rows(sentences) for layer in memory), src_mask[sentences]
        return DecoderState(length=state.length, width=parents.shape[1], past=past, memory=memory, src_mask=src_mask)


def _is_identity(index: Int[Tensor, "N"], length: int) -> bool:
    return len(index) == length and torch.equal(index, torch.arange(length, device=index.device))
