"""What a run shows while it trains: speed, translations with their scores, attention maps, scores of heads."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from mt.data.batching import Batch
from mt.inspection.alignment import aligned_pairs
from mt.inspection.attention_maps import attention_maps
from mt.inspection.figures import attention_figure, rgb
from mt.inspection.film import Scene, write_frame
from mt.inspection.heads import cross_heads, score_heads
from mt.special_tokens import PAD
from mt.tokenizer import Tokenizer
from mt.training.datamodule import TranslationData
from mt.training.module import TranslationModule
from mt.training.schedule import progress
from mt.training.scores import score

T = TypeVar("T")


class StopWhenUsedUp(L.Callback):
    """Ends a run at its last step, epoch or minute, so that a validation still sees the final weights."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.strategy.broadcast(progress(trainer)) >= 1:
            trainer.should_stop = True


class Throughput(L.Callback):
    """Target tokens per second of training since its start: loading included, validation left out."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self._since = 0.0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._since = time.perf_counter()

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_index: int
    ) -> None:
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        self.tokens += int((batch.tgt_out != PAD).sum()) * trainer.world_size
        module.log("train/tokens_per_second", self.tokens / self.seconds)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens, self.seconds = state["tokens"], state["seconds"]


class Translations(L.Callback):
    """At each validation: greedy translations of some validation sentences, val/bleu and val/chrf, and a few to read.

    num_scored: how many sentences, evenly spread over the split; num_shown: how many of them stand in TensorBoard
    (where more than some eight fill the frame, and hide that earlier steps stand below).
    """

    def __init__(self, *, num_scored: int, num_shown: int) -> None:
        if num_scored < 1:
            raise ValueError(f"callbacks.translations.num_scored={num_scored} is less than 1")
        self.num_scored = num_scored
        self.num_shown = num_shown

    def on_validation_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TranslationModule)
        sources, references = validation_pairs(trainer, self.num_scored)
        found = [t.text for t in module.translator.translate(sources, beam=1)]
        scores = score(found, [[reference] for reference in references])
        module.log_dict({"val/bleu": scores.bleu, "val/chrf": scores.chrf})
        if (writer := tensorboard(trainer)) is None:
            return
        table = ["| source | translation | reference |", "|---|---|---|"]
        for cells in spread(list(zip(sources, found, references, strict=True)), self.num_shown):
            table.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        writer.add_text("translations", "\n".join(table), trainer.global_step)


class AttentionFigures(L.Callback):
    """At each validation: every layer and head of a few sentences, forced to their references, as pictures.

    TensorBoard keeps ten pictures of a tag unless it is started with --samples_per_plugin images=1000,text=1000.
    """

    def __init__(self, *, num_sentences: int, max_pieces: int) -> None:
        """max_pieces: longer sentences are passed over, so that the pictures stay legible."""
        self.num_sentences = num_sentences
        self.max_pieces = max_pieces

    def on_validation_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TranslationModule)
        if (writer := tensorboard(trainer)) is None:
            return
        tokenizer = module.translator.tokenizer
        for shown, pair in enumerate(short_pairs(trainer, tokenizer, self.num_sentences, self.max_pieces)):
            for attention_map in attention_maps(module.model, tokenizer, *tokenizer.encode(pair)):
                picture = rgb(attention_figure(attention_map))
                writer.add_image(
                    f"attention/{shown}/{attention_map.name}", picture, trainer.global_step, dataformats="HWC"
                )


class AttentionFilm(L.Callback):
    """At each validation: a frame for `scripts/attention_page.py`, and the scores of the cross-attention heads.

    The frame holds every map of some validation pairs, forced to their references, so that frames can be compared,
    and the translation at that step. Heads are scored between English and Italian, whose words are aligned by hand.
    """

    def __init__(self, *, num_sentences: int, max_pieces: int) -> None:
        """max_pieces: longer sentences are passed over, so that the maps stay legible."""
        self.num_sentences = num_sentences
        self.max_pieces = max_pieces

    def on_validation_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, TranslationModule)
        if not trainer.is_global_zero:
            return
        translator = module.translator
        pairs = short_pairs(trainer, translator.tokenizer, self.num_sentences, self.max_pieces)
        translations = translator.translate([src for src, _ in pairs], beam=1)
        scenes = []
        for pair, translation in zip(pairs, translations, strict=True):
            maps = attention_maps(module.model, translator.tokenizer, *translator.tokenizer.encode(pair))
            scenes.append(Scene(*pair, maps, translation=translation.text))
        board = None
        if cross_heads(module.model) and {translator.src, translator.tgt} == {"en", "it"}:
            aligned = aligned_pairs(translator.src, translator.tgt)
            board = score_heads(module.model, translator.tokenizer, aligned)
            if (writer := tensorboard(trainer)) is not None:
                writer.add_scalar("heads/aer/mean", board.mean_aer, trainer.global_step)
                for head in board.heads:
                    for measure in ("aer", "entropy", "eos_share", "diagonality"):
                        tag = f"heads/{measure}/layer_{head.layer}_head_{head.head}"
                        writer.add_scalar(tag, getattr(head, measure), trainer.global_step)
        write_frame(Path(trainer.default_root_dir), trainer.global_step, scenes, board)


def validation_pairs(trainer: L.Trainer, number: int) -> tuple[list[str], list[str]]:
    """The same sentences and references at every call: at most `number`, evenly spread over the split."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    assert isinstance(data, TranslationData)
    split = data.corpus.splits["validation"]
    chosen = split[spread(range(len(split)), number)]
    return chosen["src"], chosen["tgt"]


def short_pairs(trainer: L.Trainer, tokenizer: Tokenizer, number: int, max_pieces: int) -> list[tuple[str, str]]:
    """Of `validation_pairs` that have at most max_pieces a side: at most `number`, evenly spread again."""
    pairs = zip(*validation_pairs(trainer, 100 * number), strict=True)
    return spread([pair for pair in pairs if max(map(len, tokenizer.encode(pair))) <= max_pieces], number)


def spread(items: Sequence[T], number: int) -> list[T]:
    """At most `number` of them: the middles of so many equal parts (a file may begin with its shortest sentences)."""
    number = min(number, len(items))
    return [items[(2 * i + 1) * len(items) // (2 * number)] for i in range(number)]


def tensorboard(trainer: L.Trainer) -> SummaryWriter | None:
    """The run's event file, where it has one and this process writes it."""
    logger = trainer.logger
    return logger.experiment if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero else None
