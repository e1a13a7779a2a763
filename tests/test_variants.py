"""Other attentions, other positions and the recurrent models, held against numpy; test_model.py has what all share."""

import math

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import nn

from mt.inspection.attention_maps import record_weights
from mt.model.attention_variants import ATTENTION, make_attention
from mt.model.build import build_model
from mt.model.embedding import Embedding
from mt.model.recurrent import Recurrent
from mt.model.transformer import Transformer
from mt.special_tokens import BOS, EOS, PAD
from mt.tokenizer import Tokenizer
from mt.translator import Translator

T, S, D, H, V = 5, 7, 12, 3, 19
E = D // H


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


def array(x: torch.Tensor) -> ndarray:
    return x.detach().double().numpy()


def applied(layer: nn.Module, x: ndarray) -> ndarray:
    return x if isinstance(layer, nn.Identity) else x @ array(layer.weight).T + array(layer.bias)


def softmax(scores: ndarray) -> ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def score(name: str, attention: nn.Module, head: int, q: ndarray, k: ndarray) -> float:
    """Of one query and one key, as the formula is written in its paper."""
    if name == "scaled_dot_product" or name == "parameter_free":
        return q @ k / math.sqrt(len(q))
    if name == "dot_product":
        return q @ k
    if name == "cosine":
        return array(attention.gain)[head] * (q @ k) / (np.linalg.norm(q) * np.linalg.norm(k))
    return array(attention.direction)[head] @ np.tanh(q + k)


def attended(name: str, attention: nn.Module, queries: ndarray, keys: ndarray, num_heads: int) -> ndarray:
    """Head by head, query by query, in double precision."""
    q = applied(attention.query, queries)
    k, v = applied(attention.key, keys), applied(attention.value, keys)
    heads, width = [], q.shape[-1] // num_heads
    for head in range(num_heads):
        part = slice(head * width, (head + 1) * width)
        scores = [[score(name, attention, head, a[part], b[part]) for b in k] for a in q]
        heads.append(softmax(np.array(scores)) @ v[:, part])
    return applied(attention.output, np.concatenate(heads, axis=-1))


@pytest.mark.parametrize("name", ATTENTION)
def test_every_attention_equals_its_formula_in_numpy(name: str) -> None:
    attention = make_attention(name, d_model=D, num_heads=H, dropout=0.0)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.7)
    queries, keys = torch.randn(1, T, D), torch.randn(1, S, D)
    mask = torch.ones(1, 1, S, dtype=torch.bool)
    mask[..., 5:] = False
    expected = attended(name, attention, array(queries[0]), array(keys[0, :5]), H)
    np.testing.assert_allclose(array(attention(queries, keys, mask))[0], expected, atol=1e-5, rtol=1e-4)


def test_a_parameter_free_attention_has_no_parameter() -> None:
    assert list(make_attention("parameter_free", d_model=D, num_heads=H, dropout=0.0).parameters()) == []


@pytest.mark.parametrize("num_heads", [1, 2, 4, 16])
def test_any_number_of_heads_that_divides_the_width_gives_as_many_maps(num_heads: int) -> None:
    for name in ATTENTION:
        attention = make_attention(name, d_model=16, num_heads=num_heads, dropout=0.0)
        shapes = []
        attention.weights.register_forward_hook(lambda _m, _i, weights, seen=shapes: seen.append(weights.shape))
        x = torch.randn(2, T, 16)
        assert attention(x, x, torch.ones(1, 1, T, dtype=torch.bool)).shape == x.shape
        assert shapes == [(2, num_heads, T, T)]


def test_learned_positions_are_added_one_for_each_place_and_the_last_for_all_that_follow() -> None:
    embedding = Embedding(vocab_size=V, d_model=D, positions="learned")
    table = embedding.positions.table.weight
    found = embedding(torch.full((1, 600), 7))[0] - embedding.token.weight[7] * math.sqrt(D)
    torch.testing.assert_close(found[:512], table, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[512:], table[-1:].expand(88, -1), atol=1e-6, rtol=0)
    torch.testing.assert_close(embedding(torch.tensor([[7]]), start=3)[0, 0], embedding(torch.full((1, 4), 7))[0, 3])


def test_without_positions_a_shuffled_source_says_the_same_and_with_learned_ones_another_thing() -> None:
    sizes = {"d_model": D, "num_heads": H, "d_ff": 20, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    src, tgt = torch.tensor([[4, 5, 6, 7, 8, 9, EOS]]), torch.tensor([[BOS, 12, 13, 14, 15]])
    difference = {}
    for positions in ("learned", "none"):
        model = Transformer(vocab_size=V, attention="scaled_dot_product", positions=positions, **sizes)
        if positions == "learned":
            nn.init.normal_(model.embedding.positions.table.weight)  # as training leaves them: no longer near 0
        shuffled = src[:, [3, 0, 5, 2, 6, 1, 4]]
        difference[positions] = (model(src, tgt) - model(shuffled, tgt)).abs().max().item()
    assert difference["none"] < 1e-5 and difference["learned"] > 0.02


def gru(weights: list[ndarray], x: ndarray, h: ndarray) -> ndarray:
    """One step of Cho et al. 2014 as torch documents it; weights: input, hidden, and their biases, each r z n."""
    (w_r, w_z, w_n), (u_r, u_z, u_n), (b_r, b_z, b_n), (c_r, c_z, c_n) = (np.split(w, 3) for w in weights)
    r = 1 / (1 + np.exp(-(w_r @ x + b_r + u_r @ h + c_r)))
    z = 1 / (1 + np.exp(-(w_z @ x + b_z + u_z @ h + c_z)))
    n = np.tanh(w_n @ x + b_n + r * (u_n @ h + c_n))
    return (1 - z) * n + z * h


@pytest.mark.parametrize("attention", ["additive", "scaled_dot_product", "none"])
def test_the_recurrent_model_equals_its_equations_in_numpy(attention: str) -> None:
    model = Recurrent(vocab_size=V, attention=attention, d_model=D, num_heads=1, dropout=0.0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    source, target = [4, 5, 6, EOS], [BOS, 12, 13]
    embedding = array(model.embedding.token.weight)
    x, y = embedding[source] * math.sqrt(D), embedding[target] * math.sqrt(D)

    encoder, decoder = model.encoder.gru, model.decoder
    directions = []
    for suffix, order in (("", range(4)), ("_reverse", reversed(range(4)))):
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights, state, states = [array(getattr(encoder, name + suffix)) for name in names], np.zeros(D // 2), {}
        for i in order:
            states[i] = state = gru(weights, x[i], state)
        directions.append(np.array([states[i] for i in range(4)]))
    memory = np.concatenate(directions, axis=-1)
    summary = np.concatenate([directions[0][-1], directions[1][0]])

    cell = [
        array(p) for p in (decoder.cell.weight_ih, decoder.cell.weight_hh, decoder.cell.bias_ih, decoder.cell.bias_hh)
    ]
    state, logits = np.tanh(applied(decoder.first, summary)), []
    for piece in y:
        context = summary
        if attention != "none":
            (context,) = attended(attention, decoder.cross_attention, state[None], memory, 1)
        state = gru(cell, np.concatenate([piece, context]), state)
        output = np.tanh(applied(decoder.output, np.concatenate([state, piece, context])))
        logits.append(embedding @ output)
    padded = torch.tensor([[*source, PAD, PAD], [7, 8, 9, 10, 11, EOS]])
    found = model(padded, torch.tensor([target, target]))[0]
    np.testing.assert_allclose(array(found), np.array(logits), atol=1e-4, rtol=1e-4)


def test_a_recurrent_map_has_a_row_a_step_and_sums_to_1_over_the_source_alone() -> None:
    model = Recurrent(vocab_size=V, attention="additive", d_model=D, num_heads=H, dropout=0.4)
    weights = record_weights(model, torch.tensor([[4, 5, 6, 7, 8, 9, EOS]]), torch.tensor([[BOS, 12, 13, 14, 15]]))
    assert {name: tuple(w.shape) for name, w in weights.items()} == {"decoder.cross_attention": (H, T, S)}
    torch.testing.assert_close(weights["decoder.cross_attention"].sum(dim=-1), torch.ones(H, T))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"architecture": "convolutional"}, "architecture=convolutional is none of transformer, recurrent"),
        ({"architecture": "recurrent", "attention": "sharp"}, "attention=sharp is none of .*, or none"),
        ({"architecture": "recurrent", "d_model": 9}, "d_model=9 is odd"),
        ({"architecture": "recurrent", "num_heads": 5}, "d_model=12 is not divisible by num_heads=5"),
    ],
)
def test_a_model_that_there_is_not_is_refused_with_what_there_is(wrong: dict[str, object], message: str) -> None:
    arguments = {"vocab_size": V, "attention": "additive", "d_model": D, "num_heads": H, "dropout": 0.0}
    with pytest.raises(ValueError, match=message):
        build_model(**{**arguments, **wrong})
    with pytest.raises(ValueError, match="positions=random is none of sinusoidal, learned, none"):
        Embedding(vocab_size=V, d_model=D, positions="random")


def test_a_model_without_attention_translates_and_says_that_there_is_nothing_to_draw(tokenizer: Tokenizer) -> None:
    model = Recurrent(vocab_size=len(tokenizer), attention="none", d_model=D, num_heads=1, dropout=0.0).eval()
    translator = Translator(model, tokenizer, "en", "it", beam=3, length_penalty=1.0)
    sentences = ["I want a red chair.", "", "You sell two boxes."]
    translations = translator.translate(sentences, max_length=6)
    assert [t.text for t in translations] == [translator.translate([s], max_length=6)[0].text for s in sentences]
    with pytest.raises(ValueError, match="this model has no attention to show"):
        translator.attention_maps(translations[0])
