"""The scoreboard of heads: where each cross-attention head looks, and how well it finds the words that translate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mt.inspection.alignment import AlignedPair, Link, alignment_error_rate
from mt.inspection.attention_maps import AttentionMap, attention_kind, attention_maps, cross_maps, record_weights
from mt.inspection.words import WORD, merge
from mt.special_tokens import BOS, EOS
from mt.tokenizer import Tokenizer


@dataclass(frozen=True)
class HeadScore:
    """What a head does where it produces the pieces of a reference; the row that produces its end is left out."""

    layer: int
    head: int
    """Both counted from 1."""
    aer: float
    """Alignment error rate of linking every target word to the source word with the most weight; 0 is perfect."""
    entropy: float
    """Of a row, in bits: 0 where it looks at one piece."""
    eos_share: float
    """Of the weight, on the end of the source."""
    diagonality: float
    """Correlation of the places of looking and looked-at piece: 1 reads along, 0 does not care, -1 reads backwards."""


class Scoreboard(NamedTuple):
    heads: list[HeadScore]
    mean_aer: float
    """Of the mean of all heads' weights."""

    @property
    def best(self) -> HeadScore:
        return min(self.heads, key=lambda head: head.aer)


def score_heads(model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[AlignedPair]) -> Scoreboard:
    """Every cross-attention head, forced to the references. ValueError for a model without cross-attention."""
    found: list[list[set[Link]]] = []  # by pair, then by head; the last is the mean
    measures = []
    places: list[tuple[int, int]] = []
    for pair in pairs:
        src, tgt = tokenizer.encode([pair.src, pair.tgt])
        cross = cross_maps(attention_maps(model, tokenizer, src, tgt))
        if not cross:
            raise ValueError("this model has no attention over its source")
        places = [(layer, head) for layer, m in enumerate(cross, 1) for head in range(1, len(m.weights) + 1)]
        weights = torch.cat([m.weights for m in cross])
        measures.append(torch.stack([_entropy(weights), _eos_share(weights), _diagonality(weights)]))
        with_mean = torch.cat([weights, weights.mean(dim=0, keepdim=True)])
        found.append(links(AttentionMap(cross[0].name, with_mean, cross[0].queries, cross[0].keys)))
    sure = [pair.links for pair in pairs]
    aers = [alignment_error_rate(head, sure) for head in zip(*found, strict=True)]
    means = torch.stack(measures).mean(dim=0).T.tolist()
    heads = [HeadScore(*place, aer, *mean) for place, aer, mean in zip(places, aers[:-1], means, strict=True)]
    return Scoreboard(heads, aers[-1])


def links(attention_map: AttentionMap) -> list[set[Link]]:
    """For every head: each target word with the source word that has the most weight, marks and EOS left aside."""
    merged = merge(attention_map)
    rows = [i for i, name in enumerate(merged.queries) if WORD.fullmatch(name)]
    columns = [i for i, name in enumerate(merged.keys) if WORD.fullmatch(name)]
    if not rows or not columns:
        return [set() for _ in merged.weights]
    best = merged.weights[:, rows][:, :, columns].argmax(dim=-1)
    return [{(src, tgt) for tgt, src in enumerate(head)} for head in best.tolist()]


def _entropy(weights: Float[Tensor, "H Q K"]) -> Float[Tensor, "H"]:
    return torch.special.entr(weights[:, :-1]).sum(dim=-1).mean(dim=-1) / torch.log(torch.tensor(2.0))


def _eos_share(weights: Float[Tensor, "H Q K"]) -> Float[Tensor, "H"]:
    return weights[:, :-1, -1].mean(dim=-1)


def _diagonality(weights: Float[Tensor, "H Q K"]) -> Float[Tensor, "H"]:
    """Pearson's, where the weights say how often a place looks at a place; 0 where one of them never changes."""
    weights = weights[:, :-1, :-1].double()
    joint = weights / weights.sum(dim=(1, 2), keepdim=True)
    q, k = (torch.arange(n, dtype=torch.float64) for n in joint.shape[1:])
    by_query, by_key = joint.sum(dim=2), joint.sum(dim=1)
    q = q - (by_query @ q)[:, None]
    k = k - (by_key @ k)[:, None]
    covariance = torch.einsum("hqk,hq,hk->h", joint, q, k)
    deviations = ((by_query * q**2).sum(dim=1) * (by_key * k**2).sum(dim=1)).sqrt()
    return torch.where(deviations > 1e-9, covariance / deviations, 0).float()


def cross_heads(model: nn.Module) -> list[tuple[str, int]]:
    """The attention's dotted name, and the head counted from 1, of every head that looks at the source."""
    device = next(model.parameters()).device
    some = record_weights(model, torch.tensor([[EOS]], device=device), torch.tensor([[BOS]], device=device))
    cross = {name: len(weights) for name, weights in some.items() if attention_kind(name) == "cross"}
    return [(name, head) for name, heads in cross.items() for head in range(1, heads + 1)]


@contextmanager
def switched_off(model: nn.Module, name: str, head: int) -> Iterator[None]:
    """A model one of whose heads, counted from 1, gives nothing: its weights are 0. name: of the head's attention."""

    def silence(_module: nn.Module, _inputs: tuple[Tensor, ...], weights: Float[Tensor, "B H Q K"]) -> Tensor:
        return weights.index_fill(1, torch.tensor([head - 1], device=weights.device), 0)

    handle = model.get_submodule(f"{name}.weights").register_forward_hook(silence)
    try:
        yield
    finally:
        handle.remove()
