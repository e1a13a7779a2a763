"""The machine of before: a recurrent encoder-decoder with attention over the source (Bahdanau et al. 2015), or without.

The encoder reads the source forwards and backwards. The decoder goes from piece to piece: its state is the query that
looks at the source, and what it sees enters its next state. Without attention it is given the same summary of the
source at every step (Cho et al. 2014), and all that a long sentence says has to fit into it.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mt.model.attention import MultiHeadAttention
from mt.model.attention_variants import ATTENTION, make_attention
from mt.model.dropout import Dropout
from mt.model.embedding import Embedding
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.layers import KeysValues
from mt.model.masks import padding_mask


def summary(memory: Float[Tensor, "B S D"], src_mask: Bool[Tensor, "B 1 S"]) -> Float[Tensor, "B D"]:
    """Where each direction ends: the forward half at the last visible position, the backward half at the first."""
    rows, last = torch.arange(len(memory), device=memory.device), src_mask[:, 0].sum(dim=-1) - 1
    forward, backward = memory.chunk(2, dim=-1)
    return torch.cat([forward[rows, last], backward[:, 0]], dim=-1)


class NoAttention(nn.Module):
    """The summary, whatever the query: takes the place of `MultiHeadAttention`."""

    def project(self, memory: Float[Tensor, "B S D"]) -> tuple[Float[Tensor, "B S 1 D"], Float[Tensor, "B S 1 D"]]:
        return memory[:, :, None], memory[:, :, None]

    def attend(
        self,
        queries: Float[Tensor, "B Q D"],
        _keys: Float[Tensor, "B S 1 D"],
        values: Float[Tensor, "B S 1 D"],
        src_mask: Bool[Tensor, "B 1 S"],
    ) -> Float[Tensor, "B Q D"]:
        return summary(values[:, :, 0], src_mask)[:, None].expand_as(queries)


class Encoder(nn.Module):
    """A bidirectional GRU, half of the width for each direction. Padding is not read."""

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.gru = nn.GRU(d_model, d_model // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Float[Tensor, "B S D"], src_mask: Bool[Tensor, "B 1 S"]) -> Float[Tensor, "B S D"]:
        lengths = src_mask[:, 0].sum(dim=-1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        memory, _ = self.gru(packed)
        return nn.utils.rnn.pad_packed_sequence(memory, batch_first=True, total_length=x.shape[1])[0]


class Decoder(nn.Module):
    """sᵢ = GRU([yᵢ₋₁; cᵢ], sᵢ₋₁) with the context cᵢ = attention(sᵢ₋₁, source), in the paper's order."""

    def __init__(self, *, attention: str, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if attention not in (*ATTENTION, "none"):
            raise ValueError(f"attention={attention} is none of {', '.join(ATTENTION)}, or none")
        self.first = nn.Linear(d_model, d_model)
        self.cross_attention: MultiHeadAttention | NoAttention = (
            NoAttention()
            if attention == "none"
            else make_attention(attention, d_model=d_model, num_heads=num_heads, dropout=dropout)
        )
        self.cell = nn.GRUCell(2 * d_model, d_model)
        self.output = nn.Linear(3 * d_model, d_model)
        self.dropout = Dropout(dropout)

    def start(
        self, memory: Float[Tensor, "B S D"], src_mask: Bool[Tensor, "B 1 S"]
    ) -> tuple[Float[Tensor, "B 1 D"], KeysValues]:
        """The first state, and what every step looks at."""
        first = torch.tanh(self.first(summary(memory, src_mask)))
        return first[:, None], KeysValues(*self.cross_attention.project(memory))

    def step(
        self,
        x: Float[Tensor, "B W D"],
        state: Float[Tensor, "B W D"],
        memory: KeysValues,
        src_mask: Bool[Tensor, "B 1 S"],
    ) -> tuple[Float[Tensor, "B W D"], Float[Tensor, "B W D"]]:
        """The next state of W hypotheses a sentence, and the output that their next pieces are read off."""
        context = self.cross_attention.attend(state, *memory, src_mask)
        read = torch.cat([x, context], dim=-1)
        state = self.cell(read.flatten(end_dim=1), state.flatten(end_dim=1)).view_as(state)
        return state, self.dropout(torch.tanh(self.output(torch.cat([state, read], dim=-1))))


@dataclass(frozen=True)
class DecoderState:
    """B sentences with W hypotheses each."""

    hidden: Float[Tensor, "B W D"]
    memory: KeysValues
    src_mask: Bool[Tensor, "B 1 S"]


class Recurrent(EncoderDecoder):
    """One layer each way; attention: one of `attention_variants`, or "none"."""

    def __init__(self, *, vocab_size: int, attention: str, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        for name, size in {"vocab_size": vocab_size, "d_model": d_model}.items():
            if size < 1:
                raise ValueError(f"{name}={size} is less than 1")
        if d_model % 2:
            raise ValueError(f"d_model={d_model} is odd: each direction of the encoder has half of it")
        self.embedding = Embedding(vocab_size=vocab_size, d_model=d_model, positions="none")
        self.dropout = Dropout(dropout)
        self.encoder = Encoder(d_model=d_model)
        self.decoder = Decoder(attention=attention, d_model=d_model, num_heads=num_heads, dropout=dropout)

    def encode(self, src: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        return self.dropout(self.encoder(self.dropout(self.embedding(src)), padding_mask(src)))

    def decode(
        self, memory: Float[Tensor, "B S D"], src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        src_mask, outputs = padding_mask(src), []
        state, keys_values = self.decoder.start(memory, src_mask)
        for x in self.dropout(self.embedding(tgt_in)).split(1, dim=1):
            state, output = self.decoder.step(x, state, keys_values, src_mask)
            outputs.append(output)
        return torch.cat(outputs, dim=1)

    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        src_mask = padding_mask(src)
        return DecoderState(*self.decoder.start(self.encode(src), src_mask), src_mask)

    def step(self, state: DecoderState, last: Int[Tensor, "B W"]) -> tuple[DecoderState, Float[Tensor, "B W V"]]:
        hidden, output = self.decoder.step(self.embedding(last), state.hidden, state.memory, state.src_mask)
        return replace(state, hidden=hidden), self.logits(output)

    def select(self, state: DecoderState, sentences: Int[Tensor, "B"], parents: Int[Tensor, "B W"]) -> DecoderState:
        hidden = state.hidden[sentences[:, None], parents]
        return DecoderState(hidden, state.memory.rows(sentences), state.src_mask[sentences])
