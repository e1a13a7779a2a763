import math
import re
from pathlib import Path

import pytest
import torch
from conftest import SIZES
from jaxtyping import TypeCheckError
from torch import Tensor, nn
from torch.nn import functional as F

import mt
from mt.model.attention import AttentionWeights, MultiHeadAttention
from mt.model.dropout import Dropout
from mt.model.embedding import Embedding, sinusoidal_positions
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.layers import DecoderLayer, EncoderLayer, LayerNorm
from mt.model.transformer import Transformer
from mt.special_tokens import BOS, EOS, PAD
from mt.training.loss import cross_entropy

B, T, S, D, H, F_ = 2, 5, 7, 12, 3, 20
LAYER = {"attention": "scaled_dot_product", "d_model": D, "num_heads": H, "d_ff": F_, "dropout": 0.0}
TORCH_LAYER = {
    "d_model": D, "nhead": H, "dim_feedforward": F_, "dropout": 0.0, "norm_first": True, "batch_first": True
}  # fmt: skip
SRC = torch.tensor([[4, 5, 6, 7, 8, 9, EOS], [10, 11, 4, EOS, PAD, PAD, PAD]])
TGT = torch.tensor([[BOS, 12, 13, 14, 15], [BOS, 16, 17, PAD, PAD]])
SRC_PADDING, TGT_FUTURE = SRC == PAD, torch.ones(T, T, dtype=torch.bool).triu(1)  # as torch has it: True = hidden


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(2)


def randomise(module: nn.Module) -> None:
    """Biases and norms too: what starts at 0 or 1 can't be told apart otherwise."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight for part in parts]).data
    theirs.in_proj_bias.data = torch.cat([part.bias for part in parts]).data
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def as_torch(ours: EncoderLayer | DecoderLayer) -> nn.Module:
    """torch's own layer with the weights of ours."""
    encoder = isinstance(ours, EncoderLayer)
    theirs = (nn.TransformerEncoderLayer if encoder else nn.TransformerDecoderLayer)(**TORCH_LAYER)
    copy_attention(ours.self_attention, theirs.self_attn)
    norms = [ours.self_attention_norm, ours.feed_forward_norm]
    if not encoder:
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_attention_norm)
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward[3].state_dict())
    return theirs


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)])
def test_attention_equals_torchs_with_the_same_projections(dtype: torch.dtype, tolerance: float) -> None:
    attention = MultiHeadAttention(d_model=D, num_heads=H, dropout=0.0).to(dtype)
    queries, keys = torch.randn(B, T, D, dtype=dtype), torch.randn(B, S, D, dtype=dtype)
    mask = ~SRC_PADDING[:, None, :]
    q, k, v = (
        layer(x).view(B, -1, H, D // H).transpose(1, 2)
        for layer, x in ((attention.query, queries), (attention.key, keys), (attention.value, keys))
    )
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    expected = attention.output(context.transpose(1, 2).reshape(B, T, D))
    torch.testing.assert_close(attention(queries, keys, mask), expected, atol=tolerance, rtol=tolerance)


def test_an_encoder_layer_equals_torchs() -> None:
    layer = EncoderLayer(**LAYER)
    randomise(layer)
    x = torch.randn(B, S, D)
    expected = as_torch(layer)(x, src_key_padding_mask=SRC_PADDING)
    torch.testing.assert_close(layer(x, ~SRC_PADDING[:, None]), expected, atol=1e-5, rtol=1e-5)


def test_a_decoder_layer_equals_torchs() -> None:
    layer = DecoderLayer(**LAYER)
    randomise(layer)
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    expected = as_torch(layer)(x, memory, tgt_mask=TGT_FUTURE, memory_key_padding_mask=SRC_PADDING)
    found = layer(x, memory, ~TGT_FUTURE[None], ~SRC_PADDING[:, None])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_whole_model_equals_torchs_layers_between_one_embedding_and_its_transpose(model: Transformer) -> None:
    randomise(model)
    weight, positions = model.embedding.token.weight, sinusoidal_positions(0, S, D, torch.device("cpu"))
    x = weight[SRC] * math.sqrt(D) + positions
    for layer in model.encoder.layers:
        x = as_torch(layer)(x, src_key_padding_mask=SRC_PADDING)
    memory = F.layer_norm(x, (D,), model.encoder.norm.weight, model.encoder.norm.bias)
    y = weight[TGT] * math.sqrt(D) + positions[:T]
    for layer in model.decoder.layers:
        y = as_torch(layer)(y, memory, tgt_mask=TGT_FUTURE, memory_key_padding_mask=SRC_PADDING)
    y = F.layer_norm(y, (D,), model.decoder.norm.weight, model.decoder.norm.bias)
    torch.testing.assert_close(model(SRC, TGT), y @ weight.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("t", range(T - 1))
def test_a_future_token_never_changes_an_earlier_logit(any_model: EncoderDecoder, t: int) -> None:
    other = TGT.clone()
    other[:, t + 1 :] = 18
    before, after = any_model(SRC, TGT), any_model(SRC, other)
    torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], atol=1e-6, rtol=0)
    assert (after[:, t + 1] - before[:, t + 1]).abs().amax(dim=-1).min() > 0.05, "the token itself is seen"


def test_padding_of_source_target_or_batch_never_changes_a_logit(any_model: EncoderDecoder) -> None:
    src, tgt = SRC[1:, :4], TGT[1:, :3]
    alone = any_model(src, tgt)
    more_source, more_target = (F.pad(ids, (0, 6), value=PAD) for ids in (src, tgt))
    for padded in (any_model(more_source, tgt), any_model(src, more_target)[:, :3], any_model(SRC, TGT)[1:, :3]):
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_alone_leaves_loss_and_gradients_finite(any_model: EncoderDecoder, dtype: torch.dtype) -> None:
    any_model.to(dtype)
    src, tgt_in, tgt_out = SRC.clone(), TGT.clone(), TGT.roll(-1, dims=1)
    src[1] = tgt_in[1] = tgt_out[1] = PAD
    x = any_model.decode(any_model.encode(src), src, tgt_in)
    loss = cross_entropy(x, any_model.embedding.token.weight, tgt_out, 0.1)
    loss.smoothed.backward()
    assert loss.smoothed.isfinite()
    for name, parameter in any_model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_under_autocast_a_layers_norm_hands_over_autocasts_type_with_torchs_values() -> None:
    norm, x = LayerNorm(D), torch.randn(B, T, D)
    torch.nn.init.normal_(norm.weight)
    expected = F.layer_norm(x, [D], norm.weight, norm.bias)
    assert torch.equal(norm(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(norm(x), expected.bfloat16())


def test_weights_sum_to_1_before_dropout_and_hidden_keys_get_exactly_0(model: Transformer) -> None:
    seen: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, AttentionWeights):
            module.register_forward_hook(lambda _m, _i, weights, name=name: seen.update({name: weights}))
    model.train()(SRC, TGT)
    assert len(seen) == 6
    for name, weights in seen.items():
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
        if "decoder" in name and "self" in name:
            hidden = TGT_FUTURE.expand(B, H, T, T)
        else:
            hidden = SRC_PADDING[:, None, None].expand_as(weights)
        assert hidden.any()
        assert (weights[hidden] == 0).all(), name
        assert (weights[~hidden] > 0).all(), name


def test_the_order_of_source_and_target_matters(model: Transformer) -> None:
    swapped_src, swapped_tgt = SRC[:1, [1, 0, 2, 3, 4, 5, 6]], TGT[:1, [0, 2, 1, 3, 4]]
    logits = model(SRC[:1], TGT[:1])[:, -1]
    for other in (model(swapped_src, TGT[:1])[:, -1], model(SRC[:1], swapped_tgt)[:, -1]):
        assert (other - logits).abs().max() > 0.02


@pytest.mark.parametrize(
    ("position", "column", "expected"),
    [
        (0, 0, 0.0),
        (0, 1, 1.0),
        (3, 0, math.sin(3)),
        (3, 1, math.cos(3)),
        (17, 4, math.sin(17 / 10_000 ** (4 / 12))),
        (17, 5, math.cos(17 / 10_000 ** (4 / 12))),
        (4_999, 11, math.cos(4_999 / 10_000 ** (10 / 12))),
    ],
)
def test_positions_are_those_of_the_paper(position: int, column: int, expected: float) -> None:
    positions = sinusoidal_positions(0, 5_000, D, torch.device("cpu"))
    assert positions[position, column].item() == pytest.approx(expected, abs=1e-3 if position > 1_000 else 1e-6)
    assert torch.equal(sinusoidal_positions(position, 5_000, D, torch.device("cpu")), positions[position:])


def test_an_embedding_is_scaled_and_has_its_position_added_at_any_length() -> None:
    embedding = Embedding(vocab_size=19, d_model=D, positions="sinusoidal")
    ids = torch.full((1, 5_000), 7)
    expected = embedding.token.weight[7] * math.sqrt(D) + sinusoidal_positions(0, 5_000, D, torch.device("cpu"))
    torch.testing.assert_close(embedding(ids)[0], expected)
    torch.testing.assert_close(embedding(ids[:, :1], start=4_999)[0, 0], expected[4_999])
    with pytest.raises(ValueError, match="d_model=9 is odd"):
        Embedding(vocab_size=19, d_model=9, positions="sinusoidal")


def test_a_source_longer_than_any_before_is_translated_on(any_model: EncoderDecoder) -> None:
    long = torch.full((1, 1_500), 7)
    assert any_model(long, TGT[:1]).isfinite().all()
    assert any_model(SRC[:1], long).isfinite().all()


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    p, x = 0.25, torch.ones(301, 333, requires_grad=True)  # a number of elements that 8 does not divide
    y = Dropout(p)(x)
    share = (y == 0).float().mean().item()
    assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / x.numel()))
    assert y.mean().item() == pytest.approx(1, abs=5 * math.sqrt(p / (1 - p) / x.numel()))
    assert torch.equal(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))
    rows = (y == 0).float().mean(dim=0)
    assert rows.min() > 0.1 and rows.max() < 0.4, "no column is favoured"
    assert not torch.equal(y, Dropout(p)(x)), "another mask at every call"


def test_dropouts_gradient_is_its_mask_and_eval_is_the_identity() -> None:
    dropout, x = Dropout(0.5), torch.randn(B, T, D, requires_grad=True)
    y = dropout(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert dropout.eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [0.001, 0.999])
def test_dropout_works_over_its_whole_range(p: float) -> None:
    assert Dropout(p)(torch.ones(4_096)).isfinite().all()


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_dropout_outside_its_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"dropout={p}"):
        Dropout(p)


@pytest.mark.parametrize("num_heads", [5, 0, -3])
def test_a_number_of_heads_that_does_not_divide_the_width_is_refused_with_both_named(num_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"d_model=12\b.*num_heads={num_heads}\b"):
        MultiHeadAttention(d_model=D, num_heads=num_heads, dropout=0.0)


def test_the_output_projection_is_the_embedding(any_model: EncoderDecoder) -> None:
    assert [name for name, p in any_model.named_parameters() if 19 in p.shape] == ["embedding.token.weight"]
    x = torch.randn(B, T, D)
    torch.testing.assert_close(any_model.logits(x), x @ any_model.embedding.token.weight.T)


@pytest.mark.parametrize("src", [SRC[0], SRC[:1], SRC.float()])
def test_shapes_are_checked_in_the_tests(model: Transformer, src: Tensor) -> None:
    with pytest.raises(TypeCheckError):
        model(src, TGT)


def test_attention_starts_by_looking_at_what_is_alike_and_taking_it_over() -> None:
    model = Transformer(vocab_size=19, attention="scaled_dot_product", positions="sinusoidal", **SIZES)
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    assert len(attentions) == 2 + 2 * 2
    for attention in attentions:
        assert torch.equal(attention.key.weight, attention.query.weight)
        assert torch.equal(attention.output.weight, attention.value.weight.T)
        assert not torch.equal(attention.value.weight, attention.query.weight)


def test_attention_is_written_by_hand() -> None:
    bought = re.compile(r"nn\.(MultiheadAttention|Transformer)|\bscaled_dot_product_attention|F\.multi_head_attention")
    files = list(Path(mt.__file__).parent.rglob("*.py"))
    assert len(files) > 20
    found = [file.name for file in files if bought.search(file.read_text(encoding="utf-8"))]
    assert found == ["usual_code.py"]  # what the benchmark holds ours beside
