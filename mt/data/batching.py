"""Batches by token budget: sentences of like length together, in an order that depends on seed and epoch alone."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from mt.special_tokens import BOS, EOS, PAD

Item = TypeVar("Item")
MOST_JOINED = 3  # pairs of one row
NONE = -1  # stands for those that a row has not


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


def grouped(items: Iterable[Item], sizes: Sequence[int]) -> list[list[Item]]:
    """The items in order, as many in each group as sizes says."""
    items = iter(items)
    return [list(islice(items, size)) for size in sizes]


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


def join(
    lengths: Int[np.ndarray, "N 2"], share: float, longest: int, random: np.random.Generator
) -> Int[np.ndarray, "R _"]:
    """Rows of one pair or of several, one after the other, NONE behind the last; every pair stands in one row.

    Of the rows, `share` go on with a second pair, of these `share` with a third. lengths: pieces of both sides; a row
    of which one has more than `longest` falls apart. A model that meets single short sentences alone stops where they
    do: joined ones show it the places further on (Kondo et al. 2021, arXiv 2104.08478).
    """
    order = random.permutation(len(lengths)).astype(np.int32)
    # As many rows as the pairs are enough for: rows · (1 + share + share²) = pairs.
    first = math.ceil(len(order) / sum(share**place for place in range(MOST_JOINED)))
    rows = np.full((first, MOST_JOINED), NONE, np.int32)
    rows[:, 0], order = np.split(order, [first])
    for place in range(1, MOST_JOINED):
        taken, order = np.split(order, [math.ceil(first * share**place)])
        # The longer a row's target is than its source, the shorter that of the pair that follows: sides that are
        # alike need less padding.
        going_on = rows[: len(taken)]
        smallest_first = surplus(row_lengths(going_on, lengths)).argsort(kind="stable")
        largest_first = (-surplus(lengths[taken])).argsort(kind="stable")
        going_on[smallest_first, place] = taken[largest_first]
    long = (row_lengths(rows, lengths) > longest).any(axis=1)
    single = rows[long][rows[long] != NONE]
    alone = np.pad(single[:, None], ((0, 0), (0, MOST_JOINED - 1)), constant_values=NONE)
    return np.concatenate([rows[~long], alone])


def row_lengths(rows: Int[np.ndarray, "R _"], lengths: Int[np.ndarray, "N 2"]) -> Int[np.ndarray, "R 2"]:
    """Pieces of both sides of each row; lengths: of each pair."""
    lengths = np.append(lengths, np.zeros((1, 2), lengths.dtype), axis=0)  # NONE's, which is -1
    return lengths[rows].sum(axis=1)


def surplus(lengths: Int[np.ndarray, "R 2"]) -> Int[np.ndarray, "R"]:
    """By how much the target is longer than the source."""
    return lengths[:, 1] - lengths[:, 0]


def token_budget_batches(
    lengths: Int[np.ndarray, "R 2"],
    budget: int,
    shuffle: np.random.Generator | None,
) -> list[Int[np.ndarray, "_"]]:
    """Numbers of every row once, in batches whose rows × longest side (with its EOS) never pass the budget.

    lengths: pieces of both sides. shuffle: which rows of equal lengths meet, and the order of the batches; None keeps
    both as they come. ValueError if a single row is longer than the budget.
    """
    longest = lengths.max(axis=1, initial=0) + 1
    if len(longest) and longest.max() > budget:
        raise ValueError(
            f"batch_tokens={budget} is less than the longest sentence, {longest.max()} pieces with its EOS"
        )
    ties = np.arange(len(longest)) if shuffle is None else shuffle.permutation(len(longest))
    # By the longer side; within it by how much longer it is, up and down in turns, so that neighbours are alike.
    difference = surplus(lengths) * np.where(longest % 2, -1, 1)
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
