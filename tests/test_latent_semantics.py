"""Embeddings that start from which pieces stand in the same pairs, against numpy's singular vectors."""

import datasets
import numpy as np
import pytest
import torch

from mt.model.embedding import Embedding
from mt.training.latent_semantics import latent_vectors


def split(pairs: list[tuple[list[int], list[int]]]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"src_ids": [src for src, _ in pairs], "tgt_ids": [tgt for _, tgt in pairs]})


def random_pairs(count: int, vocab_size: int) -> list[tuple[list[int], list[int]]]:
    """Piece i translates piece i + half: it stands in the same pairs. The last piece of each half stands nowhere."""
    random = np.random.default_rng(0)
    half = vocab_size // 2
    sentences = [random.integers(half - 1, size=random.integers(1, 6)).tolist() for _ in range(count)]
    return [(src, [half + i for i in src]) for src in sentences]


def test_they_are_the_rows_of_the_leading_singular_vectors_up_to_a_rotation() -> None:
    pairs, vocab_size, width = random_pairs(400, 20), 20, 3
    matrix = np.zeros((len(pairs), vocab_size))
    for row, (src, tgt) in enumerate(pairs):
        matrix[row, src + tgt] = 1
    count = matrix.sum(axis=0)
    matrix *= np.log(len(pairs) / np.maximum(count, 1))
    rows = np.linalg.svd(matrix, full_matrices=False)[2][:width].T
    rows = (rows - rows[count > 0].mean(axis=0)) * (count > 0)[:, None]
    cosines = rows @ rows.T / np.maximum(np.outer(*[np.linalg.norm(rows, axis=1)] * 2), 1e-12)
    found = latent_vectors(split(pairs), vocab_size, width, rounds=300)
    assert np.allclose(found @ found.T, cosines, atol=1e-3)


def test_translations_start_as_neighbours_and_what_stands_nowhere_has_no_vector() -> None:
    vectors = latent_vectors(split(random_pairs(400, 40)), 40, 12)
    nearest = (vectors @ vectors.T - 2 * torch.eye(40)).argmax(dim=1)
    seen = [i for i in range(40) if i not in (19, 39)]
    assert nearest[seen].tolist() == [(i + 20) % 40 for i in seen]
    assert torch.allclose(vectors[seen].norm(dim=1), torch.ones(38))
    assert not vectors[[19, 39]].any()


@pytest.mark.parametrize(("count", "vocab_size"), [(3, 40), (400, 10)], ids=["few pairs", "few pieces"])
def test_a_width_above_the_matrix_rank_is_filled_with_zeros(count: int, vocab_size: int) -> None:
    vectors = latent_vectors(split(random_pairs(count, vocab_size)), vocab_size, 16)
    assert vectors.shape == (vocab_size, 16)
    assert vectors.isfinite().all()
    assert not vectors[:, min(count, vocab_size) :].any()


def test_embeddings_turn_towards_the_vectors_in_their_own_lengths() -> None:
    torch.manual_seed(0)
    embedding = Embedding(vocab_size=30, d_model=16, positions="sinusoidal")
    before = embedding.token.weight.detach().clone()
    vectors = torch.nn.functional.normalize(torch.randn(30, 16), dim=1)
    vectors[7] = 0
    vectors[9] = vectors[8]
    embedding.start_near(vectors)
    after = embedding.token.weight.detach()
    assert torch.allclose(after.norm(dim=1), before.norm(dim=1))
    assert torch.allclose(after[7], before[7])
    cosine = torch.cosine_similarity(after, vectors, dim=1)
    assert (cosine[torch.arange(30) != 7] > 0.95).all()
    assert not torch.allclose(after[8], after[9]), "can be told apart"
