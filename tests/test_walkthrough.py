"""Every number of the walkthrough against numpy, torch's own functions, or a sum by hand."""

import math

import numpy as np
import pytest
import torch
from conftest import LEARNT
from torch import Tensor, nn
from torch.nn import functional as F

from mt.inspection.attention_maps import attention_maps
from mt.inspection.walkthrough import (
    Call,
    WordInContext,
    cosines,
    dot_products,
    heads_by_einsum,
    parting,
    spread,
    trained_example,
    untrained_example,
    weighted_values,
    words_in_context,
)
from mt.model.attention import MultiHeadAttention
from mt.model.attention_variants import CosineAttention
from mt.model.recurrent import Recurrent
from mt.training.module import TranslationModule

Q, K, D, H = 5, 7, 12, 3


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(4)


def test_dot_products_and_cosines_of_three_vectors_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0], [4.0, -3.0], [6.0, 8.0]])
    assert dot_products(x).tolist() == [[25, 0, 50], [0, 25, 0], [50, 0, 100]]
    torch.testing.assert_close(cosines(x, x), torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]]))


def test_dot_products_and_cosines_equal_numpys_and_torchs() -> None:
    x, y = torch.randn(Q, D), torch.randn(K, D)
    np.testing.assert_allclose(dot_products(x), x.numpy() @ x.numpy().T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cosines(x, y), F.cosine_similarity(x[:, None], y[None], dim=-1))


@pytest.mark.parametrize("width", [4, 64, 256])
def test_scores_spread_like_the_root_of_the_width_and_like_1_when_divided_by_it(width: int) -> None:
    s = spread(width)
    assert s.deviation == pytest.approx(math.sqrt(width), rel=0.03)
    assert s.deviation_scaled == pytest.approx(1, rel=0.03)
    q, k = np.random.default_rng(0).standard_normal((2, 20_000, 8, width // 4, 4))  # other random numbers, by numpy
    scores = (q[:, :1] * k).sum(axis=(-1, -2))
    for largest, x in ((s.largest_weight, scores), (s.largest_weight_scaled, scores / math.sqrt(width))):
        shares = np.exp(x - x.max(axis=-1, keepdims=True))
        assert largest == pytest.approx((shares.max(axis=-1) / shares.sum(axis=-1)).mean(), abs=0.01)


def test_the_terms_of_a_weighted_sum_are_each_vector_times_its_share() -> None:
    terms = weighted_values(torch.tensor([0.25, 0.75]), torch.tensor([[4.0, 8.0], [0.0, -4.0]]))
    assert terms.tolist() == [[1, 2], [0, -3]]
    weights, values = torch.rand(K).softmax(dim=0), torch.randn(K, D)
    np.testing.assert_allclose(weighted_values(weights, values).sum(dim=0), weights.numpy() @ values.numpy(), atol=1e-6)


def attention(num_heads: int = H) -> MultiHeadAttention:
    module = MultiHeadAttention(d_model=D, num_heads=num_heads, dropout=0.0).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.6)
    return module


@pytest.mark.parametrize("num_heads", [1, 3])
@torch.inference_mode()
def test_heads_by_einsum_equal_torchs_attention_and_ours_and_every_step_equals_numpy(num_heads: int) -> None:
    module, x, y = attention(num_heads), torch.randn(Q, D), torch.randn(K, D)
    mask = torch.rand(Q, K) > 0.3
    mask[:, 0] = True
    found = heads_by_einsum(module, x, y, mask)

    theirs = nn.MultiheadAttention(D, num_heads, batch_first=True)
    parts = (module.query, module.key, module.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(module.output.state_dict())
    output, weights = theirs(x[None], y[None], y[None], attn_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(found.output, output[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.weights, weights[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.output, module(x[None], y[None], mask[None])[0], atol=1e-5, rtol=1e-5)
    assert (found.weights[:, ~mask] == 0).all()

    width = D // num_heads
    for head in range(num_heads):
        rows = slice(head * width, (head + 1) * width)
        for role, layer, inputs in (("q", module.query, x), ("k", module.key, y), ("v", module.value, y)):
            weight, bias = layer.weight[rows].numpy(), layer.bias[rows].numpy()
            np.testing.assert_allclose(getattr(found, f"w_{role}")[head], weight.T)
            np.testing.assert_allclose(getattr(found, role)[head], inputs.numpy() @ weight.T + bias, atol=1e-5)
        scores = found.q[head].numpy() @ found.k[head].numpy().T / math.sqrt(width)
        np.testing.assert_allclose(found.scores[head][mask], scores[mask.numpy()], atol=1e-5)
        context = found.weights[head].numpy() @ found.v[head].numpy()
        np.testing.assert_allclose(found.contexts[head], context, atol=1e-5)
        np.testing.assert_allclose(found.concatenated[:, rows], context, atol=1e-5)


@torch.inference_mode()
def test_heads_by_einsum_score_by_cosine_where_the_model_does() -> None:
    module, x, y = CosineAttention(d_model=D, num_heads=H, dropout=0.0).eval(), torch.randn(Q, D), torch.randn(K, D)
    nn.init.uniform_(module.gain, 3, 9)
    found = heads_by_einsum(module, x, y, torch.ones(Q, K, dtype=torch.bool))
    for head in range(H):
        cosine = F.cosine_similarity(found.q[head][:, None], found.k[head][None], dim=-1)
        torch.testing.assert_close(found.scores[head], module.gain[head] * cosine)
    output = module(x[None], y[None], torch.ones(1, 1, K, dtype=torch.bool))[0]
    torch.testing.assert_close(found.output, output, atol=1e-5, rtol=1e-5)


def check(call: Call) -> Tensor:
    """The weights, whose output is that of the model's own attention."""
    heads = call.heads()
    torch.testing.assert_close(heads.output, call.output(), atol=1e-4, rtol=1e-4)
    assert heads.weights.shape[1:] == (len(call.query_names), len(call.key_names))
    torch.testing.assert_close(heads.weights.sum(dim=-1), torch.ones(heads.weights.shape[:2]))
    return heads.weights


def test_an_untrained_example_numbers_its_words_and_repeats_the_vector_of_a_repeated_one() -> None:
    example = untrained_example("the cat sees the dog")
    assert example.ids == [3, 0, 2, 3, 1]
    assert torch.equal(example.vectors[0], example.vectors[3]) and example.vectors.shape == (5, 16)
    assert check(example.encoder).shape == (4, 5, 5)
    assert torch.equal(check(example.decoder) > 0, torch.ones(4, 5, 5, dtype=torch.bool).tril())
    assert check(example.cross).shape == (4, 5, 5)
    assert torch.equal(untrained_example("the cat sees the dog").vectors, example.vectors), "the same every time"


def test_a_trained_examples_weights_are_those_that_the_model_has_in_its_own_forward_pass(
    module: TranslationModule,
) -> None:
    model, tokenizer = module.model, module.translator.tokenizer
    src, tgt = tokenizer.encode(LEARNT[7])
    example = trained_example(model, tokenizer, src, tgt)
    maps = {m.name: m.weights for m in attention_maps(model, tokenizer, src, tgt)}
    torch.testing.assert_close(check(example.encoder), maps["encoder.layers.0.self_attention"])
    torch.testing.assert_close(check(example.decoder), maps["decoder.layers.0.self_attention"])
    torch.testing.assert_close(check(example.cross), maps["decoder.layers.1.cross_attention"])
    assert not any(part._forward_pre_hooks for part in model.modules())
    model = Recurrent(vocab_size=len(tokenizer), attention="additive", d_model=8, num_heads=1, dropout=0.0)
    with pytest.raises(ValueError, match="a transformer with scaled_dot_product or cosine"):
        trained_example(model, tokenizer, src, tgt)


def test_a_word_has_one_plain_vector_and_a_context_vector_in_every_sentence(module: TranslationModule) -> None:
    found = words_in_context(
        module.model, module.translator.tokenizer, ["I want a red chair.", "You sell a red chair."]
    )
    assert [w.word for w in found] == ["I", "want", "a", "red", "chair", "You", "sell", "a", "red", "chair"]
    red, other = found[3], found[8]
    torch.testing.assert_close(red.plain, other.plain)
    assert (red.context - other.context).norm() > 0.05 * red.context.norm()


def test_a_word_parts_from_another_by_the_words_it_is_nearer_to() -> None:
    def word(name: str, x: float, y: float) -> WordInContext:
        return WordInContext("", name, torch.zeros(2), torch.tensor([x, y], dtype=torch.float32))

    river, money = word("bank", 1, 0), word("bank", 0, 1)
    words = [word("boat", 4, 3), word("Boat", 5, 0), word("bank", 1, 0), word("gold", 0, 2), word("the", 1, 1)]
    found = parting(river, money, words, 2)
    assert [(w.word, pytest.approx(nearer)) for nearer, w in found] == [("Boat", 1.0), ("the", 0.0)]
    assert parting(money, river, words, 1)[0][1].word == "gold"
