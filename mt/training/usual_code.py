"""The same network as it is usually put together and trained: what the benchmark holds this project's beside."""

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mt.data.batching import Batch
from mt.model.embedding import Embedding
from mt.special_tokens import PAD


class UsualTransformer(nn.Module):
    """`torch.nn.Transformer` and its masks, one embedding. ValueError for an attention that torch has no equal of.

    Its attention is torch's scaled dot product, also beside a model that scores by cosine.
    """

    def __init__(
        self,
        *,
        architecture: str,
        attention: str,
        positions: str,
        vocab_size: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        encoder_layers: int,
        decoder_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if attention not in ("scaled_dot_product", "cosine"):
            raise ValueError(f"torch has no {architecture} with attention={attention} to measure against")
        self.embedding = Embedding(vocab_size=vocab_size, d_model=d_model, positions=positions)
        self.dropout = nn.Dropout(dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nested tensors don't go with norm_first
            self.transformer = nn.Transformer(
                d_model, num_heads, encoder_layers, decoder_layers, d_ff, dropout, batch_first=True, norm_first=True
            )

    def forward(self, src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        hidden = src == PAD  # as torch has it: True = may not attend
        x = self.transformer(
            self.dropout(self.embedding(src)),
            self.dropout(self.embedding(tgt_in)),
            tgt_mask=torch.ones(tgt_in.shape[1], tgt_in.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=hidden,
            tgt_key_padding_mask=tgt_in == PAD,
            memory_key_padding_mask=hidden,
        )
        return nn.functional.linear(x, self.embedding.token.weight)


def seconds_of_training(
    model: dict[str, Any], batches: Sequence[Batch], learning_rate: float, label_smoothing: float, warm_up: int
) -> float:
    """Of steps in float32 on all batches but the first `warm_up`. model: UsualTransformer's arguments."""
    network = UsualTransformer(**model).train()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=label_smoothing)
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)
    for i, batch in enumerate(batches):
        if i == warm_up:
            start = time.perf_counter()
        optimizer.zero_grad()
        logits = network(batch.src, batch.tgt_in)
        criterion(logits.flatten(end_dim=1), batch.tgt_out.flatten()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return time.perf_counter() - start
