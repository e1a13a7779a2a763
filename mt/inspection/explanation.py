"""Why a translation has this word and no other: probabilities, source words, and what else could have stood there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mt.data.batching import pad
from mt.inspection.attention_maps import attention_maps, cross_maps
from mt.inspection.words import merge, words_of
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.evaluating import evaluating
from mt.special_tokens import BOS, EOS, NEVER
from mt.tokenizer import Tokenizer

SHOWN = 3  # source words, and alternatives, of a word
CONTINUED = 12  # pieces that an alternative is continued by, at most
PIECES = 8_192  # of prefixes that are continued at a time: bounds memory


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


def explain_words(model: EncoderDecoder, tokenizer: Tokenizer, src: list[int], tgt: list[int]) -> list[ExplainedWord]:
    """The words of tgt, as the model produces them one by one. src, tgt: ids without BOS and EOS."""
    produced = [*tgt, EOS]
    names, of = words_of(tokenizer.pieces(produced))
    with evaluating(model), torch.inference_mode():
        source = _Source.read(model, src)
        log_probs = source.log_probs(source.states([tgt])[0])
        alternatives = _alternatives(source, tokenizer, tgt, log_probs, of)
    found = [float(row[i]) for row, i in zip(log_probs, produced, strict=True)]
    sums = [sum(p for p, word in zip(found, of, strict=True) if word == place) for place in range(len(names))]
    cross = [merge(m) for m in cross_maps(attention_maps(model, tokenizer, src, tgt))]
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


@dataclass(frozen=True)
class _Source:
    """What a model has read, and what it would say next."""

    model: EncoderDecoder
    src: Int[Tensor, "1 S"]
    memory: Float[Tensor, "1 S D"]

    @classmethod
    def read(cls, model: EncoderDecoder, ids: list[int]) -> "_Source":
        src = torch.tensor([[*ids, EOS]], device=next(model.parameters()).device)
        return cls(model, src, model.encode(src))

    def states(self, prefixes: Sequence[list[int]]) -> Float[Tensor, "B T D"]:
        """After BOS and after every piece of the prefixes."""
        tgt_in = pad([[BOS, *prefix] for prefix in prefixes]).to(self.src.device)
        rows = len(prefixes)
        return self.model.decode(self.memory.expand(rows, -1, -1), self.src.expand(rows, -1), tgt_in)

    def log_probs(self, states: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Of the piece that follows each, as search has them."""
        log_probs = self.model.logits(states).float().log_softmax(dim=-1)
        return log_probs.index_fill(-1, torch.tensor(NEVER, device=log_probs.device), -torch.inf).cpu()


def _alternatives(
    source: _Source,
    tokenizer: Tokenizer,
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
    rows = max(1, PIECES // (len(tgt) + 1 + CONTINUED))
    for _ in range(CONTINUED):
        still = []
        for start in range(0, len(going_on), rows):
            part = going_on[start : start + rows]
            lasts = [len(a.ids) for a in part]
            log_probs = source.log_probs(source.states([a.ids for a in part])[range(len(part)), lasts])
            for a, row in zip(part, log_probs, strict=True):
                best = int(row.argmax())
                *_, last, following = words_of(tokenizer.pieces([*a.ids, best])).of
                if last == following:
                    still.append(replace(a, ids=[*a.ids, best], log_probability=a.log_probability + float(row[best])))
                else:
                    finished.append(a)
        going_on = still
    return finished + going_on
