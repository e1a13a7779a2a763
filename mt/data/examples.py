"""Batches made of a split's pairs on the way to training: with noise and sampled segmentations, if wanted."""

from collections.abc import Sequence

import datasets
import numpy as np
from jaxtyping import Int
from torch.utils.data import Dataset

from mt.data.batching import Batch, make_batch
from mt.tokenizer import Tokenizer

CANDIDATES = 16  # segmentations that sampling chooses from (Kudo 2018: l)
FINAL_MARKS = " .!?…"


class BatchedPairs(Dataset[Batch]):
    """Batch i holds the pairs whose indices stand in batches[i].

    noise: share of the source sentences that lose their capitals, and share that lose their final mark: people type
    `where is the station`. sampling: Kudo's α for subword regularisation, 0 for none. Both follow from seed, epoch and
    pair alone; neither makes a sentence longer than the longest of its batch is without them, so the budget holds.
    """

    def __init__(
        self,
        split: datasets.Dataset,
        batches: Sequence[Int[np.ndarray, "_"]],
        tokenizer: Tokenizer,
        *,
        noise: float,
        sampling: float,
        seed: tuple[int, ...],
    ) -> None:
        self.split = split
        self.ids = split.select_columns(["src_ids", "tgt_ids"])
        self.batches = batches
        self.tokenizer = tokenizer
        self.noise = noise
        self.sampling = sampling
        self.seed = seed

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Batch:
        indices = self.batches[i]
        if not self.noise and not self.sampling:
            pairs = self.ids[indices]
            return make_batch(pairs["src_ids"], pairs["tgt_ids"])
        pairs = self.split[indices]
        src, tgt = pairs["src_ids"], pairs["tgt_ids"]
        src_room, tgt_room = max(map(len, src)), max(map(len, tgt))
        for row, index in enumerate(indices.tolist()):
            random = np.random.default_rng([*self.seed, index])
            src[row] = self._varied(pairs["src"][row], src[row], src_room, self.noise, random)
            tgt[row] = self._varied(pairs["tgt"][row], tgt[row], tgt_room, 0.0, random)
        return make_batch(src, tgt)

    def _varied(self, sentence: str, ids: list[int], room: int, noise: float, random: np.random.Generator) -> list[int]:
        noisy = add_noise(sentence, noise, random)
        if noisy != sentence and len(noisy_ids := self.tokenizer.encode([noisy])[0]) <= room:
            sentence, ids = noisy, noisy_ids
        return self._sample(sentence, ids, room, random) if self.sampling else ids

    def _sample(self, sentence: str, best: list[int], room: int, random: np.random.Generator) -> list[int]:
        """A segmentation drawn with probability ∝ P(segmentation)^α among those that fit (Kudo 2018, section 3.2)."""
        fitting = [c for c in self.tokenizer.candidates(sentence, CANDIDATES) if 0 < len(c[0]) <= room]
        if not fitting:
            return best
        scores = self.sampling * np.array([score for _, score in fitting])
        weights = np.exp(scores - scores.max())
        return fitting[random.choice(len(fitting), p=weights / weights.sum())][0]


def add_noise(sentence: str, share: float, random: np.random.Generator) -> str:
    """In lower case with probability `share`, without its final mark with probability `share`.

    Up to a share of 1/2, half of the sentences that lose one of them lose the other too: who types in haste omits both.
    """
    draw = random.random()
    lower, unmarked = draw < share, (draw - share / 2) % 1 < share
    if lower:
        sentence = sentence.lower()
    if unmarked:
        sentence = sentence.rstrip(FINAL_MARKS) or sentence
    return sentence
