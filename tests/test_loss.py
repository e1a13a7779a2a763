import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.special_tokens import PAD
from mt.training.loss import LOGITS, Loss, cross_entropy

V = 3_001
B, T, D = 3, 2 * (LOGITS // V) // 3 + 31, 12  # two full chunks and a part of one, padding taken off
SMOOTHING = [0.0, 0.1]


def data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    x, embedding = torch.randn(B, T, D), torch.randn(V, D)
    tgt_out = torch.randint(1, V, (B, T))
    tgt_out[1, 50:] = PAD
    assert 2 * (LOGITS // V) > (tgt_out != PAD).sum() > LOGITS // V
    return x.to(dtype).requires_grad_(), embedding.to(dtype).requires_grad_(), tgt_out


def plain(x: Tensor, embedding: Tensor, tgt_out: Tensor, smoothing: float) -> Tensor:
    logits = (x @ embedding.T).flatten(end_dim=1)
    return F.cross_entropy(logits, tgt_out.flatten(), label_smoothing=smoothing, reduction="sum", ignore_index=PAD)


@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("scale", [1.0, 1 / 317])
def test_the_loss_and_its_gradients_are_those_of_torch(smoothing: float, scale: float) -> None:
    x, embedding, tgt_out = data()
    loss = cross_entropy(x, embedding, tgt_out, smoothing)
    expected = plain(x, embedding, tgt_out, smoothing)
    torch.testing.assert_close(loss.smoothed, expected)
    assert loss.tokens == (tgt_out != PAD).sum()
    found = torch.autograd.grad(loss.smoothed * scale, (x, embedding))
    for ours, theirs in zip(found, torch.autograd.grad(expected * scale, (x, embedding)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5 * max(1, scale * 100), rtol=1e-4)
    assert (found[0][tgt_out == PAD] == 0).all()


def test_a_target_without_any_probability_left_has_torchs_finite_loss() -> None:
    x, embedding, tgt_out = data()
    x = 100 * x.detach()  # probabilities down to e^-1000, which float32 has as 0
    loss = cross_entropy(x, embedding, tgt_out, 0.1)
    assert loss.nll / loss.tokens > 200
    torch.testing.assert_close(loss.smoothed, plain(x, embedding, tgt_out, 0.1))


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_nll_is_unsmoothed_and_carries_no_gradient(smoothing: float) -> None:
    x, embedding, tgt_out = data()
    loss = cross_entropy(x, embedding, tgt_out, smoothing)
    torch.testing.assert_close(loss.nll, plain(x, embedding, tgt_out, 0.0).detach())
    assert not loss.nll.requires_grad


def test_bf16_is_close_to_float32() -> None:
    x, embedding, tgt_out = data(torch.bfloat16)
    loss = cross_entropy(x, embedding, tgt_out, 0.1)
    exact = plain(x.float(), embedding.float(), tgt_out, 0.1)
    assert loss.smoothed.dtype == torch.float32
    torch.testing.assert_close(loss.smoothed, exact, rtol=1e-2, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(loss.smoothed, (x, embedding)), torch.autograd.grad(exact, (x, embedding)), strict=True
    ):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_under_autocast_all_products_are_bf16s() -> None:
    """The decoder's last norm hands over float32, which products into a given tensor would stay with."""
    x, embedding, tgt_out = data()
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(x, embedding, tgt_out, 0.1)
    low = cross_entropy(x.bfloat16(), embedding.bfloat16(), tgt_out, 0.1)
    assert torch.equal(loss.smoothed, low.smoothed)
    found = torch.autograd.grad(loss.smoothed, (x, embedding))
    for ours, theirs in zip(found, torch.autograd.grad(low.smoothed, (x, embedding)), strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs)


def test_padding_more_changes_nothing() -> None:
    x, embedding, tgt_out = data()
    one, more = (
        cross_entropy(F.pad(x, (0, 0, 0, n), value=9.0), embedding, F.pad(tgt_out, (0, n), value=PAD), 0.1)
        for n in (0, 40)
    )
    for a, b in zip(one, more, strict=True):
        torch.testing.assert_close(a, b)


def test_one_big_batch_is_the_sum_of_its_micro_batches() -> None:
    x, embedding, tgt_out = data()
    micro = [cross_entropy(x[rows], embedding, tgt_out[rows], 0.1) for rows in (slice(0, 1), slice(1, None))]
    whole = cross_entropy(x, embedding, tgt_out, 0.1)
    together = Loss(*(sum(parts) for parts in zip(*micro, strict=True)))
    for a, b in zip(whole, together, strict=True):
        torch.testing.assert_close(a, b)
    big = torch.autograd.grad(whole.smoothed / whole.tokens, (x, embedding))
    small = torch.autograd.grad(together.smoothed / together.tokens, (x, embedding))
    torch.testing.assert_close(small, big)


def test_padding_alone_is_a_loss_of_0_over_0_tokens() -> None:
    x, embedding, tgt_out = data()
    loss = cross_entropy(x, embedding, torch.full_like(tgt_out, PAD), 0.1)
    assert (loss.smoothed.item(), loss.nll.item(), loss.tokens.item()) == (0, 0, 0)
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss.smoothed, (x, embedding)))
