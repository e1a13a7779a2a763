"""Which words translate each other: links made by hand, the error rate against them, and IBM Model 1 beside it."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from mt.data.readers import EVERYDAY, everyday
from mt.inspection.words import words

Link = tuple[int, int]
"""A source word and a target word, counted from 0 as `words` counts."""


@dataclass(frozen=True)
class AlignedPair:
    src: str
    tgt: str
    links: frozenset[Link]


def aligned_pairs(src: str, tgt: str) -> list[AlignedPair]:
    """The 150 hand-aligned sentences of `everyday`. ValueError for other languages than English and Italian."""
    if {src, tgt} != {"en", "it"}:
        raise ValueError(f"the aligned sentences are English and Italian, not {src} and {tgt}")
    pairs = []
    for line in (EVERYDAY / "alignments.tsv").read_text(encoding="utf-8").splitlines():
        english, italian, listed = line.split("\t")
        links = [(int(i), int(j)) for i, j in (link.split("-") for link in listed.split())]
        if src == "en":
            pairs.append(AlignedPair(english, italian, frozenset(links)))
        else:
            pairs.append(AlignedPair(italian, english, frozenset((j, i) for i, j in links)))
    return pairs


def alignment_error_rate(found: Sequence[Set[Link]], sure: Sequence[Set[Link]]) -> float:
    """1 - 2 |A ∩ S| / (|A| + |S|) over all sentences: Och & Ney 2003, equation 5, where every link is a sure one."""
    common = sum(len(a & s) for a, s in zip(found, sure, strict=True))
    return 1 - 2 * common / sum(len(a) + len(s) for a, s in zip(found, sure, strict=True))


def baseline_aer(src: str, tgt: str) -> float:
    """The error rate of IBM Model 1 on the aligned sentences, learnt from `everyday` and, as usual, from them too."""
    aligned = aligned_pairs(src, tgt)
    corpus = zip(*everyday("train", src, tgt), strict=True)
    found = ibm_model_1([*((pair.src, pair.tgt) for pair in aligned), *corpus])
    return alignment_error_rate(found[: len(aligned)], [pair.links for pair in aligned])


def ibm_model_1(pairs: Sequence[tuple[str, str]], iterations: int = 5) -> list[set[Link]]:
    """Learn p(target word | source word) from pairs by EM (Brown et al. 1993, section 4.1), and align them with it.

    Each target word is linked to the source word that explains it best, or to none where the empty word does.
    """
    src_ids: dict[str, int] = {"": 0}
    tgt_ids: dict[str, int] = {}
    # A source word and a target word of one pair: their ids, and which occurrence of a target word it is.
    cells: list[tuple[int, int, int]] = []
    occurrences: list[tuple[int, int, list[int]]] = []  # of a target word: its pair, its place, its cells
    for number, (src, tgt) in enumerate(pairs):
        row = [0, *(src_ids.setdefault(word, len(src_ids)) for word in words(src.lower()))]
        for place, word in enumerate(words(tgt.lower())):
            column = tgt_ids.setdefault(word, len(tgt_ids))
            occurrences.append((number, place, list(range(len(cells), len(cells) + len(row)))))
            cells += [(i, column, len(occurrences) - 1) for i in row]
    source, target, occurrence = np.array(cells).reshape(-1, 3).T
    _, kind = np.unique(source * len(tgt_ids) + target, return_inverse=True)
    source_of_kind = np.zeros(kind.max() + 1, dtype=int)
    source_of_kind[kind] = source
    probability = np.ones(len(source_of_kind))
    for _ in range(iterations):
        explained = probability[kind]
        share = explained / np.bincount(occurrence, explained)[occurrence]
        count = np.bincount(kind, share)
        probability = count / np.bincount(source_of_kind, count)[source_of_kind]
    links: list[set[Link]] = [set() for _ in pairs]
    for number, place, mine in occurrences:
        best = int(probability[kind[mine]].argmax())
        if best > 0:
            links[number].add((best - 1, place))
    return links
