"""Batches by token budget: sentences of like length together, in an order that depends on seed and epoch alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from mt.special_tokens import BOS, EOS, PAD


class Batch(NamedTuple):
    src: Int[Tensor, "B S"]
    """Ends with EOS."""
    tgt_in: Int[Tensor, "B T"]
    """Begins with BOS."""
    tgt_out: Int[Tensor, "B T"]
    """The piece that follows each piece of tgt_in: ends with EOS."""


def pad(rows: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
    """One tensor of rows, padded at their ends."""
    out = np.full((len(rows), max(map(len, rows))), PAD)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(out)


def make_batch(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> Batch:
    """src, tgt: ids without BOS and EOS, one row a pair."""
    return Batch(
        src=pad([[*ids, EOS] for ids in src]),
        tgt_in=pad([[BOS, *ids] for ids in tgt]),
        tgt_out=pad([[*ids, EOS] for ids in tgt]),
    )


def one_of_each(sources: Shaped[np.ndarray, "N"], random: np.random.Generator) -> Int[np.ndarray, "_"]:
    """The index of one pair, drawn at random, of each source sentence, in ascending order.

    sources: what is the same for pairs with the same source sentence. Some sentences of a public corpus have dozens of
    translations: an epoch of all pairs would be about those, and meet the words of the others too seldom.
    """
    order = random.permutation(len(sources))
    _, first = np.unique(sources[order], return_index=True)
    return np.sort(order[first])


def token_budget_batches(
    src_lengths: Int[np.ndarray, "N"],
    tgt_lengths: Int[np.ndarray, "N"],
    budget: int,
    shuffle: np.random.Generator | None,
) -> list[Int[np.ndarray, "_"]]:
    """Indices of every pair once, in batches whose rows × longest side (with its EOS) never pass the budget.

    shuffle: which pairs of equal lengths meet, and the order of the batches. None keeps both as they come.
    ValueError if a single pair is longer than the budget.
    """
    longest = np.maximum(src_lengths, tgt_lengths) + 1
    if len(longest) and longest.max() > budget:
        raise ValueError(
            f"batch_tokens={budget} is less than the longest sentence, {longest.max()} pieces with its EOS"
        )
    ties = np.arange(len(longest)) if shuffle is None else shuffle.permutation(len(longest))
    # By the longer side; within it by how much longer it is, up and down in turns, so that neighbours are alike.
    difference = np.where(longest % 2, src_lengths - tgt_lengths, tgt_lengths - src_lengths)
    order = np.lexsort((ties, difference, longest))
    batches, start, width = [], 0, 0
    for end, length in enumerate(longest[order].tolist()):
        width = max(width, length)
        if (end + 1 - start) * width > budget:
            batches.append(order[start:end])
            start, width = end, length
    if start < len(order):
        batches.append(order[start:])
    if shuffle is not None:
        batches = [batches[i] for i in shuffle.permutation(len(batches))]
    return batches
