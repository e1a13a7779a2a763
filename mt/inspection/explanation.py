"""Why a translation has this word and no other: probabilities, source words, and what else could have stood there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mt.data.batching import pad
from mt.inspection.attention_maps import attention_kind, attention_maps
from mt.inspection.words import merge, words_of
from mt.model.evaluating import evaluating
from mt.special_tokens import BOS, EOS, PAD, UNK
from mt.tokenizer import Tokenizer

SHOWN = 3  # source words, and alternatives, of a word
ROWS = 64  # prefixes that are continued at a time
LONGEST = 12  # pieces that an alternative is continued by, at most


@dataclass(frozen=True)
class Share:
    word: str
    share: float
    """A probability, or a weight."""


@dataclass(frozen=True)
class ExplainedWord:
    word: str
    """The last one is </s>."""
    probability: float
    """The product of its pieces': the model's, given the source and all words before."""
    sources: list[Share]
    """The source words with the most weight, over all pieces of the word; the mean of all cross-attention heads."""
    alternatives: list[Share]
    """What else the model would have put there, begun otherwise and finished greedily; with its probability."""


@dataclass(frozen=True)
class _Alternative:
    place: int
    """The word that it would replace."""
    ids: list[int]
    log_probability: float
    """Of the word so far, in whose place it stands."""


def explain_words(model: nn.Module, tokenizer: Tokenizer, src: list[int], tgt: list[int]) -> list[ExplainedWord]:
    """The words of tgt, as the model produces them one by one. src, tgt: ids without BOS and EOS."""
    produced = [*tgt, EOS]
    names, of = words_of(tokenizer.pieces(produced))
    (log_probs,) = _next(model, src, [tgt])
    found = [float(row[i]) for row, i in zip(log_probs, produced, strict=True)]
    sums = [sum(p for p, word in zip(found, of, strict=True) if word == place) for place in range(len(names))]
    alternatives = _alternatives(model, tokenizer, src, tgt, log_probs, of)
    cross = [merge(m) for m in attention_maps(model, tokenizer, src, tgt) if attention_kind(m.name) == "cross"]
    looks = torch.cat([m.weights for m in cross]).mean(dim=0) if cross else torch.zeros(len(names), 0)
    result = []
    for place, (word, row) in enumerate(zip(names, looks, strict=True)):
        best = row.topk(min(SHOWN, len(row)))
        sources = [Share(cross[0].keys[i], weight) for weight, i in zip(*map(Tensor.tolist, best), strict=True)]
        others: dict[str, float] = {}
        for a in sorted(alternatives, key=lambda a: a.log_probability, reverse=True):
            text = words_of(tokenizer.pieces(a.ids)).names[-1]
            if a.place == place and text != word:
                others.setdefault(text, a.log_probability)
        shares = [Share(text, math.exp(p)) for text, p in others.items()][:SHOWN]
        result.append(ExplainedWord(word, math.exp(sums[place]), sources, shares))
    return result


def _alternatives(
    model: nn.Module,
    tokenizer: Tokenizer,
    src: list[int],
    tgt: list[int],
    log_probs: Float[Tensor, "T V"],
    of: Sequence[int],
) -> list[_Alternative]:
    """The most probable ways to leave each word, at any of its pieces, each continued greedily to the word's end."""
    produced = [*tgt, EOS]
    begun = []
    for place in range(of[-1] + 1):
        before, ways = 0.0, []
        for i in (i for i, word in enumerate(of) if word == place):
            values, ids = log_probs[i].topk(SHOWN + 1)
            for value, other in zip(values.tolist(), ids.tolist(), strict=True):
                if other != produced[i]:
                    ways.append(_Alternative(place, [*tgt[:i], other], before + value))
            before += float(log_probs[i, produced[i]])
        begun += sorted(ways, key=lambda a: a.log_probability, reverse=True)[: 2 * SHOWN]
    finished = [a for a in begun if a.ids[-1] == EOS]
    going_on = [a for a in begun if a.ids[-1] != EOS]
    for _ in range(LONGEST):
        still = []
        for start in range(0, len(going_on), ROWS):
            part = going_on[start : start + ROWS]
            for a, row in zip(part, _next(model, src, [a.ids for a in part]), strict=True):
                best = int(row[len(a.ids)].argmax())
                *_, last, following = words_of(tokenizer.pieces([*a.ids, best])).of
                if last == following:
                    log_probability = a.log_probability + float(row[len(a.ids), best])
                    still.append(replace(a, ids=[*a.ids, best], log_probability=log_probability))
                else:
                    finished.append(a)
        going_on = still
    return finished + going_on


def _next(model: nn.Module, src: list[int], prefixes: Sequence[list[int]]) -> Float[Tensor, "B T V"]:
    """Log-probabilities of what follows BOS and every piece of the prefixes, as search has them."""
    device = next(model.parameters()).device
    tgt_in = pad([[BOS, *prefix] for prefix in prefixes]).to(device)
    src_ids = torch.tensor([[*src, EOS]], device=device).expand(len(prefixes), -1)
    with evaluating(model), torch.inference_mode():
        log_probs = model(src_ids, tgt_in).float().log_softmax(dim=-1)
        log_probs[..., [PAD, UNK, BOS]] = -torch.inf
        return log_probs.cpu()
