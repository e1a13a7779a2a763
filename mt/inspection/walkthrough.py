"""Attention in small steps, each a line of plain tensor arithmetic: what `scripts/walkthrough.py` shows.

S and T are positions of one sentence, there is no batch; the other letters are those of `mt.model.attention`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mt.model.attention import MultiHeadAttention
from mt.model.attention_variants import CosineAttention
from mt.model.encoder_decoder import EncoderDecoder
from mt.special_tokens import BOS, EOS
from mt.tokenizer import SPACE, Tokenizer

KINDS = (MultiHeadAttention, CosineAttention)  # whose steps are shown


def dot_products(x: Float[Tensor, "S D"]) -> Float[Tensor, "S S"]:
    """Every vector with every vector."""
    return torch.einsum("sd,td->st", x, x)


def cosines(x: Float[Tensor, "S D"], y: Float[Tensor, "T D"]) -> Float[Tensor, "S T"]:
    """The dot products of the vectors shortened or stretched to length 1."""
    return torch.einsum("sd,td->st", x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True))


class Spread(NamedTuple):
    """Of the scores of random queries and keys of one width, and of the softmax over eight of them."""

    width: int
    deviation: float
    """Of q·k: √width."""
    deviation_scaled: float
    """Of q·k / √width: 1."""
    largest_weight: float
    largest_weight_scaled: float
    """On average. One eighth would be no preference, 1 a choice that learns nothing more."""


def spread(width: int, *, samples: int = 4_000, seed: int = 0) -> Spread:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(samples, width, generator=generator), torch.randn(samples, 8, width, generator=generator)
    scores = torch.einsum("ne,nke->nk", q, k)
    scaled = scores / math.sqrt(width)
    deviations = scores.std().item(), scaled.std().item()
    return Spread(width, *deviations, *(x.softmax(dim=-1).amax(dim=-1).mean().item() for x in (scores, scaled)))


def weighted_values(weights: Float[Tensor, "K"], values: Float[Tensor, "K E"]) -> Float[Tensor, "K E"]:
    """a₁v₁, a₂v₂, …: the terms of one query's sum."""
    return weights[:, None] * values


@dataclass(frozen=True, eq=False)
class Heads:
    """Multi-head attention for one pair of inputs, with every number on the way."""

    w_q: Float[Tensor, "H D E"]
    w_k: Float[Tensor, "H D E"]
    w_v: Float[Tensor, "H D E"]
    q: Float[Tensor, "H Q E"]
    k: Float[Tensor, "H K E"]
    v: Float[Tensor, "H K E"]
    scores: Float[Tensor, "H Q K"]
    """q·k / √E, or the head's gain times the cosine of q and k; -inf where the mask hides."""
    weights: Float[Tensor, "H Q K"]
    contexts: Float[Tensor, "H Q E"]
    concatenated: Float[Tensor, "Q D"]
    output: Float[Tensor, "Q D"]


def heads_by_einsum(
    attention: MultiHeadAttention,
    queries: Float[Tensor, "Q D"],
    keys_values: Float[Tensor, "K D"],
    mask: Bool[Tensor, "Q K"],
) -> Heads:
    """What `attention` computes, with its own matrices, one einsum after the other."""
    (w_q, b_q), (w_k, b_k), (w_v, b_v) = (
        (
            layer.weight.T.unflatten(1, (attention.num_heads, -1)).transpose(0, 1),
            layer.bias.unflatten(0, (attention.num_heads, 1, -1)),
        )
        for layer in (attention.query, attention.key, attention.value)
    )
    q = torch.einsum("sd,hde->hse", queries, w_q) + b_q
    k = torch.einsum("sd,hde->hse", keys_values, w_k) + b_k
    v = torch.einsum("sd,hde->hse", keys_values, w_v) + b_v
    scores = torch.einsum("hse,hke->hsk", q, k)
    if isinstance(attention, CosineAttention):
        lengths = torch.einsum("hs,hk->hsk", q.norm(dim=-1), k.norm(dim=-1))
        scores = attention.gain[:, None, None] * scores / lengths
    else:
        scores = scores / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    contexts = torch.einsum("hsk,hke->hse", weights, v)
    concatenated = contexts.transpose(0, 1).flatten(start_dim=1)
    output = torch.einsum("sd,de->se", concatenated, attention.output.weight.T) + attention.output.bias
    return Heads(w_q, w_k, w_v, q, k, v, scores, weights, contexts, concatenated, output)


@dataclass(frozen=True, eq=False)
class Call:
    """One use of an attention: who asks, who is looked at, and who may see whom."""

    attention: MultiHeadAttention
    queries: Float[Tensor, "Q D"]
    keys_values: Float[Tensor, "K D"]
    mask: Bool[Tensor, "Q K"]
    query_names: list[str]
    key_names: list[str]

    def output(self) -> Float[Tensor, "Q D"]:
        """Of the attention itself, as a model calls it."""
        with torch.inference_mode():
            return self.attention(self.queries[None], self.keys_values[None], self.mask[None])[0]

    def heads(self) -> Heads:
        with torch.inference_mode():
            return heads_by_einsum(self.attention, self.queries, self.keys_values, self.mask)


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence, its plain vectors, and the three uses of attention on the way to its translation."""

    pieces: list[str]
    ids: list[int]
    vectors: Float[Tensor, "S D"]
    encoder: Call
    decoder: Call
    cross: Call


def untrained_example(sentence: str, *, d_model: int = 16, num_heads: int = 4) -> Example:
    """Words are the pieces, numbered by the alphabet; every number that training would find is drawn at random."""
    words = sentence.split()
    ids = [sorted(set(words)).index(word) for word in words]
    target = ["<s>", "parole", "di", "una", "traduzione"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, y = torch.randn(len(set(words)), d_model)[ids], torch.randn(len(target), d_model)
        attentions = [MultiHeadAttention(d_model=d_model, num_heads=num_heads, dropout=0.0).eval() for _ in range(3)]
    everything = torch.ones(len(words), len(words), dtype=torch.bool)
    past = torch.ones(len(target), len(target), dtype=torch.bool).tril()
    return Example(
        words,
        ids,
        x,
        encoder=Call(attentions[0], x, x, everything, words, words),
        decoder=Call(attentions[1], y, y, past, target, target),
        cross=Call(attentions[2], y, x, everything[:1].expand(len(target), -1), target, words),
    )


def trained_example(model: EncoderDecoder, tokenizer: Tokenizer, src: list[int], tgt: list[int]) -> Example:
    """With the matrices and inputs of the encoder's and the decoder's first layer, and the last cross-attention.

    src, tgt: ids without BOS and EOS. Call with the model in eval mode. ValueError for what is no transformer with
    scaled_dot_product or cosine attention.
    """
    src_ids, tgt_in = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
    source, target = tokenizer.pieces([*src, EOS]), tokenizer.pieces([BOS, *tgt])

    def call(name: str, query_names: list[str], key_names: list[str]) -> Call:
        attention = dict(model.named_modules()).get(name)
        if not isinstance(attention, MultiHeadAttention) or type(attention) not in KINDS:
            raise ValueError("the walkthrough needs a transformer with scaled_dot_product or cosine attention")
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        hook = attention.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs))
        try:
            with torch.inference_mode():
                model(src_ids, tgt_in)
        finally:
            hook.remove()
        queries, keys_values, mask = seen[0]
        visible = mask[0].expand(len(query_names), len(key_names))
        return Call(attention, queries[0], keys_values[0], visible, query_names, key_names)

    layers = [name for name, _ in model.named_modules() if name.endswith("cross_attention")]
    last = layers[-1] if layers else ""
    encoder = call("encoder.layers.0.self_attention", source, source)
    decoder = call("decoder.layers.0.self_attention", target, target)
    with torch.inference_mode():
        vectors = model.embedding.token(src_ids[0]) * math.sqrt(model.embedding.token.embedding_dim)
    return Example(source, [*src, EOS], vectors, encoder, decoder, call(last, target, source))


@dataclass(frozen=True, eq=False)
class WordInContext:
    """One word of one sentence, before and after the encoder."""

    sentence: str
    word: str
    plain: Float[Tensor, "D"]
    """Its embedding, the same in every sentence: the mean over its pieces."""
    context: Float[Tensor, "D"]
    """What the encoder makes of it here."""


def words_in_context(model: EncoderDecoder, tokenizer: Tokenizer, sentences: Sequence[str]) -> list[WordInContext]:
    """Every word of every sentence, in order; punctuation stays with its word. Call with the model in eval mode."""
    found = []
    with torch.inference_mode():
        for sentence in sentences:
            (ids,) = tokenizer.encode([sentence])
            src = torch.tensor([[*ids, EOS]], device=model.embedding.token.weight.device)
            (memory,), plain = model.encode(src), model.embedding.token(src[0])
            pieces = tokenizer.pieces(ids)
            starts = [i for i, piece in enumerate(pieces) if i == 0 or piece.startswith(SPACE)]
            for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
                word = tokenizer.decode(ids[start:end]).strip(" .,!?")
                found.append(
                    WordInContext(sentence, word, plain[start:end].mean(0).cpu(), memory[start:end].mean(0).cpu())
                )
    return found


def parting(
    word: WordInContext, other: WordInContext, words: Sequence[WordInContext], count: int
) -> list[tuple[float, WordInContext]]:
    """What `word` is nearer to than `other` is: by how much its cosine with a word is above that of `other`.

    The largest first. A word stands there once, at its best place; the two's own word is left out.
    """
    own = (word.word.lower(), other.word.lower())
    candidates = [w for w in words if w.word.lower() not in own]
    similar = cosines(torch.stack([w.context for w in candidates]), torch.stack([word.context, other.context]))
    result: dict[str, tuple[float, WordInContext]] = {}
    nearer = similar[:, 0] - similar[:, 1]
    for i in nearer.argsort(descending=True).tolist():
        result.setdefault(candidates[i].word.lower(), (nearer[i].item(), candidates[i]))
    return list(result.values())[:count]
