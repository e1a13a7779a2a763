"""The corpus as Lightning's data module: which batches a rank sees, in which order, from where on."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from jaxtyping import Int
from torch.utils.data import DataLoader, Sampler

from mt.data.batching import NONE, Batch, join, one_of_each, row_lengths, token_budget_batches
from mt.data.corpus import Corpus, lengths, prepare
from mt.data.examples import BatchedPairs
from mt.training.checkpoints import check_same

# Of conf/data; the rest prepares the corpus.
BATCHING = ("batch_tokens", "one_translation", "joined", "noise", "sampling", "num_workers")


class TranslationData(L.LightningDataModule):
    """batch_tokens bounds rows × longest side of a batch, in pieces. Use with reload_dataloaders_every_n_epochs=1.

    one_translation: an epoch holds each source sentence once, with one of its translations, drawn anew every time.
    joined: share of the rows that go on with another pair, drawn anew, too.

    The order of an epoch depends on seed and epoch alone, so a resumed run goes on where it stopped.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        one_translation: bool,
        joined: float,
        noise: float,
        sampling: float,
        num_workers: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.one_translation = one_translation
        self.joined = joined
        self.noise = noise
        self.sampling = sampling
        self.num_workers = num_workers
        self.seed = seed
        self._resumed = False  # the first epoch's loader leaves out what a resumed run has done of it

    @classmethod
    def prepare(cls, settings: Mapping[str, Any], seed: int) -> "TranslationData":
        """settings: as conf/data has them."""
        batching = {name: settings[name] for name in BATCHING}
        corpus = prepare(**{name: value for name, value in settings.items() if name not in BATCHING})
        return cls(corpus, **batching, seed=seed)

    def state_dict(self) -> dict[str, Any]:
        """What decides about the batches of an epoch; how many of them are done, Lightning restores."""
        names = ("batch_tokens", "one_translation", "joined", "noise", "sampling", "seed")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved, mine = (
            {name if name == "seed" else f"data.{name}": value for name, value in values.items()}
            for values in (state, self.state_dict())
        )
        check_same(saved, mine)
        self._resumed = True

    def batches(self, split: str, budget: int, epoch: int | None) -> list[Int[np.ndarray, "_ _"]]:
        """Indices of the pairs of every row. epoch None: each pair of the split once, in a row of its own."""
        pairs = self.corpus.splits[split]
        sizes = np.stack([lengths(pairs, side) for side in ("src_ids", "tgt_ids")], axis=1)
        if epoch is None:
            rows = np.arange(len(pairs))[:, None]
            return [rows[batch] for batch in token_budget_batches(sizes, budget, None)]
        random = np.random.default_rng([self.seed, epoch])
        chosen = np.arange(len(pairs))
        if self.one_translation:
            chosen = one_of_each(pairs.data.column("source").to_numpy(), random)
        rows = join(sizes[chosen], self.joined, budget - 1, random)
        rows = np.append(chosen, NONE)[rows]
        return [rows[batch] for batch in token_budget_batches(row_lengths(rows, sizes), budget, random)]

    def pairs(self, batches: Sequence[Int[np.ndarray, "_ _"]], epoch: int) -> BatchedPairs:
        """Batches of the training split, varied as in that epoch."""
        return BatchedPairs(
            self.corpus.splits["train"],
            batches,
            self.corpus.tokenizer,
            noise=self.noise,
            sampling=self.sampling,
            seed=(self.seed, epoch),
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        epoch = self.trainer.current_epoch
        pairs = self.pairs(self._mine(self.batches("train", self.batch_tokens, epoch)), epoch)
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        resumed, self._resumed = self._resumed, False
        done = progress.ready if resumed else 0
        if not resumed:  # a run resumed at an epoch's end: Lightning compares that one's batches with this one's
            progress.completed = max(progress.completed, len(pairs))
        return loader(pairs, Remaining(len(pairs), done), self.num_workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        pairs = self.corpus.splits["validation"]
        longest = max(lengths(pairs, side).max() for side in ("src_ids", "tgt_ids")) + 1
        mine = self._mine(self.batches("validation", max(self.batch_tokens, int(longest)), None))
        return loader(BatchedPairs(pairs, mine, self.corpus.tokenizer, noise=0.0, sampling=0.0, seed=()))

    def _mine(self, batches: list[Int[np.ndarray, "_ _"]]) -> list[Int[np.ndarray, "_ _"]]:
        """This process's share. All have the same number, and none has nothing: the others would wait for it."""
        assert self.trainer is not None
        ranks = self.trainer.world_size
        return share_out(batches, ranks)[self.trainer.global_rank :: ranks]


def loader(pairs: BatchedPairs, sampler: Sampler[int] | None = None, num_workers: int = 0) -> DataLoader[Batch]:
    """Draws nothing from the global random state, so that a resumed run meets the same one."""
    return DataLoader(
        pairs,
        batch_size=None,
        sampler=sampler,
        num_workers=num_workers,
        generator=torch.Generator(),
        worker_init_fn=end_with_the_run,
    )


def end_with_the_run(worker: int) -> None:
    """Ctrl-C is the run's to handle, and a run that is killed while it takes a batch over is no error of the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.excepthook = lambda *_: None  # called by multiprocessing's thread alone: what a batch raises goes to the run


class Remaining(Sampler[int]):
    """The batches of an epoch that are not done yet; its length is the whole epoch's, as Lightning counts."""

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self.done = done

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.done, self.total))

    def __len__(self) -> int:
        return self.total


def share_out(batches: list[Int[np.ndarray, "_ _"]], ranks: int) -> list[Int[np.ndarray, "_ _"]]:
    """The same pairs in a number of batches that `ranks` divides: the largest are halved until it does."""
    batches = list(batches)
    while len(batches) % ranks:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        if len(batches[largest]) < 2:
            raise ValueError(f"{len(batches)} pairs can't be shared out over {ranks} devices")
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches
