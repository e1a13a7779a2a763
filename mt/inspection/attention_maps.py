"""What every head of a model looked at for one pair of sentences, with the pieces that name its rows and columns."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mt.model.attention import AttentionWeights
from mt.model.evaluating import evaluating
from mt.special_tokens import BOS, EOS
from mt.tokenizer import Tokenizer

SIDES = {"encoder": ("source", "source"), "decoder": ("produced", "read"), "cross": ("produced", "source")}
"""Whose pieces are a map's queries and keys, by kind."""


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Every row sums to 1; what a query may not see is exactly 0."""

    name: str
    """The dotted name of the attention: decoder.layers.0.cross_attention."""
    weights: Float[Tensor, "H Q K"]
    queries: list[str]
    """In a decoder, row i is named for the piece that query i produced: the last one is EOS."""
    keys: list[str]
    """The pieces looked at: the source's, which end with EOS, or the target's as read, which begin with BOS."""

    def __post_init__(self) -> None:
        assert self.weights.shape[1:] == (len(self.queries), len(self.keys)), self.name


def attention_maps(model: nn.Module, tokenizer: Tokenizer, src: list[int], tgt: list[int]) -> list[AttentionMap]:
    """The maps of the encoder, then the decoder's of itself, then its maps of the source; each by layer.

    model: anything whose forward takes (src, tgt_in) and that holds AttentionWeights.
    src, tgt: ids without BOS and EOS. To explain a translation, tgt is the hypothesis, not the reference.
    """
    device = next(model.parameters()).device
    src_ids = torch.tensor([[*src, EOS]], device=device)
    tgt_in = torch.tensor([[BOS, *tgt]], device=device)
    sides = {"source": [*src, EOS], "read": [BOS, *tgt], "produced": [*tgt, EOS]}
    pieces = {side: tokenizer.pieces(ids) for side, ids in sides.items()}
    return [
        AttentionMap(name, weights, *(pieces[side] for side in SIDES[attention_kind(name)]))
        for name, weights in record_weights(model, src_ids, tgt_in).items()
    ]


def cross_maps(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """Those that look at the source, by layer."""
    return [m for m in maps if attention_kind(m.name) == "cross"]


def attention_kind(name: str) -> str:
    """Which two sides a dotted name joins: "encoder" and "decoder" look at themselves, "cross" at the source."""
    if "encoder" in name.split("."):
        return "encoder"
    return "decoder" if name.endswith("self_attention") else "cross"


def record_weights(
    model: nn.Module, src: Int[Tensor, "1 S"], tgt_in: Int[Tensor, "1 T"]
) -> dict[str, Float[Tensor, "H Q K"]]:
    """The weights of one forward pass without dropout, on the CPU; the model is left as it was found.

    src ends with EOS, tgt_in begins with BOS. Attention that is called once a step gives its rows in that order.
    """
    calls: dict[str, list[Float[Tensor, "H Q K"]]] = defaultdict(list)
    hooks = []
    try:
        for path, module in model.named_modules():
            if isinstance(module, AttentionWeights):
                name = path.removesuffix(".weights")
                hook = module.register_forward_hook(lambda _, __, weights, name=name: calls[name].append(weights[0]))
                hooks.append(hook)
        with evaluating(model), torch.inference_mode():
            model(src, tgt_in)
    finally:
        for hook in hooks:
            hook.remove()
    by_kind = sorted(calls, key=lambda name: ("encoder", "decoder", "cross").index(attention_kind(name)))
    return {name: torch.cat(calls[name], dim=1).float().cpu() for name in by_kind}
