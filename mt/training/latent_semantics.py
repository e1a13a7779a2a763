"""Vectors to start from: pieces that stand in the same pairs lie close together, within a language and across the two.

Latent semantic analysis (Deerwester et al. 1990) with pairs in place of documents (Landauer & Littman 1990): `tomorrow`
and `domani` stand in the same pairs, so their vectors are nearly the same before the first step.
"""

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from jaxtyping import Float
from torch import Tensor, nn

PAIRS = 100_000  # more of a large corpus take longer and tell little more


def latent_vectors(pairs: datasets.Dataset, vocab_size: int, width: int, rounds: int = 4) -> Float[Tensor, "V D"]:
    """Unit vectors from the columns src_ids and tgt_ids of some PAIRS pairs; 0 for pieces that stand in none of them.

    The matrix of pairs x pieces, weighted by inverse document frequency, has these as the rows of its first `width`
    right singular vectors (found by subspace iteration), less their mean.
    """
    table = pairs.with_format("arrow")[:: -(-len(pairs) // PAIRS)]
    cells = []
    for side in ("src_ids", "tgt_ids"):
        pair = np.repeat(np.arange(len(table)), pc.list_value_length(table[side]).to_numpy())
        cells.append(pair * vocab_size + pc.list_flatten(table[side]).to_numpy())
    rows, columns = np.divmod(np.unique(np.concatenate(cells)), vocab_size)
    frequency = np.bincount(columns, minlength=vocab_size)
    weights = np.log(len(table) / np.maximum(frequency, 1))[columns]
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([rows, columns])),
        torch.from_numpy(weights).float(),
        (len(table), vocab_size),
        check_invariants=True,
    )
    rank = min(width, *matrix.shape)
    vectors = torch.randn(vocab_size, rank, generator=torch.Generator().manual_seed(0))
    for _ in range(rounds):
        vectors = torch.linalg.qr(matrix.T @ (matrix @ vectors)).Q
    seen = torch.from_numpy(frequency > 0)
    vectors = torch.where(seen[:, None], vectors - vectors[seen].mean(dim=0), 0.0)
    return nn.functional.pad(nn.functional.normalize(vectors, dim=1), (0, width - rank))
