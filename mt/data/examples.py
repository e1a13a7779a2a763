"""Batches made of a split's pairs on the way to training: with noise and sampled segmentations, if wanted."""

from collections.abc import Sequence
from itertools import chain

import datasets
import numpy as np
from jaxtyping import Int
from torch.utils.data import Dataset

from mt.data.batching import NONE, Batch, grouped, make_batch
from mt.tokenizer import Tokenizer

CANDIDATES = 16  # segmentations that sampling chooses from (Kudo 2018: l)
FINAL_MARKS = " .!?…"


class BatchedPairs(Dataset[Batch]):
    """Batch i holds the pairs whose indices stand in batches[i], one row of it those of one row, NONE left out.

    noise: share of the source rows that lose their capitals, and share that lose their final mark: people type `where
    is the station`. sampling: Kudo's α for subword regularisation, 0 for none. Both follow from seed, epoch and batch
    alone; neither makes a row longer than the longest of its batch is without them, so the budget holds.
    """

    def __init__(
        self,
        split: datasets.Dataset,
        batches: Sequence[Int[np.ndarray, "_ _"]],
        tokenizer: Tokenizer,
        *,
        noise: float,
        sampling: float,
        seed: tuple[int, ...],
    ) -> None:
        self.ids = split.select_columns(["src_ids", "tgt_ids"])
        self.batches = batches
        self.tokenizer = tokenizer
        self.noise = noise
        self.sampling = sampling
        self.seed = seed

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Batch:
        rows = self.batches[i]
        pairs = self.ids[rows[rows != NONE]]
        parts = np.count_nonzero(rows != NONE, axis=1).tolist()
        src, tgt = ([list(chain(*ids)) for ids in grouped(pairs[side], parts)] for side in ("src_ids", "tgt_ids"))
        if not self.noise and not self.sampling:
            return make_batch(src, tgt)
        # Texts as their ids have them: those of the split would be read from the disk, too.
        src_texts = [self.tokenizer.decode(ids) for ids in src]
        src_room, tgt_room = max(map(len, src)), max(map(len, tgt))
        random = np.random.default_rng([*self.seed, int(rows[0, 0])])
        noisy = [add_noise(text, self.noise, random) for text in src_texts]
        changed = [row for row, text in enumerate(src_texts) if noisy[row] != text]
        for row, ids in zip(changed, self.tokenizer.encode([noisy[row] for row in changed]), strict=True):
            if len(ids) <= src_room:
                src_texts[row], src[row] = noisy[row], ids
        if self.sampling:
            tgt_texts = [self.tokenizer.decode(ids) for ids in tgt]
            for texts, side, room in ((src_texts, src, src_room), (tgt_texts, tgt, tgt_room)):
                side[:] = [self._sample(*row, room, random) for row in zip(texts, side, strict=True)]
        return make_batch(src, tgt)

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
