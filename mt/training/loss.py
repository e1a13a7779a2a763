"""Label-smoothed cross-entropy with its gradient, computed in chunks that stay in the processor's cache.

The logits of a batch (tokens × vocabulary, in float32) are the largest tensor of a training step. Written plainly they
are made, read and written again by half a dozen operations; here a chunk of rows lives just long enough to give its
loss and its gradient. Its plain twin, in the tests: `F.cross_entropy(x @ Eᵀ, tgt_out, label_smoothing=ε)`, summed.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mt.special_tokens import PAD

LOGITS = 2**21  # at a time: 8 MB in float32, and as much for their probabilities


class Loss(NamedTuple):
    """Sums over the target tokens, padding left out."""

    smoothed: Float[Tensor, ""]
    """(1 - ε) · -log p(target) + ε · the mean of -log p over the vocabulary (Szegedy et al. 2016): is minimised."""
    nll: Float[Tensor, ""]
    """-log p(target), for perplexity: carries no gradient."""
    tokens: Int[Tensor, ""]


def cross_entropy(
    x: Float[Tensor, "B T D"],
    embedding: Float[Tensor, "V D"],
    tgt_out: Int[Tensor, "B T"],
    smoothing: float,
) -> Loss:
    """Loss of predicting tgt_out from the decoder's output x, whose logits are x @ embeddingᵀ."""
    real = tgt_out != PAD
    grad = torch.is_grad_enabled()
    if torch.is_autocast_enabled(x.device.type) and torch.get_autocast_dtype(x.device.type) == torch.bfloat16:
        x = x.bfloat16()  # autocast passes over products that write into a given tensor
    smoothed, nll = _ChunkedCrossEntropy.apply(x[real], embedding, tgt_out[real], smoothing, grad)  # type: ignore[no-untyped-call]
    return Loss(smoothed, nll, real.sum())


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "N D"],
        embedding: Float[Tensor, "V D"],
        target: Int[Tensor, "N"],
        smoothing: float,
        with_gradient: bool,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        weight = embedding.to(x.dtype)
        dx, dembedding = torch.empty_like(x), torch.zeros_like(weight)
        smoothed, nll = x.new_zeros((), dtype=torch.float32), x.new_zeros((), dtype=torch.float32)
        size = max(1, LOGITS // len(weight))
        for start in range(0, len(x), size):
            rows, labels = x[start : start + size], target[start : start + size, None]
            logits = (rows @ weight.T).float()
            p = logits.softmax(dim=-1)
            # log Σ exp(logits), from the largest p = exp(logit - log Σ): one pass of exponentials instead of two
            log_sum = logits.amax(dim=-1) - p.amax(dim=-1).log()
            rows_nll = log_sum - logits.gather(1, labels)[:, 0]
            nll += rows_nll.sum()
            smoothed += ((1 - smoothing) * rows_nll + smoothing * (log_sum - logits.mean(dim=-1))).sum()
            if with_gradient:
                # d smoothed / d logits = softmax - ((1 - ε) · one-hot + ε / V)
                gradient = p.sub_(smoothing / p.shape[-1])
                gradient.scatter_add_(1, labels, gradient.new_full(labels.shape, smoothing - 1))
                gradient = gradient.to(x.dtype)
                torch.mm(gradient, weight, out=dx[start : start + size])
                dembedding.addmm_(gradient.T, rows)
        ctx.save_for_backward(dx, dembedding)
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, grad_smoothed: Float[Tensor, ""], _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx, dembedding = ctx.saved_tensors
        return dx * grad_smoothed, dembedding.float() * grad_smoothed, None, None, None
